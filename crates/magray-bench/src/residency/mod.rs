//! `magray-bench residency`: how fast models come and go, and whether anything is lost, wrong or left when they do.
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
    engine::{Keeping, ModelPlan, ModelSource},
    testing::SimulatedGpu,
};

use crate::{engine_start::Measured, failure::Failure, terminal::Console};
pub(crate) use arguments::ResidencyArgs;

pub(crate) fn run(args: &ResidencyArgs, console: Console) -> Result<(), Failure> {
    match args.random {
        Some(rounds) => random::run(args, rounds, console),
        None => cycle::run(args, console),
    }
}

/// Common to both measurements: one device; models are loaded by requests and leave by command only.
fn measured(args: &ResidencyArgs, models: Vec<(String, ModelSource)>) -> Result<Measured, Failure> {
    let mut measured = Measured::new(models, args.compute.options()?);
    // What leaves by itself would spoil the times.
    measured.plan = ModelPlan { is_preloaded: false, idle_timeout: None, ..ModelPlan::default() };
    measured.schedule.keeping = Keeping { worker: Some(args.worker_kept()), ..measured.schedule.keeping };
    if args.compute.is_simulated() {
        measured.simulated_gpus.push(SimulatedGpu::default());
    }
    Ok(measured)
}

fn no_gpu() -> Failure {
    Failure::Usage("there is no GPU that a model could come to and go from: use --device simulated".to_owned())
}
