//! What comes of orders to executors: data that messages between supervisor and worker carry as it is.
//! Uses nothing of the executors, so that what reads messages can be compiled alone.

use crate::decoder::TokenLogprobs;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is wanted of texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// What the model is made for: one row a text.
    #[default]
    Texts,
    /// One row a token, as the last layer leaves it, neither pooled nor scaled. It is computed on the CPU where the rows of a
    /// GPU's largest batch would be more than a worker may answer with.
    Tokens,
    /// One row a text that is not scaled to length 1, also where the model does that.
    Unscaled,
}

/// What came of a step of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewTokens {
    /// They follow those of the sequence.
    pub tokens: Vec<u32>,
    /// Whether the sequence ends with them.
    pub is_end: bool,
    /// One for each of them, where they were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why the sequence ends although its answer is not complete.
    pub problem: Option<String>,
    /// Tokens that were proposed and verified ([`crate::decoder::Sampling::speculate`]) ...
    pub proposed: u32,
    /// ... and those of them that the model chose.
    pub accepted: u32,
    /// Tokens of the step that were not computed: another sequence began with them.
    pub cached: u32,
}

/// Where a model's weights came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Origin {
    /// Its files.
    Files,
    /// Shared memory that another worker had filled.
    Image,
    /// Memory of this executor, which had them on the devices before.
    Parked,
    /// They were there.
    Device,
}

impl Origin {
    /// One word for programs; it never changes its meaning.
    pub fn code(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Image => "image",
            Self::Parked => "parked",
            Self::Device => "device",
        }
    }
}

/// Where ranks that share layers add up their parts of sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankSums {
    /// On the devices.
    Devices,
    /// On the host, for this reason.
    Host(String),
}

impl fmt::Display for RankSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Devices => f.write_str("on the device"),
            Self::Host(reason) => write!(f, "on the host, because {reason}"),
        }
    }
}
