//! Values under keys; the key of a value that was taken out is given again, the last one first.
//!
//! As the crate `slab`, but a value is written right where it stays. What is known of a permit is large, and putting it
//! there by a call that nobody inlines took as long as all that the store decides.

pub(super) struct Table<T> {
    places: Vec<Place<T>>,
    /// The place that was left last: as many as there are places where none is free.
    free: usize,
    len: usize,
}

enum Place<T> {
    Taken(T),
    /// With the one that was left before it.
    Free(usize),
}

impl<T> Table<T> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), free: 0, len: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Says under which key it is.
    #[inline(always)]
    pub(super) fn insert(&mut self, value: T) -> usize {
        let key = self.free;
        self.len += 1;
        match self.places.get_mut(key) {
            Some(place @ Place::Free(_)) => {
                if let Place::Free(before) = *place {
                    self.free = before;
                }
                *place = Place::Taken(value);
            }
            _ => {
                self.places.push(Place::Taken(value));
                self.free = self.places.len();
            }
        }
        key
    }

    #[inline]
    pub(super) fn get(&self, key: usize) -> Option<&T> {
        match self.places.get(key) {
            Some(Place::Taken(value)) => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        match self.places.get_mut(key) {
            Some(Place::Taken(value)) => Some(value),
            _ => None,
        }
    }

    /// Takes a value out, where there is one.
    #[inline(always)]
    pub(super) fn remove(&mut self, key: usize) -> Option<T> {
        let place = self.places.get_mut(key).filter(|place| matches!(place, Place::Taken(_)))?;
        let Place::Taken(value) = std::mem::replace(place, Place::Free(self.free)) else { return None };
        self.free = key;
        self.len -= 1;
        Some(value)
    }

    /// Drops a value where it is: taking it out would move it.
    #[inline(always)]
    pub(super) fn clear(&mut self, key: usize) {
        if let Some(place @ Place::Taken(_)) = self.places.get_mut(key) {
            *place = Place::Free(self.free);
            self.free = key;
            self.len -= 1;
        }
    }

    /// In the order of the keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.places.iter().enumerate().filter_map(|(key, place)| match place {
            Place::Taken(value) => Some((key, value)),
            Place::Free(_) => None,
        })
    }

    /// As [`iter`](Self::iter).
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.places.iter_mut().enumerate().filter_map(|(key, place)| match place {
            Place::Taken(value) => Some((key, value)),
            Place::Free(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_given_again_the_last_one_first() {
        let mut table = Table::new();
        assert!(table.is_empty());
        assert_eq!(["a", "b", "c"].map(|value| table.insert(value)), [0, 1, 2]);
        assert_eq!((table.remove(0), table.remove(2)), (Some("a"), Some("c")));
        assert!(table.remove(2).is_none() && table.get(0).is_none() && table.get_mut(2).is_none());
        assert_eq!(["d", "e", "f"].map(|value| table.insert(value)), [2, 0, 3]);
        assert_eq!(table.iter().collect::<Vec<_>>(), [(0, &"e"), (1, &"b"), (2, &"d"), (3, &"f")]);
        table.iter_mut().for_each(|(_, value)| *value = "g");
        table.clear(1);
        table.clear(1);
        table.clear(4);
        assert_eq!(table.get(1), None);
        assert_eq!((table.insert("g"), table.insert("h")), (1, 4));
        table.clear(4);
        assert_eq!([0, 1, 2, 3].map(|key| table.remove(key)), [Some("g"); 4]);
        assert!(table.is_empty() && table.remove(4).is_none() && table.remove(usize::MAX).is_none());
    }
}
