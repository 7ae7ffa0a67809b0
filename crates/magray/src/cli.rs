//! The command line: commands, flags and their help.
//! Checks only what needs no knowledge of files, models or settings.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{
    commands::{
        bench::BenchArgs,
        config::ConfigArgs,
        embed::EmbedArgs,
        gpu::{benchmark::GpuBenchmarkArgs, info::GpuInfoArgs, reset::GpuResetArgs},
        models::ModelsArgs,
        pull::PullArgs,
        similarity::SimilarityArgs,
    },
    config::FlagValue,
    exit::Exit,
};

use crate::commands::{
    gpu::{
        moves::{OffloadArgs, PinArgs, PreheatArgs, ReleaseArgs, TimeoutArgs},
        sandbox::GpuSandboxArgs,
        status::GpuStatusArgs,
    },
    mcp::McpArgs,
    serve::ServeArgs,
};

const EXAMPLES: &str = "\
Examples:
  magray embed \"hello world\"                    the model is pulled on first use
  magray embed -f texts.txt --output texts.npy  one text a line, into a NumPy file
  magray similarity \"a cat\" \"a kitten\"
  magray serve                                  OpenAI's and TEI's APIs on http://127.0.0.1:7860
  magray bench embed --batch 1,32 --tokens 128
  magray gpu info                               GPUs, and which device is chosen and why
  magray config                                 every setting and where it came from";

/// Embeddings from the command line and through HTTP, computed on the CPU or on an NVIDIA GPU
#[derive(Debug, Parser)]
#[command(name = "magray", version, max_term_width = 110)]
pub(crate) struct Cli {
    /// Read settings from this file (.toml, .yaml, .yml)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print no summary and no progress; warnings and errors stay
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Tell more: which device was chosen and why
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Turn texts into vectors
    Embed(EmbedArgs),
    /// Serve embeddings and reranking through HTTP
    Serve(ServeArgs),
    /// Give agents tools to embed, rerank and control the GPUs: the model context protocol on stdin and stdout
    Mcp(McpArgs),
    /// Compare two texts: the cosine of their vectors
    Similarity(SimilarityArgs),
    /// Measure the speed of this machine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Look at GPUs and the models on them, move models, measure or reset a GPU
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// Bring a model into the store
    Pull(PullArgs),
    /// List the models of the store, or remove one
    Models(ModelsArgs),
    /// Show every setting, its value and where it came from
    Config(ConfigArgs),
    /// Holds a GPU for another magray, which starts it
    #[command(hide = true)]
    Worker,
}

impl Command {
    /// Whether it settles itself what a signal does.
    pub(crate) fn minds_its_own_signals(&self) -> bool {
        matches!(self, Self::Worker | Self::Serve(_) | Self::Mcp(_))
    }
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure embeddings: time a batch, texts and tokens a second
    Embed(BenchArgs),
}

/// What can be done with GPUs.
#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Show the GPUs, how they are, and which device is chosen and why
    Info(GpuInfoArgs),
    /// Show the engines that run: their devices, memory and models
    Status(GpuStatusArgs),
    /// Take models off the GPUs into the memory of the host
    Offload(OffloadArgs),
    /// Take models out of all memory
    Release(ReleaseArgs),
    /// Bring a model to a GPU before anybody asks
    Preheat(PreheatArgs),
    /// Set how long models stay on a GPU without work
    Timeout(TimeoutArgs),
    /// Keep a model on its GPU whatever others need
    Pin(PinArgs),
    /// Return a GPU that was given up to service
    Reset(GpuResetArgs),
    /// Let the processes that hold GPUs try what their sandbox must refuse
    Sandbox(GpuSandboxArgs),
    /// Measure CPU and GPU with a model: latency, throughput and speed-up
    Benchmark(GpuBenchmarkArgs),
}

impl Cli {
    /// Reads the command line of this process; ends it for `--help` and for mistakes.
    pub(crate) fn read() -> Self {
        let matches = Self::described().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    fn described() -> clap::Command {
        Self::command().after_help(format!("{EXAMPLES}\n\n{}", Exit::table()))
    }
}

/// Flags of all commands that compute with a model.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ComputeArgs {
    /// Model: a name of the store, a hub repository org/name[@revision], or a folder
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Where to compute: auto, prefer-gpu, require-gpu, cpu, cuda, cuda:NUMBER or cuda:UUID
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Arithmetic: auto, f32, tf32, f16, bf16 or int8
    #[arg(long, value_name = "PRECISION")]
    pub(crate) precision: Option<String>,
    /// Threads that compute, or auto for one a core
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<String>,
    /// Instructions to use: auto, portable, avx2, avx512 or amx
    #[arg(long, value_name = "PATH")]
    pub(crate) cpu_path: Option<String>,
}

impl ComputeArgs {
    /// The flags that were given, as settings.
    pub(crate) fn flags(&self) -> Vec<FlagValue> {
        [
            flag("model.name", self.model.as_ref()),
            flag("embed.device", self.device.as_ref()),
            flag("embed.precision", self.precision.as_ref()),
            flag("cpu.threads", self.threads.as_ref()),
            flag("cpu.path", self.cpu_path.as_ref()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// A flag that stands for a setting, where it was given.
pub(crate) fn flag(key: &'static str, value: Option<&String>) -> Option<FlagValue> {
    value.map(|value| FlagValue { key, value: value.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::described().debug_assert();
    }

    #[test]
    fn every_flag_of_a_setting_exists() {
        fn longs(command: &clap::Command, into: &mut Vec<String>) {
            into.extend(command.get_arguments().filter_map(|arg| arg.get_long()).map(|long| format!("--{long}")));
            command.get_subcommands().for_each(|command| longs(command, into));
        }
        let mut known = Vec::new();
        longs(&Cli::described(), &mut known);
        for name in crate::config::flag_names() {
            assert!(known.iter().any(|known| known == name), "{name} is in the table of settings only");
        }
    }
}
