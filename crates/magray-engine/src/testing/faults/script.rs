//! A fault plan as one place lives through it: what happens now, and what goes on.
//! Reads no clock and breaks nothing: it is told the time and says what is due.

use super::kind::{FaultKind, Place};
use super::plan::{Entry, FaultPlan, Trigger};
use magray_core::SplitMix64;
use std::collections::VecDeque;
use std::time::Duration;

/// What a script is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Time since the start of the engine.
    pub(crate) now: Duration,
    /// The number of the batch that is about to be computed, counted from 1; 0 where there is none.
    pub(crate) batch: u64,
}

/// The faults of one place of one device.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    place: Place,
    entries: Vec<Running>,
    /// What goes on, and until when.
    lasting: Vec<(FaultKind, Duration)>,
}

/// An entry of the plan and what is left of it.
#[derive(Clone, Debug)]
struct Running {
    entry: Entry,
    times: Times,
    /// Faults that are due and have not happened, and how often each.
    due: VecDeque<(FaultKind, u32)>,
}

/// How long a fault goes on where the plan does not say.
const LASTS: Duration = Duration::from_secs(1);
/// Faults of an entry that wait for a batch; more would only pile up while none is sent.
const DUE_MAX: usize = 16;

impl Script {
    /// What happens at this place. Faults that were due before `from` are past; what is left of those that go on is not.
    pub(crate) fn new(plan: &FaultPlan, place: Place, from: Duration) -> Self {
        let numbered = plan.entries.iter().enumerate();
        let is_here = |entry: &Entry| entry.kind.is_none_or(|kind| kind.place() == place);
        let running = |(index, entry): (usize, &Entry)| {
            let times = Times::new(entry, plan.seed.wrapping_add(index as u64));
            Running { entry: entry.clone(), times, due: VecDeque::new() }
        };
        let entries = numbered.filter(|(_, entry)| is_here(entry)).map(running).collect();
        let mut script = Self { place, entries, lasting: Vec::new() };
        script.advance(from);
        script.entries.iter_mut().for_each(|running| running.due.retain(|_| from.is_zero()));
        script
    }

    /// The fault that befalls this batch, or that happens now; asked once a batch, or until there is none. Those that go
    /// on for a while are told by [`Script::is_on`].
    pub(crate) fn next_due(&mut self, clock: Clock) -> Option<FaultKind> {
        self.advance(clock.now);
        let with_batch = self.entries.iter().find(|running| running.entry.befalls(clock.batch));
        with_batch.and_then(|running| running.entry.kind).or_else(|| self.entries.iter_mut().find_map(Running::take))
    }

    /// Whether a fault of this kind goes on.
    pub(crate) fn is_on(&mut self, kind: FaultKind, now: Duration) -> bool {
        self.advance(now);
        self.lasting.iter().any(|(known, _)| *known == kind)
    }

    /// How many times as long batches take now.
    pub(crate) fn slow_times(&mut self, now: Duration) -> Option<u32> {
        self.going_on(now).into_iter().find_map(FaultKind::slow_times)
    }

    /// All that goes on.
    pub(crate) fn going_on(&mut self, now: Duration) -> Vec<FaultKind> {
        self.advance(now);
        self.lasting.iter().map(|(kind, _)| *kind).collect()
    }

    /// When the next fault is due that comes by time, if any.
    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.entries.iter().filter_map(|running| running.times.next).min()
    }

    /// Whether a batch that holds these tokens is poison.
    pub(crate) fn is_poison(&self, ids: &[u32]) -> bool {
        let is_in = |running: &Running| matches!(running.entry.trigger, Trigger::Id(id) if ids.contains(&id));
        self.entries.iter().any(is_in)
    }

    fn advance(&mut self, now: Duration) {
        for Running { entry, times, due } in &mut self.entries {
            while let Some((at, kind)) = times.take_until(now, entry.kind) {
                if kind.place() != self.place {
                    continue;
                }
                match entry.lasts.or(kind.lasts().then_some(LASTS)) {
                    Some(lasts) => self.lasting.push((kind, at.saturating_add(lasts))),
                    None if due.len() < DUE_MAX => due.push_back((kind, entry.times_in_a_row())),
                    None => {}
                }
            }
        }
        self.lasting.retain(|(_, until)| now < *until);
    }
}

impl Running {
    fn take(&mut self) -> Option<FaultKind> {
        let (kind, times) = self.due.front_mut()?;
        let kind = *kind;
        *times -= 1;
        if *times == 0 {
            self.due.pop_front();
        }
        Some(kind)
    }
}

impl Entry {
    /// Whether the batch of this number is meant.
    fn befalls(&self, batch: u64) -> bool {
        let times = |otherwise| self.times.map_or(otherwise, u64::from);
        match self.trigger {
            Trigger::Batch(first) => batch >= first && batch - first < times(1),
            Trigger::EveryBatches(every) => {
                batch > 0 && batch.is_multiple_of(every) && batch / every <= times(u64::MAX)
            }
            _ => false,
        }
    }

    /// How many batches a fault befalls once it is due.
    fn times_in_a_row(&self) -> u32 {
        if matches!(self.trigger, Trigger::At(_)) { self.times.unwrap_or(1).max(1) } else { 1 }
    }
}

/// The times at which an entry is due: the same ones wherever they are counted.
#[derive(Clone, Debug)]
struct Times {
    trigger: Trigger,
    next: Option<Duration>,
    /// How many there are still to come, the next one included.
    left: u32,
    chance: Chance,
}

impl Times {
    fn new(entry: &Entry, seed: u64) -> Self {
        let mut chance = Chance(SplitMix64::new(seed));
        let next = match entry.trigger {
            Trigger::At(time) | Trigger::Every(time) => Some(time),
            Trigger::Rate(rate) => Some(chance.gap(rate)),
            Trigger::Batch(_) | Trigger::EveryBatches(_) | Trigger::Id(_) => None,
        };
        let left = if matches!(entry.trigger, Trigger::At(_)) { 1 } else { entry.times.unwrap_or(u32::MAX) };
        Self { trigger: entry.trigger, next, left, chance }
    }

    /// The next time up to now, and the kind that is due then; one is picked where it was left open.
    fn take_until(&mut self, now: Duration, kind: Option<FaultKind>) -> Option<(Duration, FaultKind)> {
        let at = self.next.filter(|next| *next <= now)?;
        let kind =
            kind.unwrap_or_else(|| FaultKind::RANDOM[(self.chance.0.bits() % FaultKind::RANDOM.len() as u64) as usize]);
        self.left -= 1;
        let gap = match self.trigger {
            Trigger::Every(time) => Some(time),
            Trigger::Rate(rate) => Some(self.chance.gap(rate)),
            _ => None,
        };
        self.next = gap.filter(|_| self.left > 0).map(|gap| at.saturating_add(gap));
        Some((at, kind))
    }
}

/// Chances that are the same everywhere.
#[derive(Clone, Debug)]
struct Chance(SplitMix64);

impl Chance {
    /// The time to the next of events that come so often a second, independent of each other.
    fn gap(&mut self, rate: f64) -> Duration {
        // Above 0, up to 1.
        let unit = ((self.0.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        Duration::from_secs_f64((-unit.ln() / rate).clamp(1e-6, 1e9))
    }
}

#[cfg(test)]
mod tests;
