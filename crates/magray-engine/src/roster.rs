//! A list that grows while others read it: what is in it stays at its place.
//! Removes nothing, and takes no more than its bound.

use std::ops::Index;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Entries by number, from 0 on.
#[derive(Debug)]
pub struct Roster<T> {
    places: Box<[OnceLock<T>]>,
    len: AtomicUsize,
}

/// No more entries fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} models have come since the start, which is the bound: restart magray")]
pub struct RosterFull(pub usize);

impl<T> Roster<T> {
    /// How many entries may come after the first ones.
    pub const MORE_MAX: usize = 256;

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry of this number.
    pub fn get(&self, at: usize) -> Option<&T> {
        self.places.get(at)?.get()
    }

    /// All entries, in the order of their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        (0..self.len()).map(|at| &self[at])
    }

    /// Whether one more fits.
    pub fn has_room(&self) -> Result<(), RosterFull> {
        if self.len() < self.places.len() { Ok(()) } else { Err(RosterFull(self.places.len())) }
    }

    /// Adds an entry; its number. One caller at a time adds.
    pub fn push(&self, entry: T) -> Result<usize, RosterFull> {
        let at = self.len();
        let place = self.places.get(at).ok_or(RosterFull(self.places.len()))?;
        assert!(place.set(entry).is_ok(), "two callers add entries at once");
        self.len.store(at + 1, Ordering::Release);
        Ok(at)
    }
}

impl<T> FromIterator<T> for Roster<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut places: Vec<OnceLock<T>> = entries.into_iter().map(OnceLock::from).collect();
        let len = AtomicUsize::new(places.len());
        places.resize_with(places.len() + Self::MORE_MAX, OnceLock::new);
        Self { places: places.into(), len }
    }
}

impl<T> Default for Roster<T> {
    fn default() -> Self {
        Self::from_iter([])
    }
}

impl<T> Index<usize> for Roster<T> {
    type Output = T;

    /// One that is not there is a bug.
    fn index(&self, at: usize) -> &T {
        self.get(at).unwrap_or_else(|| unreachable!("entry {at} of {}", self.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_at_their_places_while_others_come() {
        let roster: Roster<String> = ["a", "b"].map(str::to_owned).into_iter().collect();
        let first = &roster[0];
        assert_eq!(roster.push("c".to_owned()), Ok(2));
        assert_eq!((first.as_str(), roster.len(), roster.get(3)), ("a", 3, None));
        assert_eq!(roster.iter().cloned().collect::<String>(), "abc");
        let more = (0..).take_while(|_| roster.push(String::new()).is_ok()).count();
        assert_eq!((more, roster.has_room()), (Roster::<u8>::MORE_MAX - 1, Err(RosterFull(258))));
    }
}
