//! Judges how weights stand after a step: what the view says of them, what should have left, and who should rest or wake.
//! Writes down only when models were last used.

use super::{Stage, Weights};
use crate::check::requests::{Entry, Ledger, SLACK};
use crate::check::rule::{Rule, Verdict, holds};
use crate::check::workers::Workers;
use magray_core::schedule::{DeviceId, DeviceKind, DeviceState, ModelId, ModelPlan, Moment, Residency, View};

impl Weights {
    pub(crate) fn settle(&mut self, view: &View, workers: &Workers, ledger: &Ledger, now: Moment) -> Verdict {
        let requests: usize = view.models.iter().map(|model| model.requests).sum();
        holds(requests == view.requests, Rule::HonestView, || {
            format!("the models of the view have {requests} requests, and there are {}", view.requests)
        })?;
        for at in 0..self.models.len() {
            let model = ModelId(at as u32);
            let seen = &view.models[at];
            let told = ModelPlan { bytes: seen.plan.bytes, ..self.models[at].plan };
            holds(seen.plan == told, Rule::HonestView, || format!("the view has {:?}, told was {told:?}", seen.plan))?;
            if std::mem::replace(&mut self.models[at].was_busy, seen.requests > 0) || seen.requests > 0 {
                self.models[at].used = now;
            }
            for (place, said) in seen.residency.iter().enumerate() {
                let device = DeviceId(place as u16);
                let ours = self.residency(device, model, workers);
                holds(*said == ours, Rule::HonestView, || {
                    format!("the view has model {at} on device {place} as {said:?}, and it is {ours:?}")
                })?;
                let is_gpu = self.shelves[place].kind == DeviceKind::Gpu;
                if is_gpu && ours == Residency::OnDevice && view.devices[place].state == DeviceState::InRotation {
                    self.models[at].preheat = false;
                    self.judge_idle(device, model, workers, now)?;
                }
            }
        }
        for (at, seen) in view.devices.iter().enumerate() {
            let device = DeviceId(at as u16);
            self.judge_device(device, seen.state, view, workers, now)?;
            if seen.state == DeviceState::Resting && !workers.has_worker(device) {
                self.judge_wake(device, ledger, now)?;
            }
        }
        Ok(())
    }

    /// What nobody has used for its time leaves.
    fn judge_idle(&self, device: DeviceId, model: ModelId, workers: &Workers, now: Moment) -> Verdict {
        let known = self.known(model);
        let Some(timeout) = known.plan.idle_timeout.filter(|_| !known.plan.is_pinned) else { return Ok(()) };
        let is_kept = workers.is_probing(device) || !workers.takes_orders(device);
        let idle = now.since(known.used);
        holds(is_kept || idle <= timeout + SLACK, Rule::Idles, || {
            format!("model {} stays on device {} for {idle:?} unused, and its time is {timeout:?}", model.0, device.0)
        })
    }

    /// A worker that rests is started by who needs it, and that one alone.
    fn judge_wake(&self, device: DeviceId, ledger: &Ledger, now: Moment) -> Verdict {
        let needs_it = |entry: &&Entry| {
            let model = entry.request.group.model;
            let known = self.known(model);
            let is_kept_off = self.is_hopeless(device, model, now) || self.spot(device, model).failures > 0;
            let is_going = known.is_released || known.is_forgetting;
            self.waits_only_for(entry, device, model) && !is_going && !is_kept_off
        };
        let waiting = ledger.live().find(needs_it);
        holds(waiting.is_none(), Rule::Rests, || {
            let id = waiting.map_or(0, |entry| entry.request.id.0);
            format!("device {} rests, and request {id} can be computed nowhere else", device.0)
        })
    }

    fn judge_device(
        &self,
        device: DeviceId,
        state: DeviceState,
        view: &View,
        workers: &Workers,
        now: Moment,
    ) -> Verdict {
        let shelf = self.shelf(device);
        if shelf.kind == DeviceKind::Cpu || !workers.takes_orders(device) {
            return Ok(());
        }
        let since = shelf.moving_since();
        holds(since.is_none_or(|since| now.since(since) <= self.keeping.load_max + SLACK), Rule::HangsEnd, || {
            format!("weights of device {} are on their way since {since:?}, and its worker is not ended", device.0)
        })?;
        let Some(kept) = self.keeping.worker else { return Ok(()) };
        let is_empty = shelf.spots.iter().all(|spot| spot.stage == Stage::Absent);
        let has_failed = shelf.spots.iter().any(|spot| spot.failures > 0);
        let is_awaited = view.requests > 0
            || self.models.iter().any(|model| model.preheat || model.is_released || model.is_forgetting);
        let used = self.models.iter().map(|model| model.used).fold(shelf.changed, Moment::max);
        let must_rest = state == DeviceState::InRotation && is_empty && !has_failed && !is_awaited;
        let idle = now.since(used);
        holds(!must_rest || idle <= kept + SLACK, Rule::Rests, || {
            format!("the worker of device {} has no weights for {idle:?} and does not rest", device.0)
        })
    }

    pub(crate) fn residency(&self, device: DeviceId, model: ModelId, workers: &Workers) -> Residency {
        let is_cpu = self.shelf(device).kind == DeviceKind::Cpu;
        match self.spot(device, model).stage {
            Stage::Loading { .. } => Residency::Loading,
            Stage::Present { .. } => Residency::OnDevice,
            Stage::Leaving { .. } => Residency::Leaving,
            Stage::Absent if !self.known(model).has_image => Residency::Unloaded,
            Stage::Absent if is_cpu || workers.has_worker(device) => Residency::OnCpu,
            Stage::Absent => Residency::OnCpuCold,
        }
    }
}
