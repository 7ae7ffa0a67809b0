//! The server of a demonstration: the user's settings, but for what would leave something behind or reach others.
//! Starts nothing.

use std::net::{Ipv4Addr, TcpListener};

use magray_engine::{
    engine::{EngineModel, ModelPlan},
    health::AlertOptions,
    testing::{FaultPlan, SimulatedGpu},
};
use tempfile::TempDir;

use super::{
    super::{Context, compute_args::flag, read_settings},
    model::DemoModel,
};
use crate::{exit::Failure, model, server::Start, session};

pub(super) struct Prepared {
    pub(super) server: Start,
    pub(super) model: DemoModel,
    /// A key that may change things, where the settings have keys.
    pub(super) key: Option<String>,
    /// Collections that are made meanwhile; they go with it.
    pub(super) scratch: TempDir,
}

/// GPUs that are simulated.
const GPUS: usize = 2;
const USUAL_PORT: u16 = 7860;

pub(super) fn prepare(port: Option<u16>, plan: &str, context: &Context) -> Result<Prepared, Failure> {
    let faults: FaultPlan = plan.parse().map_err(|error| Failure::Usage(format!("--faults: {error}")))?;
    let scratch = tempfile::tempdir().map_err(Failure::Model)?;
    let collections = scratch.path().to_string_lossy().into_owned();
    let port = port.unwrap_or_else(usual_port).to_string();
    let set = |key, value: &str| flag(key, Some(&value.to_owned()));
    let flags: Vec<_> = [
        set("server.host", "127.0.0.1"),
        set("server.port", &port),
        set("search.folder", &collections),
        // The same texts come again and again, and are to be computed.
        set("server.text_cache", "0"),
        // The demonstration tells of faults itself.
        set("log.level", "error"),
        set("gpu.memory.preload", "true"),
        // Compared with the right vectors number by number.
        set("embed.precision", "f32"),
        set("embed.device", "auto"),
        // Simulated ones are no faster than the CPU.
        set("gpu.performance_threshold", "0"),
        set("cpu.threads", "1"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let config = context.settle_for_server(&flags)?;
    let demo_model = DemoModel::find(&config)?;
    let mut settings = config.server()?;
    settings.tls = None;
    settings.otlp_endpoint = None;
    settings.aliases = Vec::new();
    settings.live.requests_per_minute = None;
    let keys = settings.live.admin_keys.iter().chain(&settings.live.api_keys);
    let key = keys.map(|key| key.secret().to_owned()).next();
    let model = EngineModel {
        name: demo_model.name.clone(),
        assigned: None,
        source: demo_model.source.clone(),
        plan: ModelPlan { is_preloaded: false, ..config.engine()?.plans.of(&demo_model.name) },
    };
    let mut engine = session::engine_options(&config, model::encoder_options(&config), vec![model])?;
    engine.simulated_gpus = (0..GPUS).map(gpu).collect();
    engine.faults = Some(faults);
    // What goes wrong here says nothing of any GPU, and concerns no one.
    engine.encoder.gpu.state_file = None;
    engine.encoder.gpu.score_cache = None;
    engine.alerts = AlertOptions::default();
    let file = context.config_file.clone();
    let settle = Box::new(move || read_settings(file.as_deref(), &flags));
    let console = context.console;
    let server = Start { config, settings, settle, engine, console, takes_faults: true, beside: None };
    Ok(Prepared { server, model: demo_model, key, scratch })
}

/// One of them: slow enough that what it does is seen, and fast enough for any laptop.
fn gpu(index: usize) -> SimulatedGpu {
    SimulatedGpu {
        index,
        batch_us: 1_000,
        load_us_per_mib: 2_000,
        wake_us_per_mib: 500,
        offload_us_per_mib: 100,
        ..SimulatedGpu::default()
    }
}

/// The usual port, or any where another program has it.
fn usual_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, USUAL_PORT)).map_or(0, |_| USUAL_PORT)
}
