//! How far the process that holds a GPU must be confined.
//! Confines nothing: that is the worker's.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What is done where the system cannot confine a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxMode {
    /// Confine it as far as the system can, and warn where that is not all.
    #[default]
    Auto,
    /// Confine it wholly, or do not start it.
    Require,
    /// Do not confine it.
    Off,
}

impl FromStr for SandboxMode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        match word {
            "auto" => Ok(Self::Auto),
            "require" => Ok(Self::Require),
            "off" => Ok(Self::Off),
            _ => Err(UnknownMode),
        }
    }
}

/// The word names no mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use auto, require or off")]
pub struct UnknownMode;
