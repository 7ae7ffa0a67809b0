//! The CPU's lane: one thread that computes batch after batch on the pool of threads, and one beside it that packs weights.
//! Never fails: a computation that panics loses its batch and nothing else.

use super::desk::Desk;
use super::lane::{Batch, Lane, LaneStatus, Loaded, Order, What, join_until};
use super::models::CpuPacker;
use super::work::Output;
use crate::executor::OnCpu;
use crate::packed::Tokens;
use magray_core::schedule::{DeviceId, Failure};
use magray_core::{DeviceName, Precision};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

pub(super) struct CpuLane {
    /// `None` when the lane has ended.
    orders: Mutex<Option<Orders>>,
    precision: Precision,
    state: Arc<State>,
    threads: Mutex<[Option<JoinHandle<()>>; 2]>,
}

/// The ways to the two threads. What is under way is bounded by the machine: batches by the slots that it has for the
/// device, loads by the models.
struct Orders {
    batches: Sender<Batch>,
    weights: Sender<Weights>,
}

/// What is to be done with a model's weights.
enum Weights {
    Pack(usize),
    LetGo(usize),
}

/// What both threads see.
struct State {
    id: DeviceId,
    packer: Arc<CpuPacker>,
    /// By model; taken while it computes.
    models: Vec<Mutex<Option<OnCpu>>>,
    last_error: Mutex<Option<String>>,
    desk: Weak<Desk>,
}

impl CpuLane {
    /// A lane for models of which some are packed for the CPU already.
    pub(super) fn new(
        id: DeviceId,
        packer: Arc<CpuPacker>,
        models: Vec<Option<OnCpu>>,
        desk: Weak<Desk>,
    ) -> std::io::Result<Self> {
        let precision = packer.precision();
        let models = models.into_iter().map(Mutex::new).collect();
        let state = Arc::new(State { id, packer, models, last_error: Mutex::default(), desk });
        let (batches, to_compute) = channel();
        let (weights, to_keep) = channel();
        let (computing, keeping) = (Arc::clone(&state), Arc::clone(&state));
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let threads = [
            Some(thread("cpu lane").spawn(move || computing.compute(&to_compute))?),
            Some(thread("cpu weights").spawn(move || keeping.keep(&to_keep))?),
        ];
        let orders = Mutex::new(Some(Orders { batches, weights }));
        Ok(Self { orders, precision, state, threads: Mutex::new(threads) })
    }
}

impl Lane for CpuLane {
    fn name(&self) -> DeviceName {
        DeviceName::Cpu
    }

    fn precision(&self, _: usize) -> Precision {
        self.precision
    }

    fn take(&self, order: Order) {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(orders) = &*orders else { return };
        // A lane that has ended has no use for it; nobody waits for it then.
        match order.what {
            What::Start(batch) => {
                self.state.packer.rouse();
                drop(orders.batches.send(batch));
            }
            What::Load(model) => drop(orders.weights.send(Weights::Pack(model))),
            What::Offload(model) => drop(orders.weights.send(Weights::LetGo(model))),
            What::Spawn | What::Kill | What::Trim | What::Probe | What::Forget(_) | What::Rest => {}
        }
    }

    fn stop(&self) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn join(&self, deadline: Instant) -> bool {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Both are waited for, also where the first is late.
        let [computing, keeping] = threads.each_mut().map(|thread| join_until(thread, deadline));
        computing && keeping
    }

    fn status(&self) -> LaneStatus {
        let last_error = self.state.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        LaneStatus { last_error, ..LaneStatus::default() }
    }
}

impl State {
    /// Computes batch after batch.
    fn compute(&self, batches: &Receiver<Batch>) {
        let mut rows = Vec::new();
        while let Ok(batch) = batches.recv() {
            let started = Instant::now();
            let computed = catch_unwind(AssertUnwindSafe(|| self.run(&batch, &mut rows)));
            let compute = started.elapsed();
            let Some(desk) = self.desk.upgrade() else { return };
            match computed {
                Ok(()) => desk.finished(self.id, &batch, &rows, compute),
                Err(_) => {
                    tracing::error!(target: "magray::engine", texts = batch.texts_count(), "a batch panicked on the CPU");
                    desk.failed(self.id, batch.id, Failure::Transient);
                }
            }
        }
    }

    fn run(&self, batch: &Batch, rows: &mut Vec<f32>) {
        let mut model = self.models[batch.model].lock().unwrap_or_else(PoisonError::into_inner);
        let Some(model) = &mut *model else { unreachable!("no batch is started before its model is there") };
        let texts: Vec<Tokens<'_>> = batch.texts().collect();
        match batch.output {
            Output::Tokens => model.executor.run_tokens(&texts, rows),
            Output::Texts => {
                rows.clear();
                rows.resize(texts.len() * model.executor.outputs(), 0.0);
                model.executor.run(&texts, batch.skip, rows);
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
                    if let Some(desk) = self.desk.upgrade() {
                        desk.offloaded(self.id, model);
                    }
                    continue;
                }
                Some(Ok(Ok(on_cpu))) => {
                    put(Some(on_cpu));
                    self.log(model, started, "a model is on its device");
                    let (bytes, took) = (self.packer.bytes(model, self.packer.precision()), started.elapsed());
                    if let Some(desk) = self.desk.upgrade() {
                        desk.loaded(self.id, model, Loaded { bytes, took, from_host: false });
                    }
                    continue;
                }
                Some(Ok(Err(error))) => error.to_string(),
                Some(Err(_)) => "packing its weights panicked".to_owned(),
            };
            let name = self.packer.name(model);
            tracing::error!(target: "magray::engine", device = "cpu", model = name, error = problem, "a model is not on its device");
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
            if let Some(desk) = self.desk.upgrade() {
                desk.not_loaded(self.id, model, Failure::Transient);
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

/// What programs may still take of the host's memory, where the system tells.
fn host_memory_free() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
