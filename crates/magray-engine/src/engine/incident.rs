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
    /// By device: the one that is open and came last.
    open: Vec<Option<Open>>,
}

#[derive(Clone, Copy)]
struct Open {
    code: &'static str,
    /// Whether a new worker is up since.
    is_up_again: bool,
}

impl Incidents {
    const KEPT: usize = 256;

    pub(super) fn new(devices: usize) -> Self {
        Self { last: VecDeque::new(), open: vec![None; devices] }
    }

    /// Something went wrong. The same again, until the device has a new worker or serves again, is the same incident.
    pub(super) fn noticed(&mut self, device: DeviceId, code: &'static str, now: Moment) {
        let open = &mut self.open[usize::from(device.0)];
        if open.is_some_and(|open| open.code == code && !open.is_up_again) {
            return;
        }
        *open = Some(Open { code, is_up_again: false });
        if self.last.len() == Self::KEPT {
            self.last.pop_front();
        }
        self.last.push_back(Incident { device, code, noticed: now, served_again: None });
    }

    /// A worker ended, or is to end. If something went wrong with it before, that is the incident.
    pub(super) fn ended(&mut self, device: DeviceId, code: &'static str, now: Moment) {
        if self.open[usize::from(device.0)].is_none_or(|open| open.is_up_again) {
            self.noticed(device, code, now);
        }
    }

    /// The device has a new worker: what goes wrong from here on is another incident.
    pub(super) fn up(&mut self, device: DeviceId) {
        if let Some(open) = &mut self.open[usize::from(device.0)] {
            open.is_up_again = true;
        }
    }

    /// The device finished a batch.
    pub(super) fn served(&mut self, device: DeviceId, now: Moment) {
        if self.open[usize::from(device.0)].take().is_some() {
            let open =
                self.last.iter_mut().filter(|incident| incident.device == device && incident.served_again.is_none());
            open.for_each(|incident| incident.served_again = Some(now));
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
        incidents.ended(device, "replaced", at(3));
        incidents.noticed(DeviceId(0), "lost", at(4));
        incidents.served(device, at(5));
        incidents.ended(device, "killed", at(6));
        let seen: Vec<_> = incidents.list().iter().map(|i| (i.device.0, i.code, i.served_again)).collect();
        assert_eq!(seen, [(1, "gpu_fault", Some(at(5))), (0, "lost", None), (1, "killed", None)]);
    }

    #[test]
    fn faults_that_followed_each_other_closely_were_one_incident() {
        let mut incidents = Incidents::new(1);
        let device = DeviceId(0);
        incidents.ended(device, "killed", at(1));
        incidents.up(device);
        incidents.noticed(device, "out_of_memory", at(2));
        incidents.noticed(device, "out_of_memory", at(3));
        incidents.noticed(device, "overdue", at(4));
        incidents.ended(device, "replaced", at(5));
        incidents.ended(device, "not_started", at(6));
        incidents.up(device);
        incidents.served(device, at(7));
        let seen: Vec<_> = incidents.list().iter().map(|i| (i.code, i.noticed, i.served_again)).collect();
        let back = Some(at(7));
        assert_eq!(seen, [("killed", at(1), back), ("out_of_memory", at(2), back), ("overdue", at(4), back)]);
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
