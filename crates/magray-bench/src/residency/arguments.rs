//! The flags of `magray-bench residency`.
//! Checks what needs no model.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::flags::{ModelFlags, seconds};

const EXAMPLES: &str = "\
Examples:
  magray-bench residency --model synthetic:bge-base --device cuda:0
  magray-bench residency --model synthetic:bge-base --write-model DIR
                                       first writes the model's files there, and loads it from the file cache
  magray-bench residency --random 200 --device simulated --model synthetic:tiny
                                       200 rounds over 6 models with room for 3, no GPU needed

Every request is sent at the moment at which the model is told to leave or has left, so that its time is that of the \
wake and of the answer together. Answers must be the same bits before and after. \
Exit code 1 if a request failed, an answer was wrong, or anything is left at the end.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ResidencyArgs {
    #[command(flatten)]
    pub(super) compute: ModelFlags,
    /// Rounds of leaving and waking
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) rounds: u32,
    /// Tokens of the text that is asked for
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(super) tokens: u32,
    /// Write the model of random weights into this folder, as bf16, and load it from there
    #[arg(long, value_name = "DIR", conflicts_with = "random")]
    pub(super) write_model: Option<PathBuf>,
    /// Do this many rounds of random moves, with many callers at once
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) random: Option<u32>,
    /// Models that take part
    #[arg(long, value_name = "N", default_value_t = 6, requires = "random", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(super) models: u32,
    /// Models that the GPU's memory has room for
    #[arg(long, value_name = "N", default_value_t = 3, requires = "random", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) fit: u32,
    /// Callers that ask at once
    #[arg(long, value_name = "N", default_value_t = 8, requires = "random", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(super) callers: u32,
    /// Memory of the GPU that may be used [default: so that as many models fit as --fit says]
    #[arg(long, value_name = "MB", requires = "random", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(super) limit_mb: Option<u64>,
    /// Seconds after which the worker of a GPU without models ends; a copy of 16 GB to host memory takes 4 of them
    #[arg(long, value_name = "S", default_value_t = 15.0, value_parser = seconds)]
    worker_kept: f64,
    /// Repeats the rounds of --random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Count also requests that were refused for want of room, and moves that took too long, as faults
    #[arg(long)]
    pub(super) strict: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

impl ResidencyArgs {
    pub(super) fn worker_kept(&self) -> Duration {
        Duration::from_secs_f64(self.worker_kept)
    }
}
