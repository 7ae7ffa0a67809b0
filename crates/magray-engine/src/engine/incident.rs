//! What went wrong with devices and how long each was away, for people.
//! Keeps the last ones only.

use magray_core::schedule::{DeviceId, Moment};
use std::collections::VecDeque;

/// Something that went wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    /// The device's place.
    pub device: DeviceId,
    /// One word: what was noticed first.
    pub code: &'static str,
    /// When.
    pub noticed: Moment,
    /// When the device had finished a batch again; `None` while it has not.
    pub served_again: Option<Moment>,
}

pub(super) struct Incidents {
    last: VecDeque<Incident>,
    /// By device: whether one is open.
    is_open: Vec<bool>,
}

impl Incidents {
    const KEPT: usize = 256;

    pub(super) fn new(devices: usize) -> Self {
        Self { last: VecDeque::new(), is_open: vec![false; devices] }
    }

    /// Something went wrong. What follows from it, until the device serves again, belongs to the same incident.
    pub(super) fn noticed(&mut self, device: DeviceId, code: &'static str, now: Moment) {
        let is_open = &mut self.is_open[usize::from(device.0)];
        if !std::mem::replace(is_open, true) {
            if self.last.len() == Self::KEPT {
                self.last.pop_front();
            }
            self.last.push_back(Incident { device, code, noticed: now, served_again: None });
        }
    }

    /// The device finished a batch.
    pub(super) fn served(&mut self, device: DeviceId, now: Moment) {
        if std::mem::take(&mut self.is_open[usize::from(device.0)]) {
            let open = self.last.iter_mut().rev().find(|incident| incident.device == device);
            if let Some(incident) = open {
                incident.served_again = Some(now);
            }
        }
    }

    pub(super) fn list(&self) -> Vec<Incident> {
        self.last.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn what_follows_belongs_to_the_first() {
        let mut incidents = Incidents::new(2);
        let device = DeviceId(1);
        incidents.served(device, at(1));
        incidents.noticed(device, "gpu_fault", at(2));
        incidents.noticed(device, "replaced", at(3));
        incidents.noticed(DeviceId(0), "lost", at(4));
        incidents.served(device, at(5));
        incidents.noticed(device, "killed", at(6));
        let seen: Vec<_> = incidents.list().iter().map(|i| (i.device.0, i.code, i.served_again)).collect();
        assert_eq!(seen, [(1, "gpu_fault", Some(at(5))), (0, "lost", None), (1, "killed", None)]);
    }

    #[test]
    fn the_list_is_bounded() {
        let mut incidents = Incidents::new(1);
        for ms in 0..1000 {
            incidents.noticed(DeviceId(0), "killed", at(ms));
            incidents.served(DeviceId(0), at(ms));
        }
        assert_eq!(incidents.list().len(), Incidents::KEPT);
        assert_eq!(incidents.list()[0].noticed, at(1000 - Incidents::KEPT as u64));
    }
}
