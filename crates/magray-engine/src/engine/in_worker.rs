//! An executor in a worker process: starts the process, sends it models and batches, checks what comes back, and tells how it ended.
//! Never restarts anything by itself, and moves no model unless it is told to.

mod moves;
mod presence;
mod signs;
mod slot;
mod told;
mod vectors;

use super::canary::Canary;
use super::dispatcher::Dispatcher;
use super::executor_handle::{
    ExecutorHandle, ExecutorStatus, LastError, Order, OrderVectors, TurnStep, What, join_until,
};
use super::images::{Holder, Images};
use super::models::CpuPacker;
use crate::executors::{ExecutorModel, Failure, FailureKind, NewTokens, Output, RankSums};
use crate::gpu::{MemoryAccounts, MemoryStats};
use crate::packed::Tokens;
use crate::roster::Roster;
use crate::testing::FaultOrder;
use crate::worker::{
    self, Arrived, Exit, FromWorker, KillSwitch, VectorOrder, VectorReply, WorkerHandle, WorkerReceiver, WorkerSpec,
};
use magray_core::ledger::CollectionId;
use magray_core::schedule::{DeviceId, Ending, KillCause};
use magray_core::{DeviceName, Precision};
use moves::milliseconds;
use presence::Presence;
use signs::Signs;
use slot::{Held, Slot};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use told::ToldModels;

/// What it needs to know of its device and its worker.
pub(super) struct InWorkerSpec {
    pub(super) id: DeviceId,
    pub(super) name: DeviceName,
    /// The program that workers are.
    pub(super) exe: PathBuf,
    pub(super) worker: WorkerSpec,
    /// The fault plan for its device, for tests.
    pub(super) faults: Option<String>,
    /// Tells what known texts are answered with.
    pub(super) packer: Arc<CpuPacker>,
    /// What workers are told of the models; those of its order are there from the start.
    pub(super) models: Arc<Roster<ExecutorModel>>,
    /// The weights in the host's memory, which all executors share.
    pub(super) images: Arc<Images>,
    pub(super) ready_within: Duration,
}

pub(super) struct InWorker(Arc<Inner>);

struct Inner {
    spec: InWorkerSpec,
    dispatcher: Weak<Dispatcher>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The worker that there is, or was last.
    worker: u64,
    /// The last worker that was ordered to end; its process may not have been there yet.
    killed: u64,
    signs: Signs,
    /// The last worker that was ordered to rest, and when.
    rested: Option<(u64, Instant)>,
    /// There from the moment the process is until it is gone.
    switch: Option<KillSwitch>,
    /// There while the worker takes batches.
    handle: Option<WorkerHandle>,
    slots: Vec<Slot>,
    presence: Presence,
    /// Models that are on the device and not used yet, for their known texts have no answers to compare with.
    unchecked: Vec<(usize, Arrived)>,
    told: ToldModels,
    memory: Option<MemoryStats>,
    /// The most that models and passes had, of all workers.
    memory_peak: u64,
    last_error: Option<LastError>,
    blames_device: bool,
    /// By order for vectors that the worker has not carried out yet: who is told what came of it.
    calls: HashMap<u64, Sender<VectorReply>>,
    last_call: u64,
    /// By order to free memory that the worker has not carried out yet: who is told how much that was.
    trims: VecDeque<Sender<u64>>,
    /// Batches that were given to workers, and when the last worker ended, since the dispatcher was opened.
    batches: u64,
    ended: Duration,
    /// It is being shut down: no worker is started any more.
    is_closed: bool,
    thread: Option<JoinHandle<()>>,
}

impl InWorker {
    pub(super) fn new(spec: InWorkerSpec, dispatcher: Weak<Dispatcher>) -> Self {
        Self(Arc::new(Inner { spec, dispatcher, state: Mutex::default() }))
    }
}

impl ExecutorHandle for InWorker {
    fn name(&self) -> DeviceName {
        self.0.spec.name
    }

    fn gpus(&self) -> usize {
        self.0.spec.worker.device.count()
    }

    fn precision(&self, model: usize) -> Precision {
        // There is no answer yet of a worker that has not told.
        self.0.lock().told.of(model).map_or(Precision::F32, |told| told.precision)
    }

    fn name_for(&self, model: usize) -> DeviceName {
        let told = || self.0.lock().told.of(model)?.provider;
        let name = self.0.spec.name;
        if matches!(name, DeviceName::Onnx(_)) { DeviceName::Onnx(told()) } else { name }
    }

    fn sums(&self, model: usize) -> Option<RankSums> {
        self.0.lock().told.of(model)?.sums.clone()
    }

    fn take(&self, Order { worker, what }: Order) {
        match what {
            What::Spawn => self.spawn(worker),
            What::Kill(cause) => self.0.kill(worker, cause),
            What::Start(batch) => self.0.submit(worker, Slot::Batch(batch)),
            What::Turn(turn) => self.0.submit(worker, Slot::Turn(turn)),
            What::Free { sequence } => {
                if let Some(handle) = self.0.lock().handle_of(worker) {
                    // One that is gone has no state.
                    let _ = handle.free(sequence);
                }
            }
            What::Probe => self.0.probe(worker),
            What::Load(model) => self.0.load(worker, model),
            What::Offload(model) => self.0.offload(worker, model),
            What::Forget(model) => self.0.forget(model),
            What::DropVectors(collection) => {
                // What comes of it is reported to the dispatcher.
                drop(self.0.order_vectors(OrderVectors { worker, collection, order: VectorOrder::Drop, memory: None }));
            }
            What::Rest => self.0.rest(worker),
            What::Trim => {
                let mut state = self.0.lock();
                if state.worker == worker {
                    state.trim();
                }
            }
        }
    }

    fn clear_cache(&self) -> Option<Receiver<u64>> {
        self.0.lock().trim()
    }

    fn order_vectors(&self, order: OrderVectors<'_>) -> Option<Receiver<VectorReply>> {
        self.0.order_vectors(order)
    }

    fn replace_worker(&self, worker: u64) {
        self.0.lock().handle_of(worker).into_iter().for_each(|handle| handle.strike());
    }

    fn stop(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        match &state.handle {
            Some(handle) => handle.stop(),
            None => state.kill(),
        }
    }

    fn kill(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        state.kill();
    }

    fn join(&self, deadline: Instant) -> bool {
        // The thread wants the lock itself: it is not held meanwhile.
        let mut thread = self.0.lock().thread.take();
        let has_ended = join_until(&mut thread, deadline);
        self.0.lock().thread = thread;
        has_ended
    }

    #[cfg(feature = "testing")]
    fn strike(&self) {
        if let Some(handle) = &self.0.lock().handle {
            handle.strike();
        }
    }

    #[cfg(feature = "testing")]
    fn order_fault(&self, word: &str) -> bool {
        // A worker without a plan takes no orders either.
        let handle = self.0.lock().handle.clone().filter(|_| self.0.spec.faults.is_some());
        handle.is_some_and(|handle| handle.order_fault(word).is_ok())
    }

    fn status(&self) -> ExecutorStatus {
        let state = self.0.lock();
        ExecutorStatus {
            pid: state.handle.as_ref().map(WorkerHandle::pid),
            memory: state.memory,
            memory_peak: state.memory_peak,
            last_error: state.last_error.clone(),
            blames_device: state.blames_device,
        }
    }
}

/// The name of the batch that a probe is; the machine counts from 0 and never gets there.
const PROBE: u64 = u64::MAX;

impl InWorker {
    /// Starts a worker; its thread lives as long as it does.
    fn spawn(&self, worker: u64) {
        let mut state = self.0.lock();
        if state.is_closed {
            return;
        }
        state.worker = worker;
        state.signs = Signs::default();
        let inner = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name(format!("worker {}", self.0.spec.name));
        let spawned = thread.spawn(move || {
            // Every turn waits for what it decides.
            magray_device::cpu::request_short_slices();
            // Whatever happens to this thread, it reports the end of its worker: no other thread could.
            let ending = catch_unwind(AssertUnwindSafe(|| inner.run(worker)));
            inner.clear(worker);
            inner.report_down(ending.unwrap_or(Ending::NotStarted));
        });
        match spawned {
            Ok(thread) => state.thread = Some(thread),
            Err(error) => {
                state.fail(format!("no thread for a worker: {error}"), false);
                drop(state);
                self.0.report_down(Ending::NotStarted);
            }
        }
    }
}

impl Inner {
    fn kill(&self, worker: u64, cause: KillCause) {
        let mut state = self.lock();
        state.killed = state.killed.max(worker);
        if state.worker == worker {
            state.signs.end_for(cause);
            state.kill();
        }
    }

    /// Ends a worker that has nothing to do, gently.
    fn rest(&self, worker: u64) {
        let mut state = self.lock();
        if let Some(handle) = state.handle_of(worker) {
            state.rested = Some((worker, Instant::now()));
            handle.stop();
        }
    }

    /// Computes the known text of a model that the worker has.
    fn probe(&self, worker: u64) {
        let state = self.lock();
        if state.handle_of(worker).is_none() {
            // It ended meanwhile, which answers the probe.
            return;
        }
        let model = state.presence.any();
        drop(state);
        match model {
            Some(model) => self.submit(worker, Slot::Probe(model)),
            None => {
                tracing::error!(target: "magray::engine", device = %self.spec.name, "a probe without a model");
                if let Some(dispatcher) = self.dispatcher.upgrade() {
                    dispatcher.probed(self.spec.id, false);
                }
            }
        }
    }

    /// Hands a batch, or only the known text, to a worker.
    fn submit(&self, worker: u64, what: Slot) {
        let mut state = self.lock();
        // The worker ended meanwhile: its end is reported, and the batch with it.
        let Some(handle) = state.handle_of(worker) else { return };
        let (batch, model, skip) = match &what {
            Slot::Batch(batch) => (batch.id.0, batch.model, batch.skip),
            Slot::Turn(turn) => (turn.id.0, turn.model, 0),
            Slot::Probe(model) => (PROBE, *model, 0),
            Slot::Free => return,
        };
        let Some(slot) = state.slots.iter().position(|slot| matches!(slot, Slot::Free)) else {
            unreachable!("the machine starts no more batches than a worker has slots");
        };
        let sent = match &what {
            Slot::Turn(turn) => {
                let texts: Vec<Tokens<'_>> = turn.steps.iter().map(TurnStep::tokens).collect();
                let steps: Vec<worker::TurnStep> = turn.steps.iter().map(TurnStep::head).collect();
                let beginning = turn.steps.iter().filter_map(TurnStep::beginning);
                handle.submit_turn(worker::Work { batch, slot, model, skip, texts: &texts }, &steps, beginning)
            }
            _ => {
                let known = Some(&self.spec.packer.canaries[model]).filter(|canary| what.carries(canary));
                let texts: Vec<Tokens<'_>> = what.texts().chain(known.map(Canary::tokens)).collect();
                let work = worker::Work { batch, slot, model, skip, texts: &texts };
                handle.submit_for(work, what.output())
            }
        };
        if sent.is_ok() {
            if state.slots.iter().all(|slot| matches!(slot, Slot::Free)) {
                state.signs.compute();
            }
            state.batches += 1;
            state.slots[slot] = what;
        }
    }

    /// Forgets a worker that has ended.
    fn clear(&self, worker: u64) {
        self.spec.images.gone(self.holder(worker));
        let ended = self.dispatcher.upgrade().map_or(Duration::ZERO, |dispatcher| dispatcher.started().elapsed());
        let mut state = self.lock();
        state.slots.clear();
        state.trims.clear();
        state.calls.clear();
        state.presence = Presence::default();
        state.unchecked.clear();
        // With its process all its memory went.
        state.memory = None;
        state.ended = ended;
        let held = (state.handle.take(), state.switch.take());
        drop(state);
        // The last to let go of a process waits for its end, which may take a while.
        drop(held);
    }

    /// The life of a worker, from its start to its end.
    fn run(&self, worker: u64) -> Ending {
        let started = |switch: KillSwitch| {
            let mut state = self.lock();
            if state.killed >= state.worker || state.is_closed {
                switch.kill();
            }
            state.switch = Some(switch);
        };
        let models = self.spec.models.iter().cloned().collect();
        let spec = WorkerSpec { faults: self.order(), models, ..self.spec.worker.clone() };
        let spawned = worker::spawn(&self.spec.exe, &spec, self.spec.ready_within, started);
        let (handle, receiver, ready) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                self.lock().fail(error.to_string(), error.blames_device());
                tracing::warn!(target: "magray::engine", device = %self.spec.name, %error, "a worker did not start");
                return error.ending();
            }
        };
        let mut state = self.lock();
        state.slots = (0..self.spec.worker.slots).map(|_| Slot::Free).collect();
        state.presence = Presence::default();
        let accounts =
            MemoryAccounts::of(&ready.memory, self.spec.worker.device.context_bytes(), Vec::new(), Vec::new());
        let report = accounts.report(ready.memory.free);
        state.note_memory(ready.memory);
        state.handle = Some(handle.clone());
        if state.is_closed {
            handle.stop();
        }
        drop(state);
        let sandbox = &ready.sandbox;
        tracing::info!(target: "magray::engine", device = %self.spec.name, pid = handle.pid(), %sandbox, "a worker is ready");
        if let Some(missing) = &sandbox.missing {
            tracing::warn!(target: "magray::engine", device = %self.spec.name, %sandbox, missing, "a worker is not wholly confined");
        }
        if let Some(dispatcher) = self.dispatcher.upgrade() {
            // Loads are ordered as soon as it is up: by then its memory is known.
            dispatcher.memory(self.spec.id, report);
            dispatcher.up(self.spec.id);
        }
        let ending = self.listen(worker, &handle, receiver);
        match ending {
            Ending::Rested => {
                let took_ms = self.lock().rested.map(|(_, since)| milliseconds(since.elapsed()));
                tracing::info!(target: "magray::residency", device = %self.spec.name, took_ms, memory_used = 0, "a worker rests");
            }
            _ if self.lock().is_closed => {}
            _ => {
                let why = self.lock().signs.why(ending);
                tracing::warn!(target: "magray::engine", device = %self.spec.name, ?ending, why, "a worker ended");
            }
        }
        ending
    }

    /// What is to go wrong with a worker that starts now.
    fn order(&self) -> Option<FaultOrder> {
        let (plan, dispatcher) = (self.spec.faults.clone()?, self.dispatcher.upgrade()?);
        let (now, state) = (dispatcher.started().elapsed(), self.lock());
        Some(FaultOrder { plan, from: state.ended, now, batches: state.batches })
    }

    /// Takes what the worker says until it is gone.
    fn listen(&self, worker: u64, handle: &WorkerHandle, mut receiver: WorkerReceiver) -> Ending {
        let mut rows = Vec::new();
        loop {
            let message = match receiver.next() {
                Ok(message) => message,
                Err(Exit::Stopped) if self.lock().rested.is_some_and(|(rested, _)| rested == worker) => {
                    return Ending::Rested;
                }
                Err(exit) => {
                    let mut state = self.lock();
                    let why = state.signs.why(exit.ending()).map_or_else(String::new, |why| format!(" ({why})"));
                    state.fail(format!("its worker is gone: {exit}{why}"), true);
                    return exit.ending();
                }
            };
            // The engine is gone, and the worker goes with it.
            let Some(dispatcher) = self.dispatcher.upgrade() else {
                handle.kill();
                continue;
            };
            match message {
                FromWorker::Heartbeat { memory, accounts } => {
                    self.lock().note_memory(memory);
                    dispatcher.heartbeat(self.spec.id);
                    if let Some(accounts) = accounts {
                        dispatcher.memory(self.spec.id, accounts.report(memory.free));
                    }
                }
                FromWorker::Trimmed { freed, memory } => self.trimmed(freed, memory),
                FromWorker::Vectors { call, vectors, reply } => {
                    self.hear_of_vectors(&dispatcher, call, CollectionId(vectors), reply)
                }
                FromWorker::Finished { slot, compute, .. } => {
                    self.finish(&dispatcher, handle, slot, compute, &mut rows)
                }
                FromWorker::Turned { slot, compute, new, .. } => self.turned(&dispatcher, slot, compute, new),
                FromWorker::Failed { slot, problem, .. } => {
                    let Failure { kind, code, message } = problem;
                    tracing::warn!(target: "magray::engine", device = %self.spec.name, code, error = message, "a batch failed");
                    let mut state = self.lock();
                    state.fail(message, kind != FailureKind::OutOfMemory);
                    let held = state.free(slot);
                    drop(state);
                    self.fail(&dispatcher, held, kind);
                    if code == Failure::NOT_LOADED {
                        // The worker has not what it is believed to have: only a new one is sure to agree.
                        tracing::error!(target: "magray::engine", device = %self.spec.name, "a worker lost a model");
                        handle.strike();
                    }
                }
                moved => self.hear_of_models(&dispatcher, worker, handle, moved),
            }
        }
    }

    /// Gives the rows of a place to those who asked for them, if they are right.
    fn finish(
        &self,
        dispatcher: &Dispatcher,
        handle: &WorkerHandle,
        slot: usize,
        compute: Duration,
        rows: &mut Vec<f32>,
    ) {
        let Some(Held { model, skip, rows: own, output }) = self.lock().look(slot) else { return };
        let canary = &self.spec.packer.canaries[model];
        let (numbers, known_rows) = match output {
            Output::Texts | Output::Unscaled => (canary.outputs(), 1),
            Output::Tokens => (canary.hidden(), canary.tokens().ids.len()),
        };
        // A probe is nothing but the known text.
        let is_carried = canary.rides_along() || own == 0;
        rows.resize((own + if is_carried { known_rows } else { 0 }) * numbers, 0.0);
        // No other batch uses the slot before it is free.
        handle.read_rows(slot, rows);
        let held = self.lock().free(slot);
        let (answers, known) = rows.split_at(own * numbers);
        let are_right = match output {
            Output::Texts => {
                let may_be_zero = held.texts().map(|text| text.ids.len() <= skip);
                canary.are_plausible(answers, may_be_zero) && canary.is_right(known, skip)
            }
            Output::Unscaled => {
                answers.iter().all(|number| number.is_finite()) && canary.has_right_direction(known, skip)
            }
            Output::Tokens => answers.iter().all(|number| number.is_finite()) && canary.are_right_tokens(known),
        };
        if !are_right {
            tracing::error!(target: "magray::engine", device = %self.spec.name, "the device returned wrong answers");
            self.lock().fail("it returned wrong answers".to_owned(), true);
            return self.fail(dispatcher, held, FailureKind::WrongAnswer);
        }
        match held {
            Slot::Batch(batch) => dispatcher.finished(self.spec.id, &batch, answers, compute),
            Slot::Probe(_) => dispatcher.probed(self.spec.id, true),
            Slot::Turn(_) | Slot::Free => {}
        }
    }

    /// Gives what came of steps to the dispatcher, if it can be: nothing else is known of tokens.
    fn turned(&self, dispatcher: &Dispatcher, slot: usize, compute: Duration, new: Vec<NewTokens>) {
        let Slot::Turn(turn) = self.lock().free(slot) else { return };
        if new.len() != turn.steps.len() || !turn.steps.iter().zip(&new).all(|(step, new)| step.may_give(new)) {
            tracing::error!(target: "magray::engine", device = %self.spec.name, "the device returned tokens that were not asked for");
            self.lock().fail("it returned tokens that were not asked for".to_owned(), true);
            return self.fail(dispatcher, Slot::Turn(turn), FailureKind::WrongAnswer);
        }
        dispatcher.turned(self.spec.id, &turn, new, compute);
    }

    fn fail(&self, dispatcher: &Dispatcher, held: Slot, failure: FailureKind) {
        match held {
            Slot::Turn(turn) => dispatcher.failed(self.spec.id, turn.id, failure),
            Slot::Batch(batch) => dispatcher.failed(self.spec.id, batch.id, failure),
            Slot::Probe(_) => dispatcher.probed(self.spec.id, false),
            Slot::Free => {}
        }
    }

    fn holder(&self, worker: u64) -> Holder {
        Holder { device: self.spec.id, worker }
    }

    fn report_down(&self, ending: Ending) {
        if let Some(dispatcher) = self.dispatcher.upgrade() {
            dispatcher.down(self.spec.id, ending);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The worker of this number, if it is the one that takes orders.
    fn handle_of(&self, worker: u64) -> Option<WorkerHandle> {
        self.handle.clone().filter(|_| self.worker == worker)
    }

    /// Lets the worker free what it can; what comes back is received. `None`: there is no worker, and so nothing to free.
    fn trim(&mut self) -> Option<Receiver<u64>> {
        self.handle.as_ref()?.trim().ok()?;
        let (caller, freed) = channel();
        self.trims.push_back(caller);
        Some(freed)
    }

    /// Ends the worker, now or as soon as there is a process.
    fn kill(&mut self) {
        self.killed = self.killed.max(self.worker);
        if let Some(switch) = &self.switch {
            switch.kill();
        }
    }

    fn note_memory(&mut self, memory: MemoryStats) {
        self.signs.hear();
        self.memory_peak = self.memory_peak.max(memory.peak_allocated);
        self.memory = Some(memory);
    }

    /// Keeps what went wrong, and whether it says anything of the device.
    fn fail(&mut self, error: String, blames_device: bool) {
        self.last_error = Some(LastError::now(error));
        self.blames_device = blames_device;
    }

    /// What lies in a place.
    fn look(&self, slot: usize) -> Option<Held> {
        self.slots.get(slot)?.held()
    }

    /// Frees a place and gives what it held.
    fn free(&mut self, slot: usize) -> Slot {
        self.signs.compute();
        self.slots.get_mut(slot).map_or(Slot::Free, |slot| std::mem::replace(slot, Slot::Free))
    }
}
