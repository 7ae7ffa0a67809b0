//! `magray bench residency`: how fast models come and go, and whether anything is lost, wrong or left when they do.
//! Measures through the engine, as callers see it; never counts an answer that it did not check.

mod arguments;
mod bits;
mod cycle;
mod device_memory;
mod held;
mod play;
mod random;
mod report;
mod subjects;
mod written;

use magray_engine::{
    DeviceChoice, EncoderOptions,
    engine::{Keeping, ModelPlan, ModelSource, SimulatedGpu},
};
use serde::Serialize;

use super::{super::Context, engine_start::Measured};
use crate::{
    config::{Config, ModelPlans},
    exit::Failure,
    model, output,
};
pub(crate) use arguments::ResidencyArgs;

/// Runs `magray bench residency`.
pub(crate) fn run(args: &ResidencyArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.flags())?;
    match args.random {
        Some(rounds) => random::run(args, rounds, &config, context),
        None => cycle::run(args, &config, context),
    }
}

/// All that both ways of measuring have in common: one device, models that come when they are asked for and leave when
/// they are told to.
fn measured(args: &ResidencyArgs, config: &Config, models: Vec<(String, ModelSource)>) -> Result<Measured, Failure> {
    let mut settings = config.engine()?;
    settings.faults = None;
    // What leaves by itself would spoil the times.
    let plan = ModelPlan { is_preloaded: false, idle_timeout: None, ..ModelPlan::default() };
    settings.plans = ModelPlans::all(plan);
    settings.schedule.keeping = Keeping { worker: Some(args.worker_kept()), ..settings.schedule.keeping };
    let encoder = encoder(args, config);
    let simulated_gpus = if args.is_simulated() { vec![SimulatedGpu::default()] } else { Vec::new() };
    Ok(Measured { models, encoder, settings, simulated_gpus, control_folders: config.control_folders() })
}

fn encoder(args: &ResidencyArgs, config: &Config) -> EncoderOptions {
    let options = model::encoder_options(config);
    match args.is_simulated() {
        // Simulated GPUs are used in place of real ones.
        true => EncoderOptions { device: DeviceChoice::Auto, ..options },
        false => options,
    }
}

/// Prints a report as one line for programs.
fn print_json(report: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(report).unwrap_or_else(|error| unreachable!("plain numbers: {error}"));
    Ok(output::print(&(line + "\n"))?)
}

fn no_gpu() -> Failure {
    Failure::Usage("there is no GPU that a model could come to and go from: use --device simulated".to_owned())
}
