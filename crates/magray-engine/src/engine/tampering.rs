//! Plays the part of a fault plan that is not the worker's: workers that are killed, telemetry that lies.
//! Does nothing without a plan.

use super::devices::Gpu;
use super::dispatcher::Dispatcher;
use crate::faults::{Clock, FaultKind, FaultPlan, Place, Script};
use crate::health::{HealthSample, HealthSource, ThrottleReasons};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The thread that kills workers by plan; it ends when this is dropped.
pub(super) struct Strikes {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Strikes {
    pub(super) fn start(plan: Option<&FaultPlan>, dispatcher: &Arc<Dispatcher>) -> io::Result<Option<Self>> {
        let Some(plan) = plan else { return Ok(None) };
        let script = |name: String| Script::new(&plan.of_device(&name), Place::Supervisor, Duration::ZERO);
        let mut scripts: Vec<_> =
            dispatcher.executors().iter().map(|executor| script(executor.name().to_string())).collect();
        let (stop, stopped) = channel::<()>();
        let dispatcher = Arc::clone(dispatcher);
        let thread = std::thread::Builder::new().name("faults".to_owned()).spawn(move || {
            loop {
                let now = dispatcher.started().elapsed();
                for (script, executor) in scripts.iter_mut().zip(dispatcher.executors()) {
                    while script.next_due(Clock { now, batch: 0 }).is_some() {
                        executor.strike();
                    }
                }
                let next = scripts.iter().filter_map(Script::next_at).min().unwrap_or(Duration::MAX);
                let rest = next.saturating_sub(dispatcher.started().elapsed()).min(Duration::from_secs(3600));
                if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Some(Self { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for Strikes {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Telemetry with what a plan says on top of it.
pub(super) struct Tampered {
    below: Box<dyn HealthSource>,
    started: Instant,
    gpus: Vec<Part>,
}

struct Part {
    script: Script,
    /// Numbers that were told already: the driver reports each once.
    told: Vec<u32>,
}

impl Tampered {
    pub(super) fn new(below: Box<dyn HealthSource>, plan: &FaultPlan, gpus: &[Gpu], started: Instant) -> Self {
        let part = |gpu: &Gpu| {
            let plan = plan.of_device(&gpu.name().to_string());
            Part { script: Script::new(&plan, Place::Telemetry, Duration::ZERO), told: Vec::new() }
        };
        Self { below, started, gpus: gpus.iter().map(part).collect() }
    }
}

impl HealthSource for Tampered {
    fn sample(&mut self, gpu: usize) -> HealthSample {
        let mut sample = self.below.sample(gpu);
        let Some(Part { script, told }) = self.gpus.get_mut(gpu) else { return sample };
        let going_on = script.going_on(self.started.elapsed());
        told.retain(|xid| going_on.contains(&FaultKind::Xid(*xid)));
        for kind in going_on {
            match kind {
                FaultKind::Hot => {
                    let reasons = sample.throttle.unwrap_or_default().0 | ThrottleReasons::THERMAL.0;
                    sample.throttle = Some(ThrottleReasons(reasons));
                }
                FaultKind::Xid(xid) if !told.contains(&xid) => {
                    sample.xids.push(xid);
                    told.push(xid);
                }
                _ => {}
            }
        }
        sample
    }
}
