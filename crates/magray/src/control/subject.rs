//! What a control socket controls: an engine, or a fake in tests.
//! Translates between names of models and the engine's indices.

use std::time::{Duration, Instant};

use magray_engine::engine::{Engine, EngineError, Moved, Priority};

use super::{
    report::{Cleared, DeviceResidency, EngineReport, ModelReport},
    wire::{Done, Idle, ModelDone, Refusal, RefusalCode, Reply, Request},
};

pub(crate) trait Controlled: Send + Sync + 'static {
    fn report(&self) -> EngineReport;

    /// Lets the GPUs free what they cache, and waits until they have.
    fn clear_cache(&self) -> Cleared;

    /// The page of metrics.
    fn metrics(&self) -> Result<String, Refusal> {
        Err(Refusal::new(RefusalCode::Impossible, "this engine belongs to a command: it counts no metrics"))
    }

    /// Applies a change to the model of this index, and waits until it is done.
    fn change(&self, model: usize, change: Change, within: Duration) -> Result<Moved, EngineError>;

    /// Lets a model come or go, or have another name; the names of the models that are served then.
    fn change_served(&self, _change: ServedChange<'_>) -> Result<Vec<String>, Refusal> {
        Err(Refusal::new(RefusalCode::Impossible, "this engine belongs to a command: its models stay"))
    }
}

/// A change of which models are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedChange<'a> {
    Load(&'a str),
    Unload(&'a str),
    Alias(&'a str, Option<&'a str>),
}

impl<'a> ServedChange<'a> {
    pub(super) fn of(request: &'a Request) -> Option<Self> {
        match request {
            Request::Load { model } => Some(Self::Load(model)),
            Request::Unload { model } => Some(Self::Unload(model)),
            Request::Alias { alias, model } => Some(Self::Alias(alias, model.as_deref())),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Offload,
    Release,
    Preheat(Priority),
    Priority(Priority),
    Idle(Idle),
    Pin(bool),
}

impl Change {
    pub(super) fn is_slow(self) -> bool {
        matches!(self, Self::Offload | Self::Release | Self::Preheat(_))
    }
}

pub(crate) struct EngineSubject {
    pub(crate) engine: Engine,
    /// What the settings allow of a GPU's memory.
    pub(crate) memory_limit: Option<u64>,
}

impl Controlled for EngineSubject {
    fn report(&self) -> EngineReport {
        EngineReport::of(&self.engine.status(), self.memory_limit)
    }

    fn clear_cache(&self) -> Cleared {
        Cleared::by(&self.engine)
    }

    fn change(&self, model: usize, change: Change, within: Duration) -> Result<Moved, EngineError> {
        let engine = &self.engine;
        match change {
            Change::Offload => return engine.offload(model, within),
            Change::Release => return engine.release(model, within),
            Change::Preheat(priority) => return engine.preheat_as(model, priority, within),
            Change::Priority(priority) => engine.set_priority(model, priority)?,
            Change::Pin(pinned) => engine.set_pinned(model, pinned)?,
            Change::Idle(Idle::Never) => {
                engine.set_offload_after_use(model, false)?;
                engine.set_idle_timeout(model, None)?;
            }
            Change::Idle(Idle::AfterMs(ms)) => {
                engine.set_idle_timeout(model, Some(Duration::from_millis(ms)))?;
                engine.set_offload_after_use(model, ms == 0)?;
            }
        }
        let status = engine.status();
        let residency = status.models.get(model).map(|model| model.view.residency.clone()).unwrap_or_default();
        let names = status.devices.iter().map(|device| device.name);
        Ok(Moved { took: Duration::ZERO, residency: names.zip(residency).collect() })
    }
}

/// The change of models that a request asks for, of which, and how long it may take; `None`: it asks for something else.
pub(super) fn change_of(request: &Request) -> Option<(Change, Option<&str>, Duration)> {
    let ms = Duration::from_millis;
    Some(match request {
        Request::Status {}
        | Request::Metrics {}
        | Request::ClearCache {}
        | Request::Load { .. }
        | Request::Unload { .. }
        | Request::Alias { .. } => return None,
        Request::Offload { model, within_ms } => (Change::Offload, model.as_deref(), ms(*within_ms)),
        Request::Release { model, within_ms } => (Change::Release, model.as_deref(), ms(*within_ms)),
        Request::Preheat { model, within_ms, priority } => {
            (Change::Preheat(*priority), model.as_deref(), ms(*within_ms))
        }
        Request::Priority { model, priority } => (Change::Priority(*priority), model.as_deref(), Duration::ZERO),
        Request::Timeout { model, idle } => (Change::Idle(*idle), model.as_deref(), Duration::ZERO),
        Request::Pin { model, pinned } => (Change::Pin(*pinned), model.as_deref(), Duration::ZERO),
    })
}

pub(super) fn answer(subject: &dyn Controlled, request: &Request, within_max: Duration) -> Reply {
    if let Some(change) = ServedChange::of(request) {
        return subject.change_served(change).map_or_else(Reply::Refused, Reply::Served);
    }
    if *request == (Request::Metrics {}) {
        return subject.metrics().map_or_else(Reply::Refused, Reply::Metrics);
    }
    if *request == (Request::ClearCache {}) {
        return Reply::Cleared(subject.clear_cache());
    }
    let Some((change, model, within)) = change_of(request) else { return Reply::Status(subject.report()) };
    match change_all(subject, change, model, within.min(within_max)) {
        Ok(models) => Reply::Done(Done { models, status: subject.report() }),
        Err(refusal) => Reply::Refused(refusal),
    }
}

fn change_all(
    subject: &dyn Controlled,
    change: Change,
    model: Option<&str>,
    within: Duration,
) -> Result<Vec<ModelDone>, Refusal> {
    let known = subject.report().models;
    let meant: Vec<&ModelReport> = match model {
        None => known.iter().collect(),
        Some(name) => vec![known.iter().find(|known| known.name == name).ok_or_else(|| unknown(name, &known))?],
    };
    let started = Instant::now();
    let mut done = Vec::new();
    for ModelReport { name, number, .. } in meant {
        // The time is for all of them together.
        let left = within.saturating_sub(started.elapsed());
        let moved = subject.change(*number, change, left).map_err(|error| refusal(name, &error))?;
        done.push(ModelDone {
            model: name.clone(),
            took_ms: moved.took.as_secs_f64() * 1e3,
            residency: moved.residency.iter().map(|(device, place)| DeviceResidency::of(*device, *place)).collect(),
        });
    }
    Ok(done)
}

fn unknown(name: &str, known: &[ModelReport]) -> Refusal {
    // A name is the client's own text, of any length.
    let shown: String = name.chars().take(80).collect();
    let known: Vec<&str> = known.iter().map(|model| model.name.as_str()).collect();
    Refusal::new(RefusalCode::UnknownModel, format!("there is no model '{shown}': it has {}", known.join(", ")))
}

fn refusal(model: &str, error: &EngineError) -> Refusal {
    let code = match error {
        EngineError::NotYet { .. } => RefusalCode::NotYet,
        EngineError::Overruled => RefusalCode::Overruled,
        EngineError::NoModel(_) => RefusalCode::UnknownModel,
        EngineError::Full { .. } => RefusalCode::Busy,
        EngineError::Draining => RefusalCode::Ending,
        EngineError::NoText
        | EngineError::Text(_)
        | EngineError::TokenKinds { .. }
        | EngineError::NoPrompt(_)
        | EngineError::TooLarge
        | EngineError::Expired
        | EngineError::Poison
        | EngineError::Panicked
        | EngineError::NoDevice { .. } => RefusalCode::NotYet,
    };
    Refusal::new(code, format!("'{model}': {error}"))
}
