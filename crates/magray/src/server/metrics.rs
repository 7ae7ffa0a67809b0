//! Counts what happens and shows it to Prometheus.
//! Names follow its rules: base units, `_total` for what only grows.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{Method, StatusCode, header};
use magray_engine::engine::{Answer, DeviceState, Residency, Status};
use metrics::{Label, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::{errors::Kind, state::App};

/// The counters of the server.
#[derive(Clone)]
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
}

/// From a tenth of a millisecond to half a minute.
const SECONDS: [f64; 15] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
const TEXTS: [f64; 12] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0];

impl Metrics {
    pub(crate) fn new() -> Self {
        let buckets = |builder: PrometheusBuilder, end: &str, buckets: &[f64]| {
            let set = builder.set_buckets_for_metric(Matcher::Suffix(end.to_owned()), buckets);
            set.unwrap_or_else(|error| unreachable!("there are buckets: {error}"))
        };
        let builder = buckets(PrometheusBuilder::new(), "_seconds", &SECONDS);
        let recorder = buckets(builder, "_texts", &TEXTS).build_recorder();
        let handle = recorder.handle();
        let metrics = Self { recorder: Arc::new(recorder), handle };
        metrics.with(describe);
        metrics
    }

    /// Does something with this server's counters.
    pub(super) fn with<T>(&self, count: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(&*self.recorder, count)
    }

    /// A request was answered or refused.
    pub(crate) fn answered(&self, route: &str, method: &Method, status: StatusCode, took: Duration) {
        self.with(|| {
            let labels = vec![
                Label::new("route", route.to_owned()),
                Label::new("method", method_word(method)),
                Label::new("status", status.as_u16().to_string()),
            ];
            counter!("magray_http_requests_total", labels).increment(1);
            histogram!("magray_http_request_seconds", "route" => route.to_owned()).record(took);
        });
    }

    /// A request was refused.
    pub(crate) fn refused(&self, kind: Kind) {
        self.with(|| counter!("magray_http_refusals_total", "reason" => kind.code()).increment(1));
    }

    /// A connection was one too many.
    pub(crate) fn turned_away(&self) {
        self.with(|| counter!("magray_http_connections_refused_total").increment(1));
    }

    /// A request was computed.
    pub(crate) fn computed(&self, model: &str, texts: usize, answer: &Answer, reading: Duration) {
        self.with(|| {
            let of_model = || vec![Label::new("model", model.to_owned())];
            counter!("magray_texts_total", of_model()).increment(texts as u64);
            counter!("magray_tokens_total", of_model()).increment(answer.tokens as u64);
            histogram!("magray_read_seconds").record(reading);
            histogram!("magray_queue_seconds").record(answer.queued);
            histogram!("magray_compute_seconds").record(answer.computed);
            histogram!("magray_batch_texts").record(answer.batch_texts);
            if let Some(reason) = &answer.fallback {
                counter!("magray_fallbacks_total", "reason" => reason.code()).increment(1);
            }
            if answer.replays > 0 {
                counter!("magray_replays_total").increment(answer.replays.into());
            }
        });
    }

    /// Everything as text, with how the engine is at this moment.
    pub(crate) fn render(&self, app: &App) -> String {
        self.with(|| {
            gauge!("magray_http_connections").set(app.connections().load(Ordering::Relaxed) as f64);
            gauge!("magray_http_held_bytes").set(app.admission().held() as f64);
            observe(&app.engine().status());
        });
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// Lets go of what has been summed up; without it the samples between two looks would pile up.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// A method is the client's own text; others than these are one.
fn method_word(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

/// Sets what is so at this moment.
fn observe(status: &Status) {
    gauge!("magray_uptime_seconds").set(status.uptime.as_secs_f64());
    gauge!("magray_queue_requests").set(status.requests as f64);
    gauge!("magray_queue_waiting_requests").set(status.waiting as f64);
    gauge!("magray_queue_tokens").set(status.tokens as f64);
    for device in &status.devices {
        let of_device = || vec![Label::new("device", device.name.to_string())];
        let schedule = &device.schedule;
        let is_up = matches!(schedule.state, DeviceState::InRotation | DeviceState::Resting);
        gauge!("magray_device_up", of_device()).set(if is_up { 1.0 } else { 0.0 });
        gauge!("magray_device_weight_ratio", of_device()).set(schedule.weight);
        gauge!("magray_device_batches", of_device()).set(schedule.batches as f64);
        counter!("magray_device_batches_total", of_device()).absolute(schedule.batches_finished);
        counter!("magray_device_texts_total", of_device()).absolute(schedule.texts_finished);
        // It only grows, but counters are whole numbers here, and seconds are the unit to use.
        gauge!("magray_device_busy_seconds", of_device()).set(schedule.busy.as_secs_f64());
        counter!("magray_device_failures_total", of_device()).absolute(schedule.failures_total);
        counter!("magray_worker_restarts_total", of_device()).absolute(schedule.restarts);
        if let Some(memory) = device.memory {
            gauge!("magray_device_memory_allocated_bytes", of_device()).set(memory.allocated as f64);
            gauge!("magray_device_memory_reserved_bytes", of_device()).set(memory.reserved as f64);
            gauge!("magray_device_memory_total_bytes", of_device()).set(memory.total as f64);
            gauge!("magray_pool_reserved_bytes", of_device()).set(memory.pool.reserved as f64);
            gauge!("magray_pool_used_bytes", of_device()).set(memory.pool.used as f64);
            counter!("magray_pool_hits_total", of_device()).absolute(memory.pool.hits);
            counter!("magray_pool_misses_total", of_device()).absolute(memory.pool.misses);
        }
        if let Some(celsius) = device.health.as_ref().and_then(|health| health.temperature_celsius) {
            gauge!("magray_device_temperature_celsius", of_device()).set(celsius);
        }
    }
    for model in &status.models {
        let of_model = || vec![Label::new("model", model.name.clone())];
        gauge!("magray_model_idle_seconds", of_model()).set(model.view.idle.as_secs_f64());
        counter!("magray_model_loads_total", of_model()).absolute(model.view.loads);
        counter!("magray_model_offloads_total", of_model()).absolute(model.view.offloads);
        for (device, residency) in status.devices.iter().zip(&model.view.residency) {
            let labels = vec![Label::new("model", model.name.clone()), Label::new("device", device.name.to_string())];
            let is_there = *residency == Residency::OnDevice;
            gauge!("magray_model_on_device", labels).set(if is_there { 1.0 } else { 0.0 });
        }
    }
}

fn describe() {
    describe_counter!("magray_http_requests_total", "Requests that were answered or refused.");
    describe_histogram!("magray_http_request_seconds", "From the head of a request to its answer.");
    describe_counter!("magray_http_refusals_total", "Requests that were refused, by reason.");
    describe_gauge!("magray_http_connections", "Connections that are open.");
    describe_counter!("magray_http_connections_refused_total", "Connections that were one too many.");
    describe_gauge!("magray_http_held_bytes", "Bytes of requests that are not answered.");
    describe_counter!("magray_texts_total", "Texts that were computed.");
    describe_counter!("magray_tokens_total", "Tokens that were computed.");
    describe_histogram!("magray_read_seconds", "Time in which the texts of a request became tokens.");
    describe_histogram!("magray_queue_seconds", "Time that a request waited.");
    describe_histogram!("magray_compute_seconds", "Time that a request was computed.");
    describe_histogram!("magray_batch_texts", "Texts of the batch that a request was computed in.");
    describe_counter!("magray_fallbacks_total", "Requests that the CPU computed in place of a GPU, by reason.");
    describe_counter!("magray_replays_total", "Times that requests were started again after a failure.");
    describe_gauge!("magray_uptime_seconds", "Time since the engine started.");
    describe_gauge!("magray_queue_requests", "Requests that wait or are computed.");
    describe_gauge!("magray_queue_waiting_requests", "Requests of which nothing is computed yet.");
    describe_gauge!("magray_queue_tokens", "Tokens of requests that wait or are computed.");
    describe_gauge!("magray_device_up", "1 while a device is used or rests.");
    describe_gauge!("magray_device_weight_ratio", "The part of its speed that a device is trusted with.");
    describe_gauge!("magray_device_batches", "Batches that a device has now.");
    describe_counter!("magray_device_batches_total", "Batches that a device finished.");
    describe_counter!("magray_device_texts_total", "Texts of the batches that a device finished.");
    describe_gauge!("magray_device_busy_seconds", "Time that a device computed.");
    describe_counter!("magray_device_failures_total", "Failures of a device.");
    describe_counter!("magray_worker_restarts_total", "Workers of a device that were started after the first.");
    describe_gauge!("magray_device_memory_allocated_bytes", "Memory of a device that is used.");
    describe_gauge!("magray_device_memory_reserved_bytes", "Memory of a device that is held.");
    describe_gauge!("magray_device_memory_total_bytes", "All memory of a device.");
    describe_gauge!("magray_pool_reserved_bytes", "Memory of a device that its pool holds.");
    describe_gauge!("magray_pool_used_bytes", "Memory of the pool that is used.");
    describe_counter!("magray_pool_hits_total", "Requests for memory that the pool had.");
    describe_counter!("magray_pool_misses_total", "Requests for memory that the driver was asked for.");
    describe_gauge!("magray_device_temperature_celsius", "Temperature of a device.");
    describe_gauge!("magray_model_idle_seconds", "Time since a model was used.");
    describe_counter!("magray_model_loads_total", "Times that a model was put on a GPU.");
    describe_counter!("magray_model_offloads_total", "Times that a model left a GPU.");
    describe_gauge!("magray_model_on_device", "1 while a model is on a device.");
}

/// All counters, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, description = "Prometheus' text format", body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics().render(&app);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
