//! The requests that were taken and are not done with, and the room that they take.
//! Never gives a list of them: nothing here costs more when more requests wait.

use super::blame::Blame;
use super::device_set::DeviceSet;
use super::phase::Reach;
use super::queue::Ticket;
use super::sequence::{Progress, Status};
use super::{Allowed, CallerId, Fallback, Group, ModelId, Moment, Priority, Request, RequestId, Sequence};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// A request and how far it is.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) group: Group,
    pub(super) sequences: Vec<Sequence>,
    /// By sequence; empty where each has one step.
    pub(super) progress: Vec<Progress>,
    /// Tokens that it may come to.
    pub(super) tokens_total: u64,
    /// Tokens of the sequences of which nothing is computed yet.
    tokens_left: u64,
    pub(super) caller: CallerId,
    /// Its place among the requests of its caller, once it has waited.
    pub(super) turn: Option<u64>,
    pub(super) priority: Priority,
    pub(super) deadline: Option<Moment>,
    pub(super) allowed: Allowed,
    /// Where its sequences go if nothing has happened to them.
    pub(super) may: DeviceSet,
    /// Whether a GPU is among these.
    pub(super) is_for_gpus: bool,
    /// Its number in the order of arrival.
    pub(super) arrival: u64,
    pub(super) arrived: Moment,
    /// Sequences without an answer, or not at their end.
    pub(super) unanswered: u32,
    /// Steps of it that are in batches now.
    pub(super) running: u32,
    /// Where its waiting sequences stand in the queue.
    pub(super) tickets: Vec<Ticket>,
    /// Sequences that wait outside the queue until nothing of it runs: only a suspect has them.
    pub(super) held_back: Vec<(Range<u32>, Reach)>,
    /// When it is looked at because the devices that it needs may be away too long.
    pub(super) patience: Option<Moment>,
    /// Batches of it that failed, for whatever reason.
    pub(super) replays: u32,
    /// Those of them that a smaller batch would not have saved.
    pub(super) setbacks: u32,
    /// Those of them after which the worker still worked.
    pub(super) transients: u32,
    pub(super) blame: Blame,
    /// A worker was ended because it took too long while its weights may have been arriving.
    pub(super) is_excused: bool,
    /// Why a GPU did not compute sequences of it.
    pub(super) failed: Option<Fallback>,
    /// Its caller waits no more; it is kept while steps of it run.
    pub(super) is_over: bool,
}

impl Job {
    pub(super) fn new(request: Request, reach: Reach, now: Moment) -> Self {
        let sequences = request.sequences;
        assert!(!sequences.is_empty(), "a request has at least one sequence: {:?}", request.id);
        let is_generated = sequences[0].is_generated();
        assert!(sequences.iter().all(|one| one.is_generated() == is_generated), "one kind: {:?}", request.id);
        let progress = sequences.iter().filter(|_| is_generated).map(|one| Progress::new(*one, reach)).collect();
        Self {
            group: request.group,
            progress,
            tokens_total: total(&sequences),
            tokens_left: sequences.iter().map(|one| u64::from(one.tokens.max(1))).sum(),
            unanswered: u32::try_from(sequences.len()).unwrap_or(u32::MAX),
            sequences,
            caller: request.caller,
            turn: None,
            priority: request.priority,
            deadline: request.deadline,
            allowed: request.allowed,
            may: reach.may,
            is_for_gpus: false,
            arrival: 0,
            arrived: now,
            running: 0,
            tickets: Vec::new(),
            held_back: Vec::new(),
            patience: None,
            replays: 0,
            setbacks: 0,
            transients: 0,
            blame: Blame::default(),
            is_excused: false,
            failed: None,
            is_over: false,
        }
    }

    /// Whether it may have ended a worker, and must be alone in a batch.
    pub(super) fn is_suspect(&self) -> bool {
        self.blame != Blame::default()
    }

    /// Tokens that one of its sequences begins with.
    pub(super) fn tokens(&self, number: u32) -> u64 {
        self.sequences.get(number as usize).map_or(1, |one| u64::from(one.tokens.max(1)))
    }

    pub(super) fn tokens_of(&self, numbers: Range<u32>) -> u64 {
        numbers.map(|number| self.tokens(number)).sum()
    }

    /// Lets sequences wait outside the queue.
    pub(super) fn hold_back(&mut self, numbers: Range<u32>, reach: Reach) {
        if let Some(progress) = self.progress_mut(numbers.start) {
            progress.status = Status::HeldBack;
        }
        self.held_back.push((numbers, reach));
    }

    pub(super) fn progress_of(&self, number: u32) -> Option<&Progress> {
        self.progress.get(number as usize)
    }

    pub(super) fn progress_mut(&mut self, number: u32) -> Option<&mut Progress> {
        self.progress.get_mut(number as usize)
    }
}

/// Tokens that sequences may come to.
pub(super) fn total(sequences: &[Sequence]) -> u64 {
    sequences.iter().map(Sequence::tokens_max).sum()
}

/// All requests that were taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Jobs {
    /// Only ever asked for one request: its order, which is by chance, shows nowhere.
    jobs: HashMap<RequestId, Job, BuildHasherDefault<InOrder>>,
    tokens: u64,
    left: Left,
    arrivals: u64,
    busy: usize,
    /// Those who have requests here.
    callers: BTreeMap<CallerId, Held>,
    /// Those that generate.
    streams: BTreeSet<RequestId>,
    /// By model.
    counts: Vec<Count>,
    /// Models of which the last request is gone, or the last one for a GPU.
    quiet: Vec<ModelId>,
}

/// Tokens that are still to be computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) all: u64,
    /// Those that no GPU may compute.
    pub(super) cpu: u64,
    /// Those of requests of high priority.
    pub(super) high: u64,
}

impl Left {
    fn of(job: &Job, tokens: u64) -> Self {
        let cpu = if job.is_for_gpus { 0 } else { tokens };
        let high = if job.priority == Priority::High { tokens } else { 0 };
        Self { all: tokens, cpu, high }
    }

    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.cpu += other.cpu;
        self.high += other.high;
    }

    fn subtract(&mut self, other: Self) {
        self.all -= other.all;
        self.cpu -= other.cpu;
        self.high -= other.high;
    }
}

/// What there is of one caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) requests: usize,
    pub(super) tokens: u64,
    /// Tokens that are still to be computed.
    pub(super) left: u64,
}

/// Requests of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) all: usize,
    /// Those that a GPU may compute.
    pub(super) gpu: usize,
    /// Those of high priority.
    pub(super) high: usize,
    /// Tokens that those which generate may come to.
    pub(super) generated_tokens: u64,
}

impl Count {
    fn generated(job: &Job) -> u64 {
        if job.progress.is_empty() { 0 } else { job.tokens_total }
    }
}

impl Jobs {
    pub(super) fn new(models: usize) -> Self {
        Self { counts: vec![Count::default(); models], ..Self::default() }
    }

    pub(super) fn add_model(&mut self) {
        self.counts.push(Count::default());
    }

    pub(super) fn of(&self, model: ModelId) -> Count {
        self.counts.get(model.0 as usize).copied().unwrap_or_default()
    }

    /// A model that became quiet since this was asked last.
    pub(super) fn pop_quiet(&mut self) -> Option<ModelId> {
        self.quiet.pop()
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Tokens of sequences of which nothing is computed yet.
    pub(super) fn left(&self) -> Left {
        self.left
    }

    /// Those that generate, in the order of their names.
    pub(super) fn streams(&self) -> impl Iterator<Item = &Job> {
        self.streams.iter().filter_map(|id| self.jobs.get(id))
    }

    /// What there is of a caller.
    pub(super) fn held(&self, caller: CallerId) -> Held {
        self.callers.get(&caller).copied().unwrap_or_default()
    }

    /// How many callers there are.
    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.jobs.len() - self.busy
    }

    pub(super) fn contains(&self, request: RequestId) -> bool {
        self.jobs.contains_key(&request)
    }

    pub(super) fn insert(&mut self, request: RequestId, mut job: Job) {
        self.arrivals += 1;
        job.arrival = self.arrivals;
        self.tokens += job.tokens_total;
        self.left.add(Left::of(&job, job.tokens_left));
        let held = self.callers.entry(job.caller).or_default();
        held.requests += 1;
        held.tokens += job.tokens_total;
        held.left += job.tokens_left;
        if let Some(count) = self.counts.get_mut(job.group.model.0 as usize) {
            count.all += 1;
            count.gpu += usize::from(job.is_for_gpus);
            count.high += usize::from(job.priority == Priority::High);
            count.generated_tokens += Count::generated(&job);
        }
        if !job.progress.is_empty() {
            self.streams.insert(request);
        }
        let before = self.jobs.insert(request, job);
        assert!(before.is_none(), "the name of a request is used once: {request:?}");
    }

    pub(super) fn get(&self, request: RequestId) -> Option<&Job> {
        self.jobs.get(&request)
    }

    pub(super) fn get_mut(&mut self, request: RequestId) -> Option<&mut Job> {
        self.jobs.get_mut(&request)
    }

    pub(super) fn step_started(&mut self, request: RequestId) -> Option<&mut Job> {
        let job = self.jobs.get_mut(&request)?;
        self.busy += usize::from(job.running == 0);
        job.running += 1;
        Some(job)
    }

    /// A step of it is in no batch any more. Gives the request if its caller still waits.
    pub(super) fn step_ended(&mut self, request: RequestId) -> Option<&mut Job> {
        let job = self.jobs.get_mut(&request)?;
        assert!(job.running > 0, "a step that ends has been started: {request:?}");
        job.running -= 1;
        self.busy -= usize::from(job.running == 0);
        if job.is_over {
            self.end(request);
            return None;
        }
        self.jobs.get_mut(&request)
    }

    pub(super) fn sequences_ended(&mut self, request: RequestId, numbers: Range<u32>) {
        if let Some(job) = self.jobs.get_mut(&request) {
            job.unanswered = job.unanswered.saturating_sub(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
        }
    }

    /// What sequences of it began with is computed.
    pub(super) fn beginnings_computed(&mut self, request: RequestId, numbers: Range<u32>) {
        let Some(job) = self.jobs.get_mut(&request) else { return };
        let tokens = job.tokens_of(numbers).min(job.tokens_left);
        job.tokens_left -= tokens;
        self.left.subtract(Left::of(job, tokens));
        if let Some(held) = self.callers.get_mut(&job.caller) {
            held.left -= tokens;
        }
    }

    /// Its caller waits no more. Its room is free as soon as nothing of it runs.
    pub(super) fn end(&mut self, request: RequestId) {
        if let Entry::Occupied(mut entry) = self.jobs.entry(request) {
            assert!(entry.get().tickets.is_empty(), "what is over waits nowhere: {request:?}");
            entry.get_mut().is_over = true;
            if entry.get().running == 0 {
                let job = entry.remove();
                self.tokens -= job.tokens_total;
                self.left.subtract(Left::of(&job, job.tokens_left));
                self.streams.remove(&request);
                self.discount(&job);
            }
        }
    }

    fn discount(&mut self, job: &Job) {
        if let btree_map::Entry::Occupied(mut held) = self.callers.entry(job.caller) {
            held.get_mut().requests -= 1;
            held.get_mut().tokens -= job.tokens_total;
            held.get_mut().left -= job.tokens_left;
            if held.get().requests == 0 {
                held.remove();
            }
        }
        let Some(count) = self.counts.get_mut(job.group.model.0 as usize) else { return };
        count.all -= 1;
        count.gpu -= usize::from(job.is_for_gpus);
        count.high -= usize::from(job.priority == Priority::High);
        count.generated_tokens -= Count::generated(job);
        if count.all == 0 || job.is_for_gpus && count.gpu == 0 {
            self.quiet.push(job.group.model);
        }
    }
}

/// Places requests by their numbers, which the caller counts up: those that came one after the other, and will be
/// computed together, lie side by side in memory. With thousands waiting, that is most of the time of a step.
#[derive(Clone, Copy, Debug, Default)]
struct InOrder(u64);

impl Hasher for InOrder {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 << 8 | u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    /// The table takes the place from the low bits and a mark from the seven highest ones, which must differ. Blocks of
    /// neighbours are thrown anywhere, for callers whose numbers are far apart.
    fn finish(&self) -> u64 {
        const MARK: u64 = 0xfe << 56;
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let block = (self.0 >> 6).wrapping_mul(SPREAD) >> 40;
        block.wrapping_add(self.0) & !MARK | self.0.wrapping_mul(SPREAD) & MARK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: Reach = Reach { may: DeviceSet::EMPTY, rather_not: DeviceSet::EMPTY };

    fn request(id: u64, tokens: Vec<u32>) -> Request {
        Request {
            id: RequestId(id),
            group: Group { model: crate::schedule::ModelId(0), key: 0 },
            sequences: tokens.into_iter().map(Sequence::one_step).collect(),
            caller: CallerId(0),
            priority: Priority::Normal,
            deadline: None,
            allowed: Allowed::Any,
        }
    }

    #[test]
    fn room_is_free_when_nothing_of_a_request_runs_any_more() {
        let mut jobs = Jobs::default();
        jobs.insert(RequestId(1), Job::new(request(1, vec![5, 0]), NOWHERE, Moment::START));
        assert_eq!((jobs.tokens(), jobs.waiting()), (6, 1));
        assert!(jobs.step_started(RequestId(1)).is_some());
        jobs.end(RequestId(1));
        assert_eq!((jobs.len(), jobs.tokens(), jobs.waiting()), (1, 6, 0));
        assert!(jobs.step_ended(RequestId(1)).is_none());
        assert_eq!((jobs.len(), jobs.tokens(), jobs.waiting()), (0, 0, 0));
    }

    #[test]
    fn numbers_with_equal_low_bits_get_places_of_their_own() {
        for step in [1, 1 << 8, 1 << 20, 1 << 40] {
            let place = |number: u64| {
                let mut hasher = InOrder::default();
                hasher.write_u64(number * step);
                hasher.finish() & 0xfff
            };
            let places: std::collections::BTreeSet<u64> = (0..4096).map(place).collect();
            assert!(places.len() > 1_000, "{} places for numbers {step} apart", places.len());
        }
    }

    #[test]
    fn arrivals_are_numbered() {
        let mut jobs = Jobs::default();
        for id in [9, 4] {
            jobs.insert(RequestId(id), Job::new(request(id, vec![1]), NOWHERE, Moment::START));
        }
        let arrival = |id| jobs.get(RequestId(id)).map(|job| job.arrival);
        assert!(arrival(9) < arrival(4));
    }
}
