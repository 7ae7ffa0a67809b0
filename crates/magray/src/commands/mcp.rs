//! `magray mcp`: turns flags and settings into a server of the model context protocol on stdin and stdout.
//! Prints nothing on stdout: what stands there is the protocol's.

use clap::Args;

use super::{Context, read_settings, serve::engine_options};
use crate::{
    cli::ComputeArgs,
    config::FlagValue,
    exit::Failure,
    server::{self, Start},
};

const EXAMPLES: &str = "\
Examples:
  magray mcp                                       the default model
  magray mcp --model all-MiniLM-L6-v2 --model ./my-reranker

An agent starts it by its configuration, such as:
  {\"mcpServers\": {\"magray\": {\"command\": \"magray\", \"args\": [\"mcp\"]}}}

The same tools are at /mcp of `magray serve`. It ends with its stdin.";

/// Flags of `magray mcp`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct McpArgs {
    /// Model to use; may be given several times, the first is the default [default: the setting model.name]
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Where to compute: auto, prefer-gpu, require-gpu, cpu, cuda, cuda:NUMBER or cuda:UUID
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Arithmetic: auto, f32, tf32, f16, bf16 or int8
    #[arg(long, value_name = "PRECISION")]
    precision: Option<String>,
    /// Threads that compute, or auto for one a core
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// Workers that behave like GPUs, for tests
    #[arg(long, value_name = "N", default_value_t = 0, hide = true)]
    simulated_gpus: usize,
}

/// Runs `magray mcp`.
pub(crate) fn run(args: &McpArgs, context: &Context) -> Result<(), Failure> {
    let flags = args.flags();
    let config = context.settle(&flags)?;
    let settings = config.server()?;
    let names = if args.models.is_empty() { settings.models.clone() } else { args.models.clone() };
    let engine = engine_options(&names, args.simulated_gpus, &config, &context.console)?;
    let file = context.config_file.clone();
    let settle = Box::new(move || read_settings(file.as_deref(), &flags));
    server::run_stdio(Start { config, settings, settle, engine, console: context.console })
}

impl McpArgs {
    fn flags(&self) -> Vec<FlagValue> {
        let compute = ComputeArgs {
            model: self.models.first().cloned(),
            device: self.device.clone(),
            precision: self.precision.clone(),
            threads: self.threads.clone(),
            cpu_path: None,
        };
        compute.flags()
    }
}
