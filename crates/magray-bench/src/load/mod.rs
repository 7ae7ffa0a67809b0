//! `magray-bench load`: requests as many callers send them, and a check of every answer.
//! Measures what callers see, queue and workers included; never counts a request that it did not send.

mod arguments;
mod engine_target;
mod prepare;
mod report;
#[cfg(test)]
mod tests;
mod watch;

use std::time::Duration;

use crate::{
    engine_start::{Measured, start},
    failure::Failure,
    terminal::{self, Console},
};
pub(crate) use arguments::LoadArgs;
use engine_target::EngineTarget;
use magray_load::{Load, Pool, Target, drive};
use report::{Case, Report};
use watch::{Seen, Watch};

pub(crate) fn run(args: &LoadArgs, console: Console) -> Result<(), Failure> {
    let flags = &args.compute;
    let pool = prepare::pool(args, console)?;
    let mut measured = Measured::new(vec![(flags.model.clone(), flags.source()?)], flags.options()?);
    measured.faults = args.plan()?;
    measured.simulated_gpus = args.simulated();
    measured.encoder.gpu.memory_trace.clone_from(&args.memory_trace);
    let mut reports = Vec::new();
    for setting in args.settings() {
        measured.schedule.batching = setting.batching.options();
        measured.schedule.placement = setting.placement.0;
        let (load, case) = (args.load(&setting), args.case(&setting, measured.name()));
        let engine = start(&measured, console)?;
        let target = EngineTarget { engine, deadline: args.deadline_ms.map(Duration::from_millis) };
        let report = measure(&target, &pool, &load, case, console);
        target.engine.shut_down();
        if args.json {
            terminal::print_json(&report)?;
        }
        reports.push(report);
    }
    if !args.json {
        terminal::print(&report::table(&reports))?;
    }
    let faults: Vec<String> = reports.iter().filter_map(Report::fault).collect();
    if faults.is_empty() { Ok(()) } else { Err(Failure::Broken(faults.join("; "))) }
}

fn measure(target: &dyn Target, pool: &Pool, load: &Load, case: Case, console: Console) -> Report {
    let watch = Watch { target, console, warmup: load.warmup, measured: load.measured };
    let mut seen = Seen::default();
    let outcomes = drive(target, pool, load, |underway, over| seen = watch.run(underway, &over));
    let faults = target.incidents();
    Report::new(case, &outcomes, &seen, &faults)
}
