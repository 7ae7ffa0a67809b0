//! What the next step of a sequence is, and where it may be computed.
//! Knows neither queue nor devices.

use super::DeviceId;
use super::device_set::DeviceSet;

/// Where sequences may be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reach {
    /// On these and no others.
    pub(super) may: DeviceSet,
    /// On these only if there is no other.
    pub(super) rather_not: DeviceSet,
}

/// What the next step of a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// All of it: it has one step.
    OneStep,
    /// The first chunk of its prompt; no device has state of it.
    Fresh,
    /// A further chunk of its prompt, on the device that has the others.
    Prompt(DeviceId),
    /// Its next tokens, on the device that has its state.
    Next(DeviceId),
}

impl Phase {
    /// Whether its steps form turns.
    pub(super) fn is_turn(self) -> bool {
        self != Self::OneStep
    }

    /// The device that has its state.
    pub(super) fn device(self) -> Option<DeviceId> {
        match self {
            Self::OneStep | Self::Fresh => None,
            Self::Prompt(device) | Self::Next(device) => Some(device),
        }
    }
}
