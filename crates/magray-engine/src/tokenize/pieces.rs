//! A vocabulary of short pieces of words, made to be looked up in while something else fills the caches: a piece and its id
//! are one number of 16 bytes in one table, and many can be looked for at once. Longer pieces have a table of their own.
//! Knows nothing of texts.

use std::collections::HashMap;

/// Where a piece stands in its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Start = 1,
    Within = 2,
}

#[derive(Debug)]
pub(super) struct Pieces {
    /// 0 where nothing is; else the bytes of a piece, its place and its id, from the lowest on.
    slots: Vec<u128>,
    /// What a hash is shifted by to be a slot's number.
    shift: u32,
    long: HashMap<(Place, Box<[u8]>), u32>,
    longest: usize,
}

/// Words that are looked for at once.
pub(super) const AT_ONCE: usize = 16;
/// Bytes of a piece in a slot; no piece has a zero in it.
const SHORT: usize = 12;
const ID_BITS: u32 = 24;
const ID_SHIFT: u32 = 128 - ID_BITS;
const KEY: u128 = (1 << ID_SHIFT) - 1;

impl Pieces {
    /// A table of pieces and their ids; `None` where one cannot stand in it.
    pub(super) fn new(pieces: impl ExactSizeIterator<Item = (Place, Vec<u8>, u32)>) -> Option<Self> {
        let slots = (pieces.len() * 2 + 1).next_power_of_two();
        let mut own = Self { slots: vec![0; slots], shift: 64 - slots.ilog2(), long: HashMap::new(), longest: 0 };
        for (place, piece, id) in pieces {
            if piece.is_empty() || piece.contains(&0) || id >> ID_BITS != 0 {
                return None;
            }
            own.longest = own.longest.max(piece.len());
            if piece.len() > SHORT {
                own.long.insert((place, piece.into()), id);
            } else {
                let key = key(place, &piece);
                let mut at = own.first_slot(key);
                // Of a piece that is named twice the last counts, as in every map of JSON.
                while own.slots[at] != 0 && own.slots[at] & KEY != key {
                    at = (at + 1) % slots;
                }
                own.slots[at] = key | u128::from(id) << ID_SHIFT;
            }
        }
        Some(own)
    }

    /// The longest piece at this place that the word starts with: its bytes and its id.
    pub(super) fn longest_at(&self, place: Place, word: &[u8]) -> Option<(usize, u32)> {
        let most = word.len().min(self.longest);
        (1..=most).rev().find_map(|length| Some((length, self.id(place, &word[..length])?)))
    }

    /// The ids of words that are pieces as a whole, where a first look finds them. Of all of them it waits for memory about
    /// once, since no look depends on another.
    pub(super) fn glance<'a>(&self, words: impl Iterator<Item = &'a [u8]>) -> [Option<u32>; AT_ONCE] {
        let (mut keys, mut slots) = ([0; AT_ONCE], [0; AT_ONCE]);
        for (sought, word) in keys.iter_mut().zip(words) {
            if word.len() <= SHORT {
                *sought = key(Place::Start, word);
            }
        }
        for (slot, sought) in slots.iter_mut().zip(keys) {
            *slot = self.slots[self.first_slot(sought)];
        }
        let id = |at: usize| (keys[at] != 0 && slots[at] & KEY == keys[at]).then_some((slots[at] >> ID_SHIFT) as u32);
        std::array::from_fn(id)
    }

    fn id(&self, place: Place, piece: &[u8]) -> Option<u32> {
        if piece.len() > SHORT {
            // Rare enough for a copy.
            return self.long.get(&(place, piece.into())).copied();
        }
        let key = key(place, piece);
        let mut at = self.first_slot(key);
        loop {
            match self.slots[at] {
                0 => return None,
                slot if slot & KEY == key => return Some((slot >> ID_SHIFT) as u32),
                _ => at = (at + 1) % self.slots.len(),
            }
        }
    }

    fn first_slot(&self, key: u128) -> usize {
        let mixed = (key as u64) ^ ((key >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> self.shift) as usize
    }
}

fn key(place: Place, piece: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    for (byte, own) in bytes.iter_mut().zip(piece) {
        *byte = *own;
    }
    bytes[SHORT] = place as u8;
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_put_is_found_and_nothing_else() {
        let words: Vec<Vec<u8>> =
            (0..5000u32).map(|n| format!("{:x}", n.wrapping_mul(n).wrapping_mul(7919)).into_bytes()).collect();
        let long = b"a piece of many bytes".to_vec();
        let put = words.iter().cloned().chain([long.clone()]).enumerate();
        let put: Vec<_> = put.map(|(id, word)| (Place::Start, word, id as u32)).collect();
        let pieces = Pieces::new(put.into_iter()).unwrap();
        for (id, word) in words.iter().enumerate() {
            let found = pieces.id(Place::Start, word).unwrap();
            assert_eq!(words[found as usize], *word, "{id}");
            assert_eq!(pieces.id(Place::Within, word), None);
        }
        let is_seen = |words: &[Vec<u8>]| {
            let seen = pieces.glance(words.iter().map(Vec::as_slice));
            for (id, word) in seen.iter().zip(words) {
                assert!(id.is_none_or(|id| Some(id) == pieces.id(Place::Start, word)));
            }
            assert!(seen[words.len()..].iter().all(Option::is_none));
            seen.iter().flatten().count()
        };
        let seen: usize = words.chunks(AT_ONCE).map(is_seen).sum();
        assert!(seen > words.len() / 2, "{seen} at the first look");
        assert_eq!(is_seen(&[b"none".to_vec(), long.clone(), Vec::new()]), 0);
        assert_eq!(
            pieces.longest_at(Place::Start, &[long.as_slice(), b" and more"].concat()),
            Some((long.len(), 5000))
        );
        assert_eq!(pieces.id(Place::Start, b"none"), None);
    }

    #[test]
    fn what_cannot_stand_in_the_table_makes_none() {
        let of = |piece: &[u8], id| Pieces::new([(Place::Start, piece.to_vec(), id)].into_iter());
        assert!(of(b"a", 1).is_some());
        assert!(of(b"", 1).is_none());
        assert!(of(b"a\0", 1).is_none());
        assert!(of(b"a", 1 << ID_BITS).is_none());
    }
}
