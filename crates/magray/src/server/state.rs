//! What every handler is given: the engine, the models by name, and what can change while the server runs.
//! Cheap to clone, and never locked while anything is computed.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use magray_engine::engine::{self, Engine};
use tokio::sync::Semaphore;

use super::{
    admission::Admission, hosts::AllowedHosts, keys::Keys, limits::Limits, metrics::Metrics, models::Models,
    openai_tokens::OpenAiTokens, rate::Rates, reload::Reloader, traces::Traces, wrong_keys::WrongKeys,
};
use crate::{config::LiveSettings, control::EngineReport};

/// The server's state. Clones are the same.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

struct Inner {
    engine: Engine,
    models: Models,
    engine_limits: engine::Limits,
    memory_limit: Option<u64>,
    openai_tokens: Option<OpenAiTokens>,
    live: RwLock<Arc<Live>>,
    admission: Arc<Admission>,
    wrong_keys: WrongKeys,
    /// Whoever proves that the devices compute.
    proving: tokio::sync::Mutex<()>,
    metrics: Metrics,
    traces: Option<Arc<Traces>>,
    reloader: Reloader,
    /// How many callers wait at once for models to move.
    transfers: Arc<Semaphore>,
    /// How many answers are written at once beside the runtime.
    writers: Arc<Semaphore>,
    connections: AtomicUsize,
    is_draining: AtomicBool,
    started: Instant,
}

/// What can change while the server runs; a request sees one version from its start to its end.
pub(crate) struct Live {
    pub(crate) keys: Keys,
    /// By key: the network that it was last used from; 0: none yet.
    pub(crate) used_from: Vec<AtomicU64>,
    pub(crate) rates: Rates,
    pub(crate) hosts: AllowedHosts,
    pub(crate) limits: Limits,
}

/// What the state is made of.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) models: Models,
    pub(crate) engine_limits: engine::Limits,
    /// What the settings allow of a GPU's memory.
    pub(crate) memory_limit: Option<u64>,
    pub(crate) openai_tokens: Option<OpenAiTokens>,
    pub(crate) live: LiveSettings,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Option<Arc<Traces>>,
    pub(crate) reloader: Reloader,
}

/// Callers that wait for models to move; more are refused.
const TRANSFERS_MAX: usize = 8;

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            engine: parts.engine,
            models: parts.models,
            engine_limits: parts.engine_limits,
            memory_limit: parts.memory_limit,
            openai_tokens: parts.openai_tokens,
            admission: Arc::new(Admission::new(parts.live.held_bytes_max)),
            wrong_keys: WrongKeys::default(),
            live: RwLock::new(Arc::new(Live::of(parts.live))),
            proving: tokio::sync::Mutex::default(),
            metrics: parts.metrics,
            traces: parts.traces,
            reloader: parts.reloader,
            transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)),
            writers: Arc::new(Semaphore::new((super::cores() / 2).max(1))),
            connections: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            started: Instant::now(),
        }))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(crate) fn models(&self) -> &Models {
        &self.0.models
    }

    pub(super) fn proving(&self) -> &tokio::sync::Mutex<()> {
        &self.0.proving
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Who tells a collector of requests, where there is one.
    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.0.traces.as_deref()
    }

    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.0.admission
    }

    pub(crate) fn wrong_keys(&self) -> &WrongKeys {
        &self.0.wrong_keys
    }

    pub(crate) fn reloader(&self) -> &Reloader {
        &self.0.reloader
    }

    pub(super) fn writers(&self) -> &Arc<Semaphore> {
        &self.0.writers
    }

    pub(super) fn transfers(&self) -> &Arc<Semaphore> {
        &self.0.transfers
    }

    /// What the queue takes at most.
    pub(crate) fn engine_limits(&self) -> engine::Limits {
        self.0.engine_limits
    }

    /// How the engine is at this moment.
    pub(crate) fn report(&self) -> EngineReport {
        EngineReport::of(&self.engine().status(), self.0.memory_limit)
    }

    /// The tokens of OpenAI's own tokenizer, where the user has given them.
    pub(crate) fn openai_tokens(&self) -> Option<&OpenAiTokens> {
        self.0.openai_tokens.as_ref()
    }

    /// What holds now.
    pub(crate) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.0.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on this holds.
    pub(crate) fn change(&self, live: LiveSettings) {
        self.0.admission.set_most(live.held_bytes_max);
        let mut own = self.0.live.write().unwrap_or_else(PoisonError::into_inner);
        let next = Live::of(live);
        for (place, place_before) in next.keys.also_in(&own.keys) {
            if let Some(spent) = own.rates.spent(place_before) {
                next.rates.go_on(place, spent);
            }
        }
        *own = Arc::new(next);
    }

    /// Connections that are open.
    pub(crate) fn connections(&self) -> &AtomicUsize {
        &self.0.connections
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// Whether the server is on its way out.
    pub(crate) fn is_draining(&self) -> bool {
        self.0.is_draining.load(Ordering::Relaxed)
    }

    pub(crate) fn start_draining(&self) {
        self.0.is_draining.store(true, Ordering::Relaxed);
    }
}

impl Live {
    fn of(settings: LiveSettings) -> Self {
        let rates = Rates::new(settings.keys.len(), settings.requests_per_minute);
        let used_from = (0..settings.keys.len()).map(|_| AtomicU64::new(0)).collect();
        Self { keys: settings.keys, used_from, rates, hosts: settings.allowed_hosts, limits: settings.limits }
    }
}
