//! The exit codes.
//! Knows nothing of what leads to each.

/// How a command ends when it does not succeed. The codes are a promise to scripts: they never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Internal,
    Usage,
    Input,
    Model,
    Pull,
    Disk,
    Device,
    NoEngine,
    NotDone,
    Rejected,
    Undecided,
    Interrupted,
}

impl Exit {
    pub(crate) const ALL: [Self; 12] = [
        Self::Internal,
        Self::Usage,
        Self::Input,
        Self::Model,
        Self::Pull,
        Self::Disk,
        Self::Device,
        Self::NoEngine,
        Self::NotDone,
        Self::Rejected,
        Self::Undecided,
        Self::Interrupted,
    ];

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Input => 3,
            Self::Model => 4,
            Self::Pull => 5,
            Self::Disk => 6,
            Self::Device => 7,
            Self::NoEngine => 8,
            Self::NotDone => 9,
            Self::Rejected => 10,
            Self::Undecided => 11,
            Self::Interrupted => 130,
        }
    }

    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Internal => "a fault of magray itself",
            Self::Usage => "the command line or the configuration is wrong",
            Self::Input => "the input cannot be read, or a text in it is not acceptable",
            Self::Model => "there is no such model, or it is broken",
            Self::Pull => "a model could not be pulled: network, hub or pip",
            Self::Disk => "the disk or the output refused a write",
            Self::Device => "the device or CPU path asked for is not available, or failed",
            Self::NoEngine => "no magray is running that could do it",
            Self::NotDone => "a magray that runs did not do it, or not in time",
            Self::Rejected => "the critics rejected the text",
            Self::Undecided => "the critics could not decide: one that counts gave no verdict",
            Self::Interrupted => {
                "interrupted (Ctrl-C or a termination signal); no output that is not whole has its name"
            }
        }
    }

    pub(crate) fn table() -> String {
        let lines: Vec<String> =
            Self::ALL.iter().map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning())).collect();
        format!("Exit codes:\n    0  success\n{}", lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_rise() {
        let codes = Exit::ALL.map(Exit::code);
        assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
    }
}
