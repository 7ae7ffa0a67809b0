//! Puts weights in order: what nobody uses leaves, what is wanted comes, workers without weights rest.
//! Nothing leaves under a batch or a probe, and nothing here costs anything while nothing has changed.

use super::device::{Device, Worker};
use super::device_set::DeviceSet;
use super::residency::{Leave, Place, Stage};
use super::sabotage::sabotaged;
use super::{Action, DeviceId, DeviceState, Machine, ModelId, Moment};

impl Machine {
    /// Does all that has to be done about weights. Returns whether it looked.
    pub(super) fn settle_weights(&mut self, now: Moment, actions: &mut Vec<Action>) -> bool {
        if !self.is_unsettled && self.weights_wake.is_none_or(|wake| now < wake) {
            return false;
        }
        self.is_unsettled = false;
        self.weights_wake = None;
        self.note_presence();
        self.refuse_unreachable(actions);
        self.let_go(now, actions);
        self.forget(now, actions);
        self.bring(now, actions);
        self.rest(now, actions);
        self.note_presence();
        self.note_service(now);
        true
    }

    /// Writes down since when devices are of no use for a model. What was there only between two decisions of one moment
    /// was of no use to anybody.
    fn note_service(&mut self, now: Moment) {
        for device in &mut self.devices {
            let is_used = device.is_in_rotation();
            for place in &mut device.shelf.places {
                let has_it = (place.is_present() || place.is_loading()) && place.leave.is_none();
                let is_served = is_used && has_it;
                if is_served != place.is_served {
                    place.is_served = is_served;
                    place.lost_since = (!is_served).then_some(now);
                }
            }
        }
    }

    /// Sends off what is to leave, has been idle for too long, or has no room any more.
    fn let_go(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for id in self.gpus.union(self.cpus).iter() {
            if !self.device(id).takes_orders() {
                continue;
            }
            if self.gpus.contains(id) {
                self.cut_to_room(id);
            }
            for at in 0..self.models.len() {
                let model = ModelId(u32::try_from(at).unwrap_or(u32::MAX));
                if self.is_leaving_now(id, model, now) {
                    self.offload(id, model, actions);
                }
            }
        }
    }

    /// Whether a model leaves a device now. Notes when it may have to, if not.
    fn is_leaving_now(&mut self, id: DeviceId, model: ModelId, now: Moment) -> bool {
        let device = self.device(id);
        let place = device.shelf.place(model);
        let Stage::Present { has_computed, is_preheated, .. } = place.stage else { return false };
        let is_used = device.is_running(model) || device.probing_since.is_some();
        if place.leave.is_some() {
            return !is_used || sabotaged!(self, OffloadUnderBatch);
        }
        let plan = self.model(model).plan;
        // A device that waits for a probe needs weights for it.
        let is_kept = is_used || plan.is_pinned || device.needs_probe;
        if !self.gpus.contains(id) || is_kept || self.jobs.of(model).gpu > 0 || sabotaged!(self, IgnoreIdle) {
            return false;
        }
        if plan.offload_after_use && (has_computed || !is_preheated) {
            return true;
        }
        let idle_at = self.model(model).idle_at();
        let is_idle = idle_at.is_some_and(|idle_at| idle_at <= now);
        if !is_idle {
            self.wake_weights_by(idle_at);
        }
        is_idle
    }

    /// Marks models that must leave because there is less room than they take: the least important first, then those
    /// with which least is lost.
    fn cut_to_room(&mut self, id: DeviceId) {
        let shelf = &self.device(id).shelf;
        let mut staying = shelf.used().saturating_sub(shelf.outgoing());
        if staying <= shelf.room {
            return;
        }
        let is_movable = |(model, place): &(ModelId, &Place)| {
            place.is_present() && place.leave.is_none() && !self.model(*model).plan.is_pinned
        };
        let mut movable: Vec<ModelId> = shelf.iter().filter(is_movable).map(|(model, _)| model).collect();
        let score = |model: ModelId| self.eviction_score(id, model);
        movable.sort_by(|&a, &b| {
            let priority = |model| self.model(model).plan.priority;
            priority(a).cmp(&priority(b)).then(score(b).total_cmp(&score(a)))
        });
        for model in movable {
            let shelf = &mut self.device_mut(id).shelf;
            if staying <= shelf.room {
                return;
            }
            let place = shelf.place_mut(model);
            staying = staying.saturating_sub(place.bytes);
            place.leave = Some(Leave::Pushed);
        }
    }

    pub(super) fn offload(&mut self, id: DeviceId, model: ModelId, actions: &mut Vec<Action>) {
        let now = self.now;
        self.preempt_all(id, Some(model), actions);
        self.device_mut(id).shelf.set(model, Stage::Leaving { since: now });
        if self.cpus.contains(id) {
            self.lose_cpu(model);
        }
        actions.push(Action::Offload { device: id, model });
    }

    /// Lets go of what is in the host's memory where that is requested, or nobody has used it for long.
    fn forget(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let host = self.options.keeping.host;
        for at in 0..self.models.len() {
            let id = ModelId(u32::try_from(at).unwrap_or(u32::MAX));
            // What is on its way to the CPU has its time when it is there.
            let is_idle = |device: &Device| match device.shelf.place(id).stage {
                Stage::Absent => true,
                Stage::Present { .. } => !device.is_gpu(),
                Stage::Loading { .. } | Stage::Leaving { .. } => false,
            };
            let is_off_gpus = self.devices.iter().all(is_idle);
            let model = self.model(id);
            let is_needed = model.want.is_some() || model.plan.is_pinned || self.jobs.of(id).all > 0;
            let is_kept = !model.is_in_host || !is_off_gpus || is_needed || model.is_forgetting;
            if let Some(due) = host.map(|kept| model.used + kept).filter(|_| !is_kept && !model.is_releasing) {
                if due > now {
                    self.wake_weights_by(Some(due));
                } else {
                    self.model_mut(id).is_releasing = true;
                    self.release_from_cpus(id, actions);
                }
            }
            let is_gone = self.devices.iter().all(|device| device.shelf.place(id).stage == Stage::Absent);
            let model = self.model_mut(id);
            if model.is_releasing && is_gone && !model.is_forgetting {
                model.is_releasing = false;
                model.has_image = false;
                if std::mem::take(&mut model.is_in_host) {
                    model.is_forgetting = true;
                    actions.push(Action::Forget { model: id });
                } else {
                    // There was nothing to let go of. It may be loaded again before anybody looks, so it is counted.
                    self.note_release(id);
                }
            }
        }
    }

    /// A model that was to be in no memory is in none.
    pub(super) fn note_release(&mut self, id: ModelId) {
        if !sabotaged!(self, HideRelease) {
            self.model_mut(id).releases += 1;
        }
    }

    fn release_from_cpus(&mut self, id: ModelId, actions: &mut Vec<Action>) {
        for cpu in self.cpus.iter() {
            let device = self.device_mut(cpu);
            let is_running = device.is_running(id);
            let place = device.shelf.place_mut(id);
            if matches!(place.stage, Stage::Loading { .. } | Stage::Present { .. }) {
                place.leave = Some(Leave::ResidencyRequested);
                if place.is_present() && !is_running {
                    self.offload(cpu, id, actions);
                }
            }
        }
    }

    /// Lets workers go that have had no weights for a while.
    fn rest(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let kept = self.options.keeping.worker;
        self.is_rest_put_off = false;
        for id in self.gpus.iter() {
            let is_awaited = self.models.iter().any(|model| model.coming.contains(id));
            // Who waits for a model that is just being released brings it back: then its worker is needed.
            let is_called_for = self.queue.keys().any(|bucket| bucket.reach.may.contains(id));
            let is_careless = sabotaged!(self, RestWithWeights);
            let (is_kept, lingers) = (sabotaged!(self, NeverRest), sabotaged!(self, LingerOn));
            let device = self.device_mut(id);
            let is_well = device.worker == Worker::Ready && device.is_in_rotation() && !device.needs_probe;
            let shelf = &mut device.shelf;
            let is_empty = shelf.is_empty() || is_careless;
            if shelf.places.iter().any(|place| place.stage != Stage::Absent && !place.is_on_its_way_out()) {
                // Others need it: it rests when they have not for a while.
                shelf.rests_at_once = false;
            }
            if !is_empty || shelf.places.iter().any(|place| place.is_owed) || is_awaited {
                shelf.empty_since = None;
                continue;
            }
            if !is_well || is_kept {
                continue;
            }
            let since = *shelf.empty_since.get_or_insert(now);
            let due = kept.map(|kept| since + kept);
            let is_hurried = shelf.rests_at_once && !lingers;
            if (!is_hurried || is_called_for) && due.is_none_or(|due| due > now) {
                // They may be computed elsewhere: then it is looked at again when nothing of their model is left.
                self.is_rest_put_off |= is_hurried;
                self.wake_weights_by(due);
                continue;
            }
            shelf.rests_at_once = false;
            device.worker = Worker::Resting { since: now };
            device.state = DeviceState::Resting;
            actions.push(Action::Rest { device: id });
        }
    }

    /// Writes down for each model which devices have it, and which it is coming to.
    pub(super) fn note_presence(&mut self) {
        for at in 0..self.models.len() {
            let id = ModelId(u32::try_from(at).unwrap_or(u32::MAX));
            let (mut present, mut loading) = (DeviceSet::EMPTY, DeviceSet::EMPTY);
            for device in self.gpus.union(self.cpus).iter() {
                let own = self.device(device);
                let place = own.shelf.place(id);
                let is_usable = (own.is_in_rotation() || sabotaged!(self, PlaceOnOut)) && place.leave.is_none();
                if is_usable && place.is_present() {
                    present = present.with(device);
                }
                if is_usable && place.is_loading() {
                    loading = loading.with(device);
                }
            }
            let model = self.model_mut(id);
            model.present = present;
            model.coming = model.coming.without(present).union(loading);
        }
    }
}
