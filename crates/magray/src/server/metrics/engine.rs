//! The engine's part of the metrics: queue, devices, memory, health, residency.
//! Made from the same report as `/gpu/status`, so that the two never disagree.

use super::page::{Family, Kind, Page, Values};
use crate::control::{DeviceReport, EngineReport, ModelReport, PoolReport};

type Metric<T> = (Family, fn(&T) -> Option<f64>);

const DEVICE_STATES: [&str; 5] = ["starting", "in_rotation", "resting", "recovering", "out"];
const RESIDENCIES: [&str; 7] = ["unloaded", "loading", "on_gpu", "ready", "leaving", "on_cpu", "on_cpu_cold"];

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, help }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, help }
}

const STATE: Family = gauge("magray_device_state", "1 for the state that a device is in.");
const RESIDENCY: Family = gauge("magray_model_residency", "1 for where a model's weights are, seen from a device.");

const ENGINE: [Metric<EngineReport>; 5] = [
    (gauge("magray_uptime_seconds", "Time since the engine started."), |engine| Some(engine.uptime_s)),
    (gauge("magray_queue_requests", "Requests that wait or are computed."), |engine| Some(engine.requests as f64)),
    (gauge("magray_queue_waiting_requests", "Requests of which nothing is computed yet."), |engine| {
        Some(engine.waiting as f64)
    }),
    (gauge("magray_queue_tokens", "Tokens of requests that wait or are computed."), |engine| {
        Some(engine.tokens as f64)
    }),
    (gauge("magray_queue_predicted_seconds", "Time that all that waits or is computed should take."), |engine| {
        engine.wait_s
    }),
];

/// The names of vLLM, by which the endpoint pickers of gateways choose among servers.
const VLLM: [Metric<EngineReport>; 3] = [
    (gauge("vllm:num_requests_waiting", "Requests of which nothing is computed yet."), |engine| {
        Some(engine.waiting as f64)
    }),
    (gauge("vllm:num_requests_running", "Requests that are computed."), |engine| {
        Some(engine.requests.saturating_sub(engine.waiting) as f64)
    }),
    (
        gauge("vllm:kv_cache_usage_perc", "Part of the room for keys and values that is used, of the fullest device."),
        |engine| {
            let used = |device: &DeviceReport| device.kv_bytes as f64 / device.kv_bytes_max.max(1) as f64;
            Some(engine.devices.iter().map(used).fold(0.0, f64::max).min(1.0))
        },
    ),
];

const DEVICE: [Metric<DeviceReport>; 25] = [
    (gauge("magray_device_up", "1 while a device is used or rests."), |device| {
        Some(if matches!(device.state.as_str(), "in_rotation" | "resting") { 1.0 } else { 0.0 })
    }),
    (gauge("magray_device_weight_ratio", "The part of its speed that a device is trusted with."), |device| {
        Some(device.weight)
    }),
    (
        gauge("magray_device_speed_ratio", "Speed of a device lately, as a part of its own best steady speed."),
        |device| device.speed,
    ),
    (gauge("magray_device_kv_bytes", "Keys and values of the sequences that a device generates."), |device| {
        Some(device.kv_bytes as f64)
    }),
    (gauge("magray_device_kv_bytes_max", "What keys and values of sequences may have of a device."), |device| {
        Some(device.kv_bytes_max as f64)
    }),
    (
        counter(
            "magray_device_preemptions_total",
            "Sequences that gave way to others or to other models, and are computed again.",
        ),
        |device| Some(device.preemptions as f64),
    ),
    (gauge("magray_device_batches", "Batches that a device has now."), |device| Some(device.batches as f64)),
    (counter("magray_device_batches_total", "Batches that a device finished."), |device| {
        Some(device.batches_finished as f64)
    }),
    (counter("magray_device_texts_total", "Texts of the batches that a device finished."), |device| {
        Some(device.texts_finished as f64)
    }),
    (counter("magray_device_busy_seconds_total", "Time that a device computed."), |device| Some(device.busy_s)),
    (counter("magray_device_failures_total", "Failures of a device."), |device| Some(device.failures as f64)),
    (
        counter(
            "magray_device_recovery_attempts_total",
            "Probes and new workers by which a device was to be brought back.",
        ),
        |device| Some(device.recovery_attempts as f64),
    ),
    (
        gauge("magray_device_last_failure_timestamp_seconds", "When something last went wrong with a device."),
        |device| whole(device.last_error_unix_s),
    ),
    (counter("magray_worker_restarts_total", "Workers of a device that were started after the first."), |device| {
        Some(device.worker_restarts as f64)
    }),
    (
        gauge("magray_device_memory_allocated_bytes", "Memory of a device that magray's models and passes use."),
        |device| whole(device.memory_used_bytes),
    ),
    (
        gauge("magray_device_memory_peak_bytes", "The most of a device's memory that magray's models and passes used."),
        |device| whole(device.memory_peak_bytes),
    ),
    (gauge("magray_device_memory_reserved_bytes", "Memory of a device that magray holds."), |device| {
        whole(device.memory_reserved_bytes)
    }),
    (gauge("magray_device_memory_limit_bytes", "Memory of a device that magray may use."), |device| {
        whole(device.memory_limit_bytes)
    }),
    (gauge("magray_device_memory_total_bytes", "All memory of a device."), |device| whole(device.memory_total_bytes)),
    (gauge("magray_device_memory_used_bytes", "Memory of a device that all processes use."), |device| {
        whole(device.memory_used_by_all_bytes)
    }),
    (gauge("magray_device_temperature_celsius", "Temperature of a device."), |device| {
        device.temperature_celsius.map(f64::from)
    }),
    (gauge("magray_device_power_watts", "Power that a device draws."), |device| device.power_watts),
    (gauge("magray_device_power_limit_watts", "Power that a device is held to."), |device| device.power_limit_watts),
    (gauge("magray_device_utilisation_ratio", "Part of the last moments in which a device computed."), |device| {
        device.utilisation_percent.map(|percent| f64::from(percent) / 100.0)
    }),
    (gauge("magray_device_workers", "Processes that hold a device."), |device| {
        device.is_gpu.then_some(if device.worker_pid.is_some() { 1.0 } else { 0.0 })
    }),
];

const POOL: [Metric<PoolReport>; 13] = [
    (gauge("magray_pool_reserved_bytes", "Memory of a device that its pool holds."), |pool| {
        Some(pool.reserved_bytes as f64)
    }),
    (gauge("magray_pool_used_bytes", "Memory of the pool that is used."), |pool| Some(pool.used_bytes as f64)),
    (gauge("magray_pool_peak_reserved_bytes", "The most that the pool has held."), |pool| {
        Some(pool.peak_reserved_bytes as f64)
    }),
    (gauge("magray_pool_peak_used_bytes", "The most of the pool that was used."), |pool| {
        Some(pool.peak_used_bytes as f64)
    }),
    (gauge("magray_pool_parked_bytes", "Blocks of the pool whose memory was taken away for now."), |pool| {
        Some(pool.parked_bytes as f64)
    }),
    (gauge("magray_pool_largest_free_bytes", "The largest block that the pool can give without the driver."), |pool| {
        Some(pool.largest_free_bytes as f64)
    }),
    (gauge("magray_pool_predicted_bytes", "What history says is needed of the pool at most."), |pool| {
        Some(pool.predicted_bytes as f64)
    }),
    (gauge("magray_pool_fragmentation_ratio", "Part of the pool that was not needed, at the peaks."), |pool| {
        Some(pool.fragmentation)
    }),
    (counter("magray_pool_hits_total", "Requests for memory that the pool had."), |pool| Some(pool.hits as f64)),
    (counter("magray_pool_misses_total", "Requests for memory that the driver was asked for."), |pool| {
        Some(pool.misses as f64)
    }),
    (counter("magray_pool_driver_calls_total", "Calls of the pool to the driver."), |pool| {
        Some(pool.driver_calls as f64)
    }),
    (counter("magray_pool_trims_total", "Handles of memory that the pool gave back."), |pool| Some(pool.trims as f64)),
    (counter("magray_pool_stitches_total", "Handles of memory that the pool moved to make room."), |pool| {
        Some(pool.stitches as f64)
    }),
];

const MODEL: [Metric<ModelReport>; 5] = [
    (gauge("magray_model_requests", "Requests for a model that wait or are computed."), |model| {
        Some(model.requests as f64)
    }),
    (gauge("magray_model_idle_seconds", "Time since a model was used."), |model| Some(model.idle_s)),
    (
        gauge("magray_model_bytes", "Memory that a model's weights take of a GPU, or of the host without one."),
        |model| Some(model.bytes as f64),
    ),
    (counter("magray_model_loads_total", "Times that a model was put on a GPU, or on the CPU without one."), |model| {
        Some(model.loads as f64)
    }),
    (counter("magray_model_offloads_total", "Times that a model left a GPU, or the CPU without one."), |model| {
        Some(model.offloads as f64)
    }),
];

/// Adds the names of vLLM.
pub(super) fn add_aliases(page: &mut Page, engine: &EngineReport) {
    for (family, value) in VLLM {
        page.add(family, |values| values.add(&[], value(engine)));
    }
}

pub(super) fn add(page: &mut Page, engine: &EngineReport) {
    for (family, value) in ENGINE {
        page.add(family, |values| values.add(&[], value(engine)));
    }
    for (family, value) in DEVICE {
        by_device(page, family, engine, |values, device| values.add(&[("device", &device.name)], value(device)));
    }
    by_device(page, STATE, engine, |values, device| {
        values.add_state(&[("device", &device.name)], &DEVICE_STATES, &device.state);
    });
    for (family, value) in POOL {
        by_device(page, family, engine, |values, device| {
            values.add(&[("device", &device.name)], device.pool.as_ref().and_then(value));
        });
    }
    for (family, value) in MODEL {
        page.add(family, |values| {
            engine.models.iter().for_each(|model| values.add(&[("model", &model.name)], value(model)));
        });
    }
    page.add(RESIDENCY, |values| {
        for model in &engine.models {
            for at in &model.residency {
                values.add_state(&[("model", &model.name), ("device", &at.device)], &RESIDENCIES, &at.place);
            }
        }
    });
}

fn by_device(page: &mut Page, family: Family, engine: &EngineReport, write: impl Fn(&mut Values<'_>, &DeviceReport)) {
    page.add(family, |values| engine.devices.iter().for_each(|device| write(values, device)));
}

fn whole(number: Option<u64>) -> Option<f64> {
    number.map(|number| number as f64)
}
