//! A copy of dense vectors on another device, which finds the likely best of them; the vectors here decide the order.
//! Answers nothing that it cannot prove: then, and while there is no copy, the vectors are searched here.
//!
//! The copy is made by a thread of its own once searches ask for it. Vectors that change after they were copied are scored here
//! until the thread has copied them again. A device that lets go of the copy, or fails, costs one search some time and nothing
//! else.

use super::{Found, Gone, HELD_BEST_MAX, HeldRows, HeldScan, HeldShape, Metric, Rows, RowsHost, is_set};
use crate::cpu::Cpu;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::{Duration, Instant};

/// Searches that come before a copy is made.
const SEARCHES_BEFORE: u32 = 2;
/// Changed vectors that a search scores here at most.
const CHANGED_MAX: usize = 4096;
/// Fewer allowed vectors are scored here.
const ALLOWED_MIN: usize = 4096;
/// Vectors that are copied at a time.
const BLOCK_ROWS: usize = 4096;
/// Candidates for each result that is wanted, and the least of them.
const CANDIDATES_A_RESULT: usize = 4;
const CANDIDATES_MIN: usize = 32;
/// Where no device has room, it is looked again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The longest vectors that are copied: their numbers are far from the end of 16-bit floats.
const LENGTH_MAX: f32 = 16_384.0;

/// The copy, made and kept by a thread.
pub(super) struct Mirror(Arc<Shared>);

struct Shared {
    host: Arc<dyn RowsHost>,
    rows: Weak<RwLock<Rows>>,
    state: Mutex<State>,
    /// The thread waits here.
    bell: Condvar,
}

struct State {
    phase: Phase,
    /// Vectors that were changed since they were copied, each with the number of its change.
    changed: HashMap<u32, u64>,
    changes: u64,
    /// The longest vector that was copied.
    longest: f32,
    used: Instant,
    is_ended: bool,
}

enum Phase {
    /// There is none; searches since then, and when it may be made.
    Absent { searches: u32, from: Instant },
    /// There is none as long as the vector of this slot is there: it is too long.
    Unfit { slot: u32 },
    /// The thread is making it.
    Filling,
    /// It can be searched: its first `rows` slots. There is room for more.
    Ready { held: Arc<dyn HeldRows>, rows: usize, room: usize },
}

/// What a search needs of the copy.
struct Ready {
    held: Arc<dyn HeldRows>,
    /// Its slots.
    rows: usize,
    /// Those that were changed since, in order.
    changed: Vec<u32>,
    longest: f32,
}

/// A search as it is done here.
pub(super) struct Ask<'a> {
    pub(super) query: &'a [f32],
    pub(super) k: usize,
    pub(super) allowed: Option<&'a [u64]>,
    pub(super) exact: bool,
}

impl Mirror {
    pub(super) fn new(host: Arc<dyn RowsHost>, rows: &Arc<RwLock<Rows>>) -> Self {
        let now = Instant::now();
        let state = State {
            phase: Phase::Absent { searches: 0, from: now },
            changed: HashMap::new(),
            changes: 0,
            longest: 0.0,
            used: now,
            is_ended: false,
        };
        Self(Arc::new(Shared { host, rows: Arc::downgrade(rows), state: Mutex::new(state), bell: Condvar::new() }))
    }

    /// A vector has changed. The caller holds the rows for writing.
    pub(super) fn note(&self, slot: u32) {
        let mut state = self.0.lock();
        match state.phase {
            Phase::Absent { .. } => {}
            Phase::Unfit { slot: long } if long == slot => {
                state.phase = Phase::Absent { searches: 0, from: Instant::now() };
            }
            Phase::Unfit { .. } => {}
            Phase::Filling | Phase::Ready { .. } => {
                state.changes += 1;
                let change = state.changes;
                state.changed.insert(slot, change);
            }
        }
    }

    /// Where the copy is.
    pub(super) fn device(&self) -> Option<String> {
        match &self.0.lock().phase {
            Phase::Ready { held, .. } => Some(held.device()),
            Phase::Absent { .. } | Phase::Unfit { .. } | Phase::Filling => None,
        }
    }

    /// The best for a query; `None`: they are to be found here.
    pub(super) fn top(&self, rows: &Rows, cpu: &Cpu, ask: &Ask<'_>) -> Option<Vec<Found>> {
        let Ready { held, rows: covered, changed, longest } = self.ready(rows, ask)?;
        let query = Query::new(ask.query, rows.metric())?;
        let margin = query.margin(longest);
        let is_changed = |slot: u32| changed.binary_search(&slot).is_ok();
        let is_exact = ask.exact || !rows.may_miss();
        let mut most = (ask.k * CANDIDATES_A_RESULT).clamp(CANDIDATES_MIN, HELD_BEST_MAX);
        while ask.k < most {
            let scan = HeldScan { query: &query.numbers, rows: covered, most, allowed: ask.allowed, is_exact };
            let found = match held.best(&scan) {
                Ok(found) => found,
                Err(Gone) => {
                    self.0.lose(&held);
                    return None;
                }
            };
            // Whatever was not found has at most this score.
            let rest = (found.len() == most).then(|| query.shown(found[most - 1].score + margin));
            let likely = found.iter().map(|found| found.slot).filter(|slot| !is_changed(*slot));
            let allowed = |slot: &u32| ask.allowed.is_none_or(|bits| is_set(bits, *slot));
            let slots: Vec<u32> = likely.chain(changed.iter().copied().filter(allowed)).collect();
            let best = rows.rank(cpu, ask.query, &slots, ask.k).ok()?;
            let is_proven = |rest: f32| best.len() == ask.k && best.last().is_some_and(|worst| worst.score > rest);
            if !is_exact || rest.is_none_or(is_proven) {
                return Some(best);
            }
            if most == HELD_BEST_MAX {
                return None;
            }
            most = (most * 4).min(HELD_BEST_MAX);
        }
        None
    }

    /// What a search needs of the copy, if it is there and of use. Asks for it where it is not.
    fn ready(&self, rows: &Rows, ask: &Ask<'_>) -> Option<Ready> {
        let few = ask.allowed.is_some_and(are_few);
        let mut state = self.0.lock();
        let now = Instant::now();
        state.used = now;
        match &mut state.phase {
            Phase::Absent { searches, from } => {
                *searches += 1;
                let is_worth = *searches >= SEARCHES_BEFORE && rows.metric() != Metric::Manhattan;
                if is_worth && *from <= now && rows.len() * rows.dims() * 2 >= self.0.host.rules().bytes_min {
                    state.phase = Phase::Filling;
                    drop(state);
                    self.begin();
                }
                None
            }
            Phase::Unfit { .. } | Phase::Filling => None,
            Phase::Ready { .. } if few || ask.k > HELD_BEST_MAX / 2 => None,
            Phase::Ready { held, rows, .. } => {
                let (held, covered) = (Arc::clone(held), *rows);
                let mut changed: Vec<u32> = state.changed.keys().copied().collect();
                if !changed.is_empty() {
                    self.0.bell.notify_one();
                }
                changed.sort_unstable();
                let longest = state.longest;
                (changed.len() <= CHANGED_MAX).then_some(Ready { held, rows: covered, changed, longest })
            }
        }
    }

    fn begin(&self) {
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("vectors".to_owned());
        if thread.spawn(move || shared.keep()).is_err() {
            self.0.give_up();
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.0.lock().is_ended = true;
        self.0.bell.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is no copy, and none is made for a while.
    fn give_up(&self) {
        let mut state = self.lock();
        state.phase = Phase::Absent { searches: 0, from: Instant::now() + RETRY_AFTER };
        state.changed.clear();
        // The thread ends when it sees that.
        self.bell.notify_one();
    }

    /// A vector that is too long to be copied.
    fn too_long(&self) -> Option<u32> {
        read(&*self.rows.upgrade()?).longer_than(LENGTH_MAX)
    }

    /// No copy is made until this vector changes.
    fn pass_over(&self, slot: u32) {
        let mut state = self.lock();
        // It has changed since it was found.
        if state.changed.contains_key(&slot) {
            drop(state);
            return self.give_up();
        }
        state.phase = Phase::Unfit { slot };
        state.changed.clear();
        drop(state);
        self.host.pass_over(&format!("some are longer than {LENGTH_MAX}, too long for numbers of 16 bits"));
    }

    /// The device has let go of a copy.
    fn lose(&self, lost: &Arc<dyn HeldRows>) {
        let is_it = matches!(&self.lock().phase, Phase::Ready { held, .. } if Arc::ptr_eq(held, lost));
        if is_it {
            self.give_up();
        }
    }

    /// The life of a copy: it is made, kept up to date, and let go of when no one searches it.
    fn keep(&self) {
        if let Some(slot) = self.too_long() {
            return self.pass_over(slot);
        }
        if self.fill().is_err() {
            return self.give_up();
        }
        while let Some(held) = self.wait() {
            if self.copy_changed(&held).is_err() {
                return self.lose(&held);
            }
        }
    }

    /// Makes the copy. Vectors that change meanwhile are copied again later.
    fn fill(&self) -> Result<(), Gone> {
        let rows = self.rows.upgrade().ok_or(Gone)?;
        let (end, dims, centre) = {
            let rows = read(&rows);
            let centre = rows.centre().filter(|_| rows.may_miss()).map(<[f32]>::to_vec);
            (rows.slots_end(), rows.dims(), centre)
        };
        let shape = HeldShape { dims, room: end + end / 4 + BLOCK_ROWS, has_signs: centre.is_some() };
        let held = self.host.hold(shape).map_err(|_| Gone)?;
        self.lock().longest = 0.0;
        for first in (0..end as u32).step_by(BLOCK_ROWS) {
            let slots: Vec<u32> = (first..(end as u32).min(first + BLOCK_ROWS as u32)).collect();
            self.copy(&read(&rows), &slots).put(&*held)?;
            if self.lock().is_ended {
                return Err(Gone);
            }
        }
        if let Some(centre) = centre {
            held.keep_signs(&centre)?;
        }
        // The first search may have to wait for its kernels to be compiled.
        held.best(&HeldScan {
            query: &vec![0.0; dims],
            rows: end,
            most: CANDIDATES_MIN,
            allowed: None,
            is_exact: false,
        })?;
        self.lock().phase = Phase::Ready { held: Arc::from(held), rows: end, room: shape.room };
        Ok(())
    }

    /// Waits until vectors are to be copied again. `None`: the copy is not needed, or not there any more.
    fn wait(&self) -> Option<Arc<dyn HeldRows>> {
        let idle_max = self.host.rules().idle_max;
        let mut state = self.lock();
        loop {
            let idle = state.used.elapsed();
            let is_idle = idle_max.is_some_and(|most| idle >= most);
            let Phase::Ready { held, room, .. } = &state.phase else { return None };
            if state.is_ended || is_idle {
                drop(state);
                self.give_up();
                return None;
            }
            let (held, room) = (Arc::clone(held), *room as u32);
            if state.changed.keys().any(|slot| *slot < room) || state.changed.len() > CHANGED_MAX {
                return Some(held);
            }
            drop(held);
            let most = idle_max.map_or(Duration::MAX, |most| most.saturating_sub(idle));
            state = self.bell.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Copies vectors that have changed. Where there is no room for the new ones, all are copied anew.
    fn copy_changed(&self, held: &Arc<dyn HeldRows>) -> Result<(), Gone> {
        let rows = self.rows.upgrade().ok_or(Gone)?;
        let (changed, copied, end) = {
            let rows = read(&rows);
            let state = self.lock();
            let Phase::Ready { rows: end, room, .. } = state.phase else { return Err(Gone) };
            let inside = state.changed.iter().filter(|(slot, _)| (**slot as usize) < room);
            let mut changed: Vec<(u32, u64)> = inside.map(|(slot, change)| (*slot, *change)).collect();
            drop(state);
            changed.sort_unstable();
            changed.truncate(BLOCK_ROWS);
            let last = changed.last().ok_or(Gone)?.0;
            // Slots without a vector between the old and the new ones must not be found.
            let new = end as u32..(last + 1).max(end as u32);
            let mut slots: Vec<u32> =
                changed.iter().map(|(slot, _)| *slot).filter(|slot| !new.contains(slot)).collect();
            slots.extend(new.clone());
            (changed, self.copy(&rows, &slots), new.end as usize)
        };
        copied.put(&**held)?;
        let mut state = self.lock();
        if let Phase::Ready { rows, .. } = &mut state.phase {
            *rows = end;
        }
        for (slot, change) in changed {
            // One that has changed again meanwhile is still to be copied.
            if state.changed.get(&slot) == Some(&change) {
                state.changed.remove(&slot);
            }
        }
        Ok(())
    }

    /// What is put for these slots.
    fn copy(&self, rows: &Rows, slots: &[u32]) -> Copied {
        let (dims, metric) = (rows.dims(), rows.metric());
        let mut space = vec![0.0; rows.padded()];
        let mut copied = Copied { slots: slots.to_vec(), rows: Vec::new(), offsets: Vec::new(), longest: 0.0 };
        copied.rows.reserve(slots.len() * dims);
        for slot in slots {
            let mut offset = f32::NEG_INFINITY;
            if rows.copy(*slot, &mut space) {
                let square = square(&space[..dims]);
                copied.longest = copied.longest.max(square.sqrt() as f32);
                offset = if metric == Metric::Euclid { (-0.5 * square) as f32 } else { 0.0 };
            } else {
                space.fill(0.0);
            }
            copied.rows.extend_from_slice(&space[..dims]);
            copied.offsets.push(offset);
        }
        let mut state = self.lock();
        state.longest = state.longest.max(copied.longest);
        copied
    }
}

/// Vectors on their way.
struct Copied {
    slots: Vec<u32>,
    rows: Vec<f32>,
    offsets: Vec<f32>,
    longest: f32,
}

impl Copied {
    fn put(&self, held: &dyn HeldRows) -> Result<(), Gone> {
        if self.longest > LENGTH_MAX { Err(Gone) } else { held.put(&self.slots, &self.rows, &self.offsets) }
    }
}

/// A query as the device gets it.
struct Query {
    numbers: Vec<f32>,
    metric: Metric,
    square: f64,
}

impl Query {
    /// `None`: one that no device can be asked.
    fn new(numbers: &[f32], metric: Metric) -> Option<Self> {
        let length = square(numbers).sqrt();
        let is_fit =
            length.is_finite() && length > 0.0 && (metric == Metric::Cosine || length <= f64::from(LENGTH_MAX));
        let scale = if metric == Metric::Cosine { 1.0 / length } else { 1.0 };
        let numbers: Vec<f32> = numbers.iter().map(|number| (f64::from(*number) * scale) as f32).collect();
        let square = square(&numbers);
        is_fit.then_some(Self { numbers, metric, square })
    }

    /// How far a score of the device may be from the true one: both vectors are rounded to 11 bits, sums to 24.
    fn margin(&self, longest: f32) -> f32 {
        let (own, other) = (self.square.sqrt(), f64::from(longest));
        let dims = self.numbers.len() as f64;
        let rounded = own * other * (2.0f64.powi(-10) + 2.0f64.powi(-22) + dims * 2.0f64.powi(-23));
        // Numbers near zero are rounded to steps of a fixed size.
        let small = dims.sqrt() * (own + other) * 2.0f64.powi(-25) + dims * 2.0f64.powi(-50);
        let offset = if self.metric == Metric::Euclid { other * other * 2.0f64.powi(-23) } else { 0.0 };
        ((rounded + small + offset) * 1.001) as f32
    }

    /// A score of the device as the rows here give it.
    fn shown(&self, score: f32) -> f32 {
        match self.metric {
            Metric::Euclid => (2.0 * f64::from(score) - self.square) as f32,
            Metric::Cosine | Metric::Dot | Metric::Manhattan => score,
        }
    }
}

fn square(numbers: &[f32]) -> f64 {
    numbers.iter().map(|number| f64::from(*number).powi(2)).sum()
}

/// Whether so few bits are set that their vectors are scored here.
fn are_few(bits: &[u64]) -> bool {
    let mut left = ALLOWED_MIN;
    !bits.iter().any(|word| {
        left = left.saturating_sub(word.count_ones() as usize);
        left == 0
    })
}

pub(super) fn read(rows: &RwLock<Rows>) -> RwLockReadGuard<'_, Rows> {
    rows.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
