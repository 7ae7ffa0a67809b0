//! Vectors on the engine's GPUs: memory for them is asked of the ledger, and they are searched by the GPU's worker.
//! Keeps no copy: who holds vectors here has them elsewhere too, and goes on by that copy when they are gone.

use super::dispatcher::Dispatcher;
use super::executor_handle::{ExecutorHandle, OrderVectors};
use super::{Engine, Running};
use crate::executors::FailureKind;
use crate::worker::{self, VectorOrder, VectorReply, VectorSearch, VectorWindow};
use magray_core::DeviceName;
use magray_core::ledger::CollectionId;
use magray_core::schedule::DeviceId;
use magray_device::scan::{Found, Gone, HeldRows, HeldScan, HeldShape, HostRules, RowsHost};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What scans need beside the vectors: queries, candidates, bits.
const SCAN_BYTES: u64 = 32 << 20;
/// Longer than any order takes that does not hang.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// To take memory may wait for kernels to be compiled.
const HOLD_MAX: Duration = Duration::from_secs(60);
/// The ledger is told of searches this often.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl Engine {
    /// The memory of the GPUs, for vectors that are to be searched there by these rules; `None`: there is no GPU.
    pub fn rows_host(&self, rules: HostRules) -> Option<Arc<dyn RowsHost>> {
        self.dispatcher().executors().iter().any(|executor| is_gpu(executor.name())).then(|| {
            let host = VectorHost {
                running: Arc::downgrade(&self.0),
                rules,
                last: AtomicU32::new(0),
                refused: Mutex::default(),
            };
            Arc::new(host) as Arc<dyn RowsHost>
        })
    }
}

struct VectorHost {
    running: Weak<Running>,
    rules: HostRules,
    /// Names the next collection.
    last: AtomicU32,
    /// Why there was no room, last.
    refused: Mutex<String>,
}

impl RowsHost for VectorHost {
    fn hold(&self, shape: HeldShape) -> Result<Box<dyn HeldRows>, String> {
        let running = self.running.upgrade().ok_or("the engine has ended")?;
        let dispatcher = &running.assembly.dispatcher;
        let gpus = dispatcher.executors().iter().enumerate().filter(|(_, executor)| is_gpu(executor.name()));
        let mut gpus: Vec<(usize, &dyn ExecutorHandle)> = gpus.map(|(at, executor)| (at, &**executor)).collect();
        // Where there are several, the one with the most memory to spare.
        gpus.sort_by_cached_key(|(_, gpu)| std::cmp::Reverse(gpu.status().memory.map_or(0, |memory| memory.free)));
        let mut reason = "there is no GPU".to_owned();
        for (at, _) in gpus {
            let collection = CollectionId(self.last.fetch_add(1, Ordering::Relaxed));
            match Held::new(dispatcher, DeviceId(at as u16), collection, shape) {
                Ok(held) => return Ok(Box::new(held)),
                Err(why) => reason = why,
            }
        }
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if *refused != reason {
            self.pass_over(&reason);
            refused.clone_from(&reason);
        }
        Err(reason)
    }

    fn pass_over(&self, reason: &str) {
        tracing::info!(target: "magray::residency", reason, "vectors are searched on the CPU");
    }

    fn rules(&self) -> HostRules {
        self.rules
    }
}

/// Vectors on a GPU, as long as the worker lives that has them.
struct Held {
    dispatcher: Weak<Dispatcher>,
    device: DeviceId,
    name: DeviceName,
    worker: u64,
    collection: CollectionId,
    /// One order uses it at a time.
    window: Mutex<VectorWindow>,
    opened: Instant,
    /// When the ledger was told last, in milliseconds from the opening.
    told: AtomicU64,
}

impl Held {
    fn new(
        dispatcher: &Arc<Dispatcher>,
        device: DeviceId,
        collection: CollectionId,
        shape: HeldShape,
    ) -> Result<Self, String> {
        let executor = &dispatcher.executors()[usize::from(device.0)];
        let (name, gpus) = (executor.name(), executor.gpus());
        let wanted = worker::HeldShape { dims: number(shape.dims)?, room: number(shape.room)? };
        let window = VectorWindow::create(wanted).map_err(|error| format!("no shared memory: {error}"))?;
        let bytes = bytes_on(shape, gpus);
        let worker = dispatcher.ask_for_vectors(device, collection, bytes);
        let worker = worker.ok_or_else(|| format!("{name} has no {} MiB to spare now", bytes >> 20))?;
        let (window, opened) = (Mutex::new(window), Instant::now());
        let dispatcher = Arc::downgrade(dispatcher);
        // From here on it leaves when it is dropped.
        let held = Self { dispatcher, device, name, worker, collection, window, opened, told: AtomicU64::new(0) };
        let reply = held.call(VectorOrder::Hold(wanted), Some(&held.window()), HOLD_MAX);
        match reply {
            Some(VectorReply::Done) => {
                let HeldShape { dims, room, .. } = shape;
                tracing::info!(target: "magray::residency", device = %name, dims, room, bytes, "vectors come to a GPU");
                Ok(held)
            }
            Some(VectorReply::Failed(failure)) => Err(format!("{name}: {failure}")),
            _ => Err(format!("{name} did not answer")),
        }
    }

    /// Does something on the GPU and waits for it. Without an answer in time the worker is ended: it hangs.
    fn call(&self, order: VectorOrder, window: Option<&VectorWindow>, most: Duration) -> Option<VectorReply> {
        let dispatcher = self.dispatcher.upgrade()?;
        let executor = &dispatcher.executors()[usize::from(self.device.0)];
        let (worker, collection, memory) = (self.worker, self.collection, window.map(VectorWindow::memory));
        let reply = executor.order_vectors(OrderVectors { worker, collection, order, memory })?;
        let reply = match reply.recv_timeout(most) {
            Ok(reply) => reply,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                tracing::error!(target: "magray::engine", device = %self.name, "a search on a GPU hangs");
                executor.replace_worker(worker);
                return None;
            }
        };
        if let VectorReply::Failed(failure) = &reply {
            tracing::warn!(target: "magray::engine", device = %self.name, code = failure.code, error = failure.message, "vectors on a GPU failed");
            if matches!(failure.kind, FailureKind::Sticky | FailureKind::Lost) {
                executor.replace_worker(worker);
            }
        }
        Some(reply)
    }

    fn done(&self, order: VectorOrder) -> Result<(), Gone> {
        if self.call(order, None, ANSWER_MAX) == Some(VectorReply::Done) { Ok(()) } else { Err(Gone) }
    }

    fn window(&self) -> MutexGuard<'_, VectorWindow> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the ledger that they are used, now and then.
    fn note_use(&self) {
        let (now, told) = (self.opened.elapsed().as_millis() as u64, self.told.load(Ordering::Relaxed));
        let is_due = now.saturating_sub(told) >= TELL_EVERY.as_millis() as u64;
        if is_due && self.told.compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let dispatcher = self.dispatcher.upgrade().into_iter();
            dispatcher.for_each(|dispatcher| dispatcher.vectors_used(self.device, self.collection));
        }
    }
}

impl HeldRows for Held {
    fn device(&self) -> String {
        self.name.to_string()
    }

    fn put(&self, slots: &[u32], rows: &[f32], offsets: &[f32]) -> Result<(), Gone> {
        let window = self.window();
        let (at_once, dims) = (window.put_max(), rows.len() / slots.len().max(1));
        let parts = slots.chunks(at_once).zip(rows.chunks(at_once * dims.max(1))).zip(offsets.chunks(at_once));
        for ((slots, rows), offsets) in parts {
            window.write(slots, rows, offsets);
            self.done(VectorOrder::Put(slots.len() as u32))?;
        }
        Ok(())
    }

    fn keep_signs(&self, centre: &[f32]) -> Result<(), Gone> {
        self.done(VectorOrder::KeepSigns(centre.to_vec()))
    }

    fn best(&self, scan: &HeldScan<'_>) -> Result<Vec<Found>, Gone> {
        self.note_use();
        let HeldScan { query, rows, most, allowed, is_exact } = *scan;
        let search = VectorSearch {
            query: query.to_vec(),
            rows: rows as u32,
            most: most as u32,
            is_filtered: allowed.is_some(),
            is_exact,
        };
        // The bits stay as they are until the search has read them.
        let window = allowed.map(|bits| {
            let window = self.window();
            window.write_bits(bits);
            window
        });
        let reply = self.call(VectorOrder::Search(search), None, ANSWER_MAX);
        drop(window);
        match reply {
            Some(VectorReply::Found(found)) => {
                let found = found.into_iter();
                Ok(found.map(|(slot, score)| Found { slot, score: f32::from_bits(score) }).collect())
            }
            _ => Err(Gone),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(dispatcher) = self.dispatcher.upgrade() else { return };
        let executor = &dispatcher.executors()[usize::from(self.device.0)];
        tracing::info!(target: "magray::residency", device = %self.name, "vectors leave a GPU");
        let (worker, collection, order) = (self.worker, self.collection, VectorOrder::Drop);
        // The worker reports that they have left; one that is gone has none.
        drop(executor.order_vectors(OrderVectors { worker, collection, order, memory: None }));
    }
}

fn is_gpu(name: DeviceName) -> bool {
    !matches!(name, DeviceName::Cpu | DeviceName::Onnx(_))
}

/// What vectors take of a GPU's memory, with room for scans.
fn bytes_of(shape: HeldShape) -> u64 {
    let padded = shape.dims.next_multiple_of(64);
    let signs = if shape.has_signs { padded / 8 + 16 } else { 0 };
    (shape.room as u64).saturating_mul((padded * 2 + 4 + signs) as u64).saturating_add(SCAN_BYTES)
}

/// What they count as in the memory of a group with this number of GPUs, of which the first has them.
fn bytes_on(shape: HeldShape, gpus: usize) -> u64 {
    bytes_of(shape).saturating_mul(gpus as u64)
}

fn number(count: usize) -> Result<u32, String> {
    u32::try_from(count).map_err(|_| format!("{count} are more than a GPU takes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_on_a_group_count_as_often_as_it_has_gpus() {
        let shape = HeldShape { dims: 100, room: 1000, has_signs: true };
        let one = SCAN_BYTES + 1000 * (128 * 2 + 4 + 32);
        assert_eq!([1, 4].map(|gpus| bytes_on(shape, gpus)), [one, 4 * one]);
    }
}
