//! Faults that can be asked for while an engine runs, one at a time: those that a demonstration shows.
//! Breaks nothing itself.

use std::fmt;
use std::str::FromStr;

/// Something that goes wrong with a GPU now, or with its next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultOnDemand {
    /// The worker is killed from outside.
    Kill,
    /// A batch never ends.
    Hang,
    /// The device's memory is full.
    OutOfMemory,
    /// The answers are wrong.
    Wrong,
    /// A kernel writes where it may not: the worker can compute nothing any more.
    GpuFault,
}

/// A word that names no such fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no fault '{0}': use kill, hang, oom, wrong or gpu_fault")]
pub struct UnknownFault(String);

impl FaultOnDemand {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Kill, Self::Hang, Self::OutOfMemory, Self::Wrong, Self::GpuFault];

    /// A stable code for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Hang => "hang",
            Self::OutOfMemory => "oom",
            Self::Wrong => "wrong",
            Self::GpuFault => "gpu_fault",
        }
    }

    /// Its word in a fault plan where a worker makes it happen; `None`: the supervisor does.
    pub(crate) fn word_of_batch(self) -> Option<&'static str> {
        match self {
            Self::Kill => None,
            Self::Hang | Self::OutOfMemory | Self::Wrong => Some(self.code()),
            Self::GpuFault => Some("illegal_address"),
        }
    }
}

impl fmt::Display for FaultOnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

impl FromStr for FaultOnDemand {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || UnknownFault(text.chars().take(40).collect());
        Self::ALL.into_iter().find(|fault| fault.code() == text).ok_or_else(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FaultKind, Place};
    use super::*;

    #[test]
    fn every_fault_has_a_code_and_those_of_batches_a_word() {
        for fault in FaultOnDemand::ALL {
            assert_eq!(fault.code().parse(), Ok(fault));
            let kind = fault.word_of_batch().map(|word| FaultKind::parse(word).unwrap());
            assert!(kind.is_none_or(|kind| kind.place() == Place::Batch), "{fault}");
        }
        assert!("fire".parse::<FaultOnDemand>().unwrap_err().to_string().starts_with("there is no fault 'fire'"));
    }
}
