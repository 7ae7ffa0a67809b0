//! `magray serve`: the engine behind HTTP, for the clients that people already have.
//! Holds no model or device code; what it takes it answers, also when it is told to stop.

mod account;
mod admission;
mod apis;
mod body;
mod connections;
mod delivery;
mod errors;
mod fields;
mod gate;
mod health;
mod hosts;
mod inputs;
mod keys;
mod limits;
mod listen;
mod mcp;
mod metrics;
mod models;
mod openai_tokens;
mod openapi;
mod origin;
mod patience;
mod ranking;
mod rate;
mod refusals;
mod reload;
mod request_id;
mod requests;
mod reservation;
mod service;
mod site;
mod state;
mod stopping;
mod tls;
mod traces;
mod unread;
mod watch;
mod writing;
mod wrong_keys;

pub(crate) use hosts::{AllowedHosts, is_host_pattern};
pub(crate) use keys::{Keys, WrittenKey, read_keys};
pub(crate) use limits::Limits;
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
    engine::{Engine, EngineOptions},
    vectors,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::Runtime,
};

use self::{
    listen::Listening,
    metrics::Metrics,
    models::Models,
    openai_tokens::OpenAiTokens,
    reload::Reloader,
    state::{App, Parts},
    stopping::Signals,
    tls::Tls,
    traces::Traces,
};
use crate::{
    config::{Config, ConfigError, ServerSettings},
    console::Console,
    control::{ControlSocket, EngineSubject},
    exit::Failure,
    model::load_failure,
};

/// All that a server is started with.
pub(crate) struct Start {
    pub(crate) config: Config,
    pub(crate) settings: ServerSettings,
    /// Reads the settings again.
    pub(crate) settle: Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>,
    pub(crate) engine: EngineOptions,
    pub(crate) console: Console,
}

/// Why the server cannot start.
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
    #[error("the system refused what a server needs: {0}")]
    System(#[from] io::Error),
}

/// How often the samples of metrics are summed up.
const UPKEEP: Duration = Duration::from_secs(5);
/// Models that are preloaded have this long before it is given up; the next request tries again.
const PRELOAD_MAX: Duration = Duration::from_secs(600);

/// Runs the server until it is told to stop.
pub(crate) fn run(start: Start) -> Result<(), Failure> {
    allow_connections(start.settings.connections_max);
    let runtime = runtime().map_err(StartError::from)?;
    let ended = runtime.block_on(serve(start));
    // Threads that still read for somebody who has left are not waited for.
    runtime.shutdown_background();
    let Ended { engine, traces, was_drained } = ended?;
    engine.shut_down();
    if let Some(traces) = traces {
        traces.finish();
    }
    if !was_drained {
        tracing::warn!(target: "magray::server", "some requests were not answered in the time for it");
    }
    Ok(())
}

/// What is left when the server has ended.
struct Ended {
    engine: Engine,
    traces: Option<Arc<Traces>>,
    was_drained: bool,
}

async fn serve(start: Start) -> Result<Ended, Failure> {
    let Start { config, settings, settle, engine, console } = start;
    // The port is taken before models are read: a mistake shows at once, and clients that come early wait.
    let listener = bind(&settings.host, settings.port)?;
    let tls = settings.tls.as_ref().map(|(cert, key)| Tls::open(cert, key)).transpose().map_err(StartError::from)?;
    let openai_tokens = settings.openai_token_file.as_deref().map(OpenAiTokens::open).transpose()?;
    let traces = settings.otlp_endpoint.as_deref().map(Traces::start).transpose().map_err(StartError::from)?;
    let traces = traces.map(Arc::new);
    let mut signals = Signals::install().map_err(StartError::from)?;
    let mut engine = engine;
    engine.schedule.limits.wait_max = Some(settings.queue_wait_max);
    let engine_limits = engine.schedule.limits;
    let engine = start_engine(engine, &mut signals).await?;
    let models = Models::new(&engine, &settings.aliases).map_err(StartError::Alias)?;
    let app = App::new(Parts {
        engine: engine.clone(),
        metrics: Metrics::new(&models),
        models,
        engine_limits,
        memory_limit: config.gpu().rules.memory_limit_bytes,
        openai_tokens,
        live: settings.live.clone(),
        traces: traces.clone(),
        reloader: Reloader::new(&config, tls.clone(), settle),
    });
    // Other programs of the same user may look at it without a key.
    let subject = EngineSubject { engine: engine.clone(), memory_limit: config.gpu().rules.memory_limit_bytes };
    let socket = ControlSocket::open(&config.control_folders(), Arc::new(subject));
    let _socket =
        socket.inspect_err(|error| console.detail(format_args!("`gpu status` cannot reach this server: {error}")));
    announce(&settings, &listener, &console);
    tokio::spawn(keep_up(app.clone()));
    if settings.is_preloading {
        tokio::spawn(preload(app.clone()));
    }
    let site = Arc::new(openapi::site(&app, &settings));
    let listening = Listening { tls, connections_max: settings.connections_max, head_within: settings.head_within };
    let until = signals.watch(app, console);
    let was_drained = listen::serve(listener, listening, site, until, settings.drain_within).await;
    Ok(Ended { engine, traces, was_drained })
}

/// Starts the engine beside the runtime, unless the process is told to stop meanwhile.
async fn start_engine(options: EngineOptions, signals: &mut Signals) -> Result<Engine, Failure> {
    let names: Vec<String> = options.models.iter().map(|model| model.name.clone()).collect();
    let starting = tokio::task::spawn_blocking(move || Engine::start(options));
    tokio::select! {
        started = starting => match started {
            Ok(started) => Ok(started.map_err(|reason| load_failure(&names.join(", "), reason))?),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        },
        // Nothing was promised to anybody yet.
        () = signals.stopped() => std::process::exit(crate::exit::Exit::Interrupted.code().into()),
    }
}

/// A connection is an open file, and systems allow few by default: as many as may be had are asked for.
fn allow_connections(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    /// Files, pipes and workers beside the connections.
    const OTHERS: u64 = 256;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(u64::MAX).min(connections as u64 + OTHERS);
    if current.is_some_and(|current| current < wanted) {
        // Where the system refuses, connections wait until there is a file again.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

fn runtime() -> io::Result<Runtime> {
    /// Callers that wait for models to move, the settings that are read again, the start of the engine; the cores
    /// themselves are for large answers that are written.
    const OTHERS: usize = 12;
    tokio::runtime::Builder::new_multi_thread()
        .thread_name("serve")
        // On two cores a second thread would take more of those that compute: refusals leave sooner, and fewer are answered.
        .worker_threads(cores().saturating_sub(1).max(1))
        .on_thread_start(magray_engine::look_after_callers)
        .max_blocking_threads(cores() + OTHERS)
        .enable_all()
        .build()
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
    /// Connections that the system keeps until they are taken: clients that come all at once are not lost.
    const BACKLOG: u32 = 4096;
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    /// What the system keeps of a body that is not read yet; by itself it would keep megabytes of each.
    const UNREAD_BYTES: u32 = 256 << 10;
    socket.set_reuseaddr(true)?;
    // Connections inherit it.
    socket.set_recv_buffer_size(UNREAD_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Says where the server is, and warns where anybody can use it.
fn announce(settings: &ServerSettings, listener: &TcpListener, console: &Console) {
    let Ok(address) = listener.local_addr() else { return };
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    console.note(format_args!("listening on {scheme}://{address} (API: /docs)"));
    if address.ip().is_loopback() {
        return;
    }
    if settings.live.keys.is_open() {
        console.warn("everybody who reaches this address may compute: set server.api_keys_file or MAGRAY_API_KEYS");
    } else if settings.tls.is_none() {
        console.warn("keys travel in the clear: set server.tls_cert and server.tls_key, or put a proxy before it");
    }
}

async fn keep_up(app: App) {
    let mut often = tokio::time::interval(UPKEEP);
    loop {
        often.tick().await;
        app.metrics().upkeep();
    }
}

/// Brings all models to their devices and proves that they compute.
async fn preload(app: App) {
    let own = app.clone();
    let loading = tokio::task::spawn_blocking(move || {
        for (place, model) in own.models().iter().enumerate() {
            if let Err(error) = own.engine().preheat(place, PRELOAD_MAX) {
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
