//! Samples that follow a script, for simulated GPUs, for tests, and over a real GPU to see what follows from a fault.
//! Breaks nothing: it only says that something is broken.

use super::{HealthSample, HealthSource, ThrottleReasons};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Something that a script says of a GPU for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptedFault {
    /// The GPU's place in the list.
    pub gpu: usize,
    /// What.
    pub kind: ScriptedKind,
    /// From when on, since the source was made.
    pub from: Duration,
    /// For how long. An Xid is an event: it is told once, at the first look after `from`.
    pub lasts: Duration,
}

/// What a script can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScriptedKind {
    /// It is slowed down by heat.
    Hot,
    /// It is hotter than it may be.
    Overheated,
    /// The driver reports this number.
    Xid(u32),
    /// Memory errors that cannot be corrected keep coming.
    MemoryErrors,
    /// The driver asks for a reset.
    NeedsReset,
    /// It is not on the bus any more.
    Lost,
}

/// A source that follows a script.
pub struct ScriptedSource {
    below: Box<dyn HealthSource>,
    clock: Box<dyn FnMut() -> Duration + Send>,
    script: ScriptHandle,
    /// Memory errors made up so far.
    ecc_errors: u64,
}

/// Adds to a script while it is played.
#[derive(Clone, Debug)]
pub struct ScriptHandle {
    started: Instant,
    faults: Arc<Mutex<Vec<ScriptedFault>>>,
}

impl ScriptHandle {
    /// More than any test has; a script that grows without end is a mistake.
    const FAULTS_MAX: usize = 4096;

    /// Says that a fault begins now and lasts this long. Beyond some thousands of them nothing is added.
    pub fn begin(&self, gpu: usize, kind: ScriptedKind, lasts: Duration) {
        let fault = ScriptedFault { gpu, kind, from: self.started.elapsed(), lasts };
        let mut faults = self.faults();
        if faults.len() < Self::FAULTS_MAX {
            faults.push(fault);
        }
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, Vec<ScriptedFault>> {
        // A list of plain values is whole whatever happened to the one who held it.
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the script says of a GPU at this time. What is over is forgotten.
    fn due(&self, gpu: usize, now: Duration) -> Vec<ScriptedKind> {
        let mut due = Vec::new();
        self.faults().retain(|fault| {
            let is_on = fault.gpu == gpu && fault.from <= now;
            let is_event = matches!(fault.kind, ScriptedKind::Xid(_));
            let is_over = fault.from.saturating_add(fault.lasts) <= now;
            if is_on && (is_event || !is_over) {
                due.push(fault.kind);
            }
            !(is_on && (is_event || is_over))
        });
        due
    }
}

impl ScriptedSource {
    /// GPUs that are well but for what the script says.
    pub fn new(faults: Vec<ScriptedFault>) -> Self {
        Self::over(Box::new(Well), faults)
    }

    /// What another source says, and the script on top of it.
    pub fn over(below: Box<dyn HealthSource>, faults: Vec<ScriptedFault>) -> Self {
        let started = Instant::now();
        let script = ScriptHandle { started, faults: Arc::new(Mutex::new(faults)) };
        Self { below, clock: Box::new(move || started.elapsed()), script, ecc_errors: 0 }
    }

    /// Follows this clock, which tells the time since the start.
    pub fn with_clock(mut self, clock: impl FnMut() -> Duration + Send + 'static) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// To add faults later.
    pub fn handle(&self) -> ScriptHandle {
        self.script.clone()
    }

    fn apply(&mut self, kind: ScriptedKind, sample: &mut HealthSample) {
        let slow = |reasons: Option<ThrottleReasons>| {
            Some(ThrottleReasons(reasons.unwrap_or_default().0 | ThrottleReasons::THERMAL.0))
        };
        match kind {
            ScriptedKind::Hot => sample.throttle = slow(sample.throttle),
            ScriptedKind::Overheated => {
                // A real GPU below the script need not tell its limits.
                let limit = sample.slowdown_celsius.or(sample.shutdown_celsius).or(Some(90));
                (sample.slowdown_celsius, sample.temperature_celsius) = (limit, limit);
            }
            ScriptedKind::Xid(xid) => sample.xids.push(xid),
            ScriptedKind::MemoryErrors => self.ecc_errors += 1,
            ScriptedKind::NeedsReset => sample.recovery_action = Some(1),
            // A GPU that is gone tells nothing.
            ScriptedKind::Lost => *sample = HealthSample { lost: true, ..HealthSample::default() },
        }
    }
}

impl HealthSource for ScriptedSource {
    fn sample(&mut self, gpu: usize) -> HealthSample {
        let now = (self.clock)();
        let mut sample = self.below.sample(gpu);
        let mut due = self.script.due(gpu, now);
        // Last of all, so that nothing else is told of a GPU that is gone.
        due.sort_by_key(|kind| *kind == ScriptedKind::Lost);
        for kind in due {
            self.apply(kind, &mut sample);
        }
        if self.ecc_errors > 0 && !sample.lost {
            sample.ecc_uncorrected = Some(sample.ecc_uncorrected.unwrap_or(0) + self.ecc_errors);
        }
        sample
    }
}

/// GPUs that nothing is the matter with.
struct Well;

impl HealthSource for Well {
    fn sample(&mut self, _gpu: usize) -> HealthSample {
        HealthSample {
            temperature_celsius: Some(40),
            slowdown_celsius: Some(90),
            shutdown_celsius: Some(95),
            throttle: Some(ThrottleReasons::default()),
            thermal_violation_ns: Some(0),
            slowdown_ns: Some(0),
            power_violation_ns: Some(0),
            ecc_uncorrected: Some(0),
            recovery_action: Some(0),
            memory_used_bytes: Some(1 << 30),
            memory_total_bytes: Some(8 << 30),
            power_milliwatts: Some(75_000),
            power_limit_milliwatts: Some(300_000),
            utilisation_percent: Some(0),
            ..HealthSample::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_core::health::{HealthRules, Judge};
    use magray_core::schedule::{Condition, Fault, Moment};
    use std::sync::atomic::{AtomicU64, Ordering};

    const SECOND: Duration = Duration::from_secs(1);

    fn fault(gpu: usize, kind: ScriptedKind, from: u64, lasts: u64) -> ScriptedFault {
        ScriptedFault { gpu, kind, from: SECOND * from as u32, lasts: SECOND * lasts as u32 }
    }

    /// A source whose clock the test turns.
    fn source(faults: Vec<ScriptedFault>) -> (ScriptedSource, Arc<AtomicU64>) {
        let seconds = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&seconds);
        let source = ScriptedSource::new(faults).with_clock(move || Duration::from_secs(clock.load(Ordering::Relaxed)));
        (source, seconds)
    }

    #[test]
    fn a_script_is_played_to_the_gpu_that_it_names() {
        let faults = vec![fault(1, ScriptedKind::Hot, 2, 3), fault(1, ScriptedKind::Lost, 8, 1)];
        let (mut source, seconds) = source(faults);
        let mut seen = Vec::new();
        for second in 0..10 {
            seconds.store(second, Ordering::Relaxed);
            let well = source.sample(0);
            assert!(!well.lost && !well.throttle.unwrap().is_trouble());
            let sample = source.sample(1);
            seen.push((sample.throttle.is_some_and(ThrottleReasons::is_trouble), sample.lost));
        }
        let (hot, lost): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
        assert_eq!(hot.iter().position(|hot| *hot), Some(2));
        assert_eq!((hot.iter().filter(|hot| **hot).count(), lost.iter().filter(|lost| **lost).count()), (3, 1));
        assert!(lost[8]);
    }

    #[test]
    fn an_xid_is_told_once_also_to_one_who_looks_late() {
        let (mut source, seconds) = source(vec![fault(0, ScriptedKind::Xid(79), 1, 0)]);
        assert!(source.sample(0).xids.is_empty());
        seconds.store(5, Ordering::Relaxed);
        assert_eq!(source.sample(0).xids, [79]);
        assert!(source.sample(0).xids.is_empty());
    }

    #[test]
    fn every_kind_is_judged_as_what_it_says() {
        for (kind, expected) in [
            (ScriptedKind::Overheated, Fault::Overheated),
            (ScriptedKind::Xid(48), Fault::Xid(48)),
            (ScriptedKind::MemoryErrors, Fault::Memory),
            (ScriptedKind::NeedsReset, Fault::NeedsReset),
            (ScriptedKind::Lost, Fault::Lost),
        ] {
            let (mut source, seconds) = source(vec![fault(0, kind, 1, 2)]);
            let mut judge = Judge::new(HealthRules::default());
            let mut conditions = Vec::new();
            for second in 0..30 {
                seconds.store(second, Ordering::Relaxed);
                conditions.push(judge.judge(&source.sample(0), Moment::START + SECOND * second as u32));
            }
            assert_eq!(conditions[1], Condition::Bad(expected), "{kind:?}");
            assert_eq!((conditions[0], conditions[29]), (Condition::Fine, Condition::Fine), "{kind:?}");
        }
    }

    #[test]
    fn faults_can_be_added_while_it_plays() {
        let mut source = ScriptedSource::new(Vec::new());
        let handle = source.handle();
        assert!(!source.sample(0).lost);
        handle.begin(0, ScriptedKind::Lost, Duration::MAX);
        assert!(source.sample(0).lost);
    }
}
