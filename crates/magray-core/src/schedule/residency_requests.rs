//! Residency requests for models: to go, to come, to stay.
//! None is granted under a running batch, and none makes a request fail.

use super::device_set::DeviceSet;
use super::residency::Want;
use super::resident::{Leave, Stage};
use super::sabotage::sabotaged;
use super::{DeviceId, Machine, ModelId, ModelPlan, Moment, ResidencyRequest};

impl Machine {
    pub(super) fn on_residency_requested(&mut self, id: ModelId, request: ResidencyRequest, now: Moment) {
        if !self.residency.knows(id) {
            return;
        }
        self.residency.unsettle();
        let model = self.residency.model_mut(id);
        match request {
            ResidencyRequest::Offload => {
                model.want = None;
                self.send_away(id, self.devices.in_workers());
            }
            ResidencyRequest::Release => {
                model.want = None;
                model.is_releasing = true;
                self.send_away(id, self.devices.all());
                for gpu in self.devices.in_workers().iter() {
                    let is_left = self.is_left_by(gpu, id);
                    self.residency.memory_mut(gpu).rests_at_once |= is_left;
                }
            }
            ResidencyRequest::Preheat => self.preheat(id, now),
            ResidencyRequest::IdleTimeout(timeout) => model.plan.idle_timeout = timeout,
            ResidencyRequest::OffloadAfterUse(is_wanted) => model.plan.offload_after_use = is_wanted,
            ResidencyRequest::Pin(is_pinned) => {
                model.plan.is_pinned = is_pinned;
                if is_pinned {
                    self.keep(id, Some(Leave::Evicted), self.devices.in_workers());
                }
            }
            ResidencyRequest::Priority(priority) => model.plan.priority = priority,
        }
    }

    /// There is one model more.
    pub(super) fn on_model_added(&mut self, plan: ModelPlan, now: Moment) {
        self.jobs.add_model();
        self.residency.add_model(plan, now);
    }

    /// A model is no more. What waits for it is refused when weights are looked at, right after this.
    pub(super) fn on_model_removed(&mut self, id: ModelId, now: Moment) {
        self.on_residency_requested(id, ResidencyRequest::Release, now);
        if let Some(model) = self.residency.find_model(id) {
            model.is_removed = true;
        }
    }

    /// Whether a device has no weights once a model is gone.
    fn is_left_by(&self, gpu: DeviceId, id: ModelId) -> bool {
        let mut others = self.residency.memory(gpu).residents().filter(|(model, _)| *model != id);
        others.all(|(_, resident)| {
            (resident.stage == Stage::Absent || resident.is_on_its_way_out()) && !resident.is_to_restore
        })
    }

    fn preheat(&mut self, id: ModelId, now: Moment) {
        let devices = self.devices.all();
        let model = self.model_mut(id);
        // The last request counts.
        model.is_releasing = false;
        model.used = now;
        model.gpu_used = now;
        self.keep(id, None, devices);
        if self.devices.in_workers().iter().all(|gpu| self.devices.health(gpu).is_given_up()) {
            for cpu in self.devices.in_process().iter() {
                self.residency.memory_mut(cpu).resident_mut(id).is_to_restore = true;
            }
        }
        let mut is_there = false;
        for gpu in self.devices.in_workers().iter() {
            let is_in_rotation = self.devices.health(gpu).is_in_rotation();
            if let Stage::Present { is_preheated, .. } = &mut self.residency.memory_mut(gpu).resident_mut(id).stage {
                *is_preheated = true;
                is_there |= is_in_rotation;
            }
        }
        if !is_there && !sabotaged!(self.cx, IgnorePreheat) {
            self.model_mut(id).want = Some(Want { since: now, is_preheat: true });
        }
    }

    /// A model leaves these devices as soon as no batch of it is there.
    fn send_away(&mut self, id: ModelId, devices: DeviceSet) {
        for device in devices.iter() {
            let resident = self.residency.memory_mut(device).resident_mut(id);
            resident.is_to_restore = false;
            if matches!(resident.stage, Stage::Loading { .. } | Stage::Present { .. }) {
                resident.leave = Some(Leave::Requested);
            }
        }
    }

    /// A model that was to leave these devices, for this reason or any, does not.
    fn keep(&mut self, id: ModelId, reason: Option<Leave>, devices: DeviceSet) {
        for device in devices.iter() {
            let resident = self.residency.memory_mut(device).resident_mut(id);
            if reason.is_none_or(|reason| resident.leave == Some(reason)) {
                resident.leave = None;
            }
        }
    }
}
