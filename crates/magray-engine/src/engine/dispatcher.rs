//! Where requests wait: drives the machine that decides, does what it says, and gives the answers.
//! Decides nothing itself and computes nothing; its lock is never held while an executor or a caller is called.

mod inbox;
mod reports;
mod residency_requests;
mod sequence_views;
mod state;

pub(super) use residency_requests::{Seen, Unmet};

use super::executor_handle::{ExecutorHandle, ExecutorStatus, Order, What};
use super::incident::Incident;
use super::model_moves::ModelMove;
use super::notices::log_notice;
use super::profiling::Profiling;
use super::throughput::{Recent, SecondFigures, Throughput};
use super::token_stream::{Prompt, TokenBuffer};
use super::work::{Answer, EngineError, Output, Work};
use crate::decoder::Sampling;
use inbox::Inbox;
use magray_core::schedule::{
    Allowed, Change, DeviceId, DeviceState, Event, Fallback, Group, Machine, ModelId, ModelView, Moment, Refused,
    Report, Request, RequestId, Residency, Sequence, Sketch, View,
};
use magray_core::{DeviceName, Reason};
use state::{Decided, Effect, Generated, Pending, SequenceTimes, State, Submission};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Called exactly once with what came of a request.
pub(super) type OnAnswer = Box<dyn FnOnce(Result<Answer, EngineError>) + Send>;

/// Called when a device leaves or comes back.
pub(super) type OnChange = Box<dyn Fn(DeviceId, Change, ExecutorStatus) + Send + Sync>;

/// Longer than any caller waits.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

pub(super) struct Dispatcher {
    state: Mutex<State>,
    inbox: Inbox<Submission>,
    last_id: AtomicU64,
    /// Tokens that would be taken of anyone, as the machine said after its last step.
    free_tokens: AtomicU64,
    /// The thread that keeps the time waits here.
    clock: Condvar,
    /// Callers that wait for requests to end or devices to come wait here.
    settled: Condvar,
    started: Instant,
    executors: OnceLock<Vec<Box<dyn ExecutorHandle>>>,
    on_change: OnChange,
    /// Has a lock of its own, which is held for a moment and with no other.
    throughput: Mutex<Throughput>,
    /// Why there is no GPU although there should be one.
    absent: Option<Reason>,
    profiling: Profiling,
}

impl Dispatcher {
    pub(super) fn new(machine: Machine, absent: Option<Reason>, on_change: OnChange, profiling: Profiling) -> Self {
        Self {
            state: Mutex::new(State::new(machine)),
            inbox: Inbox::default(),
            last_id: AtomicU64::new(0),
            free_tokens: AtomicU64::new(0),
            clock: Condvar::new(),
            settled: Condvar::new(),
            started: Instant::now(),
            executors: OnceLock::new(),
            on_change,
            throughput: Mutex::default(),
            absent,
            profiling,
        }
    }

    /// Takes the executors, one a device of the machine, and begins. They know the dispatcher, so they come after it. Devices in
    /// `given_up` were given up by an earlier process.
    pub(super) fn open(&self, executors: Vec<Box<dyn ExecutorHandle>>, given_up: &[DeviceId]) {
        assert!(self.executors.set(executors).is_ok(), "a dispatcher is opened once");
        for device in given_up {
            self.advance(Event::GivenUp { device: *device });
        }
        self.advance(Event::Tick);
    }

    pub(super) fn executors(&self) -> &[Box<dyn ExecutorHandle>] {
        self.executors.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn profiling(&self) -> &Profiling {
        &self.profiling
    }

    /// When the dispatcher was made: the machine's time starts here.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    pub(super) fn submit(&self, work: Work, on_answer: OnAnswer) -> RequestId {
        let sequences = work.texts.iter().map(|text| Sequence::one_step(text.ids.len() as u32)).collect();
        let group = Group { model: ModelId(work.model as u32), key: batch_key(&work) };
        let (id, caller, priority, allowed) = (self.new_id(), work.caller, work.priority, work.allowed);
        let deadline = work.deadline.map(|within| self.now() + within);
        let pending = Pending { work: work.into(), values: Vec::new(), on_answer, generated: None };
        let request = Request { id, group, sequences, caller, priority, deadline, allowed };
        self.hand_in(Submission { request, pending });
        id
    }

    /// Takes a prompt; its new tokens come through the buffer.
    pub(super) fn generate(&self, prompt: Prompt, allowed: Allowed, buffer: Arc<TokenBuffer>) -> RequestId {
        let Prompt { model, ids, new_tokens_max, sampling, caller, priority, deadline, .. } = prompt;
        let sampling = Arc::new(Sampling { prompt_tokens: ids.len() as u32, ..sampling });
        let (id, sequence) = (self.new_id(), Sequence::prompt(ids.len() as u32, new_tokens_max.max(1)));
        let tokens_max = sequence.tokens.saturating_add(sequence.new_tokens_max);
        let ended = Arc::clone(&buffer);
        let on_answer: OnAnswer = Box::new(move |answer| ended.end(answer));
        let work = Work { model, caller, priority, deadline, allowed, ..Work::default() };
        let times = SequenceTimes { asked: self.now(), first: None, last: None };
        let generated = Some(Generated { model, ids, tokens_max, sampling, buffer, read: 0, device: None, times });
        let pending = Pending { work: work.into(), values: Vec::new(), on_answer, generated };
        let group = Group { model: ModelId(model as u32), key: GENERATED_KEY };
        let deadline = deadline.map(|within| self.now() + within);
        let sequences = vec![sequence];
        let request = Request { id, group, sequences, caller, priority, deadline, allowed };
        self.hand_in(Submission { request, pending });
        id
    }

    fn new_id(&self) -> RequestId {
        RequestId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Leaves a request to the thread that steps the machine next: mostly this one. Where threads waited for the lock one
    /// after the other, each would sleep and be woken for some microseconds of work.
    fn hand_in(&self, submission: Submission) {
        self.inbox.put(submission);
        while let Some(owned) = self.inbox.own() {
            let state = self.lock();
            let decided = self.decide(state, None, self.now());
            drop(owned);
            self.carry_out(decided);
        }
    }

    /// The reader of a sequence has taken tokens. The machine is stepped for it only if the sequence may wait for that: a reader
    /// leaves this many unread at most.
    pub(super) fn tokens_read(&self, request: RequestId, tokens: u32, unread_max: u32) {
        let mut state = self.lock();
        let event = Event::Read { request, sequence: 0, tokens };
        match state.note_read(request, tokens as usize) {
            Some(unread) if unread >= unread_max.max(1) as usize => {
                let now = self.now();
                self.step(state, event, now);
            }
            // Whatever comes next for the sequence steps the machine, which hears of this first.
            Some(_) => state.news.push(event),
            None => {}
        }
    }

    /// Whether a request of which this is known would be taken, and how long all that is there should take: no time to speak of
    /// where little is there.
    pub(super) fn would_take(&self, sketch: &Sketch) -> Result<Duration, Refused> {
        // What generates may wait for space for its state where tokens are free.
        let Sketch { tokens, new_tokens, coming, .. } = sketch;
        let known = tokens.saturating_add(coming.tokens).saturating_add(coming.new_tokens);
        if *new_tokens == 0 && self.has_free(known) {
            return Ok(Duration::ZERO);
        }
        let mut state = self.lock();
        let now = self.now();
        state.machine.would_take(sketch, now)
    }

    /// Whether this many tokens of texts would be taken of anyone.
    pub(super) fn has_free(&self, tokens: u64) -> bool {
        tokens <= self.free_tokens.load(Ordering::Relaxed)
    }

    /// The caller does not wait for this request any more.
    pub(super) fn cancel(&self, id: RequestId) {
        let mut state = self.lock();
        self.inbox.take(&mut state.submitted);
        state.accept();
        // What the caller's closure holds is let go of when the lock is open.
        let cancelled = state.requests.remove(&id);
        let event = cancelled.as_ref().map(|_| Event::Cancelled(id));
        self.carry_out(self.decide(state, event, self.now()));
    }

    /// Takes no request any more and waits until all are answered; `false` if that takes longer than `most`.
    pub(super) fn drain(&self, most: Duration) -> bool {
        self.advance(Event::Draining);
        self.wait(most, |state| state.requests.is_empty())
    }

    /// Waits until every device is in rotation, at rest or given up, and no model is loading; `false` if that takes longer than `most`.
    pub(super) fn wait_until_settled(&self, most: Duration) -> bool {
        self.wait(most, |state| {
            let view = state.machine.view();
            let is_loading = |model: &ModelView| model.residency.contains(&Residency::Loading);
            view.devices.iter().all(|device| device.state.is_settled()) && !view.models.iter().any(is_loading)
        })
    }

    /// Waits until every device has started or failed to, and no model is loading; `false` if that takes longer than `most`.
    pub(super) fn wait_until_started(&self, most: Duration) -> bool {
        self.wait(most, |state| {
            let view = state.machine.view();
            let is_loading = |model: &ModelView| model.residency.contains(&Residency::Loading);
            !view.devices.iter().any(|device| device.state == DeviceState::Starting)
                && !view.models.iter().any(is_loading)
        })
    }

    pub(super) fn view(&self) -> View {
        self.lock().machine.view_at(self.now())
    }

    pub(super) fn incidents(&self) -> Vec<Incident> {
        self.lock().incidents.list()
    }

    pub(super) fn model_moves(&self) -> Vec<ModelMove> {
        self.lock().model_moves.list()
    }

    /// The seconds of the last minute, and fallbacks by their reasons since the start.
    pub(super) fn pace(&self) -> (Vec<SecondFigures>, Vec<(&'static str, u64)>) {
        let throughput = self.throughput();
        (throughput.seconds(self.started.elapsed()), throughput.fallbacks())
    }

    /// How fast it has been lately.
    pub(super) fn recent(&self) -> Recent {
        self.throughput().recent(self.started.elapsed())
    }

    /// Keeps the time for the machine until the dispatcher is closed.
    pub(super) fn keep_time(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let now = self.now();
            let wake = state.machine.next_wake();
            state.alarm = wake;
            state = match wake {
                Some(at) if at <= now => {
                    self.step(state, Event::Tick, now);
                    self.lock()
                }
                Some(at) => {
                    let timed = self.clock.wait_timeout(state, at.since(now));
                    timed.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.clock.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Ends `keep_time`. What is not answered by then is answered with an error.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let left = self.decide(state, None, self.now());
        self.clock.notify_all();
        self.settled.notify_all();
        self.carry_out(left);
    }

    fn advance(&self, event: Event) {
        let state = self.lock();
        let now = self.now();
        self.step(state, event, now);
    }

    /// Steps the machine and does what it says, with the lock open.
    fn step(&self, state: MutexGuard<'_, State>, event: Event, now: Moment) {
        self.carry_out(self.decide(state, Some(event), now));
    }

    /// Steps the machine with what was handed in and with an event.
    fn decide(&self, mut state: MutexGuard<'_, State>, event: Option<Event>, now: Moment) -> Decided {
        self.inbox.take(&mut state.submitted);
        state.accept();
        if state.is_closed {
            let left = state.requests.drain().map(|(_, pending)| Effect::Refuse(pending, Refused::Draining)).collect();
            return Decided { effects: left, is_move: false };
        }
        let is_move = matches!(
            event,
            Some(
                Event::Loaded { .. }
                    | Event::NotLoaded { .. }
                    | Event::Offloaded { .. }
                    | Event::Up { .. }
                    | Event::Down { .. }
            )
        );
        let effects = state.step(event, now);
        self.free_tokens.store(state.machine.free_tokens(), Ordering::Relaxed);
        let wake = state.machine.next_wake();
        if wake.is_some_and(|wake| state.alarm.is_none_or(|alarm| wake < alarm)) {
            self.clock.notify_one();
        }
        Decided { effects, is_move }
    }

    fn carry_out(&self, decided: Decided) {
        let Decided { mut effects, is_move } = decided;
        let has_changed = is_move || effects.iter().any(|effect| !matches!(effect, Effect::Order(..)));
        // Devices first: they have work to do while callers read their answers. What is forgotten is forgotten before what
        // comes after it is loaded.
        effects.sort_by_key(|effect| !matches!(effect, Effect::Order(..) | Effect::Forget(_)));
        for effect in effects {
            self.perform(effect);
        }
        if has_changed {
            self.settled.notify_all();
        }
    }

    fn perform(&self, effect: Effect) {
        let executor = |device: DeviceId| &self.executors()[usize::from(device.0)];
        match effect {
            Effect::Order(device, order) => {
                self.profiling.ordered(device, &order.what);
                executor(device).take(order);
            }
            Effect::Complete(id, pending, report) => {
                let answer =
                    answer(&pending.work, pending.values, &report, executor(report.device).as_ref(), &self.absent);
                self.profiling.answered(id, &pending.work, &answer);
                self.throughput().note(pending.work.texts.len(), &answer, self.started.elapsed());
                deliver(pending.on_answer, Ok(answer));
            }
            Effect::Refuse(pending, refused) => {
                self.profiling.refused(&refused);
                let error = EngineError::from_refused(refused, || self.last_error(pending.work.allowed));
                deliver(pending.on_answer, Err(error));
            }
            // Whichever worker there is: what no device uses, none needs.
            Effect::Forget(model) => {
                self.executors()
                    .iter()
                    .for_each(|executor| executor.take(Order { worker: 0, what: What::Forget(model) }));
                self.advance(Event::Forgotten { model: ModelId(model as u32) });
            }
            Effect::Wake(waker) => waker.wake(),
            Effect::Notice(device, notice) => log_notice(executor(device).name(), notice),
            Effect::Tell(device, change) => (self.on_change)(device, change, executor(device).status()),
        }
    }

    /// What went wrong last with a GPU that the work may use.
    fn last_error(&self, allowed: Allowed) -> Option<String> {
        let is_meant = |at: usize| match allowed {
            Allowed::Only(device) | Allowed::Rather(device) => usize::from(device.0) == at,
            _ => true,
        };
        let mut executors = self.executors().iter().enumerate().filter(|(at, _)| is_meant(*at));
        executors.find_map(|(_, executor)| executor.status().last_error).map(|error| error.message)
    }

    fn wait(&self, most: Duration, is_done: impl Fn(&State) -> bool) -> bool {
        let now = Instant::now();
        let until = now.checked_add(most).unwrap_or(now + FOR_EVER);
        let mut state = self.lock();
        while !is_done(&state) {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            // A state may change without an effect: look again now and then.
            let left = left.min(Duration::from_millis(20));
            state = self.settled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn now(&self) -> Moment {
        Moment::START + self.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn throughput(&self) -> MutexGuard<'_, Throughput> {
        self.throughput.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls the caller back. What panics there is the caller's and must not take a thread of the engine along.
fn deliver(on_answer: OnAnswer, answer: Result<Answer, EngineError>) {
    DELIVERING.set(true);
    if catch_unwind(AssertUnwindSafe(|| on_answer(answer))).is_err() {
        tracing::error!(target: "magray::engine", "a caller panicked over its answer");
    }
    DELIVERING.set(false);
}

thread_local! {
    static DELIVERING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is calling a caller back: it may be one that the engine's end would wait for.
pub(super) fn is_delivering() -> bool {
    DELIVERING.get()
}

/// The batch-compatibility key of what is generated. No text skips as many tokens, here and below.
const GENERATED_KEY: u32 = u32::MAX - 1;
/// Marks the key of rows that are not scaled.
const UNSCALED_KEY: u32 = 1 << 31;

/// The batch-compatibility key of work.
fn batch_key(work: &Work) -> u32 {
    match work.output {
        Output::Tokens => u32::MAX,
        Output::Texts => work.skip as u32,
        Output::Unscaled => UNSCALED_KEY | work.skip as u32,
    }
}

fn answer(
    work: &Work,
    values: Vec<f32>,
    report: &Report,
    executor: &dyn ExecutorHandle,
    absent: &Option<Reason>,
) -> Answer {
    let failed = |fallback: Fallback| Reason::Failed {
        code: fallback.code(),
        message: format!("the GPU could not be used: {fallback}"),
    };
    // What is wrong with a GPU has nothing to do with ONNX Runtime.
    let is_onnx = matches!(executor.name(), DeviceName::Onnx(_));
    Answer {
        dimensions: values.len() / work.rows(0..work.texts.len()).max(1),
        values,
        tokens: work.tokens(),
        device: executor.name_for(work.model),
        precision: executor.precision(work.model),
        batch_texts: report.batch_texts,
        queued: report.queued,
        computed: report.computed,
        replays: report.replays,
        fallback: report.fallback.map(failed).or_else(|| absent.clone().filter(|_| !is_onnx)),
    }
}
