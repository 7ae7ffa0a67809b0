//! Waits for the error numbers (Xids) that the driver reports of GPUs, one thread a GPU.
//! Judges none of them, and never fails: a machine that does not report is silent.
//!
//! A thread waits all the time, because the library keeps the last number alone: one who asks now and then would be told
//! of the clean-up that follows an error, and not of the error.

use super::gpu_info::GpuInfo;
use super::telemetry::Telemetry;
use nvml_wrapper::EventSet;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long a thread waits at most before it checks whether it should end.
const WAIT_MS: u32 = 200;
/// How long it waits before it registers again after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// Xids kept of a GPU that are not taken. The first ones say the most.
const KEPT_MAX: usize = 64;

/// Watches GPUs for Xids until it is dropped.
#[derive(Debug)]
pub struct XidWatch {
    is_over: Arc<AtomicBool>,
    watched: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    told: Receiver<u32>,
    thread: Option<JoinHandle<()>>,
}

impl XidWatch {
    /// Starts to watch these GPUs.
    pub fn start(telemetry: &Arc<Telemetry>, gpus: &[GpuInfo]) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let watch = |gpu: &GpuInfo| {
            let (sender, told) = sync_channel(KEPT_MAX);
            let watcher =
                Watcher { telemetry: Arc::clone(telemetry), gpu: gpu.clone(), sender, is_over: Arc::clone(&is_over) };
            let named = thread::Builder::new().name(format!("xids-{}", gpu.index));
            // Without a thread there are no numbers, as on machines that report none.
            Watched { told, thread: named.spawn(move || watcher.run()).ok() }
        };
        Self { watched: gpus.iter().map(watch).collect(), is_over }
    }

    /// The Xids reported of a GPU, by its index in the list, since they were last taken.
    pub fn take(&self, gpu: usize) -> Vec<u32> {
        self.watched.get(gpu).map_or_else(Vec::new, |watched| watched.told.try_iter().collect())
    }
}

impl Drop for XidWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        for thread in self.watched.iter_mut().filter_map(|watched| watched.thread.take()) {
            thread.thread().unpark();
            // A thread that panicked has told so itself.
            let _ = thread.join();
        }
    }
}

struct Watcher {
    telemetry: Arc<Telemetry>,
    gpu: GpuInfo,
    sender: SyncSender<u32>,
    is_over: Arc<AtomicBool>,
}

impl Watcher {
    fn run(&self) {
        while !self.is_over() {
            match self.register() {
                Ok(set) => self.listen(&set),
                // This GPU reports nothing and never will.
                Err(NvmlError::NotSupported) => return,
                Err(_) => {}
            }
            // A GPU that was lost or reset may come back and must be registered again.
            if !self.is_over() {
                thread::park_timeout(AGAIN);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn register(&self) -> Result<EventSet<'_>, NvmlError> {
        let device = self.telemetry.device(&self.gpu)?;
        let set = self.telemetry.nvml().create_event_set()?;
        device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error)
    }

    /// Passes numbers on until the set fails.
    fn listen(&self, set: &EventSet<'_>) {
        while !self.is_over() {
            match set.wait(WAIT_MS) {
                Ok(event) => {
                    if let Some(XidError::Value(xid)) = event.event_data {
                        // A full queue holds what matters already.
                        let _ = self.sender.try_send(u32::try_from(xid).unwrap_or(u32::MAX));
                    }
                }
                Err(NvmlError::Timeout) => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::gpu::tests::gpu;
    use super::super::libraries::SearchPath;
    use super::*;

    #[test]
    fn a_watch_of_nothing_is_silent_and_ends() {
        let Some(telemetry) = Telemetry::open(&SearchPath::system()) else {
            return magray_skip::test(magray_skip::Need::Gpu, "no management library");
        };
        let watch = XidWatch::start(&Arc::new(telemetry), &[gpu(0, "GPU-none", "ffff:ff:1f.0")]);
        assert!(watch.take(0).is_empty() && watch.take(1).is_empty());
    }
}
