//! MoveCounts for models: to go, to come, to stay.
//! None is granted under a running batch, and none makes a request fail.

use super::device_set::DeviceSet;
use super::residency::{Leave, Stage, Want};
use super::sabotage::sabotaged;
use super::{DeviceId, Machine, ModelId, Moment, ResidencyRequest};

impl Machine {
    pub(super) fn on_residency_requested(&mut self, id: ModelId, request: ResidencyRequest, now: Moment) {
        // A model that does not exist is nobody's: the caller knows the list.
        let Some(model) = self.models.get_mut(id.0 as usize) else { return };
        self.is_unsettled = true;
        match request {
            ResidencyRequest::Offload => {
                model.want = None;
                self.send_away(id, self.gpus);
            }
            ResidencyRequest::Release => {
                model.want = None;
                model.is_releasing = true;
                self.send_away(id, self.gpus.union(self.cpus));
                for gpu in self.gpus.iter() {
                    let is_left = self.is_left_by(gpu, id);
                    self.device_mut(gpu).shelf.rests_at_once |= is_left;
                }
            }
            ResidencyRequest::Preheat => self.preheat(id, now),
            ResidencyRequest::IdleTimeout(timeout) => model.plan.idle_timeout = timeout,
            ResidencyRequest::OffloadAfterUse(is_wanted) => model.plan.offload_after_use = is_wanted,
            ResidencyRequest::Pin(is_pinned) => {
                model.plan.is_pinned = is_pinned;
                if is_pinned {
                    self.keep(id, Some(Leave::Pushed), self.gpus);
                }
            }
            ResidencyRequest::Priority(priority) => model.plan.priority = priority,
        }
    }

    /// Whether a device has no weights once a model is gone.
    fn is_left_by(&self, gpu: DeviceId, id: ModelId) -> bool {
        let mut others = self.device(gpu).shelf.iter().filter(|(model, _)| *model != id);
        others.all(|(_, place)| (place.stage == Stage::Absent || place.is_on_its_way_out()) && !place.is_owed)
    }

    fn preheat(&mut self, id: ModelId, now: Moment) {
        let devices = self.gpus.union(self.cpus);
        let model = self.model_mut(id);
        // The last request counts.
        model.is_releasing = false;
        model.used = now;
        model.gpu_used = now;
        self.keep(id, None, devices);
        let is_used = |machine: &Self, gpu: DeviceId| !machine.device(gpu).is_given_up();
        if !self.gpus.iter().any(|gpu| is_used(self, gpu)) {
            for cpu in self.cpus.iter() {
                self.device_mut(cpu).shelf.place_mut(id).is_owed = true;
            }
        }
        let mut is_there = false;
        for gpu in self.gpus.iter() {
            let is_in_rotation = self.device(gpu).is_in_rotation();
            if let Stage::Present { is_preheated, .. } = &mut self.device_mut(gpu).shelf.place_mut(id).stage {
                *is_preheated = true;
                is_there |= is_in_rotation;
            }
        }
        if !is_there && !sabotaged!(self, IgnorePreheat) {
            self.model_mut(id).want = Some(Want { since: now, is_preheat: true });
        }
    }

    /// A model leaves these devices as soon as no batch of it is there.
    fn send_away(&mut self, id: ModelId, devices: DeviceSet) {
        for device in devices.iter() {
            let place = self.device_mut(device).shelf.place_mut(id);
            place.is_owed = false;
            if matches!(place.stage, Stage::Loading { .. } | Stage::Present { .. }) {
                place.leave = Some(Leave::ResidencyRequested);
            }
        }
    }

    /// A model that was to leave these devices, for this reason or any, does not.
    fn keep(&mut self, id: ModelId, reason: Option<Leave>, devices: DeviceSet) {
        for device in devices.iter() {
            let place = self.device_mut(device).shelf.place_mut(id);
            if reason.is_none_or(|reason| place.leave == Some(reason)) {
                place.leave = None;
            }
        }
    }
}
