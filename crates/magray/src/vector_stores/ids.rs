//! Ids of stores, files and batches: a prefix and a number that grows with time.
//! A number is used once in a process; what is on the disk is the caller's to look at.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// What an id is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    File,
    Store,
    Batch,
}

impl Of {
    fn prefix(self) -> &'static str {
        match self {
            Self::File => "file-",
            Self::Store => "vs_",
            Self::Batch => "vsfb_",
        }
    }

    pub(crate) fn id(self, number: u64) -> String {
        format!("{}{number:016x}", self.prefix())
    }

    /// `None`: it is no id of this kind.
    pub(crate) fn number(self, id: &str) -> Option<u64> {
        let number = u64::from_str_radix(id.strip_prefix(self.prefix())?, 16).ok()?;
        (self.id(number) == id).then_some(number)
    }
}

/// The second in which a number was given out.
pub(crate) fn created_s(number: u64) -> u64 {
    number / 1_000_000
}

/// Gives out numbers: microseconds since 1970, or one more than the last.
#[derive(Debug, Default)]
pub(crate) struct Numbers(AtomicU64);

impl Numbers {
    pub(crate) fn next(&self, now: SystemTime) -> u64 {
        let micros = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        let next = |last: u64| micros.max(last + 1);
        let last = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        next(last.unwrap_or_else(|last| last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written_and_others_are_refused() {
        for of in [Of::File, Of::Store, Of::Batch] {
            for number in [0, 1, u64::MAX] {
                assert_eq!(of.number(&of.id(number)), Some(number));
            }
        }
        for wrong in ["", "file-", "file-1", "vs_0000000000000001", "file-000000000000000G", "file-00000000000000AB"] {
            assert_eq!(Of::File.number(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_grow_also_where_the_clock_does_not() {
        let numbers = Numbers::default();
        let second = |at| UNIX_EPOCH + std::time::Duration::from_secs(at);
        let given =
            [numbers.next(second(5)), numbers.next(second(5)), numbers.next(second(4)), numbers.next(second(6))];
        assert_eq!(given, [5_000_000, 5_000_001, 5_000_002, 6_000_000]);
        assert_eq!(created_s(given[2]), 5);
    }
}
