//! An executor in this process: one thread that gives it batches, and one beside it that brings models and takes them.
//! Never ends while the engine lives: a computation that panics loses its batch and nothing else.
//!
//! An executor that has no more of a batch says so, and may begin with the next while it ends the first.

use super::dispatcher::Dispatcher;
use super::executor_handle::{
    Batch, ExecutorHandle, ExecutorStatus, LastError, Loaded, Order, Turn, TurnStep, What, join_until,
};
use super::models::CpuPacker;
use crate::executors::{Arrival, Bell, Failure, Feed, Job, Origin, Outcomes, Output, SequenceStep, Steps, catching};
use crate::packed::Tokens;
use crate::time_shares::TimeShares;
use magray_core::schedule::DeviceId;
use magray_core::{DeviceName, Precision};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) struct InProcess {
    /// `None` when it has ended.
    weights: Mutex<Option<Sender<Weights>>>,
    state: Arc<State>,
    threads: Mutex<[Option<JoinHandle<()>>; 2]>,
}

/// What is to be done with models' weights and memory.
enum Weights {
    Load(usize),
    Offload(usize),
    Release(usize),
    Trim,
}

/// What both threads see.
struct State {
    id: DeviceId,
    batches: Batches,
    packer: Arc<CpuPacker>,
    last_error: Mutex<Option<LastError>>,
    dispatcher: Weak<Dispatcher>,
}

impl InProcess {
    /// Some of the models may be loaded already.
    pub(super) fn new(id: DeviceId, packer: Arc<CpuPacker>, dispatcher: Weak<Dispatcher>) -> std::io::Result<Self> {
        let (batches, last_error) = (Batches::default(), Mutex::default());
        let state = Arc::new(State { id, batches, packer, last_error, dispatcher });
        let (weights, orders) = channel();
        let (computing, moving) = (Arc::clone(&state), Arc::clone(&state));
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let threads = [
            Some(thread("batches").spawn(move || computing.compute())?),
            Some(thread("weights").spawn(move || moving.move_weights(&orders))?),
        ];
        Ok(Self { weights: Mutex::new(Some(weights)), state, threads: Mutex::new(threads) })
    }
}

impl ExecutorHandle for InProcess {
    fn name(&self) -> DeviceName {
        DeviceName::Cpu
    }

    fn precision(&self, model: usize) -> Precision {
        self.state.packer.precision_of(model)
    }

    fn take(&self, order: Order) {
        let weights = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended has no use for it.
        let Some(weights) = &*weights else { return };
        match order.what {
            What::Start(batch) => {
                self.state.packer.executor.rouse();
                self.state.batches.add(Waited::Batch(batch));
            }
            What::Load(model) => drop(weights.send(Weights::Load(model))),
            What::Offload(model) => drop(weights.send(Weights::Offload(model))),
            What::Forget(model) => drop(weights.send(Weights::Release(model))),
            What::Turn(turn) => {
                self.state.packer.executor.rouse();
                self.state.batches.add(Waited::Turn(turn));
            }
            What::Free { sequence } => self.state.batches.add(Waited::Free(sequence)),
            What::Trim => drop(weights.send(Weights::Trim)),
            What::Spawn | What::Kill(_) | What::Probe | What::Rest | What::DropVectors(_) => {}
        }
    }

    fn stop(&self) {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.state.batches.close();
    }

    fn join(&self, deadline: Instant) -> bool {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Both are waited for, also where the first is late.
        let [computing, moving] = threads.each_mut().map(|thread| join_until(thread, deadline));
        computing && moving
    }

    fn status(&self) -> ExecutorStatus {
        let last_error = self.state.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ExecutorStatus { last_error, ..ExecutorStatus::default() }
    }
}

impl State {
    /// Computes batch after batch, until there are none and never will be.
    fn compute(&self) {
        while let Some(next) = self.batches.wait() {
            let (model, output) = match next {
                Next::Turn(turn) => {
                    self.take_turn(&turn);
                    continue;
                }
                Next::Free(sequence) => {
                    self.packer.executor.free(sequence);
                    continue;
                }
                Next::Batch { model, output } => (model, output),
            };
            match output {
                Output::Texts => self.packer.executor.run_all(
                    model,
                    &Batched { state: self, model, times: Mutex::new(TimeShares::new(TOKENS_OF_A_BATCH)) },
                ),
                Output::Tokens | Output::Unscaled => {
                    let Some(batch) = self.batches.take(model, output) else { continue };
                    let (started, mut outcomes) = (Instant::now(), Outcomes::default());
                    let texts: Vec<Tokens<'_>> = batch.texts().collect();
                    let steps = Steps::of(&texts, batch.skip, output);
                    let ran = catching(|| self.packer.executor.run(model, steps, &mut outcomes));
                    self.tell(&batch, ran.map(|()| outcomes.rows), started.elapsed());
                }
            }
        }
    }

    fn take_turn(&self, turn: &Turn) {
        let (started, mut outcomes) = (Instant::now(), Outcomes::default());
        let steps: Vec<SequenceStep<'_>> = turn.steps.iter().map(TurnStep::as_step).collect();
        let ran = catching(|| self.packer.executor.run(turn.model, Steps::Parts(&steps), &mut outcomes));
        let Some(dispatcher) = self.dispatcher.upgrade() else { return };
        match ran {
            Ok(()) => dispatcher.turned(self.id, turn, outcomes.new_tokens, started.elapsed()),
            Err(Failure { kind, code, message }) => {
                tracing::error!(target: "magray::engine", steps = steps.len(), code, error = message, "a turn failed in this process");
                self.note(message);
                dispatcher.failed(self.id, turn.id, kind);
            }
        }
    }

    /// Tells what became of a batch.
    fn tell(&self, batch: &Batch, outcome: Result<Vec<f32>, Failure>, compute: Duration) {
        let Some(dispatcher) = self.dispatcher.upgrade() else { return };
        match outcome {
            Ok(rows) => dispatcher.finished(self.id, batch, &rows, compute),
            Err(Failure { kind, code, message }) => {
                let texts = batch.texts_count();
                tracing::error!(target: "magray::engine", texts, code, error = message, "a batch failed in this process");
                self.note(message);
                dispatcher.failed(self.id, batch.id, kind);
            }
        }
    }

    /// Brings models and takes them, one after the other.
    fn move_weights(&self, orders: &Receiver<Weights>) {
        while let Ok(order) = orders.recv() {
            let started = Instant::now();
            match order {
                // The machine has seen to it that no batch needs them.
                Weights::Offload(model) => {
                    self.packer.executor.offload(model);
                    self.log(model, started, "a model has left its device");
                    if let Some(dispatcher) = self.dispatcher.upgrade() {
                        dispatcher.offloaded(self.id, model);
                    }
                }
                Weights::Release(model) => self.packer.executor.release(model),
                Weights::Trim => self.packer.executor.trim(),
                Weights::Load(model) => self.load(model, started),
            }
        }
    }

    fn load(&self, model: usize, started: Instant) {
        let loaded = catching(|| self.packer.load(model));
        match loaded {
            Ok(Arrival { bytes, origin, .. }) => {
                self.log(model, started, "a model is on its device");
                let loaded = Loaded { bytes, took: started.elapsed(), from_host: origin != Origin::Files };
                if let Some(dispatcher) = self.dispatcher.upgrade() {
                    dispatcher.loaded(self.id, model, loaded);
                }
            }
            Err(Failure { kind, message, .. }) => {
                let name = self.packer.name(model);
                tracing::error!(target: "magray::engine", device = "cpu", model = name, error = message, "a model is not on its device");
                self.note(message);
                if let Some(dispatcher) = self.dispatcher.upgrade() {
                    dispatcher.not_loaded(self.id, model, kind);
                }
            }
        }
    }

    fn note(&self, error: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(LastError::now(error));
    }

    fn log(&self, model: usize, started: Instant, what: &str) {
        let precision = self.packer.precision_of(model);
        let (name, bytes) = (self.packer.name(model), self.packer.bytes(model, precision));
        let took_ms = started.elapsed().as_micros() as f64 / 1000.0;
        let memory_free = self.packer.executor.memory().free;
        tracing::info!(target: "magray::residency", device = "cpu", model = name, took_ms, bytes, memory_free, "{what}");
    }
}

/// Batches that wait for the executor. The machine bounds them by the slots of the device.
#[derive(Default)]
struct Batches {
    waiting: Mutex<Waiting>,
    /// Rings for the thread that waits for the first of them.
    came: Condvar,
    /// Rings for the executor's threads that wait for the next while others compute.
    bell: Bell,
}

#[derive(Default)]
struct Waiting {
    batches: VecDeque<Waited>,
    is_closed: bool,
}

/// What waits for the executor.
enum Waited {
    Batch(Batch),
    Turn(Turn),
    /// The state of this sequence is not needed any more.
    Free(u64),
}

/// What comes next: texts as they are taken by those who compute, all else at once.
enum Next {
    Batch { model: usize, output: Output },
    Turn(Turn),
    Free(u64),
}

impl Batches {
    fn add(&self, batch: Waited) {
        self.lock().batches.push_back(batch);
        self.came.notify_one();
        self.bell.ring();
    }

    /// None will be added any more.
    fn close(&self) {
        self.lock().is_closed = true;
        self.came.notify_one();
    }

    /// Waits for something to do; `None`: there is nothing and never will be.
    fn wait(&self) -> Option<Next> {
        let is_to_wait = |waiting: &mut Waiting| waiting.batches.is_empty() && !waiting.is_closed;
        let mut waiting = self.came.wait_while(self.lock(), is_to_wait).unwrap_or_else(PoisonError::into_inner);
        if let Waited::Batch(batch) = waiting.batches.front()? {
            return Some(Next::Batch { model: batch.model, output: batch.output });
        }
        match waiting.batches.pop_front()? {
            Waited::Turn(turn) => Some(Next::Turn(turn)),
            Waited::Free(sequence) => Some(Next::Free(sequence)),
            Waited::Batch(_) => unreachable!("it was looked at"),
        }
    }

    /// The first batch, if it asks for this.
    fn take(&self, model: usize, output: Output) -> Option<Batch> {
        let mut waiting = self.lock();
        let is_fit = |first: &mut Waited| matches!(first, Waited::Batch(batch) if (batch.model, batch.output) == (model, output));
        match waiting.batches.pop_front_if(is_fit) {
            Some(Waited::Batch(batch)) => Some(batch),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tokens of a CPU that cost about as much as reading the weights for a batch does.
const TOKENS_OF_A_BATCH: u64 = 64;

/// Batches of one model for the executor.
struct Batched<'a> {
    state: &'a State,
    model: usize,
    /// How the time is divided among those that are computed.
    times: Mutex<TimeShares>,
}

/// A batch that is computed.
struct Computed<'a> {
    batch: Batch,
    /// Names it among those that share the time.
    share: u64,
    of: &'a Batched<'a>,
}

impl Job for Computed<'_> {
    fn count(&self) -> usize {
        self.batch.texts_count()
    }

    fn text(&self, at: usize) -> Tokens<'_> {
        self.batch.text(at)
    }

    fn skip(&self) -> usize {
        self.batch.skip
    }

    fn is_followed(&self) -> bool {
        self.batch.is_followed
    }

    fn done(&self, outcome: Result<Vec<f32>, Failure>) {
        let compute = self.of.times().end(self.share, Instant::now());
        self.of.state.tell(&self.batch, outcome, compute);
    }
}

impl Batched<'_> {
    fn times(&self) -> MutexGuard<'_, TimeShares> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed for Batched<'_> {
    fn next(&self, is_spare: bool) -> Option<Box<dyn Job + '_>> {
        let State { id, batches, dispatcher, .. } = self.state;
        let take = || batches.take(self.model, Output::Texts);
        let batch = take().or_else(|| {
            // The dispatcher may have some that it would rather have kept until this batch ends, for more to join them.
            dispatcher.upgrade().filter(|_| is_spare)?.spare(*id);
            take()
        })?;
        let tokens = batch.texts().map(|text| text.ids.len() as u64).sum();
        let share = self.times().begin(tokens, Instant::now());
        Some(Box::new(Computed { batch, share, of: self }))
    }

    fn bell(&self) -> Option<&Bell> {
        Some(&self.state.batches.bell)
    }
}
