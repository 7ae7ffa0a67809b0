//! `magray bench load`: requests as many callers send them, and a check of every answer.
//! Measures what callers see, queue and workers included; never counts a request that it did not send.

mod arguments;
mod arrivals;
mod drive;
pub(super) mod histogram;
mod pool;
mod report;
mod tally;
mod target;
#[cfg(test)]
mod tests;
mod watch;

use drive::{Load, drive};
use pool::Pool;
use report::{Case, Report};
use target::Target;
use watch::{Seen, Watch};

use crate::console::Console;

/// Runs one case and tells what it came to.
fn measure(target: &dyn Target, pool: &Pool, load: &Load, case: Case, console: Console) -> Report {
    let watch = Watch { target, console, warmup: load.warmup, measured: load.measured };
    let mut seen = Seen::default();
    let outcomes = drive(target, pool, load, |underway, over| seen = watch.run(underway, &over));
    let faults = target.incidents();
    Report::new(case, &outcomes, &seen, &faults)
}
