//! Reserved shares: the slices hold, nobody is locked out, and the room is what counting one by one finds.

use proptest::{collection::vec, prelude::*};
use tidegate_core::{
    Fraction,
    share::{room, slice},
};

type Classes = Vec<(Fraction, u32)>;

fn room_of(limit: u32, classes: &Classes, of: usize) -> u32 {
    room(limit, classes.iter().copied(), of)
}

fn total(classes: &Classes) -> u64 {
    classes.iter().map(|(_, held)| u64::from(*held)).sum()
}

/// The slices of all classes but one.
fn others(limit: u32, classes: &Classes, of: usize) -> u64 {
    let others = classes.iter().enumerate().filter(|(index, _)| *index != of);
    others.map(|(_, (share, _))| u64::from(slice(*share, limit))).sum()
}

/// Whether the rule, word for word, lets the class take one more.
fn admits_one(limit: u32, classes: &Classes, of: usize) -> bool {
    let unused: u64 = classes
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != of)
        .map(|(_, (share, held))| u64::from(slice(*share, limit).saturating_sub(*held)))
        .sum();
    let fits = total(classes) + 1 + unused <= u64::from(limit);
    let only_one = others(limit, classes, of) >= u64::from(limit)
        && classes.get(of).is_none_or(|(_, held)| *held == 0)
        && total(classes) < u64::from(limit);
    fits || only_one
}

fn by_percent(percents: &[u32]) -> Classes {
    percents.iter().map(|percent| (Fraction::from_ppm(percent * 10_000), 0)).collect()
}

#[test]
fn as_5_a_slice_is_rounded_up() {
    assert_eq!(slice(Fraction::from_ppm(70_000), 100), 7);
    assert_eq!(slice(Fraction::from_ppm(1), 20), 1);
    assert_eq!(slice(Fraction::ZERO, 1_000_000), 0);
}

#[test]
fn as_5_one_reserved_class_may_use_all() {
    let mut classes = by_percent(&[30, 0]);
    assert_eq!(room_of(10, &classes, 0), 10);
    assert_eq!(room_of(10, &classes, 1), 7);
    classes[1].1 = 7;
    assert_eq!([room_of(10, &classes, 0), room_of(10, &classes, 1)], [3, 0]);
    classes[1].1 = 0;
    classes[0].1 = 10;
    assert_eq!([room_of(10, &classes, 0), room_of(10, &classes, 1)], [0, 0]);
}

#[test]
fn as_5_a_class_that_the_slices_leave_no_room_may_hold_one() {
    let mut classes = by_percent(&[45, 45, 0]);
    assert_eq!(room_of(2, &classes, 2), 1);
    classes[2].1 = 1;
    assert_eq!(room_of(2, &classes, 2), 0);
    classes[0].1 = 1;
    assert_eq!(room_of(2, &classes, 1), 0, "the limit itself always holds");
}

#[test]
fn as_5_a_limit_of_one_is_shared_in_turns() {
    let mut classes = by_percent(&[50, 40, 0]);
    assert_eq!([0, 1, 2].map(|of| room_of(1, &classes, of)), [1, 1, 1]);
    classes[1].1 = 1;
    assert_eq!([0, 1, 2].map(|of| room_of(1, &classes, of)), [0, 0, 0]);
}

#[test]
fn as_5_no_room_while_more_is_held_than_a_lowered_limit() {
    let mut classes = by_percent(&[25, 25, 0]);
    classes[2].1 = 10;
    assert_eq!([0, 1, 2].map(|of| room_of(10, &classes, of)), [0, 0, 0]);
    classes[2].1 = 8;
    assert_eq!([0, 1, 2].map(|of| room_of(10, &classes, of)), [0, 0, 0], "a slice that is lent out still");
    classes[2].1 = 4;
    assert_eq!([0, 1, 2].map(|of| room_of(10, &classes, of)), [3, 3, 0]);
}

#[test]
fn bi_2_the_largest_numbers_are_only_numbers() {
    let classes = vec![(Fraction::ONE, u32::MAX); 40];
    assert_eq!(room_of(u32::MAX, &classes, 0), 0);
    assert_eq!(room_of(u32::MAX, &Vec::new(), 7), u32::MAX);
    assert_eq!(room_of(0, &by_percent(&[0]), 0), 0);
}

#[test]
fn case_6_a_slice_is_there_at_once_whatever_others_took() {
    let mut classes = by_percent(&[25, 25, 0]);
    classes[1].1 = room_of(20, &classes, 1);
    assert_eq!(classes[1].1, 15);
    assert_eq!(room_of(20, &classes, 0), 5);

    let mut classes = by_percent(&[25, 25, 0]);
    classes[0].1 = 10;
    assert_eq!(room_of(20, &classes, 2), 5, "all but what B is owed, and no less");
}

/// Shares that sum below one, and jobs without a class last; nothing held.
fn classes() -> impl Strategy<Value = Classes> {
    (vec(0..1_000_u32, 1..7), 1..1_000_u32).prop_map(|(weights, rest)| {
        let sum = weights.iter().sum::<u32>() + rest;
        let shares = weights.iter().map(|w| if w % 3 == 0 { 0 } else { w * 1_000 / sum * 1_000 });
        shares.chain([0]).map(|ppm| (Fraction::from_ppm(ppm), 0)).collect()
    })
}

proptest! {
    #[test]
    fn as_5_room_is_what_counting_one_by_one_finds(
        limit in prop_oneof![1..8_u32, 1..60_u32], classes in classes(), held in vec(0..12_u32, 8), of in 0..8_usize,
    ) {
        let mut classes = classes;
        let of = of % classes.len();
        for (class, held) in classes.iter_mut().zip(held) {
            class.1 = held;
        }
        let room = room_of(limit, &classes, of);
        let mut counted = 0;
        while admits_one(limit, &classes, of) {
            classes[of].1 += 1;
            counted += 1;
        }
        prop_assert_eq!(room, counted);
    }

    #[test]
    fn as_5_no_class_is_refused_its_slice_or_locked_out(
        limit in prop_oneof![1..8_u32, 1..60_u32], classes in classes(),
        moves in vec((0..8_usize, prop_oneof![Just(1_u32), 1..40_u32], any::<bool>()), 1..120),
    ) {
        let mut classes = classes;
        let count = classes.len();
        let all_have_room = (0..count).all(|of| others(limit, &classes, of) < u64::from(limit));
        for (of, leases, arrives) in moves {
            let of = of % count;
            let held = classes[of].1;
            classes[of].1 = if arrives {
                held + leases.min(room_of(limit, &classes, of))
            } else {
                held.saturating_sub(leases)
            };
            prop_assert!(total(&classes) <= u64::from(limit));
            for of in 0..count {
                let room = room_of(limit, &classes, of);
                let (share, held) = classes[of];
                if all_have_room {
                    prop_assert!(room >= slice(share, limit).saturating_sub(held), "{of} of {classes:?}");
                }
                if others(limit, &classes, of) >= u64::from(limit) && held == 0 {
                    prop_assert_eq!(room, u32::from(total(&classes) < u64::from(limit)));
                }
            }
        }
        // Once all others have gone, each class has room.
        classes.iter_mut().for_each(|class| class.1 = 0);
        for of in 0..count {
            prop_assert!(room_of(limit, &classes, of) >= 1);
        }
    }
}
