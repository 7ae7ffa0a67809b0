//! How urgent requests are, and how much models count.
//! An order and its words, and nothing else.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How urgent a request is. One that waits long enough overtakes every other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// After the others.
    Low,
    /// In turn.
    #[default]
    Normal,
    /// Before the others. The model of such a request may evict models that count less.
    High,
}

/// A word that names no priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPriority;

impl fmt::Display for UnknownPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a priority is high, normal or low")
    }
}

impl std::error::Error for UnknownPriority {}

impl Priority {
    /// The word for it.
    pub fn code(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }
}

impl FromStr for Priority {
    type Err = UnknownPriority;

    fn from_str(word: &str) -> Result<Self, UnknownPriority> {
        let all = [Self::High, Self::Normal, Self::Low];
        all.into_iter().find(|priority| priority.code() == word).ok_or(UnknownPriority)
    }
}
