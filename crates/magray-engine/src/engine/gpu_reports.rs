//! What people learn of GPUs: alerts when one leaves or returns, and the ledger of those that were given up.
//! Never fails a request: what cannot be written is logged.

use super::devices::{Gpu, gpu_of_device};
use crate::health::{Alert, AlertOptions, Alerts, HealthSample, Ledger, host_name};
use magray_core::schedule::{Change, DeviceId};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

pub(super) struct GpuReports {
    alerts: Mutex<Alerts>,
    host: String,
    gpus: Vec<Known>,
    state: Mutex<State>,
}

/// A GPU, or a group.
struct Known {
    name: String,
    /// Of a group those of all its GPUs: the ledger knows each by itself.
    uuids: Vec<String>,
    hardware: Option<String>,
    /// Whether later processes are told that it was given up: a library that was missing may be there then.
    is_remembered: bool,
}

impl Known {
    /// A group is out with any of its GPUs.
    fn is_out(&self, ledger: &Ledger) -> bool {
        self.uuids.iter().any(|uuid| ledger.is_out(uuid).is_some())
    }
}

struct State {
    ledger: Ledger,
    /// By GPU: whether the ledger had it.
    is_out: Vec<bool>,
    samples: Vec<HealthSample>,
}

impl GpuReports {
    pub(super) fn new(gpus: &[Gpu], alerts: AlertOptions, ledger: Option<PathBuf>) -> Self {
        let known = |gpu: &Gpu| Known {
            name: gpu.name.to_string(),
            uuids: gpu.uuids.clone(),
            hardware: gpu.info.as_ref().map(|info| match gpu.count() {
                1 => info.name.clone(),
                count => format!("{count} x {}", info.name),
            }),
            is_remembered: !gpu.is_onnx(),
        };
        let gpus: Vec<_> = gpus.iter().map(known).collect();
        let ledger = Ledger::open(ledger);
        let is_out = gpus.iter().map(|gpu| gpu.is_out(&ledger)).collect();
        let samples = vec![HealthSample::default(); gpus.len()];
        let state = Mutex::new(State { ledger, is_out, samples });
        Self { alerts: Mutex::new(Alerts::new(alerts)), host: host_name(), gpus, state }
    }

    /// The GPUs that were given up before this process began.
    pub(super) fn out_of_service(&self) -> Vec<usize> {
        let state = self.lock();
        (0..self.gpus.len()).filter(|gpu| state.is_out[*gpu]).collect()
    }

    /// The GPUs that were reset in the ledger since this was last asked.
    pub(super) fn returned_to_service(&self) -> Vec<usize> {
        let mut state = self.lock();
        if !state.ledger.changed() {
            return Vec::new();
        }
        let mut returned = Vec::new();
        for (gpu, known) in self.gpus.iter().enumerate() {
            let is_out = known.is_out(&state.ledger);
            if std::mem::replace(&mut state.is_out[gpu], is_out) && !is_out {
                returned.push(gpu);
            }
        }
        returned
    }

    /// A GPU was reset by hand: it is in order for later processes too.
    pub(super) fn reset(&self, gpu: usize) {
        let Known { name, uuids, .. } = &self.gpus[gpu];
        let mut state = self.lock();
        state.is_out[gpu] = false;
        if let Err(error) = uuids.iter().try_for_each(|uuid| state.ledger.reset(Some(uuid)).map(drop)) {
            tracing::warn!(target: "magray::engine", device = name, %error, "a GPU stays out for later processes");
        }
    }

    /// A device left or came back. What does not say anything of the device itself is not held
    /// against it after this process.
    pub(super) fn tell(&self, device: DeviceId, change: Change, blames_device: bool) {
        let Some(gpu) = gpu_of_device(device) else { return };
        let Known { name, uuids, is_remembered, .. } = &self.gpus[gpu];
        if let Change::Left { reason, is_permanent: true } = change
            && blames_device
            && *is_remembered
        {
            let mut state = self.lock();
            state.is_out[gpu] = true;
            // Which GPU of a group it was is not known: all are out until they are reset.
            if let Err(error) = uuids.iter().try_for_each(|uuid| state.ledger.give_up(uuid, reason)) {
                tracing::warn!(target: "magray::engine", device = name, %error, "a GPU that is out is not remembered");
            }
        }
        let alert = Alert { device: name.clone(), change, host: self.host.clone(), time: SystemTime::now() };
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner).tell(alert);
    }

    /// Keeps how a GPU was.
    pub(super) fn note(&self, gpu: usize, sample: &HealthSample) {
        self.lock().samples[gpu].clone_from(sample);
    }

    /// How a GPU was last.
    pub(super) fn sample(&self, gpu: usize) -> HealthSample {
        self.lock().samples[gpu].clone()
    }

    /// What is sold under a GPU's name.
    pub(super) fn hardware(&self, gpu: usize) -> Option<String> {
        self.gpus[gpu].hardware.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::devices::device_of_gpu;
    use crate::gpu::{GpuInfo, GpuOptions};
    use magray_core::schedule::Fallback;
    use std::path::Path;

    fn gpu(index: usize) -> Gpu {
        let info = GpuInfo {
            index,
            ordinal: index as u32,
            uuid: format!("GPU-{index}"),
            name: "a GPU".to_owned(),
            capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 8 << 30,
            pci_bus_id: format!("0000:0{index}:00.0"),
        };
        Gpu::cuda(info, &GpuOptions::default(), true)
    }

    /// A group of two, and a GPU by itself.
    fn reports(file: &Path) -> GpuReports {
        let gpus = [Gpu::group(&[gpu(0), gpu(1)]), gpu(2)];
        GpuReports::new(&gpus, AlertOptions::default(), Some(file.to_owned()))
    }

    fn ledger(file: &Path) -> Ledger {
        Ledger::open(Some(file.to_owned()))
    }

    fn out(file: &Path) -> Vec<String> {
        ledger(file).outages().into_iter().map(|outage| outage.uuid).collect()
    }

    const GIVEN_UP: Change = Change::Left { reason: Fallback::Unhealthy, is_permanent: true };

    #[test]
    fn a_group_is_out_with_any_gpu_that_was_given_up_and_returns_with_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpus.json");
        let mut by_hand = ledger(&file);
        for uuid in ["GPU-0", "gpu-1"] {
            by_hand.give_up(uuid, Fallback::WrongAnswers).unwrap();
        }
        let reports = reports(&file);
        assert_eq!(reports.out_of_service(), [0]);
        by_hand.reset(Some("GPU-0")).unwrap();
        assert!(reports.returned_to_service().is_empty(), "the other is still out");
        by_hand.reset(Some("GPU-1")).unwrap();
        assert_eq!(reports.returned_to_service(), [0]);
        assert!(reports.returned_to_service().is_empty() && reports.out_of_service().is_empty());
    }

    #[test]
    fn each_gpu_of_a_group_that_is_given_up_is_written_down_and_reset_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpus.json");
        let first = reports(&file);
        first.tell(device_of_gpu(0), GIVEN_UP, false);
        assert!(out(&file).is_empty(), "that says nothing of the GPUs");
        first.tell(device_of_gpu(0), GIVEN_UP, true);
        first.tell(device_of_gpu(1), GIVEN_UP, true);
        assert_eq!(out(&file), ["GPU-0", "GPU-1", "GPU-2"]);
        assert_eq!((first.out_of_service(), reports(&file).out_of_service()), (vec![0, 1], vec![0, 1]));
        first.reset(0);
        assert_eq!((out(&file), first.out_of_service()), (vec!["GPU-2".to_owned()], vec![1]));
        assert_eq!(reports(&file).out_of_service(), [1]);
    }
}
