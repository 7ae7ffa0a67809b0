//! How the engine is, as it is told through HTTP.
//! Takes over figures and words; judges nothing.

use magray_engine::engine::{DeviceState, DeviceStatus, ModelStatus, Priority, Status};
use rmcp::schemars::JsonSchema;
use serde::Serialize;

/// The engine.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct EngineReport {
    /// Of the program.
    magray: &'static str,
    pid: u32,
    uptime_s: f64,
    /// Requests that wait or are computed.
    requests: usize,
    /// Of these, the ones of which nothing is computed yet.
    waiting: usize,
    /// GPU memory that magray's models and their passes hold, in GB.
    gpu_memory_allocated_gb: f64,
    devices: Vec<DeviceReport>,
    models: Vec<ModelReport>,
}

/// A device of it.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct DeviceReport {
    name: String,
    is_gpu: bool,
    /// `starting`, `in_rotation`, `resting`, `recovering` or `out`.
    state: &'static str,
    /// Why it is not used, where it is not.
    reason: Option<&'static str>,
    worker_pid: Option<u32>,
    memory_used_bytes: Option<u64>,
    memory_total_bytes: Option<u64>,
    temperature_celsius: Option<u32>,
    /// The part of its speed that it is trusted with: 1 unless it is hot.
    weight: f64,
    batches_finished: u64,
    texts_finished: u64,
    busy_s: f64,
    failures: u64,
    worker_restarts: u64,
    last_error: Option<String>,
}

/// A model of it.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct ModelReport {
    name: String,
    /// Where it is now, in one word: `gpu`, `loading`, `cpu` or `unloaded`.
    location: &'static str,
    requests: usize,
    /// Since it was used last.
    idle_s: f64,
    /// After so long without use it leaves the GPU; null: never by itself.
    idle_timeout_s: Option<f64>,
    offload_after_use: bool,
    pinned: bool,
    priority: &'static str,
    /// Of its weights on a GPU.
    bytes: u64,
    loads: u64,
    offloads: u64,
    /// Where its weights are, seen from each device.
    residency: Vec<Whereabouts>,
}

/// Where a model's weights are, seen from one device.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Whereabouts {
    pub(crate) device: String,
    /// `unloaded`, `loading`, `on_device`, `leaving`, `on_cpu` or `on_cpu_cold`.
    #[serde(rename = "where")]
    pub(crate) place: &'static str,
}

impl EngineReport {
    /// The models, in the order of the engine.
    pub(crate) fn models(&self) -> &[ModelReport] {
        &self.models
    }

    pub(crate) fn of(status: &Status) -> Self {
        let allocated: u64 = status.devices.iter().filter_map(memory_used).sum();
        Self {
            magray: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            uptime_s: status.uptime.as_secs_f64(),
            requests: status.requests,
            waiting: status.waiting,
            gpu_memory_allocated_gb: allocated as f64 / 1e9,
            devices: devices(status),
            models: status.models.iter().map(|model| ModelReport::of(model, status)).collect(),
        }
    }
}

/// All devices; the CPU is the first.
pub(crate) fn devices(status: &Status) -> Vec<DeviceReport> {
    status.devices.iter().enumerate().map(|(at, device)| DeviceReport::of(device, at > 0)).collect()
}

/// What a worker told last is over with it.
fn memory_used(device: &DeviceStatus) -> Option<u64> {
    device.memory.map(|memory| if device.pid.is_some() { memory.allocated } else { 0 })
}

impl DeviceReport {
    fn of(device: &DeviceStatus, is_gpu: bool) -> Self {
        let (state, reason) = match device.schedule.state {
            DeviceState::Starting => ("starting", None),
            DeviceState::InRotation => ("in_rotation", None),
            DeviceState::Resting => ("resting", None),
            DeviceState::Recovering(fallback) => ("recovering", Some(fallback.code())),
            DeviceState::Out(fallback) => ("out", Some(fallback.code())),
        };
        let schedule = &device.schedule;
        Self {
            name: device.name.to_string(),
            is_gpu,
            state,
            reason,
            worker_pid: device.pid,
            memory_used_bytes: memory_used(device),
            memory_total_bytes: device.memory.map(|memory| memory.total),
            temperature_celsius: device.health.as_ref().and_then(|health| health.temperature_celsius),
            weight: schedule.weight,
            batches_finished: schedule.batches_finished,
            texts_finished: schedule.texts_finished,
            busy_s: schedule.busy.as_secs_f64(),
            failures: schedule.failures_total,
            worker_restarts: schedule.restarts,
            last_error: device.last_error.clone(),
        }
    }
}

impl ModelReport {
    /// Where it is now, in one word.
    pub(crate) fn location(&self) -> &'static str {
        self.location
    }

    fn of(model: &ModelStatus, status: &Status) -> Self {
        let view = &model.view;
        let whereabouts = |(device, residency): (&DeviceStatus, &magray_engine::engine::Residency)| Whereabouts {
            device: device.name.to_string(),
            place: residency.code(),
        };
        let residency: Vec<Whereabouts> = status.devices.iter().zip(&view.residency).map(whereabouts).collect();
        Self {
            name: model.name.clone(),
            location: location(&residency),
            requests: view.requests,
            idle_s: view.idle.as_secs_f64(),
            idle_timeout_s: view.plan.idle_timeout.map(|timeout| timeout.as_secs_f64()),
            offload_after_use: view.plan.offload_after_use,
            pinned: view.plan.is_pinned,
            priority: match view.plan.priority {
                Priority::Low => "low",
                Priority::Normal => "normal",
                Priority::High => "high",
            },
            bytes: view.plan.bytes,
            loads: view.loads,
            offloads: view.offloads,
            residency,
        }
    }
}

/// Where a model is, in one word. The first device is the CPU.
fn location(residency: &[Whereabouts]) -> &'static str {
    let (cpu, gpus) = residency.split_at(residency.len().min(1));
    let any = |places: &[Whereabouts], codes: &[&str]| places.iter().any(|at| codes.contains(&at.place));
    if any(gpus, &["on_device", "leaving"]) {
        "gpu"
    } else if any(residency, &["loading"]) {
        "loading"
    } else if any(gpus, &["on_cpu", "on_cpu_cold"]) || any(cpu, &["on_device"]) {
        "cpu"
    } else {
        "unloaded"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_that_costs_most_is_told() {
        let at = |places: &[&'static str]| {
            let whereabouts = |place: &&'static str| Whereabouts { device: String::new(), place };
            location(&places.iter().map(whereabouts).collect::<Vec<_>>())
        };
        assert_eq!(at(&["on_device", "on_device"]), "gpu");
        assert_eq!(at(&["on_device", "loading"]), "loading");
        assert_eq!(at(&["unloaded", "on_cpu_cold"]), "cpu");
        assert_eq!(at(&["on_device"]), "cpu");
        assert_eq!(at(&["unloaded", "unloaded"]), "unloaded");
    }
}
