//! The command line: commands, flags and their help, and which function runs each.
//! Checks only what needs no knowledge of files, models or settings.

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{
    commands::{
        Context,
        bench::{self, BenchArgs, generate::BenchGenerateArgs},
        chat::{self, ChatArgs},
        config::{self, ConfigArgs},
        demo::{self, DemoArgs},
        embed::{self, EmbedArgs},
        evaluate::{self, EvaluateArgs},
        generate::{self, GenerateArgs},
        gpu::{
            benchmark::{self, GpuBenchmarkArgs},
            clear_cache::{self, GpuClearCacheArgs},
            info::{self, GpuInfoArgs},
            moves::{self, OffloadArgs, PinArgs, PreheatArgs, PriorityArgs, ReleaseArgs, TimeoutArgs},
            profile::{self, GpuProfileArgs},
            reset::{self, GpuResetArgs},
            sandbox::{self, GpuSandboxArgs},
            status::{self, GpuStatusArgs},
        },
        index::{self, IndexArgs},
        manual::{self, CompletionsArgs, ManArgs},
        mcp::{self, McpArgs},
        models::{self, ModelsArgs},
        pull::{self, PullArgs},
        rerank::{self, RerankArgs},
        search::{self, SearchArgs},
        serve::{self, ServeArgs},
        similarity::{self, SimilarityArgs},
        top::{self, TopArgs},
        version::{self, VersionArgs},
        worker,
    },
    console::Console,
    exit::{Exit, Failure},
};

const EXAMPLES: &str = "\
Examples:
  magray embed \"hello world\"                    the model is pulled on first use
  magray embed -f texts.txt --output texts.npy  one text a line, into a NumPy file
  magray similarity \"a cat\" \"a kitten\"
  magray rerank \"meow\" \"a car\" \"a kitten\"       the best first
  magray chat                                   a conversation; its model is pulled on first use
  magray chat \"Why is the sky blue?\"            one answer
  magray evaluate \"All of them are lazy.\"       critics judge a text
  magray generate -m smollm2.gguf \"Once upon\"   a language model goes on with a text
  magray index add notes docs/                  a collection of documents, and a search in it
  magray search notes \"how do I rotate the keys?\" --hybrid
  magray serve                                  OpenAI's and TEI's APIs on http://127.0.0.1:7860
  magray bench embed --batch 1,32 --tokens 128
  magray gpu info                               GPUs, and which device is chosen and why
  magray config                                 every setting and where it came from";

/// Embeddings and search from the command line and through HTTP, on the CPU or on an NVIDIA GPU
#[derive(Debug, Parser)]
#[command(name = "magray", version, max_term_width = 110)]
pub(crate) struct Cli {
    /// Read settings from this file (.toml, .yaml, .yml)
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print no summary and no progress; warnings and errors stay
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Print more: which device was chosen and why
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Turn texts into vectors
    Embed(EmbedArgs),
    /// Ask a language model, once or in a conversation
    Chat(Box<ChatArgs>),
    /// Let critics judge a text: ethics, fairness, safety, or those of the settings
    Evaluate(Box<EvaluateArgs>),
    /// Go on with a text by a language model
    Generate(GenerateArgs),
    /// Put documents in the order in which they answer a query
    Rerank(RerankArgs),
    /// Put documents into collections, and list, export and delete these
    Index(IndexArgs),
    /// Find documents of a collection by their meaning and their words
    Search(SearchArgs),
    /// Serve embeddings and reranking through HTTP
    Serve(ServeArgs),
    /// See a server with simulated GPUs under load while they fail, and that no request is lost
    Demo(DemoArgs),
    /// Give agents tools to embed, rerank and control the GPUs: the model context protocol on stdin and stdout
    Mcp(McpArgs),
    /// Watch an engine that runs: devices, memory, load, models, what happens; and move models
    Top(TopArgs),
    /// Compare two texts: the cosine of their vectors
    Similarity(SimilarityArgs),
    /// Measure the speed of this machine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Show GPUs and the models on them, move models, measure or reset a GPU
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// Download a model into the store
    Pull(PullArgs),
    /// List the models of the store, or remove one
    Models(ModelsArgs),
    /// Show every setting, its value and where it came from; write a file to start from
    Config(ConfigArgs),
    /// Print a script by which a shell completes commands and flags
    Completions(CompletionsArgs),
    /// Write manual pages
    Man(ManArgs),
    /// Print the version, and what it was built from and with
    Version(VersionArgs),
    /// Holds a GPU for another magray, which starts it
    #[command(hide = true)]
    Worker,
}

impl Command {
    pub(crate) fn handles_signals(&self) -> bool {
        match self {
            Self::Worker | Self::Serve(_) | Self::Mcp(_) | Self::Demo(_) | Self::Top(_) => true,
            Self::Gpu(GpuCommand::Status(args)) => args.watch().is_some(),
            Self::Chat(args) => args.is_conversation(),
            _ => false,
        }
    }

    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Self::Embed(args) => embed::run(args, context),
            Self::Chat(args) => chat::run(&args, context),
            Self::Evaluate(args) => evaluate::run(&args, context),
            Self::Generate(args) => generate::run(&args, context),
            Self::Rerank(args) => rerank::run(&args, context),
            Self::Index(args) => index::run(&args, context),
            Self::Search(args) => search::run(&args, context),
            Self::Serve(args) => serve::run(&args, context),
            Self::Demo(args) => demo::run(&args, context),
            Self::Mcp(args) => mcp::run(&args, context),
            Self::Top(args) => top::run(&args, context),
            Self::Similarity(args) => similarity::run(&args, context),
            Self::Bench(BenchCommand::Embed(args)) => bench::run(&args, context),
            Self::Bench(BenchCommand::Generate(args)) => bench::generate::run(&args, context),
            Self::Gpu(GpuCommand::Info(args)) => info::run(&args, context),
            Self::Gpu(GpuCommand::Status(args)) => match args.watch() {
                Some(every) => top::watch_engine(every, context),
                None => status::run(&args, context),
            },
            Self::Gpu(GpuCommand::Offload(args)) => moves::offload(&args, context),
            Self::Gpu(GpuCommand::Release(args)) => moves::release(&args, context),
            Self::Gpu(GpuCommand::Preheat(args)) => moves::preheat(&args, context),
            Self::Gpu(GpuCommand::Priority(args)) => moves::priority(&args, context),
            Self::Gpu(GpuCommand::Timeout(args)) => moves::timeout(&args, context),
            Self::Gpu(GpuCommand::Pin(args)) => moves::pin(&args, context),
            Self::Gpu(GpuCommand::ClearCache(args)) => clear_cache::run(&args, context),
            Self::Gpu(GpuCommand::Reset(args)) => reset::run(&args, context),
            Self::Gpu(GpuCommand::Sandbox(args)) => sandbox::run(&args, context),
            Self::Gpu(GpuCommand::Profile(args)) => profile::run(&args, context),
            Self::Gpu(GpuCommand::Benchmark(args)) => benchmark::run(&args, context),
            Self::Pull(args) => pull::run(&args, context),
            Self::Models(args) => models::run(&args, context),
            Self::Config(args) => config::run(&args, context),
            Self::Completions(args) => manual::completions(&args, Cli::described()),
            Self::Man(args) => manual::man(&args, Cli::described(), context),
            Self::Version(args) => version::run(&args),
            Self::Worker => worker::run(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure embeddings: time a batch, texts and tokens a second
    Embed(BenchArgs),
    /// Measure a language model: tokens a second of streams side by side, the first token, gaps between tokens
    Generate(BenchGenerateArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Show the GPUs, their state, and which device is chosen and why
    Info(GpuInfoArgs),
    /// Show the running engines: their devices, memory and models
    Status(GpuStatusArgs),
    /// Take models off the GPUs into the memory of the host
    Offload(OffloadArgs),
    /// Take models out of all memory
    Release(ReleaseArgs),
    /// Load a model onto a GPU before a request needs it
    Preheat(PreheatArgs),
    /// Set how much models count when they compete for the memory of a GPU
    Priority(PriorityArgs),
    /// Set how long models stay on a GPU without work
    Timeout(TimeoutArgs),
    /// Keep a model on its GPU even when others need the memory
    Pin(PinArgs),
    /// Free the memory of the GPUs that is cached and not used
    ClearCache(GpuClearCacheArgs),
    /// Use a GPU again that was taken out of service after failures
    Reset(GpuResetArgs),
    /// Check that GPU workers are refused what their sandbox forbids
    Sandbox(GpuSandboxArgs),
    /// Summarise a file of --profile: what happened how often, and how long it took
    Profile(GpuProfileArgs),
    /// Measure CPU and GPU with a model: latency, throughput and speed-up
    Benchmark(GpuBenchmarkArgs),
}

impl Cli {
    /// Reads the command line of this process; ends it for `--help` and for mistakes.
    pub(crate) fn read() -> Self {
        let matches = Self::described().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    pub(crate) fn context(&self) -> Context {
        Context::new(Console::new(self.quiet, self.verbose), self.config.clone())
    }

    fn described() -> clap::Command {
        Self::command().after_help(format!("{EXAMPLES}\n\n{}", Exit::table()))
    }
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
