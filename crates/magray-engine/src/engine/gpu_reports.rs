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

/// A GPU.
struct Known {
    name: String,
    uuid: String,
    hardware: Option<String>,
    /// Whether later processes are told that it was given up: a library that was missing may be there then.
    is_remembered: bool,
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
            uuid: gpu.uuid.clone(),
            hardware: gpu.info.as_ref().map(|info| match gpu.count() {
                1 => info.name.clone(),
                count => format!("{count} x {}", info.name),
            }),
            is_remembered: !gpu.is_onnx(),
        };
        let gpus: Vec<_> = gpus.iter().map(known).collect();
        let ledger = Ledger::open(ledger);
        let is_out = gpus.iter().map(|gpu| ledger.is_out(&gpu.uuid).is_some()).collect();
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
        for (gpu, Known { uuid, .. }) in self.gpus.iter().enumerate() {
            let is_out = state.ledger.is_out(uuid).is_some();
            if std::mem::replace(&mut state.is_out[gpu], is_out) && !is_out {
                returned.push(gpu);
            }
        }
        returned
    }

    /// A GPU was reset by hand: it is in order for later processes too.
    pub(super) fn reset(&self, gpu: usize) {
        let Known { name, uuid, .. } = &self.gpus[gpu];
        let mut state = self.lock();
        state.is_out[gpu] = false;
        if let Err(error) = state.ledger.reset(Some(uuid)) {
            tracing::warn!(target: "magray::engine", device = name, %error, "a GPU stays out for later processes");
        }
    }

    /// A device left or came back. What does not say anything of the device itself is not held
    /// against it after this process.
    pub(super) fn tell(&self, device: DeviceId, change: Change, blames_device: bool) {
        let Some(gpu) = gpu_of_device(device) else { return };
        let Known { name, uuid, is_remembered, .. } = &self.gpus[gpu];
        if let Change::Left { reason, is_permanent: true } = change
            && blames_device
            && *is_remembered
        {
            let mut state = self.lock();
            state.is_out[gpu] = true;
            if let Err(error) = state.ledger.give_up(uuid, reason) {
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
