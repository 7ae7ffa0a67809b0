//! Experiments: two ways of deciding under the same made-up load, with figures, pages and plots.
//! All simulated: they compare decisions, and say nothing of how fast a real device is.

mod batching;
mod figures;
mod page;
mod placement;
mod plot;

pub use batching::batching;
pub use placement::placement;

use crate::scenario::Scenario;
use crate::trial::Failed;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Where the results of an experiment go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// A page with tables.
    pub markdown: Option<PathBuf>,
    /// A drawing.
    pub plot: Option<PathBuf>,
    /// The day that the page is dated with; this crate reads no clock.
    pub date: Option<String>,
}

/// Why an experiment has no result.
#[derive(Debug)]
pub enum ExperimentError {
    /// A world broke a rule: mend that first.
    Failed(Box<Failed>),
    /// A result could not be written.
    Write(PathBuf, std::io::Error),
}

impl fmt::Display for ExperimentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failed) => {
                write!(f, "a world of the experiment broke a rule, so its figures mean nothing: {failed}")
            }
            Self::Write(path, error) => write!(f, "cannot write {}: {error}; is the folder there?", path.display()),
        }
    }
}

impl std::error::Error for ExperimentError {}

impl From<Box<Failed>> for ExperimentError {
    fn from(failed: Box<Failed>) -> Self {
        Self::Failed(failed)
    }
}

/// A world whose computing times vary, and whose events take a little time.
fn noisy(scenario: Scenario) -> Scenario {
    Scenario { noise: 0.1, latency: Duration::from_micros(20), ..scenario }
}

fn write(path: &Option<PathBuf>, text: &str) -> Result<(), ExperimentError> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text).map_err(|error| ExperimentError::Write(path.clone(), error))
}

/// Runs all cases on all cores; the results have the order of the cases.
fn run_all<C: Sync, R: Send>(
    cases: &[C],
    run: impl Fn(&C) -> Result<R, ExperimentError> + Sync,
) -> Result<Vec<R>, ExperimentError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<R, ExperimentError>)>> = Mutex::default();
    let work = || {
        while let Some((at, case)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            cases.get(at).map(|case| (at, case))
        } {
            let result = run(case);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
