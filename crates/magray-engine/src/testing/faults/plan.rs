//! The text of a fault plan: `hang@5s, oom@8s*3, cuda:0/kill@every=20s, random@0.5/s, seed=7`.
//! Checks all of it at once; what is wrong is refused with the place and with what would be right.

use super::kind::{FaultKind, Place};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What is to go wrong, and when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    pub(super) entries: Vec<Entry>,
    pub(super) seed: u64,
}

/// One line of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// On which device; `None`: on each.
    device: Option<String>,
    /// What; `None`: anything.
    pub(super) kind: Option<FaultKind>,
    pub(super) trigger: Trigger,
    /// How often; `None`: without end where it repeats by itself, else once.
    pub(super) times: Option<u32>,
    /// How long, where it goes on for a while.
    pub(super) lasts: Option<Duration>,
}

/// When a fault happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Trigger {
    /// So long after the start.
    At(Duration),
    /// Again and again after such a time.
    Every(Duration),
    /// By chance, so often a second.
    Rate(f64),
    /// With the batch of this number, counted from 1.
    Batch(u64),
    /// With every so-manyth batch.
    EveryBatches(u64),
    /// With each batch that holds this token.
    Id(u32),
}

/// Why a text is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fault '{entry}' cannot be planned: {problem}")]
pub struct FaultPlanError {
    /// The part that is wrong.
    pub entry: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

/// What names a GPU of a group in the part of the plan for it, before its number.
const RANK: &str = "rank:";
/// More than any test needs; a plan is read by people.
const ENTRIES_MAX: usize = 256;
/// Beyond it nothing works, and a test shows nothing.
const RATE_MAX: f64 = 1000.0;
/// No plan goes on for longer.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

impl FaultPlan {
    /// The part of the plan for the device of this name, such as `cuda:0`; for a group of several, what names one of them befalls that one.
    pub fn of_device(&self, names: &[String]) -> Self {
        let entry = |entry: &Entry| {
            let device = match &entry.device {
                Some(named) => {
                    let rank = names.iter().position(|name| name == named)?;
                    (names.len() > 1).then(|| format!("{RANK}{rank}"))
                }
                None => None,
            };
            Some(Entry { device, ..entry.clone() })
        };
        let first = names.first().map_or("", |name| name);
        // Each device has chances of its own, or all of them would fail together.
        let seed = first.bytes().fold(self.seed, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self { entries: self.entries.iter().filter_map(entry).collect(), seed }
    }

    /// Of the part for a group: what befalls one of its GPUs, or what names none.
    pub(super) fn of_rank(&self, rank: Option<usize>) -> Self {
        let is_meant = |entry: &&Entry| entry.rank() == rank;
        Self { entries: self.entries.iter().filter(is_meant).cloned().collect(), seed: self.seed }
    }

    /// The GPUs of a group that are named.
    pub(super) fn ranks(&self) -> BTreeSet<usize> {
        self.entries.iter().filter_map(Entry::rank).collect()
    }

    /// Refuses poison that no text can hold: ids beyond the largest vocabulary of the models, which is given in tokens.
    pub fn check_vocabulary(&self, tokens: usize) -> Result<(), FaultPlanError> {
        let is_outside = |entry: &&Entry| matches!(entry.trigger, Trigger::Id(id) if id as usize >= tokens);
        match self.entries.iter().find(is_outside) {
            None => Ok(()),
            Some(entry) => Err(FaultPlanError {
                entry: entry.to_string(),
                problem: format!(
                    "no text holds this token: the vocabulary has {tokens}, from 0 to {}",
                    tokens.saturating_sub(1)
                ),
            }),
        }
    }

    /// Whether nothing goes wrong.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The devices that are named.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| entry.device.as_deref())
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut plan = Self::default();
        for part in text.split([',', ';']).map(str::trim).filter(|part| !part.is_empty()) {
            let refuse = |problem: String| FaultPlanError { entry: part.to_owned(), problem };
            if let Some(seed) = part.strip_prefix("seed=") {
                plan.seed = seed.parse().map_err(|_| refuse("a seed is a whole number".to_owned()))?;
                continue;
            }
            if plan.entries.len() == ENTRIES_MAX {
                return Err(refuse(format!("a plan has at most {ENTRIES_MAX} faults")));
            }
            plan.entries.push(Entry::parse(part).map_err(refuse)?);
        }
        Ok(plan)
    }
}

impl Entry {
    fn rank(&self) -> Option<usize> {
        self.device.as_deref()?.strip_prefix(RANK)?.parse().ok()
    }

    fn parse(text: &str) -> Result<Self, String> {
        // A device comes before the kind; the slash of a rate comes behind it.
        let at = text.find('@').ok_or("say when, as in hang@5s or oom@batch=10")?;
        let (before, mut when) = (&text[..at], &text[at + 1..]);
        let (device, word) = match before.split_once('/') {
            Some((device, word)) => (Some(checked_device(device)?), word),
            None => (None, before),
        };
        let kind = match word {
            "random" => None,
            word => Some(
                FaultKind::parse(word)
                    .ok_or_else(|| format!("there is no fault '{word}': use {}", FaultKind::words()))?,
            ),
        };
        let mut times = None;
        if let Some((head, count)) = when.rsplit_once('*') {
            times = Some(count.parse().ok().filter(|&n| n > 0).ok_or("how often (*) is a whole number above 0")?);
            when = head;
        }
        let mut lasts = None;
        if let Some((head, time)) = when.rsplit_once('+') {
            lasts = Some(duration(time)?);
            when = head;
        }
        let entry = Self { device, kind, trigger: trigger(when)?, times, lasts };
        entry.check().map(|()| entry)
    }

    fn check(&self) -> Result<(), String> {
        let by_batch = matches!(self.trigger, Trigger::Batch(_) | Trigger::EveryBatches(_));
        let repeats = matches!(self.trigger, Trigger::Every(_) | Trigger::EveryBatches(_) | Trigger::Rate(_));
        let is_poison = self.kind == Some(FaultKind::Poison);
        let is_id = matches!(self.trigger, Trigger::Id(_));
        let Some(kind) = self.kind else {
            return match (self.trigger, self.lasts) {
                (Trigger::Rate(_), None) => Ok(()),
                _ => Err("random faults come by chance, as in random@0.5/s".to_owned()),
            };
        };
        if is_poison != is_id {
            return Err("a token and poison belong together, as in poison@id=1234".to_owned());
        }
        if is_id && (self.times.is_some() || self.lasts.is_some()) {
            return Err("poison stays poison: leave out * and +".to_owned());
        }
        if by_batch && kind.place() != Place::Batch {
            return Err(format!("{kind} has no batch: give a time, as in {kind}@5s"));
        }
        if self.lasts.is_some() && (by_batch || !kind.lasts() && kind != FaultKind::Wrong) {
            return Err(format!("{kind} befalls single batches here: leave out the time behind +"));
        }
        let is_many = self.times.is_some_and(|times| times > 1) && !repeats;
        if is_many && (kind.ends_worker() || kind.lasts() || self.lasts.is_some()) {
            return Err(format!("{kind} does not come several times in a row: say {kind}@every=5s*3"));
        }
        Ok(())
    }
}

fn checked_device(name: &str) -> Result<String, String> {
    let is_good = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || ":-_.".contains(c));
    if is_good { Ok(name.to_owned()) } else { Err("a device before the / is written like cuda:0".to_owned()) }
}

fn trigger(text: &str) -> Result<Trigger, String> {
    let number = |text: &str| text.parse().ok().filter(|&n: &u64| n > 0);
    if let Some(batch) = text.strip_prefix("batch=") {
        return number(batch).map(Trigger::Batch).ok_or_else(|| "batches are counted from 1".to_owned());
    }
    if let Some(every) = text.strip_prefix("every=") {
        return match number(every) {
            Some(batches) => Ok(Trigger::EveryBatches(batches)),
            None => duration(every).and_then(|time| match time.is_zero() {
                true => Err("every=0 never ends".to_owned()),
                false => Ok(Trigger::Every(time)),
            }),
        };
    }
    if let Some(id) = text.strip_prefix("id=") {
        return id.parse().map(Trigger::Id).map_err(|_| "a token is a whole number, as in id=1234".to_owned());
    }
    if let Some(rate) = text.strip_suffix("/s") {
        let rate = rate.parse().ok().filter(|&rate: &f64| rate > 0.0 && rate <= RATE_MAX);
        return rate.map(Trigger::Rate).ok_or_else(|| format!("a rate is above 0 and at most {RATE_MAX} a second"));
    }
    duration(text).map(Trigger::At)
}

/// Reads `5s`, `0.5s`, `20ms` or `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no time: write 5s, 0.5s, 20ms or 2m");
    let (number, unit) = if let Some(number) = text.strip_suffix("ms") {
        (number, 1e-3)
    } else if let Some(number) = text.strip_suffix('s') {
        (number, 1.0)
    } else if let Some(number) = text.strip_suffix('m') {
        (number, 60.0)
    } else {
        return Err(wrong());
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * unit;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= TIME_MAX).ok_or_else(wrong)
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        self.entries.iter().try_for_each(|entry| write!(f, ",{entry}"))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.device {
            write!(f, "{device}/")?;
        }
        match self.kind {
            Some(kind) => write!(f, "{kind}@")?,
            None => write!(f, "random@")?,
        }
        match self.trigger {
            Trigger::At(time) => write!(f, "{}s", time.as_secs_f64())?,
            Trigger::Every(time) => write!(f, "every={}s", time.as_secs_f64())?,
            Trigger::Rate(rate) => write!(f, "{rate}/s")?,
            Trigger::Batch(number) => write!(f, "batch={number}")?,
            Trigger::EveryBatches(number) => write!(f, "every={number}")?,
            Trigger::Id(id) => write!(f, "id={id}")?,
        }
        if let Some(lasts) = self.lasts {
            write!(f, "+{}s", lasts.as_secs_f64())?;
        }
        self.times.map_or(Ok(()), |times| write!(f, "*{times}"))
    }
}

#[cfg(test)]
mod tests;
