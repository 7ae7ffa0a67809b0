//! `magray serve`: turns flags and settings into a server's start.
//! Starts nothing itself; what runs is in `server`.

use std::{fs, path::Path};

use clap::Args;
use magray_engine::engine::{EngineModel, EngineOptions, ModelSource};
use magray_engine::store::Store;
use magray_engine::testing::SimulatedGpu;

use super::{Context, read_settings};
use crate::{
    commands::compute_args::{ComputeArgs, flag},
    config::{Config, FlagValue, ServerSettings},
    console::Console,
    exit::Failure,
    model,
    server::{self, Start},
    session,
};

const EXAMPLES: &str = "\
Examples:
  magray serve                                     the default model on http://127.0.0.1:7860
  magray serve --preload --model all-MiniLM-L6-v2 --model ./my-reranker
  magray serve --alias text-embedding-3-small=all-MiniLM-L6-v2
  MAGRAY_API_KEYS=secret magray serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem

  curl -s localhost:7860/v1/embeddings -d '{\"input\": [\"hello world\"]}'
  curl -s localhost:7860/rerank -d '{\"query\": \"cat\", \"texts\": [\"a kitten\", \"a car\"]}'
  curl -s localhost:7860/gpu/status

Clients of OpenAI and of text-embeddings-inference work as they are; /docs lists every route. Models are loaded with \
their first request. SIGTERM and Ctrl-C let requests end first; SIGHUP reads the settings again.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    served: ServedArgs,
    /// Another name of a model, such as text-embedding-3-small=all-MiniLM-L6-v2; may be given several times
    #[arg(long = "alias", value_name = "NAME=MODEL")]
    aliases: Vec<String>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,
    /// Port to listen on; 0 for any that is free [default: 7860]
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    /// Host names that the server accepts beside its own: embed.example.com, *.example.com, or * for any
    #[arg(long, value_name = "NAME,..")]
    allowed_hosts: Option<String>,
    /// Seconds that a request may be predicted to wait for others; else it is refused with 429 [default: 30]
    #[arg(long, value_name = "SECONDS")]
    queue_wait: Option<String>,
    /// Texts whose vectors are remembered, so that the same text is not computed twice; 0 for none [default: 100000]
    #[arg(long, value_name = "TEXTS")]
    text_cache: Option<String>,
    /// Load the models at the start and not with the first request
    #[arg(long)]
    preload: bool,
    /// File of keys of users, one a line
    #[arg(long, value_name = "FILE")]
    api_keys_file: Option<String>,
    /// File of keys of administrators, one a line
    #[arg(long, value_name = "FILE")]
    admin_keys_file: Option<String>,
    /// Certificate chain (PEM); with it the server speaks TLS
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// What is logged: error, warn, info (a line for each request) or debug [default: warn]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// How it is logged: text, or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Write what is done and how long it takes to this file, as a Chrome trace; `magray gpu profile` summarises it
    #[arg(long, value_name = "FILE")]
    profile: Option<String>,
}

/// Flags of every command that answers many: which models, and where they are computed.
#[derive(Debug, Args)]
pub(super) struct ServedArgs {
    /// Model to use; may be given several times, the first is the default [default: the setting model.name]
    #[arg(short, long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Where to compute: auto, prefer-gpu, require-gpu, cpu, cuda, cuda:NUMBER or cuda:UUID
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Arithmetic: auto, f32, tf32, f16, bf16 or int8
    #[arg(long, value_name = "PRECISION")]
    precision: Option<String>,
    /// What computes: auto, native or onnx (ONNX Runtime)
    #[arg(long, value_name = "BACKEND")]
    backend: Option<String>,
    /// Threads that compute, or auto for one a core
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// Folder of the collections that are searched
    #[arg(long, value_name = "DIR")]
    collections: Option<String>,
    /// Workers that behave like GPUs, for tests
    #[arg(long, value_name = "N", default_value_t = 0, hide = true)]
    simulated_gpus: usize,
}

pub(crate) fn run(args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    let start = args.served.start(args.flags(), context)?;
    for model in start.engine.models.iter().filter(|model| matches!(model.source, ModelSource::Synthetic(_))) {
        context.console.warn(format_args!(
            "'{}' is synthetic: it has no tokenizer and reads no texts, and its vectors mean nothing; send token ids, such as \
             {{\"model\": \"{0}\", \"input\": [[101, 102]]}} to /v1/embeddings",
            model.name
        ));
    }
    Ok(server::run(start)?)
}

impl ServeArgs {
    fn flags(&self) -> Vec<FlagValue> {
        let preload = self.preload.then(|| "true".to_owned());
        let aliases = (!self.aliases.is_empty()).then(|| self.aliases.join(","));
        let own = [
            flag("server.aliases", aliases.as_ref()),
            flag("server.host", self.host.as_ref()),
            flag("server.port", self.port.as_ref()),
            flag("server.allowed_hosts", self.allowed_hosts.as_ref()),
            flag("server.queue_wait_s", self.queue_wait.as_ref()),
            flag("server.text_cache", self.text_cache.as_ref()),
            flag("gpu.memory.preload", preload.as_ref()),
            flag("server.api_keys_file", self.api_keys_file.as_ref()),
            flag("server.admin_keys_file", self.admin_keys_file.as_ref()),
            flag("server.tls_cert", self.tls_cert.as_ref()),
            flag("server.tls_key", self.tls_key.as_ref()),
            flag("log.level", self.log_level.as_ref()),
            flag("log.format", self.log_format.as_ref()),
            flag("log.profile", self.profile.as_ref()),
        ];
        own.into_iter().flatten().collect()
    }
}

impl ServedArgs {
    pub(super) fn start(&self, others: Vec<FlagValue>, context: &Context) -> Result<Start, Failure> {
        let compute = ComputeArgs {
            model: self.models.first().cloned(),
            device: self.device.clone(),
            precision: self.precision.clone(),
            backend: self.backend.clone(),
            threads: self.threads.clone(),
            cpu_path: None,
            profile: None,
        };
        let own = flag("search.folder", self.collections.as_ref());
        let flags: Vec<FlagValue> = compute.flags().into_iter().chain(own).chain(others).collect();
        let config = context.settle_for_server(&flags)?;
        let settings = config.server()?;
        let names = if self.models.is_empty() { &settings.models } else { &self.models };
        let engine = engine_options(names, self.simulated_gpus, &config, &context.console)?;
        warn_of_critics(&config, &settings, &engine, &context.console)?;
        let file = context.config_file.clone();
        let settle = Box::new(move || read_settings(file.as_deref(), &flags));
        Ok(Start { config, settings, settle, engine, console: context.console, takes_faults: false, beside: None })
    }
}

/// Critics fail whose model is not served; that is better known before they are asked.
fn warn_of_critics(
    config: &Config,
    settings: &ServerSettings,
    engine: &EngineOptions,
    console: &Console,
) -> Result<(), Failure> {
    let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let models = engine.models.iter().map(|model| model.name.as_str());
    let known: Vec<String> = models.chain(settings.aliases.iter().map(|(alias, _)| alias.as_str())).map(last).collect();
    for critic in config.critics()? {
        if let Some(model) = critic.model.filter(|model| !known.contains(&last(model))) {
            console.warn(format_args!("the critic '{}' judges by '{model}', which is not served", critic.name));
        }
    }
    Ok(())
}

/// Keys and values of language models have this much room on a simulated GPU.
const SIMULATED_KV_BYTES: u64 = 16 << 20;

fn engine_options(
    names: &[String],
    simulated_gpus: usize,
    config: &Config,
    console: &Console,
) -> Result<EngineOptions, Failure> {
    let settings = config.engine()?;
    let engine_model = |name: &String| {
        let source = model::source_named(name, config, console)?;
        let shown = shown_name(name, &source);
        let plan = settings.plans.of(&shown);
        let assigned = model::assigned(&shown, &source, config)?;
        Ok(EngineModel { name: shown, assigned, source, plan })
    };
    let models = names.iter().map(engine_model).collect::<Result<Vec<_>, Failure>>()?;
    let known: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
    let with_critics: Vec<String> = known.iter().cloned().chain(config.critic_names().map(str::to_owned)).collect();
    for name in config.assignments().unknown(&with_critics) {
        console.warn(format_args!(
            "gpu.model_assignments names '{name}', which is no role, no critic and none of the models: {}",
            known.join(", ")
        ));
    }
    config.ineffective().iter().for_each(|warning| console.warn(format_args!("{warning}")));
    let simulated_gpus = (0..simulated_gpus).map(|index| SimulatedGpu {
        index,
        kv_bytes: SIMULATED_KV_BYTES,
        ..SimulatedGpu::default()
    });
    let options = session::engine_options(config, model::encoder_options(config), models)?;
    // Models of the store may come while it runs. Workers can only be granted a folder that is there.
    let models_folder = config.model().ok().map(|settings| Store::open(settings.store).models_folder());
    let models_folder = models_folder.filter(|folder| fs::create_dir_all(folder).is_ok());
    Ok(EngineOptions { simulated_gpus: simulated_gpus.collect(), models_folder, ..options })
}

/// What clients call a model: the name that was given, but of a path its last part.
fn shown_name(name: &str, source: &ModelSource) -> String {
    let is_path = name.starts_with(['/', '.']) || name.ends_with('/');
    match source.folder().filter(|_| is_path).and_then(Path::file_name) {
        Some(last) => last.to_string_lossy().into_owned(),
        None => name.to_owned(),
    }
}
