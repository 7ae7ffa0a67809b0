//! The CPU's lane: one thread that computes batch after batch on the pool of threads.
//! Never fails: a computation that panics loses its batch and nothing else.

use super::desk::Desk;
use super::lane::{Batch, Lane, LaneStatus, Order, What, join_until};
use crate::executor::OnCpu;
use crate::packed::Tokens;
use magray_core::schedule::{DeviceId, Failure};
use magray_core::{DeviceName, Precision};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

pub(super) struct CpuLane {
    /// Bounded by the slots that the machine has for the device; `None` when the lane has ended.
    batches: Mutex<Option<Sender<Batch>>>,
    precisions: Vec<Precision>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl CpuLane {
    /// A lane for models that are packed for the CPU, in the order of the engine's.
    pub(super) fn new(id: DeviceId, models: Vec<OnCpu>, desk: Weak<Desk>) -> std::io::Result<Self> {
        let precisions = models.iter().map(|model| model.precision).collect();
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("cpu lane".to_owned())
            .spawn(move || serve(id, models, &receiver, &desk))?;
        Ok(Self { batches: Mutex::new(Some(sender)), precisions, thread: Mutex::new(Some(thread)) })
    }
}

impl Lane for CpuLane {
    fn name(&self) -> DeviceName {
        DeviceName::Cpu
    }

    fn precision(&self, model: usize) -> Precision {
        self.precisions[model]
    }

    fn take(&self, order: Order) {
        let What::Start(batch) = order.what else { return };
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(batches) = &*batches {
            // A lane that has ended has no use for it; nobody waits for it then.
            let _ = batches.send(batch);
        }
    }

    fn stop(&self) {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn join(&self, deadline: Instant) -> bool {
        join_until(&mut self.thread.lock().unwrap_or_else(PoisonError::into_inner), deadline)
    }

    fn status(&self) -> LaneStatus {
        LaneStatus::default()
    }
}

fn serve(id: DeviceId, mut models: Vec<OnCpu>, batches: &Receiver<Batch>, desk: &Weak<Desk>) {
    let mut rows = Vec::new();
    while let Ok(batch) = batches.recv() {
        let started = Instant::now();
        let model = &mut models[batch.model];
        let texts: Vec<Tokens<'_>> = batch.texts().collect();
        rows.clear();
        rows.resize(texts.len() * model.executor.outputs(), 0.0);
        let computed = catch_unwind(AssertUnwindSafe(|| model.executor.run(&texts, batch.skip, &mut rows)));
        let compute = started.elapsed();
        drop(texts);
        let Some(desk) = desk.upgrade() else { return };
        match computed {
            Ok(()) => desk.finished(id, &batch, &rows, compute),
            Err(_) => {
                tracing::error!(target: "magray::engine", texts = batch.texts_count(), "a batch panicked on the CPU");
                desk.failed(id, batch.id, Failure::Transient);
            }
        }
    }
}
