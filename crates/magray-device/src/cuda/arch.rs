//! GPU architectures, by the names that the kernel compiler has for them.
//! Compiles nothing.

use std::fmt;

/// A GPU architecture as the compiler names it, with all that is special to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch {
    major: u32,
    minor: u32,
}

impl Arch {
    /// The architecture of GPUs with this compute capability.
    pub fn of(capability: (u32, u32)) -> Self {
        Self { major: capability.0, minor: capability.1 }
    }

    /// The compute capability.
    pub fn capability(self) -> (u32, u32) {
        (self.major, self.minor)
    }

    /// As the compiler lists it, 90 for 9.0.
    pub(super) fn number(self) -> u32 {
        self.major * 10 + self.minor
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // From Hopper on the best instructions belong to one architecture only, and need the letter.
        let letter = if self.major >= 9 { "a" } else { "" };
        write!(f, "sm_{}{letter}", self.number())
    }
}
