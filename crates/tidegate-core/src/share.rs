//! Shares of a limit that are reserved for classes, and really hold.
//!
//! A class with a share has a slice of the limit that nobody else is lent: another class is admitted only while
//! everyone could still fill what is left of their own slice. So a slice is free when its class comes, with any number
//! of classes and in any order of arrival, and nobody's lease has to be taken away.
//!
//! The promise is exact while every class has room and the limit stands still. After a change it holds again as soon
//! as the leases granted under the old limit leave room.
//!
//! Spec: AS-5.

use crate::Fraction;

/// The slots reserved for a class: `ceil(share × limit)`.
///
/// ```
/// # use tidegate_core::{Fraction, share::slice};
/// assert_eq!(slice(Fraction::from_ppm(250_000), 21), 6);
/// ```
pub fn slice(share: Fraction, limit: u32) -> u32 {
    share.ceil_of(limit)
}

/// How many more leases the class at `of` may take now.
///
/// `classes` gives the share of each class and the leases it holds, unreserved ones with a share of zero; jobs without
/// a class are a last entry of their own.
///
/// It is the largest `n` with `held + n + Σ max(0, sliceᵢ − heldᵢ) ≤ limit`, the sum over the other classes. Where the
/// slices of the others take up the whole limit, so that this would always be 0, a class that holds nothing may still
/// take one lease while `held < limit`: no class is ever locked out.
///
/// ```
/// # use tidegate_core::{Fraction, share::room};
/// // A limit of 20, a quarter of it reserved for each of two classes. The first holds 10, the second nothing.
/// let quarter = Fraction::from_ppm(250_000);
/// let classes = [(quarter, 10), (quarter, 0), (Fraction::ZERO, 0)];
/// assert_eq!(room(20, classes.into_iter(), 0), 5);
/// assert_eq!(room(20, classes.into_iter(), 1), 10);
/// assert_eq!(room(20, classes.into_iter(), 2), 5);
/// ```
pub fn room(limit: u32, classes: impl Iterator<Item = (Fraction, u32)>, of: usize) -> u32 {
    let (mut own, mut held, mut reserved, mut unused) = (0, 0_u64, 0_u64, 0_u64);
    for (index, (share, leases)) in classes.enumerate() {
        held = held.saturating_add(u64::from(leases));
        if index == of {
            own = leases;
            continue;
        }
        let slice = slice(share, limit);
        reserved = reserved.saturating_add(u64::from(slice));
        unused = unused.saturating_add(u64::from(slice.saturating_sub(leases)));
    }
    let limit = u64::from(limit);
    if reserved >= limit {
        return u32::from(own == 0 && held < limit);
    }
    // At most the limit, which is of 32 bits.
    u32::try_from(limit.saturating_sub(held).saturating_sub(unused)).unwrap_or(u32::MAX)
}
