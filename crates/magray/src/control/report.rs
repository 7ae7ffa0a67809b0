//! How an engine is, as it is told to other processes and printed by `--json`.
//! Takes over figures and words; judges nothing.

use std::time::Duration;

use magray_core::pool::PoolStats;
use magray_engine::{
    DeviceName,
    engine::{DeviceState, DeviceStatus, ModelStatus, ModelView, Priority, Residency, Status},
};
use serde::{Deserialize, Serialize};

/// An engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EngineReport {
    pub(crate) pid: u32,
    /// Of the program.
    pub(crate) magray: String,
    pub(crate) uptime_s: f64,
    /// Requests that wait or are computed.
    pub(crate) requests: u64,
    /// Of these, the ones of which nothing is computed yet.
    pub(crate) waiting: u64,
    pub(crate) devices: Vec<DeviceReport>,
    pub(crate) models: Vec<ModelReport>,
}

/// A device of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceReport {
    pub(crate) name: String,
    pub(crate) is_gpu: bool,
    pub(crate) state: String,
    /// Why it is out, where it is.
    pub(crate) reason: Option<String>,
    /// Its worker's process.
    pub(crate) worker_pid: Option<u32>,
    /// In use by magray's models and their passes; 0 where no worker is there to hold any.
    pub(crate) memory_used_bytes: Option<u64>,
    /// What magray may use of it.
    pub(crate) memory_limit_bytes: Option<u64>,
    /// In use by all processes, as telemetry told last.
    pub(crate) memory_used_by_all_bytes: Option<u64>,
    pub(crate) pool: Option<PoolReport>,
    pub(crate) last_error: Option<String>,
}

/// The pool of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PoolReport {
    pub(crate) reserved_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) peak_reserved_bytes: u64,
    pub(crate) peak_used_bytes: u64,
    pub(crate) parked_bytes: u64,
    pub(crate) largest_free_bytes: u64,
    /// The part of the reserved memory that was not needed, at the peaks: from 0 to 1.
    pub(crate) fragmentation: f64,
    pub(crate) blocks: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) driver_calls: u64,
    pub(crate) trims: u64,
    pub(crate) stitches: u64,
    pub(crate) predicted_bytes: u64,
}

/// A model of an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelReport {
    pub(crate) name: String,
    pub(crate) requests: u64,
    pub(crate) idle_s: f64,
    /// Of its weights on a GPU.
    pub(crate) bytes: u64,
    pub(crate) loads: u64,
    pub(crate) offloads: u64,
    /// `None`: it never leaves by itself for want of work.
    pub(crate) idle_timeout_s: Option<f64>,
    pub(crate) offload_after_use: bool,
    pub(crate) pinned: bool,
    pub(crate) priority: String,
    pub(crate) residency: Vec<Whereabouts>,
}

/// Where a model's weights are, seen from one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Whereabouts {
    pub(crate) device: String,
    #[serde(rename = "where")]
    pub(crate) place: String,
}

impl EngineReport {
    /// Of this process.
    pub(crate) fn of(status: &Status, memory_limit: Option<u64>) -> Self {
        let names: Vec<DeviceName> = status.devices.iter().map(|device| device.name).collect();
        Self {
            pid: std::process::id(),
            magray: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: status.uptime.as_secs_f64(),
            requests: status.requests as u64,
            waiting: status.waiting as u64,
            devices: status.devices.iter().map(|device| DeviceReport::of(device, memory_limit)).collect(),
            models: status.models.iter().map(|model| ModelReport::of(model, &names)).collect(),
        }
    }

    /// Whether any of its devices is a GPU, a simulated one too.
    pub(crate) fn has_gpu(&self) -> bool {
        self.devices.iter().any(|device| device.is_gpu)
    }
}

impl DeviceReport {
    fn of(device: &DeviceStatus, memory_limit: Option<u64>) -> Self {
        let is_gpu = device.name != DeviceName::Cpu;
        let (state, reason) = state_words(device.schedule.state);
        // What a worker told last is over with it.
        let memory = device.memory.filter(|_| device.pid.is_some());
        let total = device.memory.map(|memory| memory.total).filter(|total| *total > 0);
        let limit = |total: u64| memory_limit.map_or(total, |limit| limit.min(total));
        Self {
            name: device.name.to_string(),
            is_gpu,
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
            worker_pid: device.pid,
            memory_used_bytes: is_gpu.then(|| memory.map_or(0, |memory| memory.allocated)),
            memory_limit_bytes: total.map(limit),
            memory_used_by_all_bytes: device.health.as_ref().and_then(|health| health.memory_used_bytes),
            pool: memory.as_ref().map(|memory| PoolReport::of(&memory.pool)),
            last_error: device.last_error.clone(),
        }
    }

    /// What magray may still take of it.
    pub(crate) fn memory_left_bytes(&self) -> Option<u64> {
        Some(self.memory_limit_bytes?.saturating_sub(self.memory_used_bytes?))
    }
}

impl PoolReport {
    pub(crate) fn of(stats: &PoolStats) -> Self {
        Self {
            reserved_bytes: stats.reserved,
            used_bytes: stats.used,
            peak_reserved_bytes: stats.peak_reserved,
            peak_used_bytes: stats.peak_used,
            parked_bytes: stats.parked,
            largest_free_bytes: stats.largest_free,
            fragmentation: stats.fragmentation(),
            blocks: stats.blocks,
            hits: stats.hits,
            misses: stats.misses,
            driver_calls: stats.driver_calls,
            trims: stats.trims,
            stitches: stats.stitches,
            predicted_bytes: stats.predicted,
        }
    }
}

impl ModelReport {
    fn of(model: &ModelStatus, devices: &[DeviceName]) -> Self {
        let ModelView { plan, idle, requests, residency, loads, offloads, .. } = &model.view;
        Self {
            name: model.name.clone(),
            requests: *requests as u64,
            idle_s: idle.as_secs_f64(),
            bytes: plan.bytes,
            loads: *loads,
            offloads: *offloads,
            idle_timeout_s: plan.idle_timeout.as_ref().map(Duration::as_secs_f64),
            offload_after_use: plan.offload_after_use,
            pinned: plan.is_pinned,
            priority: priority_word(plan.priority).to_owned(),
            residency: devices.iter().zip(residency).map(|(device, place)| Whereabouts::of(*device, *place)).collect(),
        }
    }
}

impl Whereabouts {
    pub(crate) fn of(device: DeviceName, place: Residency) -> Self {
        let place = match (device, place) {
            (DeviceName::Cpu, Residency::OnDevice) => "ready",
            (_, Residency::OnDevice) => "on_gpu",
            (_, other) => other.code(),
        };
        Self { device: device.to_string(), place: place.to_owned() }
    }
}

pub(crate) fn priority_word(priority: Priority) -> &'static str {
    match priority {
        Priority::Low => "low",
        Priority::Normal => "normal",
        Priority::High => "high",
    }
}

fn state_words(state: DeviceState) -> (&'static str, Option<&'static str>) {
    match state {
        DeviceState::Starting => ("starting", None),
        DeviceState::InRotation => ("in_rotation", None),
        DeviceState::Resting => ("resting", None),
        DeviceState::Recovering(reason) => ("recovering", Some(reason.code())),
        DeviceState::Out(reason) => ("out", Some(reason.code())),
    }
}
