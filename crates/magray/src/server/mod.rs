//! `magray serve`: the engine behind HTTP, through the APIs that clients already speak.
//! Holds no model or device code; a request that was taken is answered, also when the server is told to stop.

mod admission;
mod apis;
mod app;
mod beside;
mod body;
mod catalogue;
mod chats;
mod checks;
mod client_stream;
mod codings;
mod collections;
mod connections;
mod control_subject;
mod documents;
mod errors;
mod examples;
mod fields;
mod generating;
mod health;
mod held_answer;
mod hosts;
mod index_jobs;
mod indexing;
mod inputs;
mod keys;
mod limits;
mod line_reader;
mod lines;
mod listen;
mod live;
mod mcp;
mod meter;
mod metrics;
mod model_changes;
mod model_files;
mod models;
mod openai_tokens;
mod openapi;
mod origin;
mod page;
mod parameters;
mod ranking;
mod rate;
mod refusal_log;
mod reload;
mod request;
mod request_id;
mod request_record;
mod requests;
mod reservation;
mod router;
mod routes;
mod scaling;
mod scope;
mod service;
mod signals;
mod streaming;
mod threads;
mod tls;
mod token_account;
mod token_counts;
mod traces;
mod unread_bytes;
mod viewers;
mod writing;
mod wrong_keys;

pub(crate) use beside::{Served, Work};
pub(crate) use mcp::run_stdio;
pub(crate) use tls::TlsError;
pub(crate) use traces::TracesError;

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use magray_engine::{
    LoadError, Refusal,
    engine::{Engine, EngineOptions, Slices, TextCache},
    vectors,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::Runtime,
};

use self::{
    app::{App, Page, Parts},
    beside::Beside,
    catalogue::Catalogue,
    collections::LazyCollections,
    control_subject::ServerSubject,
    listen::Listening,
    metrics::Metrics,
    models::Models,
    openai_tokens::OpenAiTokens,
    reload::Reloader,
    request::HttpService,
    signals::Signals,
    threads::ConnectionThreads,
    tls::Tls,
    traces::Traces,
};
use crate::{
    config::{Config, ConfigError, ServerSettings},
    console::Console,
    control::{ControlSocket, EngineSubject},
    critics::Panel,
    exit_code::Exit,
};

pub(crate) struct Start {
    pub(crate) config: Config,
    pub(crate) settings: ServerSettings,
    pub(crate) settle: Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>,
    pub(crate) engine: EngineOptions,
    pub(crate) console: Console,
    /// Whether faults of its simulated devices can be injected.
    pub(crate) takes_faults: bool,
    /// What goes on beside it while it listens.
    pub(crate) beside: Option<Work>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("cannot listen on {address}: {reason}; choose another with --host and --port")]
    Listen { address: String, reason: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Traces(#[from] TracesError),
    #[error("'{}' is not a file of tokens: {reason}", path.display())]
    TokenFile { path: PathBuf, reason: String },
    #[error("server.aliases: {0}")]
    Alias(String),
    #[error("cannot load '{models}': {reason}")]
    Load { models: String, reason: Box<LoadError> },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Device(#[from] Refusal),
    #[error("the system refused what a server needs: {0}")]
    System(#[from] io::Error),
}

const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// The time for preloading a model; where it fails, the next request tries again.
const PRELOAD_MAX: Duration = Duration::from_secs(600);

pub(crate) fn run(start: Start) -> Result<(), StartError> {
    allow_connections(start.settings.connections_max);
    let runtime = runtime()?;
    let ended = runtime.block_on(serve(start));
    // Does not wait for threads that still tokenize for clients that have left.
    runtime.shutdown_background();
    let Ended { engine, traces, was_drained } = ended?;
    engine.shut_down();
    if let Some(traces) = traces {
        traces.finish();
    }
    if !was_drained {
        tracing::warn!(target: "magray::server", "the server stopped before all requests were answered: see server.drain_timeout_s");
    }
    Ok(())
}

struct Ended {
    engine: Engine,
    traces: Option<Arc<Traces>>,
    was_drained: bool,
}

async fn serve(start: Start) -> Result<Ended, StartError> {
    let Start { config, settings, settle, engine, console, takes_faults, beside } = start;
    // Binds before models are loaded: a wrong address fails at once, and early clients wait in the backlog.
    let listener = bind(&settings.host, settings.port)?;
    let tls = settings.tls.as_ref().map(|(cert, key)| Tls::open(cert, key)).transpose()?;
    let openai_tokens = settings.openai_token_file.as_deref().map(OpenAiTokens::open).transpose()?;
    let traces = settings.otlp_endpoint.as_deref().map(Traces::start).transpose()?;
    let traces = traces.map(Arc::new);
    let mut signals = Signals::install()?;
    let mut engine = engine;
    engine.schedule.limits.wait_max = Some(settings.queue_wait_max);
    engine.schedule.batching.slices = Some(Slices::default());
    let engine_limits = engine.schedule.limits;
    let engine = start_engine(engine, &mut signals).await?;
    let models = Models::new(&engine, &settings.aliases).map_err(StartError::Alias)?;
    let critics = Panel::of(&config)?;
    let host = config.rows_host_rules().and_then(|rules| engine.rows_host(rules));
    let parts = Parts {
        engine: engine.clone(),
        text_cache: TextCache::new(settings.text_cache),
        metrics: Metrics::new(&models, critics.names(), settings.has_vllm_metrics),
        critics,
        models,
        engine_limits,
        memory_limit: config.gpu().rules.memory_limit_bytes,
        catalogue: Catalogue::new(&config)?,
        collections: LazyCollections::new(config.collections_folder(), host),
        openai_tokens,
        traces: traces.clone(),
        reloader: Reloader::new(&config, tls.clone(), settle),
        page: Page { takes_faults, has_critics: routes::has("/v1/evaluate") },
    };
    let app = App::new(parts, settings.live.clone());
    // Other programs of the same user need no key.
    let subject = EngineSubject { engine: engine.clone(), memory_limit: config.gpu().rules.memory_limit_bytes };
    let subject = ServerSubject { engine: subject, app: app.clone() };
    let socket = ControlSocket::open(&config.control_folders(), Arc::new(subject));
    let _socket =
        socket.inspect_err(|error| console.detail(format_args!("`gpu status` cannot reach this server: {error}")));
    announce(&settings, &listener, &console);
    tokio::spawn(upkeep(app.clone()));
    tokio::spawn(apis::ui::feed(app.clone()));
    if settings.is_preloading {
        tokio::spawn(preload(app.clone()));
    }
    let listening = Listening {
        service: Arc::new(HttpService::new(app.clone(), &settings)),
        tls,
        connections_max: settings.connections_max,
        head_within: settings.head_within,
    };
    let beside = beside.map(|work| Beside::start(work, listener.local_addr()?, engine.clone())).transpose()?;
    let stop = signals.wait(app.clone(), console, settings.drain_delay, beside);
    let threads = ConnectionThreads::start(connection_threads())?;
    let was_drained = listen::serve(listener, listening, &threads, stop, settings.drain_within).await;
    app.collections().close();
    Ok(Ended { engine, traces, was_drained })
}

/// Starts the engine beside the runtime, unless the process is told to stop meanwhile.
async fn start_engine(options: EngineOptions, signals: &mut Signals) -> Result<Engine, StartError> {
    let names: Vec<String> = options.models.iter().map(|model| model.name.clone()).collect();
    let starting = tokio::task::spawn_blocking(move || Engine::start(options));
    tokio::select! {
        started = starting => match started {
            Ok(started) => started.map_err(|reason| match reason {
                LoadError::Device(refusal) => refusal.into(),
                reason => StartError::Load { models: names.join(", "), reason: Box::new(reason) },
            }),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        },
        // No request was taken yet.
        () = signals.stopped() => std::process::exit(Exit::Interrupted.code().into()),
    }
}

/// Raises the limit of open files towards one for each connection: the default of most systems is low.
fn allow_connections(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const OTHERS: u64 = 256;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(u64::MAX).min(connections as u64 + OTHERS);
    if current.is_some_and(|current| current < wanted) {
        // Where the system refuses, connections wait in the backlog until a file is closed.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Of the process itself: what is not a connection's.
fn runtime() -> io::Result<Runtime> {
    /// Threads for moves of models, reloads and the start of the engine.
    const BLOCKING_MAX: usize = 16;
    tokio::runtime::Builder::new_current_thread().max_blocking_threads(BLOCKING_MAX).enable_all().build()
}

/// Half of the cores: the others compute, read long texts, and wait for GPUs. On two cores a second thread would take time
/// from those that compute, and fewer requests would be answered.
fn connection_threads() -> usize {
    (cores() / 2).max(1)
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn bind(host: &str, port: u16) -> Result<TcpListener, StartError> {
    let refused = |reason| StartError::Listen { address: format!("{host}:{port}"), reason };
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (host, port).to_socket_addrs().map_err(refused)? {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(refused(failed))
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    /// Connections that the system keeps until they are accepted, so that a burst of clients is not lost.
    const BACKLOG: u32 = 4096;
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    /// What the system buffers of a body that is not read yet; its default is megabytes a connection.
    const UNREAD_BYTES: u32 = 256 << 10;
    socket.set_reuseaddr(true)?;
    // Connections inherit it.
    socket.set_recv_buffer_size(UNREAD_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn announce(settings: &ServerSettings, listener: &TcpListener, console: &Console) {
    let Ok(address) = listener.local_addr() else { return };
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    console.note(format_args!("listening on {scheme}://{address} (page: /ui, API: /docs)"));
    if address.ip().is_loopback() {
        return;
    }
    if settings.live.api_keys.is_empty() {
        console.warn("everyone who reaches this address may compute: set server.api_keys_file or MAGRAY_API_KEYS");
    } else if settings.tls.is_none() {
        console.warn("keys are sent unencrypted: set server.tls_cert and server.tls_key, or put a proxy before it");
    }
}

async fn upkeep(app: App) {
    let mut interval = tokio::time::interval(UPKEEP_EVERY);
    loop {
        interval.tick().await;
        app.metrics().upkeep();
        app.refusals().flush(app.uptime());
    }
}

async fn preload(app: App) {
    let own = app.clone();
    let loading = tokio::task::spawn_blocking(move || {
        for (index, model) in own.models().iter() {
            if let Err(error) = own.engine().preheat(index, PRELOAD_MAX) {
                tracing::warn!(target: "magray::server", model = model.name, %error, "a model was not preloaded");
            }
        }
    });
    if loading.await.is_ok()
        && let Err(problem) = app.check_health().await
    {
        tracing::warn!(target: "magray::server", error = problem.message, "the first pass failed");
    }
}
