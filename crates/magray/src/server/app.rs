//! The state that every handler is given: the engine, the models by name, and the parts that admit, count and reload.
//! Cheap to clone, and never locked while anything is computed.

use std::{
    net::IpAddr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use http::HeaderMap;
use magray_engine::engine::{self, Engine, TextCache};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    admission::{Admission, QueueReservation},
    catalogue::Catalogue,
    collections::LazyCollections,
    errors::{Kind, Problem},
    health::{HealthCheck, Healthy},
    index_jobs::Indexing,
    keys::{Access, Caller},
    live::Live,
    metrics::{Held, Metrics},
    models::Models,
    openai_tokens::OpenAiTokens,
    refusal_log::RefusalLog,
    reload::{self, Reloaded, Reloader},
    request_record::Asker,
    traces::Traces,
    viewers::Viewers,
    wrong_keys::WrongKeys,
};
use crate::{
    config::{LiveSettings, ModelPlans, RequestLimits},
    control::{EngineReport, Snapshot},
    critics::Panel,
};

/// Requests to move models that are carried out at once. Each goes on when its caller leaves.
const MOVES_MAX: usize = 8;

/// Clones share one state.
#[derive(Clone)]
pub(crate) struct App(Arc<State>);

struct State {
    parts: Parts,
    live: RwLock<Arc<Live>>,
    admission: Arc<Admission>,
    wrong_keys: WrongKeys,
    refusals: RefusalLog,
    health: HealthCheck,
    indexing: Indexing,
    /// How many answers are written at once beside the runtime.
    writers: Arc<Semaphore>,
    moves: Arc<Semaphore>,
    viewers: Viewers,
    /// One picture of a collection is made at a time.
    maps: Arc<Semaphore>,
    connections: AtomicUsize,
    is_draining: AtomicBool,
    started: Instant,
}

pub(crate) struct Parts {
    pub(crate) engine: Engine,
    /// Rows of texts that were computed before.
    pub(crate) text_cache: Arc<TextCache>,
    pub(crate) models: Models,
    pub(crate) engine_limits: engine::Limits,
    /// What the settings allow of a GPU's memory.
    pub(crate) memory_limit: Option<u64>,
    pub(crate) openai_tokens: Option<OpenAiTokens>,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Option<Arc<Traces>>,
    pub(crate) reloader: Reloader,
    pub(crate) catalogue: Catalogue,
    pub(crate) collections: Arc<LazyCollections>,
    pub(crate) critics: Panel,
    pub(crate) page: Page,
}

/// What the page has beside what every server has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page {
    /// Faults of simulated devices can be injected.
    pub(crate) takes_faults: bool,
    /// Critics judge texts.
    pub(crate) has_critics: bool,
}

impl App {
    pub(crate) fn new(parts: Parts, live: LiveSettings) -> Self {
        Self(Arc::new(State {
            parts,
            admission: Arc::new(Admission::new(live.held_bytes_max)),
            live: RwLock::new(Arc::new(Live::new(live))),
            wrong_keys: WrongKeys::default(),
            refusals: RefusalLog::default(),
            health: HealthCheck::default(),
            indexing: Indexing::default(),
            writers: Arc::new(Semaphore::new((super::cores() / 2).max(1))),
            moves: Arc::new(Semaphore::new(MOVES_MAX)),
            viewers: Viewers::default(),
            maps: Arc::new(Semaphore::new(1)),
            connections: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            started: Instant::now(),
        }))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.parts.engine
    }

    pub(crate) fn text_cache(&self) -> &Arc<TextCache> {
        &self.0.parts.text_cache
    }

    pub(crate) fn models(&self) -> &Models {
        &self.0.parts.models
    }

    pub(super) fn takes_faults(&self) -> bool {
        self.0.parts.page.takes_faults
    }

    pub(super) fn catalogue(&self) -> &Catalogue {
        &self.0.parts.catalogue
    }

    pub(crate) fn collections(&self) -> &Arc<LazyCollections> {
        &self.0.parts.collections
    }

    pub(crate) fn critics(&self) -> &Panel {
        &self.0.parts.critics
    }

    pub(crate) fn indexing(&self) -> &Indexing {
        &self.0.indexing
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.parts.metrics
    }

    pub(crate) fn refusals(&self) -> &RefusalLog {
        &self.0.refusals
    }

    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.0.parts.traces.as_deref()
    }

    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.0.admission
    }

    pub(super) fn writers(&self) -> &Arc<Semaphore> {
        &self.0.writers
    }

    /// `None`: as many moves of models as allowed are under way.
    pub(crate) fn begin_move(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.moves).try_acquire_owned().ok()
    }

    /// `None`: another picture of a collection is being made.
    pub(crate) fn begin_map(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.maps).try_acquire_owned().ok()
    }

    pub(crate) fn engine_limits(&self) -> engine::Limits {
        self.0.parts.engine_limits
    }

    pub(crate) fn report(&self) -> EngineReport {
        EngineReport::of(&self.engine().status(), self.0.parts.memory_limit)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.engine(), self.0.parts.memory_limit)
    }

    pub(crate) fn page(&self) -> Page {
        self.0.parts.page
    }

    pub(crate) fn viewers(&self) -> &Viewers {
        &self.0.viewers
    }

    pub(crate) fn render_metrics(&self) -> String {
        let open = self.0.connections.load(Ordering::Relaxed);
        let held = Held { connections: open, bytes: self.0.admission.held() };
        self.metrics().render(held, &self.text_cache().usage(), self.collections().searches(), &self.report())
    }

    pub(crate) fn openai_tokens(&self) -> Option<&OpenAiTokens> {
        self.0.parts.openai_tokens.as_ref()
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.0.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn limits(&self) -> RequestLimits {
        self.live().limits()
    }

    pub(crate) fn admit(
        &self,
        live: &Live,
        headers: &HeaderMap,
        access: Access,
        peer: IpAddr,
    ) -> Result<Caller, Problem> {
        live.admit(headers, access, peer, (&self.0.wrong_keys, self.uptime()))
    }

    pub(crate) fn check_queue(&self, body_bytes: u64, asker: Asker) -> Result<(), Problem> {
        self.0.admission.check_queue(self.engine(), body_bytes, asker)
    }

    pub(crate) fn is_queue_free(&self, body_bytes: u64, asker: Asker) -> bool {
        self.0.admission.is_queue_free(self.engine(), body_bytes, asker)
    }

    pub(crate) fn reserve_queue(&self, body_bytes: u64, asker: Asker) -> Result<QueueReservation, Problem> {
        self.0.admission.reserve_queue(self.engine(), body_bytes, asker)
    }

    /// Reads the settings again and applies those that can change. Blocks while files are read.
    pub(crate) fn reload(&self) -> Result<Reloaded, Problem> {
        self.0.parts.reloader.reload(&self.live(), self.models(), |settings, changed| {
            self.0.admission.set_bytes_max(settings.live.held_bytes_max);
            let mut live = self.0.live.write().unwrap_or_else(PoisonError::into_inner);
            *live = Arc::new(Live::replacing(&live, settings.live, self.uptime()));
            drop(live);
            if let Some(aliases) = settings.aliases {
                self.models().set_aliases(aliases);
            }
            self.set_plans(settings.plans, changed);
        })
    }

    /// Applies what has changed of how models come and go to those that are there and those that come.
    fn set_plans(&self, plans: ModelPlans, changed: &[&str]) {
        let has_changed = |keys: &[&str]| keys.iter().any(|key| changed.contains(key));
        for (number, model) in self.models().iter() {
            let (plan, engine) = (plans.of(&model.name), self.engine());
            let mut done = Ok(());
            if has_changed(&reload::TIMEOUTS) {
                done = engine
                    .set_idle_timeout(number, plan.idle_timeout)
                    .and_then(|()| engine.set_offload_after_use(number, plan.offload_after_use));
            }
            if has_changed(&["gpu.models.pinned"]) {
                done = done.and_then(|()| engine.set_pinned(number, plan.is_pinned));
            }
            if has_changed(&["gpu.models.priority"]) {
                done = done.and_then(|()| engine.set_priority(number, plan.priority));
            }
            if let Err(error) = done {
                // It has gone meanwhile.
                tracing::debug!(target: "magray::server", model = model.name, %error, "a model kept its plan");
            }
        }
        self.catalogue().set_plans(plans);
    }

    pub(crate) async fn check_health(&self) -> Result<Healthy, Problem> {
        if self.is_draining() {
            return Err(Problem::new(Kind::Unavailable, "the server is stopping"));
        }
        self.0.health.run(self.engine()).await
    }

    pub(crate) fn connections(&self) -> &AtomicUsize {
        &self.0.connections
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.is_draining.load(Ordering::Relaxed)
    }

    /// From now on the server is not healthy: it is about to stop.
    pub(crate) fn start_draining(&self) {
        self.0.is_draining.store(true, Ordering::Relaxed);
    }
}
