//! What went wrong with devices, how long each was away, and what became of the requests that it had, for people.
//! Keeps the last ones only.

use magray_core::schedule::{BatchId, DeviceId, Moment, RequestId};
use std::collections::{HashMap, VecDeque};

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
    /// What became of the requests whose batches the device lost.
    pub requests: LostRequests,
}

/// Requests whose batch was lost with a device, and what became of them. A request counts for the first incident that it met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostRequests {
    /// All of them.
    pub lost: u32,
    /// They were computed again and answered.
    pub answered: u32,
    /// They were answered with an error.
    pub refused: u32,
    /// Their callers waited no longer.
    pub cancelled: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestEnd {
    Answered,
    Refused,
    Cancelled,
}

pub(super) struct Incidents {
    last: VecDeque<Incident>,
    /// The number of the first that is kept.
    first: u64,
    /// Batches that are computed now.
    running: HashMap<BatchId, (DeviceId, Vec<RequestId>)>,
    /// Requests that lost a batch and have not ended, by the number of the incident.
    affected: HashMap<RequestId, u64>,
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
        let (last, running, affected) = (VecDeque::new(), HashMap::new(), HashMap::new());
        Self { last, first: 0, running, affected, open: vec![None; devices] }
    }

    /// A device begins with a batch of these requests.
    pub(super) fn started(&mut self, device: DeviceId, batch: BatchId, requests: impl Iterator<Item = RequestId>) {
        let mut requests: Vec<RequestId> = requests.collect();
        requests.dedup();
        self.running.insert(batch, (device, requests));
    }

    /// A batch was computed.
    pub(super) fn finished(&mut self, batch: BatchId) {
        self.running.remove(&batch);
    }

    /// A batch was not computed. The incident was noticed before.
    pub(super) fn lost_batch(&mut self, batch: BatchId) {
        if let Some((device, requests)) = self.running.remove(&batch) {
            self.affect(device, requests);
        }
    }

    /// A device's worker has gone, and its batches with it. The incident, if it is one, was noticed before.
    pub(super) fn lost_worker(&mut self, device: DeviceId) {
        let lost: Vec<BatchId> =
            self.running.iter().filter(|(_, (of, _))| *of == device).map(|(batch, _)| *batch).collect();
        lost.into_iter().for_each(|batch| self.lost_batch(batch));
    }

    fn affect(&mut self, device: DeviceId, requests: Vec<RequestId>) {
        let Some(at) = self.last.iter().rposition(|incident| incident.device == device) else { return };
        for request in requests {
            self.affected.entry(request).or_insert_with(|| {
                self.last[at].requests.lost += 1;
                self.first + at as u64
            });
        }
    }

    /// A request has ended.
    pub(super) fn ended_request(&mut self, request: RequestId, end: RequestEnd) {
        // Mostly there is none.
        if self.affected.is_empty() {
            return;
        }
        let Some(number) = self.affected.remove(&request) else { return };
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(incident) = at.and_then(|at| self.last.get_mut(at)) {
            let of = &mut incident.requests;
            match end {
                RequestEnd::Answered => of.answered += 1,
                RequestEnd::Refused => of.refused += 1,
                RequestEnd::Cancelled => of.cancelled += 1,
            }
        }
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
            self.first += 1;
        }
        let requests = LostRequests::default();
        self.last.push_back(Incident { device, code, noticed: now, served_again: None, requests });
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
    fn an_incident_says_what_became_of_the_requests_that_it_met() {
        let mut incidents = Incidents::new(2);
        let (device, other) = (DeviceId(1), DeviceId(0));
        let request = |number| RequestId(number);
        incidents.started(other, BatchId(1), [request(9)].into_iter());
        incidents.started(device, BatchId(2), [1, 1, 2].into_iter().map(request));
        incidents.started(device, BatchId(3), [3, 4].into_iter().map(request));
        incidents.finished(BatchId(2));
        incidents.started(device, BatchId(4), [5, 3].into_iter().map(request));
        incidents.ended(device, "killed", at(1));
        incidents.lost_worker(device);
        let of = |incidents: &Incidents| incidents.list()[0].requests;
        assert_eq!(of(&incidents), LostRequests { lost: 3, ..LostRequests::default() });
        for (number, end) in [
            (3, RequestEnd::Answered),
            (4, RequestEnd::Refused),
            (5, RequestEnd::Cancelled),
            (1, RequestEnd::Answered),
            (9, RequestEnd::Answered),
        ] {
            incidents.ended_request(request(number), end);
        }
        assert_eq!(of(&incidents), LostRequests { lost: 3, answered: 1, refused: 1, cancelled: 1 });
        assert!(incidents.affected.is_empty() && incidents.running.len() == 1);
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
