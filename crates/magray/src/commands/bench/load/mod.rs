//! `magray bench load`: requests as many callers send them, and a check of every answer.
//! Measures what callers see, queue and workers included; never counts a request that it did not send.

mod arguments;
mod arrivals;
mod drive;
mod engine_target;
pub(super) mod histogram;
pub(super) mod pool;
mod prepare;
mod report;
mod tally;
mod target;
#[cfg(test)]
mod tests;
mod watch;

use std::time::Duration;

use super::{
    super::Context,
    engine_start::{Measured, start},
};
use crate::{config::EngineSettings, console::Console, exit::Failure, model, output};
pub(crate) use arguments::LoadArgs;
use drive::{Load, drive};
use engine_target::EngineTarget;
use pool::Pool;
use report::{Case, Report};
use target::Target;
use watch::{Seen, Watch};

/// Runs `magray bench load`.
pub(crate) fn run(args: &LoadArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.compute.flags())?;
    let settings = config.engine()?;
    let faults = args.plan()?.or_else(|| settings.faults.clone());
    let pool = prepare::pool(args, &config, &context.console)?;
    let mut measured = Measured {
        models: vec![(config.model()?.name, model::source_to_measure(&config, &context.console)?)],
        encoder: model::encoder_options(&config),
        settings: EngineSettings { faults, ..settings },
        simulated_gpus: args.simulated(),
        control_folders: config.control_folders(),
    };
    measured.encoder.gpu.memory_trace.clone_from(&args.memory_trace);
    let mut reports = Vec::new();
    for setting in args.settings(measured.settings.schedule.batching.sizing) {
        if !args.batching.is_empty() {
            measured.settings.schedule.batching = setting.batching.options();
        }
        measured.settings.schedule.placement = setting.placement.0;
        let (load, case) = (args.load(&setting), args.case(&setting, measured.name()));
        let started = start(&measured, &context.console)?;
        let target =
            EngineTarget { engine: started.engine.clone(), deadline: args.deadline_ms.map(Duration::from_millis) };
        let report = measure(&target, &pool, &load, case, context.console);
        drop(target);
        started.shut_down();
        if args.json {
            let line = serde_json::to_string(&report).unwrap_or_else(|error| unreachable!("plain numbers: {error}"));
            output::print(&(line + "\n"))?;
        }
        reports.push(report);
    }
    if !args.json {
        output::print(&report::table(&reports))?;
    }
    let faults: Vec<String> = reports.iter().filter_map(Report::fault).collect();
    if faults.is_empty() { Ok(()) } else { Err(Failure::Broken(faults.join("; "))) }
}

/// Runs one case and tells what it came to.
fn measure(target: &dyn Target, pool: &Pool, load: &Load, case: Case, console: Console) -> Report {
    let watch = Watch { target, console, warmup: load.warmup, measured: load.measured };
    let mut seen = Seen::default();
    let outcomes = drive(target, pool, load, |underway, over| seen = watch.run(underway, &over));
    let faults = target.incidents();
    Report::new(case, &outcomes, &seen, &faults)
}
