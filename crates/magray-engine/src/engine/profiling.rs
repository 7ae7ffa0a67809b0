//! Tells a profile what the dispatcher hears and does.
//! Decides nothing, and costs nothing where there is no profile.

use super::executor_handle::{Batch, Loaded, Turn, What};
use super::options::EngineOptions;
use super::work::{Answer, Work};
use crate::executors::NewTokens;
use crate::profile::{Entry, Place, Profile};
use magray_core::ledger::MemoryReport;
use magray_core::schedule::{DeviceId, Refused, RequestId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct Profiling {
    profile: Option<Arc<Profile>>,
    /// When a model was told to leave a device.
    leaving: Mutex<HashMap<(usize, usize), Instant>>,
}

impl Profiling {
    pub(super) fn of(options: &EngineOptions) -> Self {
        let profiling = Self { profile: options.profile.clone(), leaving: Mutex::default() };
        for (number, model) in options.models.iter().enumerate() {
            profiling.model(number, &model.name);
        }
        profiling
    }

    pub(super) fn profile(&self) -> Option<&Arc<Profile>> {
        self.profile.as_ref()
    }

    /// Ends the file.
    pub(super) fn finish(&self) {
        if let Some(Err(error)) = self.profile.as_ref().map(|profile| profile.finish()) {
            tracing::warn!(target: "magray::engine", %error, "the profile is not whole: the disk took no more");
        }
    }

    pub(super) fn model(&self, number: usize, name: &str) {
        self.note(|| Entry::Model { number, name: name.to_owned() });
    }

    pub(super) fn ordered(&self, device: DeviceId, what: &What) {
        if let (Some(_), What::Offload(model)) = (&self.profile, what) {
            self.leaving().insert((usize::from(device.0), *model), Instant::now());
        }
    }

    pub(super) fn answered(&self, id: RequestId, work: &Work, answer: &Answer) {
        self.note(|| Entry::Request {
            id: id.0,
            model: work.model,
            texts: work.texts.len(),
            tokens: answer.tokens,
            queued: answer.queued,
            computed: answer.computed,
            replays: answer.replays,
            fallback: answer.fallback.as_ref().map(|reason| reason.code()),
        });
    }

    pub(super) fn refused(&self, refused: &Refused) {
        self.note(|| {
            let reason = match refused {
                Refused::Full { .. } => "full",
                Refused::TooLarge => "too_large",
                Refused::Expired => "expired",
                Refused::Poison => "poison",
                Refused::NoDevice(fallback) => fallback.code(),
                Refused::Draining => "draining",
            };
            Entry::Refused { reason }
        });
    }

    pub(super) fn computed(&self, at: Place, batch: &Batch, took: Duration) {
        self.note(|| Entry::Batch {
            at,
            model: batch.model,
            requests: batch.parts.len(),
            texts: batch.texts_count(),
            tokens: batch.texts().map(|text| text.ids.len()).sum(),
            took,
        });
    }

    pub(super) fn turned(&self, at: Place, turn: &Turn, new: &[NewTokens], took: Duration) {
        self.note(|| Entry::Step {
            at,
            model: turn.model,
            sequences: turn.steps.len(),
            tokens: turn.steps.iter().map(|step| step.ids.len()).sum(),
            new_tokens: new.iter().map(|new| new.tokens.len()).sum(),
            took,
        });
    }

    pub(super) fn loaded(&self, at: Place, model: usize, loaded: Loaded) {
        let Loaded { bytes, took, from_host } = loaded;
        self.note(|| Entry::Load { at, model, bytes, took, from_host });
    }

    pub(super) fn offloaded(&self, at: Place, model: usize) {
        self.note(|| {
            let began = self.leaving().remove(&(at.device, model));
            Entry::Offload { at, model, took: began.map(|began| began.elapsed()).unwrap_or_default() }
        });
    }

    pub(super) fn imaged(&self, model: usize, is_there: bool) {
        self.note(|| Entry::Image { model, is_there });
    }

    pub(super) fn happened(&self, at: Place, what: &'static str) {
        self.note(|| Entry::Note { at, what });
    }

    pub(super) fn memory(&self, at: Place, report: &MemoryReport) {
        self.note(|| {
            let used = report.held.iter().map(|(_, bytes)| bytes).sum();
            Entry::Memory { at, used, held: report.cached.saturating_add(used) }
        });
    }

    fn note(&self, entry: impl FnOnce() -> Entry) {
        if let Some(profile) = &self.profile {
            profile.note(entry());
        }
    }

    fn leaving(&self) -> std::sync::MutexGuard<'_, HashMap<(usize, usize), Instant>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
