//! The things that can go wrong on purpose, and who makes each of them happen.
//! Says nothing of when.

use std::fmt;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FaultKind {
    /// A kernel writes where it may not: the worker can compute nothing any more.
    IllegalAddress,
    /// The device's memory is full.
    OutOfMemory,
    /// The batch never ends.
    Hang,
    /// The driver refuses a call; the next one works.
    Transient,
    /// The worker's process ends by itself.
    Crash,
    /// A batch with this token in it ends the worker's process.
    Poison,
    /// The answers are wrong.
    Wrong,
    /// Batches take this many times as long.
    Slow(u32),
    /// A load finds the device's memory full.
    LoadOutOfMemory,
    /// A load fails; the next one works.
    LoadFails,
    /// The worker's process ends by itself while it loads a model.
    LoadCrash,
    /// A load never ends.
    LoadHang,
    /// The worker sends no heartbeats.
    Freeze,
    /// The worker's process is killed from outside.
    Kill,
    /// Telemetry says that the device is hot.
    Hot,
    /// Telemetry says that the device's memory is nearly full.
    Full,
    /// Telemetry says that the driver reported this number.
    Xid(u32),
}

/// Who makes a fault happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The worker, with a batch.
    Batch,
    /// The worker, with a model that it loads.
    Load,
    /// The worker, where it sends heartbeats.
    Heartbeat,
    /// The supervisor.
    Supervisor,
    /// The reader of telemetry.
    Telemetry,
}

/// How many times as long batches take where the plan does not say.
const SLOW_TIMES: u32 = 8;
const SLOW_TIMES_MAX: u32 = 100;

/// Kinds with a name of their own.
const NAMED: [(&str, FaultKind); 16] = [
    ("illegal_address", FaultKind::IllegalAddress),
    ("oom", FaultKind::OutOfMemory),
    ("hang", FaultKind::Hang),
    ("transient", FaultKind::Transient),
    ("crash", FaultKind::Crash),
    ("poison", FaultKind::Poison),
    ("wrong", FaultKind::Wrong),
    ("slow", FaultKind::Slow(SLOW_TIMES)),
    ("load_oom", FaultKind::LoadOutOfMemory),
    ("load_fails", FaultKind::LoadFails),
    ("load_crash", FaultKind::LoadCrash),
    ("load_hang", FaultKind::LoadHang),
    ("freeze", FaultKind::Freeze),
    ("kill", FaultKind::Kill),
    ("hot", FaultKind::Hot),
    ("full", FaultKind::Full),
];

impl FaultKind {
    /// What `random` picks from: all that comes by itself, passes, and has not to wait for a load, of which there may be
    /// none for hours.
    pub(super) const RANDOM: [Self; 11] = [
        Self::IllegalAddress,
        Self::OutOfMemory,
        Self::Hang,
        Self::Transient,
        Self::Crash,
        Self::Wrong,
        Self::Slow(SLOW_TIMES),
        Self::Freeze,
        Self::Kill,
        Self::Hot,
        Self::Xid(79),
    ];

    /// Who makes it happen.
    pub(crate) fn place(self) -> Place {
        match self {
            Self::IllegalAddress
            | Self::OutOfMemory
            | Self::Hang
            | Self::Transient
            | Self::Crash
            | Self::Poison
            | Self::Wrong
            | Self::Slow(_) => Place::Batch,
            Self::LoadOutOfMemory | Self::LoadFails | Self::LoadCrash | Self::LoadHang => Place::Load,
            Self::Freeze => Place::Heartbeat,
            Self::Kill => Place::Supervisor,
            Self::Hot | Self::Full | Self::Xid(_) => Place::Telemetry,
        }
    }

    /// How many times as long batches take by it.
    pub(crate) fn slow_times(self) -> Option<u32> {
        if let Self::Slow(times) = self { Some(times) } else { None }
    }

    /// Whether it goes on for a while; the others befall a batch, or happen at once.
    pub(super) fn lasts(self) -> bool {
        matches!(self, Self::Slow(_) | Self::Freeze | Self::Hot | Self::Full | Self::Xid(_))
    }

    /// Whether a worker is replaced after it.
    pub(super) fn ends_worker(self) -> bool {
        use FaultKind::{Crash, Hang, IllegalAddress, Kill, LoadCrash, LoadHang, Poison};
        matches!(self, IllegalAddress | Hang | Crash | Poison | Kill | LoadCrash | LoadHang)
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        if let Some(number) = word.strip_prefix("xid") {
            return number.parse().ok().map(Self::Xid);
        }
        let named = NAMED.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind);
        let slow = || word.strip_prefix("slow")?.parse().ok().filter(|times| (2..=SLOW_TIMES_MAX).contains(times));
        named.or_else(|| slow().map(Self::Slow))
    }

    /// All words, as a phrase.
    pub(super) fn words() -> String {
        let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        format!("{}, slow and a number up to {SLOW_TIMES_MAX}, xid and a number, random", names.join(", "))
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid(number) => write!(f, "xid{number}"),
            Self::Slow(times) if *times != SLOW_TIMES => write!(f, "slow{times}"),
            kind => f.pad(NAMED.iter().find(|(_, known)| known == kind).map_or("", |(name, _)| name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_word() {
        for kind in NAMED.map(|(_, kind)| kind).into_iter().chain(FaultKind::RANDOM).chain([FaultKind::Slow(2)]) {
            assert_eq!(FaultKind::parse(&kind.to_string()), Some(kind));
        }
        for word in ["", "xid", "xid-1", "slow1", "slow101", "OOM", "fire"] {
            assert_eq!(FaultKind::parse(word), None, "{word}");
        }
    }
}
