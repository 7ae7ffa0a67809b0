//! The CPU in this process: one thread that computes batches on the pool of threads, and one beside it that packs weights.
//! Never fails: a computation that panics loses its batch and nothing else.
//!
//! Threads of the pool that have no more of a batch tell so, and begin with the next while the others end it.

use super::dispatcher::Dispatcher;
use super::executor_handle::{Batch, ExecutorHandle, ExecutorStatus, Loaded, Order, What, join_until};
use super::models::CpuPacker;
use super::work::Output;
use crate::executors::cpu::CpuExecutor;
use crate::executors::cpu_stream::{Bell, Feed, Job, Outcome};
use crate::packed::Tokens;
use magray_core::schedule::{DeviceId, Failure};
use magray_core::{DeviceName, Precision};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) struct InProcess {
    /// `None` when it has ended.
    weights: Mutex<Option<Sender<Weights>>>,
    precision: Precision,
    state: Arc<State>,
    threads: Mutex<[Option<JoinHandle<()>>; 2]>,
}

/// What is to be done with a model's weights.
enum Weights {
    Pack(usize),
    LetGo(usize),
}

/// What both threads see.
struct State {
    id: DeviceId,
    batches: Batches,
    packer: Arc<CpuPacker>,
    /// By model; taken while it computes.
    models: Vec<Mutex<Option<Box<CpuExecutor>>>>,
    last_error: Mutex<Option<String>>,
    dispatcher: Weak<Dispatcher>,
}

impl InProcess {
    /// For models of which some are packed for the CPU already.
    pub(super) fn new(
        id: DeviceId,
        packer: Arc<CpuPacker>,
        models: Vec<Option<Box<CpuExecutor>>>,
        dispatcher: Weak<Dispatcher>,
    ) -> std::io::Result<Self> {
        let precision = packer.precision();
        let models = models.into_iter().map(Mutex::new).collect();
        let (batches, last_error) = (Batches::default(), Mutex::default());
        let state = Arc::new(State { id, batches, packer, models, last_error, dispatcher });
        let (weights, to_keep) = channel();
        let (computing, keeping) = (Arc::clone(&state), Arc::clone(&state));
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let threads = [
            Some(thread("cpu batches").spawn(move || computing.compute())?),
            Some(thread("cpu weights").spawn(move || keeping.keep(&to_keep))?),
        ];
        Ok(Self { weights: Mutex::new(Some(weights)), precision, state, threads: Mutex::new(threads) })
    }
}

impl ExecutorHandle for InProcess {
    fn name(&self) -> DeviceName {
        DeviceName::Cpu
    }

    fn precision(&self, _: usize) -> Precision {
        self.precision
    }

    fn take(&self, order: Order) {
        let weights = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended has no use for it; nobody waits for it then.
        let Some(weights) = &*weights else { return };
        match order.what {
            What::Start(batch) => {
                self.state.packer.rouse();
                self.state.batches.add(batch);
            }
            What::Load(model) => drop(weights.send(Weights::Pack(model))),
            What::Offload(model) => drop(weights.send(Weights::LetGo(model))),
            What::Turn(_) => unreachable!("the CPU keeps no state of sequences"),
            What::Free { .. } | What::Forget(_) => {}
            What::Spawn | What::Kill | What::Trim | What::Probe | What::Rest => {}
        }
    }

    fn stop(&self) {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.state.batches.close();
    }

    fn join(&self, deadline: Instant) -> bool {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Both are waited for, also where the first is late.
        let [computing, keeping] = threads.each_mut().map(|thread| join_until(thread, deadline));
        computing && keeping
    }

    fn status(&self) -> ExecutorStatus {
        let last_error = self.state.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ExecutorStatus { last_error, ..ExecutorStatus::default() }
    }
}

impl State {
    /// Computes batch after batch, until there are none and never will be.
    fn compute(&self) {
        while let Some((model, output)) = self.batches.wait() {
            let mut on_cpu = self.models[model].lock().unwrap_or_else(PoisonError::into_inner);
            let Some(on_cpu) = &mut *on_cpu else { unreachable!("no batch is started before its model is there") };
            match output {
                Output::Texts => on_cpu.run_all(&Answering { state: self, model, ended: Mutex::new(None) }),
                Output::Tokens => {
                    let Some(batch) = self.batches.take(model, output) else { continue };
                    let (started, mut rows) = (Instant::now(), Vec::new());
                    let texts: Vec<Tokens<'_>> = batch.texts().collect();
                    let run = catch_unwind(AssertUnwindSafe(|| on_cpu.run_tokens(&texts, &mut rows)));
                    self.tell(&batch, run.map(|()| rows), started.elapsed());
                }
            }
        }
    }

    /// Tells what became of a batch.
    fn tell(&self, batch: &Batch, outcome: Outcome, compute: Duration) {
        let Some(dispatcher) = self.dispatcher.upgrade() else { return };
        match outcome {
            Ok(rows) => dispatcher.finished(self.id, batch, &rows, compute),
            Err(_) => {
                tracing::error!(target: "magray::engine", texts = batch.texts_count(), "a batch panicked on the CPU");
                dispatcher.failed(self.id, batch.id, Failure::Transient);
            }
        }
    }

    /// Packs weights and lets go of them, one model after the other.
    fn keep(&self, orders: &Receiver<Weights>) {
        while let Ok(order) = orders.recv() {
            let started = Instant::now();
            let (model, packed) = match order {
                Weights::Pack(model) => (model, Some(catch_unwind(AssertUnwindSafe(|| self.packer.pack(model))))),
                Weights::LetGo(model) => (model, None),
            };
            let put = |on_cpu| *self.models[model].lock().unwrap_or_else(PoisonError::into_inner) = on_cpu;
            let problem = match packed {
                // The machine has seen to it that no batch needs them.
                None => {
                    put(None);
                    self.log(model, started, "a model has left its device");
                    if let Some(dispatcher) = self.dispatcher.upgrade() {
                        dispatcher.offloaded(self.id, model);
                    }
                    continue;
                }
                Some(Ok(Ok(on_cpu))) => {
                    put(Some(on_cpu));
                    self.log(model, started, "a model is on its device");
                    let (bytes, took) = (self.packer.bytes(model, self.packer.precision()), started.elapsed());
                    if let Some(dispatcher) = self.dispatcher.upgrade() {
                        dispatcher.loaded(self.id, model, Loaded { bytes, took, from_host: false });
                    }
                    continue;
                }
                Some(Ok(Err(error))) => error.to_string(),
                Some(Err(_)) => "packing its weights panicked".to_owned(),
            };
            let name = self.packer.name(model);
            tracing::error!(target: "magray::engine", device = "cpu", model = name, error = problem, "a model is not on its device");
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
            if let Some(dispatcher) = self.dispatcher.upgrade() {
                dispatcher.not_loaded(self.id, model, Failure::Transient);
            }
        }
    }

    fn log(&self, model: usize, started: Instant, what: &str) {
        let (name, bytes) = (self.packer.name(model), self.packer.bytes(model, self.packer.precision()));
        let took_ms = started.elapsed().as_micros() as f64 / 1000.0;
        let memory_free = host_memory_free();
        tracing::info!(target: "magray::engine", device = "cpu", model = name, took_ms, bytes, memory_free, "{what}");
    }
}

/// Batches that wait for the threads. What is under way is bounded by the machine, by the slots that it has for the
/// device.
#[derive(Default)]
struct Batches {
    waiting: Mutex<Waiting>,
    /// Somebody waits for the first of them.
    came: Condvar,
    /// Threads wait for the next of them while others compute.
    bell: Bell,
}

#[derive(Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    is_closed: bool,
}

impl Batches {
    fn add(&self, batch: Batch) {
        self.lock().batches.push_back(batch);
        self.came.notify_one();
        self.bell.ring();
    }

    /// None will be added any more.
    fn close(&self) {
        self.lock().is_closed = true;
        self.came.notify_one();
    }

    /// Waits for a batch, and says what it asks for; `None`: there are none and never will be.
    fn wait(&self) -> Option<(usize, Output)> {
        let is_to_wait = |waiting: &mut Waiting| waiting.batches.is_empty() && !waiting.is_closed;
        let waiting = self.came.wait_while(self.lock(), is_to_wait).unwrap_or_else(PoisonError::into_inner);
        waiting.batches.front().map(|batch| (batch.model, batch.output))
    }

    /// The first batch, if it asks for this.
    fn take(&self, model: usize, output: Output) -> Option<Batch> {
        let mut waiting = self.lock();
        let is_fit = waiting.batches.front().is_some_and(|batch| (batch.model, batch.output) == (model, output));
        if is_fit { waiting.batches.pop_front() } else { None }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Batches of one model on their way through the threads.
struct Answering<'a> {
    state: &'a State,
    model: usize,
    /// When the last of them ended.
    ended: Mutex<Option<Instant>>,
}

/// A batch that is computed.
struct Computed {
    batch: Batch,
    /// Where each text is: the part, and the text of its request.
    places: Vec<(usize, usize)>,
    started: Instant,
}

impl Job for Computed {
    fn count(&self) -> usize {
        self.places.len()
    }

    fn text(&self, at: usize) -> Tokens<'_> {
        let (part, text) = self.places[at];
        Tokens::from(&self.batch.parts[part].work.texts[text])
    }

    fn skip(&self) -> usize {
        self.batch.skip
    }
}

impl Feed for Answering<'_> {
    type Job = Computed;

    fn next(&self, is_spare: bool) -> Option<Computed> {
        let State { id, batches, dispatcher, .. } = self.state;
        let take = || batches.take(self.model, Output::Texts);
        let batch = take().or_else(|| {
            // The dispatcher may have some that it would rather have kept until this batch ends, for more to join them.
            dispatcher.upgrade().filter(|_| is_spare)?.spare(*id);
            take()
        })?;
        let texts = batch.parts.iter().enumerate().map(|(part, of)| of.texts.clone().map(move |text| (part, text)));
        Some(Computed { places: texts.flatten().collect(), batch, started: Instant::now() })
    }

    fn done(&self, job: &Computed, outcome: Outcome) {
        let now = Instant::now();
        // Until the one before it ended, threads had that to do as well.
        let before = self.ended.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        let since = before.map_or(job.started, |before| before.max(job.started));
        self.state.tell(&job.batch, outcome, now.saturating_duration_since(since));
    }

    fn bell(&self) -> Option<&Bell> {
        Some(&self.state.batches.bell)
    }
}

/// What programs may still take of the host's memory, where the system tells.
fn host_memory_free() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
