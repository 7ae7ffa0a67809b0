//! Entries of a cache in two generations: what was used since the last change of generations, and what was not.
//! Never holds more than it may; a change costs nothing for each entry but its own end.

use super::{Follower, Key};
use magray_core::{DeviceName, Precision};
use std::collections::HashMap;
use std::sync::Arc;

/// A row, and where it was computed.
#[derive(Debug, PartialEq)]
pub(super) struct Known {
    pub(super) row: Box<[f32]>,
    pub(super) device: DeviceName,
    pub(super) precision: Precision,
}

/// A part of the cache.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) entries: Entries,
    /// Texts that are being computed, and who waits for them.
    pub(super) computing: HashMap<Key, Vec<Follower>>,
}

#[derive(Debug, Default)]
struct Generation {
    known: HashMap<Key, Arc<Known>>,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Entries {
    young: Generation,
    old: Generation,
    /// Of a generation.
    entries_max: usize,
    bytes_max: usize,
}

impl Entries {
    pub(super) fn new(entries_max: usize, bytes_max: usize) -> Self {
        let (young, old) = (Generation::default(), Generation::default());
        Self { young, old, entries_max: (entries_max / 2).max(1), bytes_max: bytes_max / 2 }
    }

    /// Entries, and the bytes of their rows.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.young.known.len() + self.old.known.len(), self.young.bytes + self.old.bytes)
    }

    pub(super) fn get(&mut self, key: Key) -> Option<Arc<Known>> {
        if let Some(known) = self.young.known.get(&key) {
            return Some(Arc::clone(known));
        }
        let known = self.old.known.remove(&key)?;
        self.old.bytes -= size_of_val(&*known.row);
        self.put(key, Arc::clone(&known));
        Some(known)
    }

    pub(super) fn put(&mut self, key: Key, known: Arc<Known>) {
        let bytes = size_of_val(&*known.row);
        if bytes > self.bytes_max {
            return;
        }
        if self.young.known.len() == self.entries_max || self.young.bytes + bytes > self.bytes_max {
            self.old = std::mem::take(&mut self.young);
        }
        if let Some(before) = self.young.known.insert(key, known) {
            self.young.bytes -= size_of_val(&*before.row);
        }
        self.young.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(numbers: usize) -> Arc<Known> {
        let row = vec![0.5; numbers].into();
        Arc::new(Known { row, device: DeviceName::Cpu, precision: Precision::F32 })
    }

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let mut entries = Entries::new(8, 1 << 20);
        for key in 0..100 {
            entries.put((key, key), known(4));
            assert!(entries.get((0, 0)).is_some(), "the first is used all the time");
            let (count, bytes) = entries.size();
            assert!(count <= 8 && bytes == count * 16, "{count} entries of {bytes} bytes");
        }
        assert!(entries.get((1, 1)).is_none());
        assert!(entries.get((99, 99)).is_some());
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut entries = Entries::new(1_000, 1_000);
        (0..100).for_each(|key| entries.put((key, key), known(50)));
        assert!(entries.size().1 <= 1_000 && entries.get((99, 99)).is_some());
        entries.put((7, 7), known(1_000));
        assert!(entries.get((7, 7)).is_none(), "larger than there is room for");
    }

    #[test]
    fn the_same_key_again_counts_once() {
        let mut entries = Entries::new(10, 1_000);
        (0..5).for_each(|_| entries.put((1, 1), known(3)));
        assert_eq!(entries.size(), (1, 12));
    }
}
