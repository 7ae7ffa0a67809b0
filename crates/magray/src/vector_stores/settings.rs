//! What is kept of a store in the metadata of its collection.
//! The time is an argument.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

const DAY_S: u64 = 86_400;
/// A store that is used is written as such once an hour: it expires by days.
const NOTED_EVERY_S: u64 = 3_600;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct StoreSettings {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// The client's own notes.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Without a use for so long, it is not searched any more.
    pub(crate) expires_after_days: Option<u32>,
    pub(crate) created_at: u64,
    pub(crate) last_active_at: u64,
}

impl StoreSettings {
    pub(crate) fn expires_at(&self) -> Option<u64> {
        self.expires_after_days.map(|days| self.last_active_at + u64::from(days) * DAY_S)
    }

    pub(crate) fn is_expired(&self, now: u64) -> bool {
        self.expires_at().is_some_and(|end| end <= now)
    }

    /// Whether a use at this time is worth writing.
    pub(crate) fn is_news(&self, now: u64) -> bool {
        now >= self.last_active_at + NOTED_EVERY_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_expires_some_days_after_its_last_use() {
        let mut store = StoreSettings { last_active_at: 1_000, ..StoreSettings::default() };
        assert!(!store.is_expired(u64::MAX), "without a limit it stays");
        store.expires_after_days = Some(2);
        assert_eq!(store.expires_at(), Some(1_000 + 2 * DAY_S));
        assert!(!store.is_expired(999 + 2 * DAY_S) && store.is_expired(1_000 + 2 * DAY_S));
        assert!(!store.is_news(1_001) && store.is_news(5_000));
    }
}
