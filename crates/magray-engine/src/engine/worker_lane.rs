//! A GPU's lane: starts its worker process, sends it batches, checks what comes back, and tells how it ended.
//! Never restarts anything by itself.

use super::canary::Canary;
use super::desk::Desk;
use super::lane::{Batch, Lane, LaneStatus, join_until};
use crate::faults::{FaultOrder, FaultPlan};
use crate::gpu::MemoryStats;
use crate::packed::Tokens;
use crate::worker::{self, FromWorker, KillSwitch, WorkerHandle, WorkerReceiver, WorkerSpec};
use magray_core::schedule::{DeviceId, Ending, Failure};
use magray_core::{DeviceName, Precision};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a lane needs to know of its device.
pub(super) struct LaneSpec {
    pub(super) id: DeviceId,
    pub(super) name: DeviceName,
    /// The program that workers are.
    pub(super) exe: PathBuf,
    pub(super) worker: WorkerSpec,
    /// What is to go wrong with it, for tests.
    pub(super) faults: Option<FaultPlan>,
    pub(super) canaries: Arc<[Canary]>,
    pub(super) ready_within: Duration,
}

pub(super) struct WorkerLane(Arc<Inner>);

struct Inner {
    spec: LaneSpec,
    desk: Weak<Desk>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// There from the moment the process is until it is gone.
    switch: Option<KillSwitch>,
    /// An order to end a worker whose process was not there yet.
    is_kill_due: bool,
    /// There while the worker takes batches.
    handle: Option<WorkerHandle>,
    slots: Vec<Slot>,
    precisions: Vec<Precision>,
    memory: Option<MemoryStats>,
    last_error: Option<String>,
    /// Batches that were given to workers, and when the last worker ended, since the desk was opened.
    batches: u64,
    ended: Duration,
    /// The lane is being shut down: no worker is started any more.
    is_closed: bool,
    thread: Option<JoinHandle<()>>,
}

/// What a worker has in one of its places.
enum Slot {
    Free,
    Batch(Batch),
    Probe,
}

impl WorkerLane {
    pub(super) fn new(spec: LaneSpec, desk: Weak<Desk>) -> Self {
        Self(Arc::new(Inner { spec, desk, state: Mutex::default() }))
    }
}

impl Lane for WorkerLane {
    fn name(&self) -> DeviceName {
        self.0.spec.name
    }

    fn precision(&self, model: usize) -> Precision {
        // Nobody has an answer of a worker that has not told.
        self.0.lock().precisions.get(model).copied().unwrap_or(Precision::F32)
    }

    fn start(&self, batch: Batch) {
        let mut state = self.0.lock();
        // The worker ended meanwhile: its end is reported, and the batch with it.
        let Some(handle) = state.handle.clone() else { return };
        let Some(slot) = state.slots.iter().position(|slot| matches!(slot, Slot::Free)) else {
            // An order for the worker before this one came late and took a place: the batch is tried again.
            drop(state);
            if let Some(desk) = self.0.desk.upgrade() {
                desk.failed(self.0.spec.id, batch.id, Failure::Transient);
            }
            return;
        };
        let canary = &self.0.spec.canaries[batch.model];
        let texts: Vec<Tokens<'_>> = batch.texts().chain([canary.tokens()]).collect();
        let work = worker::Work { batch: batch.id.0, slot, model: batch.model, skip: batch.skip, texts: &texts };
        let sent = handle.submit(work);
        drop(texts);
        if sent.is_ok() {
            state.batches += 1;
            state.slots[slot] = Slot::Batch(batch);
        }
    }

    fn spawn(&self) {
        let mut state = self.0.lock();
        if state.is_closed {
            return;
        }
        state.is_kill_due = false;
        let inner = Arc::clone(&self.0);
        // The thread lives as long as the worker.
        let thread = std::thread::Builder::new().name(format!("worker {}", self.0.spec.name));
        match thread.spawn(move || inner.run()) {
            Ok(thread) => state.thread = Some(thread),
            Err(error) => {
                state.last_error = Some(format!("no thread for a worker: {error}"));
                drop(state);
                self.0.report_down(Ending::NotStarted);
            }
        }
    }

    fn kill(&self) {
        let mut state = self.0.lock();
        match &state.switch {
            Some(switch) => switch.kill(),
            None => state.is_kill_due = true,
        }
    }

    fn stop(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        match (&state.handle, &state.switch) {
            (Some(handle), _) => handle.stop(),
            (None, Some(switch)) => switch.kill(),
            (None, None) => state.is_kill_due = true,
        }
    }

    fn join(&self, deadline: Instant) -> bool {
        // The thread wants the lock itself: it is not held meanwhile.
        let mut thread = self.0.lock().thread.take();
        let has_ended = join_until(&mut thread, deadline);
        self.0.lock().thread = thread;
        has_ended
    }

    fn strike(&self) {
        if let Some(handle) = &self.0.lock().handle {
            handle.strike();
        }
    }

    fn trim(&self) {
        if let Some(handle) = &self.0.lock().handle {
            // One that is gone has freed everything.
            let _ = handle.trim();
        }
    }

    fn probe(&self) {
        let mut state = self.0.lock();
        let Some(handle) = state.handle.clone() else { return };
        let texts = [self.0.spec.canaries[0].tokens()];
        let sent = handle.submit(worker::Work { batch: PROBE, slot: 0, model: 0, skip: 0, texts: &texts });
        if sent.is_ok() {
            state.slots[0] = Slot::Probe;
        }
    }

    fn status(&self) -> LaneStatus {
        let state = self.0.lock();
        LaneStatus {
            pid: state.handle.as_ref().map(WorkerHandle::pid),
            memory: state.memory,
            last_error: state.last_error.clone(),
        }
    }
}

/// The name of the batch that a probe is; the machine counts from 0 and never gets there.
const PROBE: u64 = u64::MAX;

impl Inner {
    /// The life of a worker, from its start to its end.
    fn run(&self) {
        let started = |switch: KillSwitch| {
            let mut state = self.lock();
            if state.is_kill_due {
                switch.kill();
            }
            state.switch = Some(switch);
        };
        let spec = WorkerSpec { faults: self.order(), ..self.spec.worker.clone() };
        let spawned = worker::spawn(&self.spec.exe, &spec, self.spec.ready_within, started);
        let (handle, receiver, ready) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                let mut state = self.lock();
                state.switch = None;
                state.last_error = Some(error.to_string());
                drop(state);
                tracing::warn!(target: "magray::engine", device = %self.spec.name, %error, "a worker did not start");
                return self.report_down(error.ending());
            }
        };
        let mut state = self.lock();
        state.slots = (0..self.spec.worker.slots).map(|_| Slot::Free).collect();
        state.precisions = ready.precisions;
        state.memory = Some(ready.memory);
        state.handle = Some(handle.clone());
        if state.is_closed {
            handle.stop();
        }
        drop(state);
        tracing::info!(target: "magray::engine", device = %self.spec.name, pid = handle.pid(), "a worker is ready");
        if let Some(desk) = self.desk.upgrade() {
            desk.up(self.spec.id);
        }
        let ending = self.listen(&handle, receiver);
        let mut state = self.lock();
        state.handle = None;
        state.switch = None;
        state.slots.clear();
        state.ended = self.desk.upgrade().map_or(Duration::ZERO, |desk| desk.started().elapsed());
        let is_closed = state.is_closed;
        drop(state);
        if !is_closed {
            tracing::warn!(target: "magray::engine", device = %self.spec.name, ?ending, "a worker ended");
        }
        self.report_down(ending);
    }

    /// What is to go wrong with a worker that starts now.
    fn order(&self) -> Option<FaultOrder> {
        let (plan, desk) = (self.spec.faults.as_ref()?, self.desk.upgrade()?);
        let (now, state) = (desk.started().elapsed(), self.lock());
        Some(FaultOrder { plan: plan.to_string(), from: state.ended, now, batches: state.batches })
    }

    /// Takes what the worker says until it is gone.
    fn listen(&self, handle: &WorkerHandle, mut receiver: WorkerReceiver) -> Ending {
        let mut rows = Vec::new();
        loop {
            let message = match receiver.next() {
                Ok(message) => message,
                Err(exit) => {
                    self.lock().last_error = Some(format!("its worker is gone: {exit}"));
                    return exit.ending();
                }
            };
            // Nobody is there any more: the worker goes with the last of them.
            let Some(desk) = self.desk.upgrade() else {
                handle.kill();
                continue;
            };
            match message {
                FromWorker::Heartbeat { memory } => {
                    self.lock().memory = Some(memory);
                    desk.heartbeat(self.spec.id);
                }
                FromWorker::Finished { slot, compute, .. } => self.finish(&desk, handle, slot, compute, &mut rows),
                FromWorker::Failed { slot, kind, code, message, .. } => {
                    tracing::warn!(target: "magray::engine", device = %self.spec.name, code, message, "a batch failed");
                    let mut state = self.lock();
                    state.last_error = Some(message);
                    let held = state.free(slot);
                    drop(state);
                    self.fail(&desk, held, kind);
                }
            }
        }
    }

    /// Gives the rows of a place to those who asked for them, if they are right.
    fn finish(&self, desk: &Desk, handle: &WorkerHandle, slot: usize, compute: Duration, rows: &mut Vec<f32>) {
        let mut state = self.lock();
        let (model, texts) = match state.slots.get(slot) {
            Some(Slot::Batch(batch)) => (batch.model, batch.texts_count()),
            Some(Slot::Probe) => (0, 0),
            Some(Slot::Free) | None => return,
        };
        let canary = &self.spec.canaries[model];
        rows.resize((texts + 1) * canary.outputs(), 0.0);
        handle.read_rows(slot, rows);
        let held = state.free(slot);
        drop(state);
        let (answers, known) = rows.split_at(texts * canary.outputs());
        if !canary.is_right(known) || !canary.are_plausible(answers) {
            tracing::error!(target: "magray::engine", device = %self.spec.name, "the device returned wrong answers");
            self.lock().last_error = Some("it returned wrong answers".to_owned());
            return self.fail(desk, held, Failure::WrongAnswer);
        }
        match held {
            Slot::Batch(batch) => desk.finished(self.spec.id, &batch, answers, compute),
            Slot::Probe => desk.probed(self.spec.id, true),
            Slot::Free => {}
        }
    }

    fn fail(&self, desk: &Desk, held: Slot, failure: Failure) {
        match held {
            Slot::Batch(batch) => desk.failed(self.spec.id, batch.id, failure),
            Slot::Probe => desk.probed(self.spec.id, false),
            Slot::Free => {}
        }
    }

    fn report_down(&self, ending: Ending) {
        if let Some(desk) = self.desk.upgrade() {
            desk.down(self.spec.id, ending);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Frees a place and gives what it held.
    fn free(&mut self, slot: usize) -> Slot {
        self.slots.get_mut(slot).map_or(Slot::Free, |slot| std::mem::replace(slot, Slot::Free))
    }
}
