//! Watches how fast a device computes against its own best steady speed.
//! Compares only batches of like size and company; time without work says nothing, and nothing is decided about placement.

use super::cost::{Cost, as_count, as_f64};
use super::queue::Load;
use super::{Group, Moment, SpeedWatch};
use crate::moment::micros;
use std::collections::BTreeMap;
use std::time::Duration;

/// A window has this many slices, each of which must show the same.
const SLICES: u32 = 10;
/// A device that computed for less than this part of a slice is not judged by it: its clock may have slept.
const BUSY_PART: f64 = 0.05;
/// A slow device is back at this much above the part below which it is slow, so that it does not come and go.
const REGAIN: f64 = 0.1;
/// It is back when it was so for this many slices.
const REGAIN_SLICES: u32 = 2;
/// A steady speed is the mean of this many batches at least.
const STEADY_BATCHES: u32 = 16;
/// A slow device that computes only batches that it never computed at full speed is tried at full weight after this many
/// windows.
const UNPROVED_WINDOWS: u32 = 6;
/// How much of the speed of a slow device the next slice changes.
const RENEWED: f64 = 0.3;
/// A batch that took no longer than this many times its usual time was computed at full speed.
const HEALTHY: f64 = 1.2;
/// A predicted time may be this many times too short.
const PREDICTED_WITHIN: f64 = 1.2;
/// Kinds of batches whose speeds are remembered. Beyond that, one is forgotten: it is learnt anew.
const CLASSES_MAX: usize = 1024;

/// The company that a batch had on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Company {
    /// No other was there from its start to its end.
    Alone,
    /// Others were before and behind it: the device never waited.
    Queued,
}

/// A batch that was computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Computed {
    pub(super) group: Group,
    pub(super) load: Load,
    pub(super) company: Company,
    pub(super) time: Duration,
    pub(super) learnt: Learnt,
}

/// Batches that are compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    group: Group,
    company: Company,
    /// Half octaves: the largest has 1.4 times the tokens of the smallest.
    tokens: u32,
    /// Octaves.
    texts: u32,
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SpeedChange {
    /// It has been slow since then.
    Slowed { since: Moment, figures: SpeedFigures },
    /// It has been at its speed since then, after it was slow since `slow`.
    Regained { slow: Moment, since: Moment, before: f64, figures: SpeedFigures },
    /// It is to be measured again, at full weight: it was slow since `slow`, and nothing was measured for a window.
    Untested { slow: Moment, before: f64, was_told: bool },
}

/// Speeds of the same batches, in tokens a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpeedFigures {
    /// As they were computed.
    pub measured: u64,
    /// As they would have been at the best steady speed.
    pub usual: u64,
}

impl SpeedFigures {
    /// The part of the usual speed that was measured.
    pub fn percent(self) -> u64 {
        self.measured.saturating_mul(100) / self.usual.max(1)
    }
}

/// The speed of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct SpeedMeter {
    classes: BTreeMap<Class, Steady>,
    /// The slice that is being filled.
    slice: Option<Evidence>,
    /// Slices in a row that say the opposite of what is believed.
    streak: Option<Evidence>,
    /// When the last batch ended.
    last: Option<Moment>,
    /// The last slice: measured by usual.
    lately: Option<f64>,
    slow: Option<Slow>,
    /// What batches of any size cost when it was at its speed last.
    predicted: BTreeMap<Group, Learnt>,
}

/// What a device has learnt of batches of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Learnt {
    pub(super) cost: Cost,
    /// The largest that it has computed.
    pub(super) largest: Load,
}

impl Learnt {
    /// What a batch takes at most; unknown for larger ones than there were.
    fn at_most(&self, load: Load) -> Option<f64> {
        let is_known = load.tokens <= self.largest.tokens && load.texts <= self.largest.texts;
        is_known.then(|| self.cost.of(load) * PREDICTED_WITHIN)
    }
}

/// What is believed of a device that is slow.
#[derive(Clone, Copy, Debug)]
struct Slow {
    since: Moment,
    /// The part of its speed that is left.
    speed: f64,
    /// When it was judged last.
    judged: Moment,
    /// When it was judged last by batches that it had computed at full speed before.
    proved: Moment,
}

impl SpeedMeter {
    /// The part of its speed that it is trusted with.
    pub(super) fn weight(&self) -> f64 {
        self.slow.map_or(1.0, |slow| slow.speed)
    }

    pub(super) fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// The part of its speed that it had lately, if that could be measured.
    pub(super) fn lately(&self) -> Option<f64> {
        self.lately
    }

    /// When it is to be measured again although nothing happens.
    pub(super) fn wake(&self, watch: &SpeedWatch) -> Option<Moment> {
        match self.slow {
            Some(slow) => Some((slow.judged + watch.window).min(slow.proved + watch.window * UNPROVED_WINDOWS)),
            None => self.suspicion(watch).and(self.last).map(|last| last + watch.window),
        }
    }

    /// Time has passed. A device that is slow, or seemed so before others got its work, is measured again.
    pub(super) fn tend(&mut self, watch: &SpeedWatch, now: Moment) -> Option<SpeedChange> {
        self.wake(watch).filter(|wake| *wake <= now)?;
        let change = match (self.slow, self.suspicion(watch)) {
            (Some(Slow { since, speed, .. }), _) => {
                SpeedChange::Untested { slow: since, before: speed, was_told: true }
            }
            (None, seen) => {
                let seen = seen?;
                SpeedChange::Untested { slow: seen.since, before: seen.speed(), was_told: false }
            }
        };
        // What nothing proves may be predicted wrongly: it is not believed again.
        if self.slow.is_some_and(|slow| slow.proved + watch.window * UNPROVED_WINDOWS <= now) {
            self.predicted.clear();
        }
        (self.slow, self.streak, self.slice) = (None, None, None);
        Some(change)
    }

    /// A batch has ended, whether it can be compared or not.
    pub(super) fn note_busy(&mut self, time: Duration, watch: &SpeedWatch, now: Moment) {
        // The clock of a device that had nothing to do may have slept.
        let idle = self.last.map(|last| now.before(time).since(last));
        if idle.is_some_and(|idle| idle > watch.window / SLICES * 2) {
            (self.streak, self.slice) = (None, None);
        }
        self.last = Some(now);
        self.slice.iter_mut().for_each(|slice| slice.busy_us += micros(time));
    }

    /// What speaks for a slow device that is not known as one.
    fn suspicion(&self, watch: &SpeedWatch) -> Option<Evidence> {
        let mut seen = self.streak.or(self.slice)?;
        if let (Some(_), Some(slice)) = (self.streak, self.slice) {
            seen.add(slice);
        }
        Some(seen).filter(|seen| self.slow.is_none() && seen.speed() < watch.slow_below)
    }

    /// A batch has ended that can be compared with others like it. It was noted before.
    pub(super) fn compare(&mut self, batch: &Computed, watch: &SpeedWatch, now: Moment) -> Option<SpeedChange> {
        if !watch.is_on {
            return None;
        }
        let (size, measured_us) = (batch.size(), micros(batch.time).max(1.0));
        if self.classes.len() >= CLASSES_MAX && !self.classes.contains_key(&batch.class()) {
            self.classes.pop_first();
        }
        let is_suspect = self.slow.is_some() || self.suspicion(watch).is_some();
        let steady = self.classes.entry(batch.class()).or_default();
        let best_us = steady.best().map(|best| best * size);
        if !is_suspect {
            steady.add(measured_us, size, micros(watch.window / (SLICES * SLICES)));
        }
        // A device at its speed says how long batches of other sizes would take.
        if best_us.is_some_and(|best_us| measured_us <= best_us * HEALTHY) {
            if self.predicted.len() >= CLASSES_MAX && !self.predicted.contains_key(&batch.group) {
                self.predicted.pop_first();
            }
            self.predicted.insert(batch.group, batch.learnt);
        }
        let predicted = || self.predicted.get(&batch.group)?.at_most(batch.load);
        let usual_us = best_us.or_else(predicted)?;
        let proved_us = if best_us.is_some() { measured_us } else { 0.0 };
        let first = || Evidence { busy_us: measured_us, ..Evidence::since(now.before(batch.time)) };
        let slice = self.slice.get_or_insert_with(first);
        slice.usual_us += usual_us;
        slice.measured_us += measured_us;
        slice.proved_us += proved_us;
        slice.tokens += as_f64(batch.load.tokens);
        slice.batches += 1;
        if now.since(slice.since) < watch.window / SLICES {
            return None;
        }
        let slice = self.slice.take()?;
        self.judge(slice, watch, now)
    }

    fn judge(&mut self, slice: Evidence, watch: &SpeedWatch, now: Moment) -> Option<SpeedChange> {
        if slice.busy_us < BUSY_PART * micros(now.since(slice.since)) {
            self.streak = None;
            return None;
        }
        let speed = slice.speed();
        self.lately = Some(speed.min(1.0));
        let (contradicts, needed, batches) = match &mut self.slow {
            None => (speed < watch.slow_below, watch.window, STEADY_BATCHES),
            Some(slow) => {
                slow.judged = now;
                if slice.proved_us > 0.0 {
                    slow.proved = now;
                }
                (speed >= watch.slow_below + REGAIN, watch.window / SLICES * REGAIN_SLICES, 1)
            }
        };
        if !contradicts {
            self.streak = None;
            if let Some(slow) = &mut self.slow {
                slow.speed = (slow.speed * (1.0 - RENEWED) + speed * RENEWED).min(watch.slow_below);
            }
            return None;
        }
        let streak = self.streak.get_or_insert(Evidence::since(slice.since));
        streak.add(slice);
        if now.since(streak.since) < needed || streak.batches < batches {
            return None;
        }
        let streak = self.streak.take()?;
        let (since, figures) = (streak.since, streak.figures());
        Some(match self.slow.take() {
            Some(slow) => SpeedChange::Regained { slow: slow.since, since, before: slow.speed, figures },
            None => {
                self.slow = Some(Slow { since, speed: streak.speed(), judged: now, proved: now });
                SpeedChange::Slowed { since, figures }
            }
        })
    }
}

impl Computed {
    fn class(&self) -> Class {
        let Load { tokens, texts } = self.load;
        let octave = tokens.max(1).ilog2();
        let is_upper_half = as_f64(tokens) >= as_f64(1 << octave) * std::f64::consts::SQRT_2;
        Class {
            group: self.group,
            company: self.company,
            tokens: 2 * octave + u32::from(is_upper_half),
            texts: texts.max(1).ilog2(),
        }
    }

    /// What the time is divided by within a class: between no effect of the tokens and a proportional one.
    fn size(&self) -> f64 {
        as_f64(self.load.tokens.max(1)).sqrt()
    }
}

/// The best steady speed of a class: the second best of all means of some batches, since one may be luck.
#[derive(Clone, Copy, Debug)]
struct Steady {
    batches: u32,
    sum_us: f64,
    size: f64,
    /// Time by size, the best first.
    best: [f64; 2],
}

impl Default for Steady {
    fn default() -> Self {
        Self { batches: 0, sum_us: 0.0, size: 0.0, best: [f64::INFINITY; 2] }
    }
}

impl Steady {
    fn best(&self) -> Option<f64> {
        Some(self.best[1]).filter(|best| best.is_finite())
    }

    fn add(&mut self, measured_us: f64, size: f64, least_us: f64) {
        self.batches += 1;
        self.sum_us += measured_us;
        self.size += size;
        if self.batches < STEADY_BATCHES || self.sum_us < least_us {
            return;
        }
        let mean = self.sum_us / self.size;
        self.best = match self.best {
            [first, _] if mean < first => [mean, first],
            [first, second] => [first, second.min(mean)],
        };
        (self.batches, self.sum_us, self.size) = (0, 0.0, 0.0);
    }
}

/// Batches and how long they would have taken at the best steady speed.
#[derive(Clone, Copy, Debug)]
struct Evidence {
    since: Moment,
    usual_us: f64,
    measured_us: f64,
    /// Of that, batches that were computed at full speed before.
    proved_us: f64,
    /// All that it computed, also what cannot be compared.
    busy_us: f64,
    tokens: f64,
    batches: u32,
}

impl Evidence {
    fn since(since: Moment) -> Self {
        Self { since, usual_us: 0.0, measured_us: 0.0, proved_us: 0.0, busy_us: 0.0, tokens: 0.0, batches: 0 }
    }

    fn add(&mut self, other: Self) {
        self.usual_us += other.usual_us;
        self.measured_us += other.measured_us;
        self.proved_us += other.proved_us;
        self.busy_us += other.busy_us;
        self.tokens += other.tokens;
        self.batches += other.batches;
    }

    fn speed(&self) -> f64 {
        self.usual_us / self.measured_us
    }

    fn figures(&self) -> SpeedFigures {
        let per_second = |us: f64| as_count(self.tokens / us * 1e6);
        SpeedFigures { measured: per_second(self.measured_us), usual: per_second(self.usual_us) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::ModelId;

    const GROUP: Group = Group { model: ModelId(0), key: 0 };

    /// A device that computes batches one after the other.
    struct Rig {
        speed: SpeedMeter,
        watch: SpeedWatch,
        now: Moment,
    }

    fn computed(load: Load, time: Duration) -> Computed {
        // A batch of 640 tokens and 32 texts takes 1 ms.
        let learnt = Learnt { cost: Cost::GPU.scaled(1e3 / 131.2), largest: Load { tokens: 640, texts: 32 } };
        Computed { group: GROUP, load, company: Company::Queued, time, learnt }
    }

    impl Rig {
        fn new() -> Self {
            Self { speed: SpeedMeter::default(), watch: SpeedWatch::default(), now: Moment::START }
        }

        /// Computes batches of 32 texts, which take 1 ms at full speed, for some seconds; says what changed, and after how
        /// many seconds.
        fn compute(&mut self, seconds: u64, slower: f64) -> Vec<(SpeedChange, u64)> {
            self.compute_these(seconds, Load { tokens: 640, texts: 32 }, Duration::from_millis(1).mul_f64(slower))
        }

        fn compute_these(&mut self, seconds: u64, load: Load, time: Duration) -> Vec<(SpeedChange, u64)> {
            let (began, mut changes) = (self.now, Vec::new());
            while self.now.since(began) < Duration::from_secs(seconds) {
                self.now = self.now + time;
                let batch = computed(load, time);
                self.speed.note_busy(time, &self.watch, self.now);
                let change = self.speed.compare(&batch, &self.watch, self.now);
                let change = change.or_else(|| self.speed.tend(&self.watch, self.now));
                changes.extend(change.map(|change| (change, self.now.since(began).as_secs())));
            }
            changes
        }
    }

    #[test]
    fn half_the_speed_for_ten_seconds_is_told_once_and_so_is_the_return() {
        let mut rig = Rig::new();
        assert_eq!(rig.compute(20, 1.0), []);
        let slowed = rig.compute(60, 2.0);
        assert!(matches!(slowed[..], [(SpeedChange::Slowed { .. }, 10..=12)]), "{slowed:?}");
        let SpeedChange::Slowed { figures, .. } = slowed[0].0 else { panic!("{slowed:?}") };
        assert_eq!(figures, SpeedFigures { measured: 320_000, usual: 640_000 });
        assert!((rig.speed.weight() - 0.5).abs() < 0.01, "{}", rig.speed.weight());
        let back = rig.compute(60, 1.0);
        assert!(matches!(back[..], [(SpeedChange::Regained { .. }, 1..=4)]), "{back:?}");
        assert!((rig.speed.weight() - 1.0).abs() < 1e-9);
        assert!(rig.speed.lately().is_some_and(|speed| (speed - 1.0).abs() < 0.01));
    }

    #[test]
    fn a_little_slower_or_slow_for_a_moment_is_not_told() {
        let mut rig = Rig::new();
        rig.compute(20, 1.0);
        assert_eq!(rig.compute(60, 1.3), []);
        for _ in 0..10 {
            assert_eq!(rig.compute(8, 3.0), []);
            assert_eq!(rig.compute(2, 1.0), []);
        }
    }

    #[test]
    fn batches_of_another_size_are_not_slow_because_a_token_of_them_takes_longer() {
        let mut rig = Rig::new();
        rig.compute(20, 1.0);
        for (tokens, texts, micros) in [(20, 1, 700), (6_400, 320, 20_000), (20, 1, 700)] {
            assert_eq!(rig.compute_these(60, Load { tokens, texts }, Duration::from_micros(micros)), []);
            assert_eq!(rig.compute(20, 1.0), []);
        }
    }

    #[test]
    fn a_slow_device_that_gets_smaller_batches_than_ever_is_slow_all_the_same() {
        let mut rig = Rig::new();
        rig.compute(20, 1.0);
        assert_eq!(rig.compute(2, 2.0), []);
        let smaller = Load { tokens: 80, texts: 4 };
        let changes = rig.compute_these(30, smaller, Duration::from_micros(1_320));
        assert!(matches!(changes[..], [(SpeedChange::Slowed { .. }, 6..=12)]), "{changes:?}");
        let changes = rig.compute_these(10, smaller, Duration::from_micros(660));
        assert!(matches!(changes[..], [(SpeedChange::Regained { .. }, 1..=4)]), "{changes:?}");
    }

    #[test]
    fn a_wrong_prediction_does_not_keep_a_device_slow() {
        let mut rig = Rig::new();
        rig.compute(20, 1.0);
        rig.compute(2, 2.0);
        let changes = rig.compute_these(300, Load { tokens: 80, texts: 4 }, Duration::from_micros(1_320));
        let kinds: Vec<_> = changes.iter().map(|(change, _)| matches!(change, SpeedChange::Untested { .. })).collect();
        assert_eq!(kinds, [false, true], "{changes:?}");
    }

    #[test]
    fn now_and_then_a_slow_batch_says_nothing() {
        let mut rig = Rig::new();
        rig.compute(20, 1.0);
        for _ in 0..100 {
            // The clock of a GPU that has nothing to do is low.
            rig.now = rig.now + Duration::from_millis(500);
            assert_eq!(rig.compute(0, 1.0), []);
            rig.now = rig.now + Duration::from_millis(2);
            let batch = computed(Load { tokens: 640, texts: 32 }, Duration::from_millis(2));
            rig.speed.note_busy(batch.time, &rig.watch, rig.now);
            assert_eq!(rig.speed.compare(&batch, &rig.watch, rig.now), None);
        }
    }

    #[test]
    fn a_slow_device_that_gets_no_work_is_tried_at_full_weight() {
        let mut rig = Rig::new();
        rig.compute(20, 1.0);
        rig.compute(20, 4.0);
        assert!(rig.speed.weight() < 0.3);
        let wake = rig.speed.wake(&rig.watch).unwrap();
        assert_eq!(rig.speed.tend(&rig.watch, wake.before(Duration::from_nanos(1))), None);
        assert!(matches!(rig.speed.tend(&rig.watch, wake), Some(SpeedChange::Untested { .. })));
        assert!((rig.speed.weight() - 1.0).abs() < 1e-9 && rig.speed.wake(&rig.watch).is_none());
    }

    #[test]
    fn a_device_that_lost_its_work_before_it_was_known_as_slow_is_tried_again() {
        let mut rig = Rig::new();
        rig.compute(20, 1.0);
        assert_eq!(rig.compute(3, 20.0), []);
        let change = rig.speed.tend(&rig.watch, rig.now + rig.watch.window);
        assert!(matches!(change, Some(SpeedChange::Untested { was_told: false, .. })), "{change:?}");
        rig.now = rig.now + rig.watch.window;
        rig.compute(3, 1.0);
        assert_eq!(rig.speed.wake(&rig.watch), None);
    }

    #[test]
    fn what_is_not_watched_is_never_slow() {
        let mut rig = Rig::new();
        rig.watch.is_on = false;
        rig.compute(20, 1.0);
        assert_eq!(rig.compute(60, 9.0), []);
        assert_eq!(rig.speed.lately(), None);
    }
}
