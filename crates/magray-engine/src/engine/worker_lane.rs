//! A GPU's lane: starts its worker process, sends it batches, checks what comes back, and tells how it ended.
//! Never restarts anything by itself.

use super::canary::Canary;
use super::desk::Desk;
use super::lane::{Batch, Lane, LaneStatus, Order, What, join_until};
use crate::faults::{FaultOrder, FaultPlan};
use crate::gpu::MemoryStats;
use crate::packed::Tokens;
use crate::worker::{self, FromWorker, KillSwitch, WorkerHandle, WorkerReceiver, WorkerSpec};
use magray_core::schedule::{DeviceId, Ending, Failure};
use magray_core::{DeviceName, Precision};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// The worker that there is, or was last.
    worker: u64,
    /// The last worker that was ordered to end; its process may not have been there yet.
    killed: u64,
    /// There from the moment the process is until it is gone.
    switch: Option<KillSwitch>,
    /// There while the worker takes batches.
    handle: Option<WorkerHandle>,
    slots: Vec<Slot>,
    precisions: Vec<Precision>,
    memory: Option<MemoryStats>,
    last_error: Option<String>,
    blames_device: bool,
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

    fn take(&self, Order { worker, what }: Order) {
        match what {
            What::Spawn => self.spawn(worker),
            What::Kill => self.0.kill(worker),
            What::Start(batch) => self.0.submit(worker, Slot::Batch(batch)),
            What::Probe => self.0.submit(worker, Slot::Probe),
            What::Load(_) | What::Offload(_) | What::Forget(_) | What::Rest => {}
            What::Trim => {
                let state = self.0.lock();
                if let Some(handle) = state.handle.as_ref().filter(|_| state.worker == worker) {
                    // One that is gone has freed everything.
                    let _ = handle.trim();
                }
            }
        }
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

    fn strike(&self) {
        if let Some(handle) = &self.0.lock().handle {
            handle.strike();
        }
    }

    fn status(&self) -> LaneStatus {
        let state = self.0.lock();
        LaneStatus {
            pid: state.handle.as_ref().map(WorkerHandle::pid),
            memory: state.memory,
            last_error: state.last_error.clone(),
            blames_device: state.blames_device,
        }
    }
}

/// The name of the batch that a probe is; the machine counts from 0 and never gets there.
const PROBE: u64 = u64::MAX;

impl WorkerLane {
    /// Starts a worker; its thread lives as long as it does.
    fn spawn(&self, worker: u64) {
        let mut state = self.0.lock();
        if state.is_closed {
            return;
        }
        state.worker = worker;
        let inner = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name(format!("worker {}", self.0.spec.name));
        let spawned = thread.spawn(move || {
            // Whatever happens to this thread, the end of its worker is told: nobody else could.
            let ending = catch_unwind(AssertUnwindSafe(|| inner.run()));
            inner.clear();
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
    fn kill(&self, worker: u64) {
        let mut state = self.lock();
        state.killed = state.killed.max(worker);
        if state.worker == worker {
            state.kill();
        }
    }

    /// Hands a batch, or the known text alone, to a worker.
    fn submit(&self, worker: u64, what: Slot) {
        let mut state = self.lock();
        // The worker ended meanwhile: its end is reported, and the batch with it.
        let Some(handle) = state.handle.clone().filter(|_| state.worker == worker) else { return };
        let (batch, model, skip) = match &what {
            Slot::Batch(batch) => (batch.id.0, batch.model, batch.skip),
            Slot::Probe | Slot::Free => (PROBE, 0, 0),
        };
        let Some(slot) = state.slots.iter().position(|slot| matches!(slot, Slot::Free)) else {
            unreachable!("the machine starts no more batches than a worker has slots");
        };
        let known = self.spec.canaries[model].tokens();
        let texts: Vec<Tokens<'_>> = what.texts().chain([known]).collect();
        let sent = handle.submit(worker::Work { batch, slot, model, skip, texts: &texts });
        drop(texts);
        if sent.is_ok() {
            state.batches += 1;
            state.slots[slot] = what;
        }
    }

    /// Forgets a worker that has ended.
    fn clear(&self) {
        let ended = self.desk.upgrade().map_or(Duration::ZERO, |desk| desk.started().elapsed());
        let mut state = self.lock();
        state.slots.clear();
        state.ended = ended;
        let held = (state.handle.take(), state.switch.take());
        drop(state);
        // The last to let go of a process waits for its end, which may take a while.
        drop(held);
    }

    /// The life of a worker, from its start to its end.
    fn run(&self) -> Ending {
        let started = |switch: KillSwitch| {
            let mut state = self.lock();
            if state.killed >= state.worker || state.is_closed {
                switch.kill();
            }
            state.switch = Some(switch);
        };
        let spec = WorkerSpec { faults: self.order(), ..self.spec.worker.clone() };
        let spawned = worker::spawn(&self.spec.exe, &spec, self.spec.ready_within, started);
        let (handle, receiver, ready) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                self.lock().fail(error.to_string(), error.blames_device());
                tracing::warn!(target: "magray::engine", device = %self.spec.name, %error, "a worker did not start");
                return error.ending();
            }
        };
        let known: Vec<_> = self.spec.canaries.iter().map(Canary::outputs).collect();
        if ready.outputs != known {
            let problem = "a model on the GPU answers with other lengths than on the CPU: was its folder changed?";
            self.lock().fail(problem.to_owned(), false);
            return Ending::NotStarted;
        }
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
        if !self.lock().is_closed {
            tracing::warn!(target: "magray::engine", device = %self.spec.name, ?ending, "a worker ended");
        }
        ending
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
                    self.lock().fail(format!("its worker is gone: {exit}"), true);
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
                    tracing::warn!(target: "magray::engine", device = %self.spec.name, code, error = message, "a batch failed");
                    let mut state = self.lock();
                    state.fail(message, kind != Failure::OutOfMemory);
                    let held = state.free(slot);
                    drop(state);
                    self.fail(&desk, held, kind);
                }
            }
        }
    }

    /// Gives the rows of a place to those who asked for them, if they are right.
    fn finish(&self, desk: &Desk, handle: &WorkerHandle, slot: usize, compute: Duration, rows: &mut Vec<f32>) {
        let held = self.lock().look(slot);
        let Some((model, skip, texts)) = held else { return };
        let canary = &self.spec.canaries[model];
        rows.resize((texts + 1) * canary.outputs(), 0.0);
        // Nobody else uses the place before it is free.
        handle.read_rows(slot, rows);
        let held = self.lock().free(slot);
        let (answers, known) = rows.split_at(texts * canary.outputs());
        let are_plausible = canary.are_plausible(answers, held.texts().map(|text| text.ids.len() <= skip));
        if !are_plausible || !canary.is_right(known, skip) {
            tracing::error!(target: "magray::engine", device = %self.spec.name, "the device returned wrong answers");
            self.lock().fail("it returned wrong answers".to_owned(), true);
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

impl Slot {
    /// The texts of a batch; a probe has none but the known one.
    fn texts(&self) -> impl Iterator<Item = Tokens<'_>> {
        let batch = match self {
            Self::Batch(batch) => Some(batch),
            Self::Probe | Self::Free => None,
        };
        batch.into_iter().flat_map(Batch::texts)
    }
}

impl State {
    /// Ends the worker, now or as soon as there is a process.
    fn kill(&mut self) {
        self.killed = self.killed.max(self.worker);
        if let Some(switch) = &self.switch {
            switch.kill();
        }
    }

    /// Keeps what went wrong, and whether it says anything of the device.
    fn fail(&mut self, error: String, blames_device: bool) {
        self.last_error = Some(error);
        self.blames_device = blames_device;
    }

    /// Model, skipped tokens and number of texts of what lies in a place.
    fn look(&self, slot: usize) -> Option<(usize, usize, usize)> {
        match self.slots.get(slot)? {
            Slot::Batch(batch) => Some((batch.model, batch.skip, batch.texts_count())),
            Slot::Probe => Some((0, 0, 0)),
            Slot::Free => None,
        }
    }

    /// Frees a place and gives what it held.
    fn free(&mut self, slot: usize) -> Slot {
        self.slots.get_mut(slot).map_or(Slot::Free, |slot| std::mem::replace(slot, Slot::Free))
    }
}
