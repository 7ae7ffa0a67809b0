//! Watches how fast a device computes against its own best steady speed.
//! Compares only batches of like size and company; time without work says nothing, and nothing is decided about placement.

#[cfg(test)]
mod tests;

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
