//! The state of an engine, as HTTP, other processes and `--json` get it.
//! Copies what the engine says; only the grade is a judgement, made in `grade`.

use std::time::Duration;

use magray_core::{ledger::Owner, pool::PoolStats};
use magray_engine::{
    DeviceName, OnnxProvider,
    engine::{DeviceState, DeviceStatus, Engine, LastError, ModelStatus, ModelView, Recent, Residency, Status},
    gpu::CONTEXT_BYTES_SEEN,
    health::utc_of,
};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::grade::{Grade, grade};

/// An engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct EngineReport {
    pub(crate) pid: u32,
    /// Of the program.
    pub(crate) magray: String,
    pub(crate) uptime_s: f64,
    /// Requests that wait or are computed.
    pub(crate) requests: u64,
    /// Of these, the ones of which nothing is computed yet.
    pub(crate) waiting: u64,
    /// Seconds that all of them should take, by the speed measured lately; null where no speed is known yet.
    pub(crate) wait_s: Option<f64>,
    /// Tokens of all of them.
    pub(crate) tokens: u64,
    /// GPU memory that magray's models and their passes hold, in GB.
    pub(crate) gpu_memory_allocated_gb: f64,
    /// Whether TensorRT computes a model, by ONNX Runtime.
    pub(crate) tensorrt: bool,
    pub(crate) performance: PerformanceReport,
    /// The CPU is the first.
    pub(crate) devices: Vec<DeviceReport>,
    pub(crate) models: Vec<ModelReport>,
}

/// What came back of the memory of the GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Cleared {
    pub(crate) devices: Vec<ClearedDevice>,
}

/// A GPU that freed what it cached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct ClearedDevice {
    pub(crate) device: String,
    /// Bytes that came back; null where its batches took too long to wait for: they end first, and then it is freed.
    pub(crate) freed_bytes: Option<u64>,
}

impl Cleared {
    /// Blocks.
    pub(crate) fn by(engine: &Engine) -> Self {
        const WITHIN: Duration = Duration::from_secs(5);
        let device = |(device, freed_bytes): (DeviceName, _)| ClearedDevice { device: device.to_string(), freed_bytes };
        Self { devices: engine.clear_cache(WITHIN).into_iter().map(device).collect() }
    }
}

/// How fast it has been in the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct PerformanceReport {
    /// The time that the figures are of: the last minute, or since the start.
    pub(crate) window_s: f64,
    /// Requests that were answered in it.
    pub(crate) requests: u64,
    /// From a request's arrival at the queue to its answer; null where there was none.
    pub(crate) latency_mean_s: Option<f64>,
    pub(crate) requests_per_s: f64,
    pub(crate) texts_per_s: f64,
    pub(crate) tokens_per_s: f64,
    /// The part of the requests that the CPU computed in place of a GPU, from 0 to 1; null where there was none.
    pub(crate) fallback_rate: Option<f64>,
}

/// A device of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct DeviceReport {
    pub(crate) name: String,
    pub(crate) is_gpu: bool,
    /// The name of the product, such as `NVIDIA H200`.
    pub(crate) hardware: Option<String>,
    /// `starting`, `in_rotation`, `resting`, `recovering` or `out`.
    pub(crate) state: String,
    /// Why it is out, where it is.
    pub(crate) reason: Option<String>,
    /// How much is had of what it can do.
    pub(crate) grade: Grade,
    /// Its worker's process.
    pub(crate) worker_pid: Option<u32>,
    /// All that it has.
    pub(crate) memory_total_bytes: Option<u64>,
    /// In use by magray's models and their passes; 0 where no worker is there to hold any.
    pub(crate) memory_used_bytes: Option<u64>,
    /// The most that magray's models and their passes used since the start.
    pub(crate) memory_peak_bytes: Option<u64>,
    /// Taken from the device by magray; what is not in use is kept for the next pass.
    pub(crate) memory_reserved_bytes: Option<u64>,
    /// What magray may use of it.
    pub(crate) memory_limit_bytes: Option<u64>,
    /// In use by all processes, by the last telemetry.
    pub(crate) memory_used_by_all_bytes: Option<u64>,
    /// What is done because that is nearly all: `roomy` (nothing), `trimmed`, `reduced` or `avoided`.
    pub(crate) memory_step: String,
    pub(crate) temperature_celsius: Option<u32>,
    pub(crate) power_watts: Option<f64>,
    pub(crate) power_limit_watts: Option<f64>,
    /// The part of the last moments in which it computed, for any process.
    pub(crate) utilisation_percent: Option<u32>,
    /// The part of its speed that it is trusted with: 1 unless it is hot or slow.
    pub(crate) weight: f64,
    /// How fast it was lately, as a part of its own best steady speed with batches of the same size, from 0 to 1; null where
    /// nothing could be compared.
    pub(crate) speed: Option<f64>,
    /// Keys and values of the sequences that are generated there.
    pub(crate) kv_bytes: u64,
    /// The most that these may take.
    pub(crate) kv_bytes_max: u64,
    /// Sequences that gave way to others or to other models, and are computed again.
    pub(crate) preemptions: u64,
    /// Batches that it has now.
    pub(crate) batches: u64,
    pub(crate) batches_finished: u64,
    pub(crate) texts_finished: u64,
    pub(crate) busy_s: f64,
    /// Failures since the start.
    pub(crate) failures: u64,
    pub(crate) worker_restarts: u64,
    /// Probes and new workers by which it was tried to bring it back.
    pub(crate) recovery_attempts: u64,
    pub(crate) pool: Option<PoolReport>,
    /// What went wrong last.
    pub(crate) last_error: Option<String>,
    /// When that was, such as `2026-03-01T12:00:05Z`.
    pub(crate) last_error_at: Option<String>,
    /// The same in seconds since 1970; it is not written.
    #[serde(skip)]
    pub(crate) last_error_unix_s: Option<u64>,
}

/// The pool of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct ModelReport {
    /// In the engine; it is not written.
    #[serde(skip)]
    pub(crate) number: usize,
    pub(crate) name: String,
    /// Where it is now: `gpu`, `loading`, `cpu` or `unloaded`.
    pub(crate) location: String,
    /// Requests for it that wait or are computed.
    pub(crate) requests: u64,
    /// Since it was used last.
    pub(crate) idle_s: f64,
    /// Of its weights on a GPU; on the CPU where there is none.
    pub(crate) bytes: u64,
    /// How often they were put there.
    pub(crate) loads: u64,
    /// How often they left it.
    pub(crate) offloads: u64,
    /// `None`: it never leaves by itself for want of work.
    pub(crate) idle_timeout_s: Option<f64>,
    pub(crate) offload_after_use: bool,
    pub(crate) pinned: bool,
    /// `low`, `normal` or `high`.
    pub(crate) priority: String,
    /// Where its weights are, seen from each device.
    pub(crate) residency: Vec<DeviceResidency>,
    /// Where the layers of a language model are; absent where all are on the device that computes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layers: Option<LayersReport>,
}

/// Where the layers of a language model are that the CPU and a GPU share, or that settings keep on the CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct LayersReport {
    /// Layers on a GPU.
    pub(crate) on_gpu: u64,
    /// All layers.
    pub(crate) of: u64,
    /// The same in words, with the reason.
    pub(crate) text: String,
}

/// Where a model's weights are, seen from one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct DeviceResidency {
    pub(crate) device: String,
    /// Of a GPU `on_gpu`, of the CPU `ready`; else `unloaded`, `loading`, `leaving`, `on_cpu` or `on_cpu_cold`.
    #[serde(rename = "where")]
    pub(crate) place: String,
}

impl EngineReport {
    pub(crate) fn of(status: &Status, memory_limit: Option<u64>) -> Self {
        let names: Vec<DeviceName> = status.devices.iter().map(|device| device.name).collect();
        let devices: Vec<DeviceReport> =
            status.devices.iter().map(|device| DeviceReport::of(device, &status.recent, memory_limit)).collect();
        let there = status.models.iter().enumerate().filter(|(_, model)| !model.is_gone);
        let allocated: u64 = devices.iter().filter_map(|device| device.memory_used_bytes).sum();
        Self {
            pid: std::process::id(),
            magray: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: status.uptime.as_secs_f64(),
            requests: status.requests as u64,
            waiting: status.waiting as u64,
            wait_s: status.wait.map(|wait| wait.as_secs_f64()),
            tokens: status.tokens,
            gpu_memory_allocated_gb: allocated as f64 / 1e9,
            tensorrt: status.models.iter().any(|model| model.provider == Some(OnnxProvider::TensorRt)),
            performance: PerformanceReport::of(&status.recent),
            devices,
            models: there.map(|(number, model)| ModelReport::of(number, model, &names)).collect(),
        }
    }

    /// Whether any of its devices is a GPU, a simulated one too.
    pub(crate) fn has_gpu(&self) -> bool {
        self.devices.iter().any(|device| device.is_gpu)
    }
}

impl PerformanceReport {
    fn of(recent: &Recent) -> Self {
        Self {
            window_s: recent.window.as_secs_f64(),
            requests: recent.requests,
            latency_mean_s: recent.latency_mean().map(|latency| latency.as_secs_f64()),
            requests_per_s: recent.per_second(recent.requests),
            texts_per_s: recent.per_second(recent.texts),
            tokens_per_s: recent.per_second(recent.tokens),
            fallback_rate: recent.fallback_rate(),
        }
    }
}

impl DeviceReport {
    fn of(device: &DeviceStatus, recent: &Recent, memory_limit: Option<u64>) -> Self {
        let is_gpu = matches!(device.name, DeviceName::Cuda(_) | DeviceName::Simulated(_));
        // Memory of the host or of a GPU, by what computes.
        let has_memory = is_gpu || matches!(device.name, DeviceName::Onnx(_));
        let (state, reason) = state_names(device.schedule.state);
        // What a worker reported last ended with it.
        let memory = device.memory.filter(|_| device.pid.is_some());
        let total = device.memory.map(|memory| memory.total).filter(|total| *total > 0);
        let limit = |total: u64| memory_limit.map_or(total, |limit| limit.min(total));
        let accounts = device.schedule.accounts.iter();
        // Its account has room for more than there usually is.
        let context = accounts.filter(|(owner, _)| *owner == Owner::Context).map(|(_, bytes)| bytes).sum::<u64>();
        let context = context.min(CONTEXT_BYTES_SEEN);
        let (schedule, health) = (&device.schedule, device.health.as_ref());
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        Self {
            name: device.name.to_string(),
            is_gpu,
            hardware: device.hardware.clone(),
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
            grade: grade(schedule, recent),
            worker_pid: device.pid,
            memory_total_bytes: total,
            memory_used_bytes: has_memory.then(|| memory.map_or(0, |memory| memory.allocated)),
            memory_peak_bytes: has_memory.then_some(device.memory_peak),
            memory_reserved_bytes: has_memory.then(|| memory.map_or(0, |memory| memory.reserved + context)),
            memory_limit_bytes: total.map(limit),
            memory_used_by_all_bytes: health.and_then(|health| health.memory_used_bytes),
            memory_step: schedule.memory_step.code().to_owned(),
            temperature_celsius: health.and_then(|health| health.temperature_celsius),
            power_watts: health.and_then(|health| health.power_milliwatts).map(watts),
            power_limit_watts: health.and_then(|health| health.power_limit_milliwatts).map(watts),
            utilisation_percent: health.and_then(|health| health.utilisation_percent),
            weight: schedule.weight,
            speed: schedule.speed,
            kv_bytes: schedule.kv_bytes(),
            kv_bytes_max: schedule.kv_max,
            preemptions: schedule.preemptions,
            batches: schedule.batches as u64,
            batches_finished: schedule.batches_finished,
            texts_finished: schedule.texts_finished,
            busy_s: schedule.busy.as_secs_f64(),
            failures: schedule.failures_total,
            worker_restarts: schedule.restarts,
            recovery_attempts: schedule.recovery_attempts,
            pool: memory.as_ref().map(|memory| PoolReport::of(&memory.pool)),
            last_error: device.last_error.as_ref().map(|error| error.message.clone()),
            last_error_at: device.last_error.as_ref().map(|error| utc_of(error.unix_s())),
            last_error_unix_s: device.last_error.as_ref().map(LastError::unix_s),
        }
    }

    /// What magray may still allocate of it.
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
    fn of(number: usize, model: &ModelStatus, devices: &[DeviceName]) -> Self {
        let ModelView { plan, idle, requests, residency, loads, offloads, .. } = &model.view;
        Self {
            number,
            name: model.name.clone(),
            location: match (location(residency), model.provider) {
                ("gpu", Some(OnnxProvider::Cpu)) => "cpu",
                (location, _) => location,
            }
            .to_owned(),
            requests: *requests as u64,
            idle_s: idle.as_secs_f64(),
            bytes: plan.bytes,
            loads: *loads,
            offloads: *offloads,
            idle_timeout_s: plan.idle_timeout.as_ref().map(Duration::as_secs_f64),
            offload_after_use: plan.offload_after_use,
            pinned: plan.is_pinned,
            priority: plan.priority.code().to_owned(),
            residency: devices
                .iter()
                .zip(residency)
                .map(|(device, place)| DeviceResidency::of(with_provider(*device, model.provider), *place))
                .collect(),
            layers: model.layers.as_ref().map(|layers| LayersReport {
                on_gpu: layers.on_gpu as u64,
                of: layers.of as u64,
                text: layers.to_string(),
            }),
        }
    }
}

/// ONNX Runtime with what computes a model.
fn with_provider(device: DeviceName, provider: Option<OnnxProvider>) -> DeviceName {
    if matches!(device, DeviceName::Onnx(_)) { DeviceName::Onnx(provider) } else { device }
}

impl DeviceResidency {
    pub(crate) fn of(device: DeviceName, place: Residency) -> Self {
        let place = match (device, place) {
            (DeviceName::Cpu | DeviceName::Onnx(_), Residency::OnDevice) => "ready",
            (_, Residency::OnDevice) => "on_gpu",
            (_, other) => other.code(),
        };
        Self { device: device.to_string(), place: place.to_owned() }
    }
}

/// Where a model is: the dearest memory that holds it. The first device is the CPU.
fn location(residency: &[Residency]) -> &'static str {
    let (cpu, gpus) = residency.split_at(residency.len().min(1));
    let any = |places: &[Residency], wanted: &[Residency]| places.iter().any(|place| wanted.contains(place));
    if any(gpus, &[Residency::OnDevice, Residency::Leaving]) {
        "gpu"
    } else if any(residency, &[Residency::Loading]) {
        "loading"
    } else if any(gpus, &[Residency::OnCpu, Residency::OnCpuCold]) || any(cpu, &[Residency::OnDevice]) {
        "cpu"
    } else {
        "unloaded"
    }
}

fn state_names(state: DeviceState) -> (&'static str, Option<&'static str>) {
    match state {
        DeviceState::Starting => ("starting", None),
        DeviceState::InRotation => ("in_rotation", None),
        DeviceState::Resting => ("resting", None),
        DeviceState::Recovering(reason) => ("recovering", Some(reason.code())),
        DeviceState::Out(reason) => ("out", Some(reason.code())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Residency::{Loading, OnCpuCold, OnDevice, Unloaded};

    #[test]
    fn the_dearest_memory_is_reported() {
        assert_eq!(location(&[OnDevice, OnDevice]), "gpu");
        assert_eq!(location(&[OnDevice, Loading]), "loading");
        assert_eq!(location(&[Unloaded, OnCpuCold]), "cpu");
        assert_eq!(location(&[OnDevice]), "cpu");
        assert_eq!(location(&[Unloaded, Unloaded]), "unloaded");
    }
}
