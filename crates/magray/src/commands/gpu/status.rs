//! `magray gpu status`: every engine that runs, with its devices, its speed, and where its models are.
//! Asks engines alone: it starts none, loads no model and takes no memory of a GPU.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::{
    super::Context,
    words::{size, span},
};
use crate::{
    config::Config,
    control::{
        AskError, DeviceReport, EngineReport, ModelReport, PerformanceReport, PoolReport, Reply, Request, Running,
        running,
    },
    exit::Failure,
    output::{self, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray gpu status
  magray gpu status --watch           `magray top`: the same on a screen that goes on
  magray gpu status --json

Where a model is, seen from a device: on_gpu; on_cpu (in the memory of the host, and the GPU's worker is there); \
on_cpu_cold (the same without a worker: nothing of the GPU is taken); loading, leaving, unloaded. \
The CPU itself is ready, or has the model only in the form that the GPUs use.

The grade of a device: A is all that it can do; B and C where it has less than 90 % or 80 % of its own best steady speed, heat \
slows it, or the CPU computed up to 1 % or 10 % of the last minute's requests in place of a GPU; D is worse; F is not used. \
Latency is from the queue to the answer.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GpuStatusArgs {
    /// Show it on a screen that goes on, as `magray top` does, and look again after this time
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", conflicts_with = "json",
          value_parser = super::super::bench::seconds)]
    watch: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

type Asked = (u32, Result<EngineReport, AskError>);

impl GpuStatusArgs {
    /// From one look to the next on a screen that goes on; `None`: it is printed once.
    pub(crate) fn watch(&self) -> Option<Duration> {
        self.watch.map(Duration::from_secs_f64)
    }
}

pub(crate) fn run(args: &GpuStatusArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&[])?;
    let asked = ask_all(&config);
    let text = if args.json { format!("{}\n", json_of(&asked)) } else { text_of(&asked) };
    Ok(output::print(&text)?)
}

/// Engines that have just ended are left out.
pub(super) fn ask_all(config: &Config) -> Vec<Asked> {
    let asked = running(&config.control_folders()).into_iter().map(|running| (running.pid, report_of(&running)));
    asked.filter(|(_, report)| !matches!(report, Err(AskError::Gone { .. }))).collect()
}

pub(super) fn report_of(running: &Running) -> Result<EngineReport, AskError> {
    match running.ask(&Request::Status {})? {
        Reply::Status(report) => Ok(report),
        other => Err(unexpected(running.pid, &other)),
    }
}

pub(in crate::commands) fn unexpected(pid: u32, reply: &Reply) -> AskError {
    let kind = match reply {
        Reply::Status(_) => "a status",
        Reply::Served(_) => "the models that it serves",
        Reply::Done(_) => "what was done",
        Reply::Cleared(_) => "what was freed",
        Reply::Metrics(_) => "metrics",
        Reply::Refused(_) => "a refusal",
    };
    AskError::Unreachable { pid, reason: format!("it answered with {kind}, which was not asked for") }
}

fn json_of(asked: &[Asked]) -> Value {
    let engine = |(pid, report): &Asked| match report {
        Ok(report) => json!(report),
        Err(error) => json!({ "pid": pid, "error": error.to_string() }),
    };
    json!({ "engines": asked.iter().map(engine).collect::<Vec<_>>() })
}

fn text_of(asked: &[Asked]) -> String {
    if asked.is_empty() {
        return "no magray is running: nothing of it holds memory of a GPU\n".to_owned();
    }
    let engine = |(_, report): &Asked| match report {
        Ok(report) => engine_text(report),
        Err(error) => format!("{error}\n"),
    };
    asked.iter().map(engine).collect::<Vec<_>>().join("\n")
}

fn engine_text(engine: &EngineReport) -> String {
    let mut text = format!(
        "magray {} (pid {}); requests: {}, of these waiting: {}\n\n{}\n{}",
        engine.magray,
        engine.pid,
        engine.requests,
        engine.waiting,
        table(
            &[
                "device",
                "state",
                "grade",
                "TensorRT",
                "memory used",
                "used by all",
                "temperature",
                "power",
                "load",
                "worker"
            ],
            engine.devices.iter().map(|device| device_cells(device, engine.tensorrt))
        ),
        table(
            &["average latency", "throughput", "fallback rate", "uptime"],
            std::iter::once(performance_cells(&engine.performance, engine.uptime_s))
        ),
    );
    let head = ["since the start", "batches", "texts", "computing"];
    text.push_str(&format!("\n{}", table(&head, engine.devices.iter().map(total_cells))));
    if engine.has_gpu() {
        let head = ["health", "own speed", "weight", "failures", "recovery attempts", "peak memory", "last failure"];
        let gpus = engine.devices.iter().filter(|device| device.is_gpu);
        text.push_str(&format!("\n{}", table(&head, gpus.map(health_cells))));
    }
    let pools: Vec<Vec<String>> = engine
        .devices
        .iter()
        .filter_map(|device| device.pool.as_ref().map(|pool| pool_cells(&device.name, pool)))
        .collect();
    if !pools.is_empty() {
        let head = [
            "pool",
            "reserved",
            "used",
            "peak",
            "largest free",
            "fragmentation",
            "hits",
            "misses",
            "driver calls",
            "trims",
            "stitches",
            "predicted",
        ];
        text.push_str(&format!("\n{}", table(&head, pools.into_iter())));
    }
    let head = ["model", "where", "idle", "size", "open requests", "loads", "offloads", "idle timeout", "priority"];
    text.push_str(&format!("\n{}", table(&head, engine.models.iter().map(model_cells))));
    for model in &engine.models {
        if let Some(layers) = &model.layers {
            text.push_str(&format!("\n{}: {}\n", model.name, layers.text));
        }
    }
    for device in &engine.devices {
        if let Some(error) = &device.last_error {
            text.push_str(&format!("\n{}: {error}\n", device.name));
        }
    }
    // ONNX Runtime may compute on a GPU that magray itself does not use.
    if !engine.has_gpu() && engine.devices.iter().all(|device| !device.name.starts_with("onnx")) {
        text.push_str("\nthere is no GPU: models are kept in the memory of the host\n");
    }
    text
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = head.iter().map(|word| (*word).to_owned()).collect();
    aligned(&std::iter::once(head).chain(rows).collect::<Vec<Vec<String>>>())
}

fn device_cells(device: &DeviceReport, tensorrt: bool) -> Vec<String> {
    let state = match &device.reason {
        Some(reason) => format!("{} ({reason})", device.state),
        None => device.state.clone(),
    };
    let name = match &device.hardware {
        Some(hardware) => format!("{} {hardware}", device.name),
        None => device.name.clone(),
    };
    let power = match (device.power_watts, device.power_limit_watts) {
        (Some(watts), Some(limit)) => Some(format!("{watts:.0} of {limit:.0} W")),
        (watts, _) => watts.map(|watts| format!("{watts:.0} W")),
    };
    vec![
        name,
        state,
        device.grade.letter().to_owned(),
        if tensorrt { "on" } else { "off" }.to_owned(),
        memory(device).unwrap_or_else(unknown),
        device.memory_used_by_all_bytes.map_or_else(unknown, size),
        device.temperature_celsius.map_or_else(unknown, |celsius| format!("{celsius} C")),
        power.unwrap_or_else(unknown),
        device.utilisation_percent.map_or_else(unknown, |percent| format!("{percent} %")),
        device.worker_pid.map_or_else(unknown, |pid| format!("pid {pid}")),
    ]
}

fn total_cells(device: &DeviceReport) -> Vec<String> {
    vec![
        device.name.clone(),
        device.batches_finished.to_string(),
        device.texts_finished.to_string(),
        span(device.busy_s),
    ]
}

fn health_cells(device: &DeviceReport) -> Vec<String> {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    vec![
        device.name.clone(),
        device.speed.map_or_else(unknown, percent),
        percent(device.weight),
        device.failures.to_string(),
        device.recovery_attempts.to_string(),
        device.memory_peak_bytes.map_or_else(unknown, size),
        device.last_error_at.clone().unwrap_or_else(unknown),
    ]
}

fn unknown() -> String {
    "-".to_owned()
}

fn memory(device: &DeviceReport) -> Option<String> {
    let used = device.memory_used_bytes?;
    Some(match device.memory_limit_bytes {
        Some(limit) => {
            let percent = used as f64 * 100.0 / limit.max(1) as f64;
            format!("{} of {} ({percent:.1} %)", size(used), size(limit))
        }
        None => size(used),
    })
}

fn performance_cells(performance: &PerformanceReport, uptime_s: f64) -> Vec<String> {
    let PerformanceReport { latency_mean_s, texts_per_s, requests_per_s, fallback_rate, .. } = performance;
    vec![
        latency_mean_s.map_or_else(unknown, span),
        format!("{texts_per_s:.1} texts/s in {requests_per_s:.1} requests/s"),
        fallback_rate.map_or_else(unknown, |rate| format!("{:.1} %", rate * 100.0)),
        span(uptime_s),
    ]
}

fn pool_cells(device: &str, pool: &PoolReport) -> Vec<String> {
    vec![
        device.to_owned(),
        size(pool.reserved_bytes),
        size(pool.used_bytes),
        size(pool.peak_used_bytes),
        size(pool.largest_free_bytes),
        format!("{:.1} %", pool.fragmentation * 100.0),
        pool.hits.to_string(),
        pool.misses.to_string(),
        pool.driver_calls.to_string(),
        pool.trims.to_string(),
        pool.stitches.to_string(),
        size(pool.predicted_bytes),
    ]
}

fn model_cells(model: &ModelReport) -> Vec<String> {
    let places: Vec<String> = model.residency.iter().map(|at| format!("{} {}", at.device, at.place)).collect();
    vec![
        model.name.clone(),
        places.join(", "),
        span(model.idle_s),
        size(model.bytes),
        model.requests.to_string(),
        model.loads.to_string(),
        model.offloads.to_string(),
        stay(model),
        model.priority.clone(),
    ]
}

pub(in crate::commands) fn stay(model: &ModelReport) -> String {
    match model.idle_timeout_s {
        _ if model.pinned => "pinned".to_owned(),
        _ if model.offload_after_use => "after use".to_owned(),
        Some(seconds) => span(seconds),
        None => "never".to_owned(),
    }
}

#[cfg(test)]
pub(in crate::commands) mod tests;
