//! A set of devices in one word, so that "where may this be computed" is compared and cut without memory.
//! Holds no more than [`DEVICES_MAX`] devices; one beyond that is in no set.

use super::DeviceId;

/// Devices that a machine can have at most.
pub(super) const DEVICES_MAX: usize = 64;

/// Some devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceSet(u64);

impl DeviceSet {
    /// No device.
    pub(super) const EMPTY: Self = Self(0);

    /// This one alone.
    pub(super) fn one(device: DeviceId) -> Self {
        Self(1_u64.checked_shl(u32::from(device.0)).unwrap_or(0))
    }

    pub(super) fn with(self, device: DeviceId) -> Self {
        Self(self.0 | Self::one(device).0)
    }

    pub(super) fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    pub(super) fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    pub(super) fn union(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    pub(super) fn contains(self, device: DeviceId) -> bool {
        !self.and(Self::one(device)).is_empty()
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The devices, lowest first.
    pub(super) fn iter(self) -> impl Iterator<Item = DeviceId> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let first = u16::try_from(rest.trailing_zeros()).ok().filter(|_| rest != 0)?;
            rest &= rest - 1;
            Some(DeviceId(first))
        })
    }
}

impl FromIterator<DeviceId> for DeviceSet {
    fn from_iter<I: IntoIterator<Item = DeviceId>>(devices: I) -> Self {
        devices.into_iter().fold(Self::EMPTY, Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lists_what_was_put_in() {
        let set: DeviceSet = [DeviceId(3), DeviceId(0), DeviceId(63)].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [DeviceId(0), DeviceId(3), DeviceId(63)]);
        assert!(set.contains(DeviceId(63)) && !set.contains(DeviceId(1)));
        assert_eq!(set.without(DeviceSet::one(DeviceId(3))).and(set).iter().count(), 2);
    }

    #[test]
    fn a_device_that_cannot_be_is_in_no_set() {
        assert!(DeviceSet::one(DeviceId(64)).is_empty());
        assert!(!DeviceSet::EMPTY.with(DeviceId(0)).contains(DeviceId(64)));
    }
}
