//! Runs seeds, on all cores, and says of the first that fails everything needed to see why.
//! Never stops at a panic: that is a failure like others.

use crate::check::{Broken, Rule};
use crate::measure::Measured;
use crate::scenario::Scenario;
use crate::trail::{Trail, time};
use crate::world::World;
use magray_core::schedule::{Machine, Sabotage};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lines of the trail that a failure shows.
const TRAIL_LINES: usize = 40;

/// A seed whose world broke a rule.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// The broken rule.
    pub broken: Broken,
    /// What happened before, the latest last.
    pub trail: Vec<String>,
}

/// Sums over many seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of worlds.
    pub worlds: u64,
    /// Steps of the machine in all of them.
    pub steps: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// New tokens of sequences that were delivered.
    pub tokens: u64,
    /// How often the state of a sequence was freed before its end.
    pub preemptions: u64,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trail {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "seed {} breaks {}", self.seed, self.broken)?;
        write!(f, "again: cargo run -p magray-simulator -- replay {}", self.seed)
    }
}

impl std::error::Error for Failed {}

/// Runs the world of one seed.
pub fn try_seed(seed: u64) -> Result<Measured, Box<Failed>> {
    // Words cost more than the world itself: they are written when the seed is run again because it failed.
    run(Scenario::draw(seed), None, 0).or_else(|_| replay(seed, TRAIL_LINES))
}

/// Runs the world of one seed with a machine that is broken on purpose.
pub fn try_sabotaged(seed: u64, sabotage: Sabotage) -> Result<Measured, Box<Failed>> {
    run(Scenario::draw(seed), Some(sabotage), 0).map_err(|(broken, trail)| Box::new(Failed { seed, broken, trail }))
}

/// Runs the world of one seed and returns its last events, at most this many lines.
pub fn replay(seed: u64, lines: usize) -> Result<Measured, Box<Failed>> {
    run(Scenario::draw(seed), None, lines).map_err(|(broken, trail)| Box::new(Failed { seed, broken, trail }))
}

/// Runs a world that was not drawn.
pub(crate) fn try_scenario(scenario: Scenario) -> Result<Measured, Box<Failed>> {
    let seed = scenario.seed;
    run(scenario, None, TRAIL_LINES).map_err(|(broken, trail)| Box::new(Failed { seed, broken, trail }))
}

/// Runs many seeds on all cores; of those that fail, the lowest that was found.
pub fn try_seeds(seeds: Range<u64>) -> Result<Totals, Box<Failed>> {
    let next = AtomicU64::new(seeds.start);
    let found: Mutex<(Totals, Option<Box<Failed>>)> = Mutex::default();
    let work = || {
        let mut totals = Totals::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            match try_seed(seed) {
                Ok(measured) => totals.add(&measured),
                Err(failed) => {
                    // The others end what they are at and begin nothing more.
                    next.store(seeds.end, Ordering::Relaxed);
                    let mut found = found.lock().expect("no thread panics while holding it");
                    if found.1.as_ref().is_none_or(|before| failed.seed < before.seed) {
                        found.1 = Some(failed);
                    }
                }
            }
        }
        found.lock().expect("no thread panics while holding it").0.join(totals);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (totals, failed) = found.into_inner().expect("no thread panics while holding it");
    failed.map_or(Ok(totals), Err)
}

fn run(scenario: Scenario, sabotage: Option<Sabotage>, lines: usize) -> Result<Measured, (Broken, Vec<String>)> {
    let devices = scenario.devices.iter().map(|device| device.spec).collect();
    let models = scenario.models.iter().take(scenario.models_known).map(|model| model.plan).collect();
    let mut machine = Machine::new(devices, models, scenario.options.clone());
    if let Some(sabotage) = sabotage {
        machine.sabotage(sabotage);
    }
    let mut world = World::new(scenario, machine, Trail::of(lines));
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let broken = match outcome {
        Ok(Ok(())) => return Ok(world.measured),
        Ok(Err(broken)) => broken,
        Err(panic) => Broken { rule: Rule::NoPanic, message: words_of(panic.as_ref()) },
    };
    let broken = Broken { message: format!("{} (at {})", broken.message, time(world.now).trim()), ..broken };
    Err((broken, world.trail.into_lines()))
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

impl Totals {
    fn add(&mut self, measured: &Measured) {
        self.join(Self {
            worlds: 1,
            steps: measured.steps,
            answered: measured.answers.len() as u64,
            refused: measured.refused as u64,
            tokens: measured.tokens,
            preemptions: measured.preemptions,
        });
    }

    fn join(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.steps += other.steps;
        self.answered += other.answered;
        self.refused += other.refused;
        self.tokens += other.tokens;
        self.preemptions += other.preemptions;
    }
}
