//! Judges how weights stand after a step: what the view says of them, what should have left, and who should rest or wake.
//! Writes down only when models were last used.

use super::{Stage, Weights};
use crate::check::batches::Batches;
use crate::check::requests::{Entry, Ledger, SLACK};
use crate::check::rule::{Rule, Verdict, holds};
use crate::check::workers::Workers;
use magray_core::schedule::{DeviceId, DeviceState, Location, ModelId, ModelPlan, Moment, Residency, View};
use std::time::Duration;

/// Everything else after a step.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) view: &'a View,
    pub(crate) workers: &'a Workers,
    pub(crate) batches: &'a Batches,
    pub(crate) ledger: &'a Ledger,
}

impl Weights {
    pub(crate) fn settle(&mut self, scene: Scene<'_>, now: Moment) -> Verdict {
        let Scene { view, workers, ledger, .. } = scene;
        let requests: usize = view.models.iter().map(|model| model.requests).sum();
        holds(requests == view.requests, Rule::HonestView, || {
            format!("the models of the view have {requests} requests, and there are {}", view.requests)
        })?;
        for (at, seen) in view.models.iter().enumerate() {
            let model = ModelId(at as u32);
            let told = ModelPlan { bytes: seen.plan.bytes, ..self.models[at].plan };
            holds(seen.plan == told, Rule::HonestView, || format!("the view has {:?}, told was {told:?}", seen.plan))?;
            if std::mem::replace(&mut self.models[at].was_busy, seen.requests > 0) || seen.requests > 0 {
                self.models[at].used = now;
            }
            self.judge_release(model, seen.releases)?;
            for (place, said) in seen.residency.iter().enumerate() {
                let device = DeviceId(place as u16);
                let ours = self.residency(device, model, workers);
                holds(*said == ours, Rule::HonestView, || {
                    format!("the view has model {at} on device {place} as {said:?}, and it is {ours:?}")
                })?;
                self.judge_residency_request(device, model, scene)?;
                let is_gpu = self.books[place].location == Location::Worker;
                if is_gpu && ours == Residency::OnDevice && view.devices[place].state == DeviceState::InRotation {
                    self.models[at].preheat = false;
                    self.judge_idle(device, model, workers, now)?;
                }
            }
        }
        for (at, seen) in view.devices.iter().enumerate() {
            let device = DeviceId(at as u16);
            self.judge_device(device, scene, now)?;
            if seen.state == DeviceState::Resting && !workers.has_worker(device) {
                self.judge_wake(device, ledger, now)?;
            }
        }
        Ok(())
    }

    /// What is requested to leave a device leaves as soon as nothing needs it there.
    fn judge_residency_request(&self, device: DeviceId, model: ModelId, scene: Scene<'_>) -> Verdict {
        let Scene { workers, batches, .. } = scene;
        let spot = self.spot(device, model);
        let is_open = spot.is_asked_to_leave && matches!(spot.stage, Stage::Present { .. });
        let is_heard = self.book(device).location == Location::InProcess || workers.takes_orders(device);
        let is_put_off = !is_heard || Self::is_used(device, model, batches, workers);
        holds(!is_open || is_put_off, Rule::Granted, || {
            format!("model {} is wanted gone from device {}, nothing needs it there, and it stays", model.0, device.0)
        })
    }

    /// A release is confirmed as soon as no memory holds anything of the model, even if it is loaded again soon.
    fn judge_release(&mut self, model: ModelId, releases: u64) -> Verdict {
        let stages = self.books.iter().map(|book| book.spots[model.0 as usize].stage);
        let holders = stages.filter(|stage| *stage != Stage::Absent).count();
        let known = self.known_mut(model);
        known.releases = releases;
        let Some(release) = known.release else { return Ok(()) };
        let is_told = releases > release.before;
        if is_told {
            known.release = None;
            known.is_released = false;
        }
        // What came in the same step came after it was gone.
        let is_gone = (holders == 0 || release.is_loaded) && !known.is_forgetting;
        holds(is_told == is_gone, Rule::Granted, || {
            format!("model {} is wanted in no memory: told is {is_told}, and that it is gone is {is_gone}", model.0)
        })
    }

    /// What was idle for its timeout leaves.
    fn judge_idle(&self, device: DeviceId, model: ModelId, workers: &Workers, now: Moment) -> Verdict {
        let known = self.known(model);
        let Some(timeout) = known.plan.idle_timeout.filter(|_| !known.plan.is_pinned) else { return Ok(()) };
        let is_kept = workers.is_probing(device) || !workers.takes_orders(device);
        let idle = now.since(known.used);
        holds(is_kept || idle <= timeout + SLACK, Rule::Idles, || {
            format!("model {} stays on device {} for {idle:?} unused, and its time is {timeout:?}", model.0, device.0)
        })
    }

    /// A resting worker is started by a request that needs it, and by nothing else.
    fn judge_wake(&self, device: DeviceId, ledger: &Ledger, now: Moment) -> Verdict {
        let needs_it = |entry: &&Entry| {
            let model = entry.request.group.model;
            let known = self.known(model);
            let is_kept_off = self.is_hopeless(device, model, now) || self.spot(device, model).failures > 0;
            // What leaves the CPU leaves the host, and comes back after that.
            let leaves_cpu = self.books.iter().any(|book| {
                let stage = book.spots[model.0 as usize].stage;
                book.location == Location::InProcess && matches!(stage, Stage::Leaving { .. })
            });
            let is_going = known.is_released || known.is_forgetting || leaves_cpu;
            self.waits_only_for(entry, device, model) && !is_going && !is_kept_off
        };
        let waiting = ledger.live().find(needs_it);
        holds(waiting.is_none(), Rule::Rests, || {
            let id = waiting.map_or(0, |entry| entry.request.id.0);
            format!("device {} rests, and request {id} can be computed nowhere else", device.0)
        })
    }

    fn judge_device(&self, device: DeviceId, scene: Scene<'_>, now: Moment) -> Verdict {
        let Scene { view, workers, .. } = scene;
        let seen = &view.devices[usize::from(device.0)];
        let book = self.book(device);
        if book.location == Location::InProcess || !workers.takes_orders(device) {
            return Ok(());
        }
        let since = book.moving_since();
        holds(since.is_none_or(|since| now.since(since) <= self.keeping.load_max + SLACK), Rule::HangsEnd, || {
            format!("weights of device {} are on their way since {since:?}, and its worker is not ended", device.0)
        })?;
        // A worker that released its last model waits for the end of one that is being ended.
        let kept = if seen.is_ending { Some(Duration::ZERO) } else { self.keeping.worker };
        let Some(kept) = kept else { return Ok(()) };
        let is_empty = book.spots.iter().all(|spot| spot.stage == Stage::Absent) && book.memory.vectors() == 0;
        let has_failed = book.spots.iter().any(|spot| spot.failures > 0);
        let is_awaited = view.requests > 0
            || self.models.iter().any(|model| model.preheat || model.is_released || model.is_forgetting);
        let used = self.models.iter().map(|model| model.used).fold(book.changed, Moment::max);
        let must_rest = seen.state == DeviceState::InRotation && is_empty && !has_failed && !is_awaited;
        let idle = now.since(used);
        holds(!must_rest || idle <= kept + SLACK, Rule::Rests, || {
            format!("the worker of device {} has no weights for {idle:?} and does not rest", device.0)
        })
    }

    pub(crate) fn residency(&self, device: DeviceId, model: ModelId, workers: &Workers) -> Residency {
        let is_cpu = self.book(device).location == Location::InProcess;
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
