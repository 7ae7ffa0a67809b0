//! One file a command; this one hands over to them.
//! Holds what all of them need and nothing of any one.

pub(crate) mod bench;
pub(crate) mod config;
pub(crate) mod embed;
pub(crate) mod gpu;
pub(crate) mod mcp;
pub(crate) mod models;
pub(crate) mod pull;
pub(crate) mod serve;
pub(crate) mod similarity;
pub(crate) mod worker;

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::{
    cli::{BenchCommand, Cli, Command, GpuCommand},
    config::{Config, ConfigError, FlagValue, Inputs},
    console::Console,
    exit::Failure,
    logging,
};

/// What every command is given.
pub(crate) struct Context {
    pub(crate) console: Console,
    config_file: Option<PathBuf>,
}

impl Context {
    pub(crate) fn new(cli: &Cli) -> Self {
        Self { console: Console::new(cli.quiet, cli.verbose), config_file: cli.config.clone() }
    }

    /// Settles all settings, and starts the log as they say; these flags win over the rest.
    pub(crate) fn settle(&self, flags: &[FlagValue]) -> Result<Config, ConfigError> {
        let config = read_settings(self.config_file.as_deref(), flags)?;
        logging::start(&config.log_level(), config.log_format());
        Ok(config)
    }
}

/// Reads all settings anew.
fn read_settings(file: Option<&Path>, flags: &[FlagValue]) -> Result<Config, ConfigError> {
    // Without a current folder (it was removed) there is no file in it either.
    let folder = env::current_dir().unwrap_or_default();
    Config::resolve(&Inputs { file, flags, env: &|name| env::var_os(name), folder: &folder })
}

/// Runs a command.
pub(crate) fn run(command: Command, context: &Context) -> Result<(), Failure> {
    match command {
        Command::Embed(args) => embed::run(args, context),
        Command::Serve(args) => serve::run(&args, context),
        Command::Mcp(args) => mcp::run(&args, context),
        Command::Similarity(args) => similarity::run(&args, context),
        Command::Bench(BenchCommand::Embed(args)) => bench::run(&args, context),
        Command::Gpu(GpuCommand::Info(args)) => gpu::info::run(&args, context),
        Command::Gpu(GpuCommand::Status(args)) => gpu::status::run(&args, context),
        Command::Gpu(GpuCommand::Offload(args)) => gpu::moves::offload(&args, context),
        Command::Gpu(GpuCommand::Release(args)) => gpu::moves::release(&args, context),
        Command::Gpu(GpuCommand::Preheat(args)) => gpu::moves::preheat(&args, context),
        Command::Gpu(GpuCommand::Timeout(args)) => gpu::moves::timeout(&args, context),
        Command::Gpu(GpuCommand::Pin(args)) => gpu::moves::pin(&args, context),
        Command::Gpu(GpuCommand::Reset(args)) => gpu::reset::run(&args, context),
        Command::Gpu(GpuCommand::Sandbox(args)) => gpu::sandbox::run(&args, context),
        Command::Gpu(GpuCommand::Benchmark(args)) => gpu::benchmark::run(&args, context),
        Command::Pull(args) => pull::run(&args, context),
        Command::Models(args) => models::run(&args, context),
        Command::Config(args) => config::run(&args, context),
        Command::Worker => worker::run(),
    }
}
