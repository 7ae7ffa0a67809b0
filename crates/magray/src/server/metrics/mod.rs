//! Counts what happens to requests, for Prometheus, beside the state of the engine.
//! No label has a value that a client could make up.

mod engine;
mod evaluations;
mod page;
mod routes;
mod token_gaps;

pub(crate) use routes::RouteCounters;

use std::{sync::Arc, time::Duration};

use magray_core::schedule::Fallback;
use magray_engine::{
    DeviceName, Roster, RosterFull,
    engine::{Answer, CacheUse, Speculation},
};
use metrics::{
    Counter, Histogram, Label, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use self::{page::Page, token_gaps::TokenGaps};
use super::{
    errors::Kind,
    models::{Does, Models},
};
use crate::control::EngineReport;

/// What requests hold now.
pub(crate) struct Held {
    pub(crate) connections: usize,
    pub(crate) bytes: u64,
}

#[derive(Clone)]
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    /// Looked up once: they count in every request.
    passes: Arc<Passes>,
    refusals: Arc<[Counter; Kind::ALL.len()]>,
    /// Whether the names of vLLM are there too.
    has_aliases: bool,
}

/// An answer that was generated.
pub(crate) struct Generated {
    /// Of its prompt, or of none where it has it in common with another.
    pub(crate) prompt_tokens: usize,
    /// Of its prompt, those that were not computed.
    pub(crate) cached_tokens: usize,
    pub(crate) tokens: usize,
    pub(crate) device: Option<DeviceName>,
    /// How often it was started again after a failure.
    pub(crate) replays: u32,
    pub(crate) speculation: Speculation,
}

struct Passes {
    by_model: Roster<ModelCounters>,
    read: Histogram,
    queue: Histogram,
    compute: Histogram,
    batch_texts: Histogram,
    replays: Counter,
    proposed: Counter,
    accepted: Counter,
    first_token: Histogram,
    token_gaps: TokenGaps,
}

struct ModelCounters {
    requests: Counter,
    texts: Counter,
    tokens: Counter,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    name: String,
}

const SECONDS: [f64; 15] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
const TEXTS: [f64; 12] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0];

impl Metrics {
    pub(crate) fn new<'a>(models: &Models, critics: impl Iterator<Item = &'a str>, has_aliases: bool) -> Self {
        let buckets = |builder: PrometheusBuilder, end: &str, buckets: &[f64]| {
            let set = builder.set_buckets_for_metric(Matcher::Suffix(end.to_owned()), buckets);
            set.unwrap_or_else(|error| unreachable!("there are buckets: {error}"))
        };
        let builder = buckets(PrometheusBuilder::new(), "_seconds", &SECONDS);
        let recorder = buckets(builder, "_texts", &TEXTS).build_recorder();
        let handle = recorder.handle();
        let recorder = Arc::new(recorder);
        let (passes, refusals) = metrics::with_local_recorder(&*recorder, || {
            describe();
            evaluations::start(critics);
            (Arc::new(Passes::new(models)), Arc::new(Kind::ALL.map(refusals_of)))
        });
        Self { recorder, handle, passes, refusals, has_aliases }
    }

    /// Counts for one model more; one of a name that there was before goes on with its counts.
    pub(crate) fn add_model(&self, name: &str, does: Does) -> Result<(), RosterFull> {
        self.with(|| self.passes.by_model.push(ModelCounters::of(name, does)).map(drop))
    }

    pub(super) fn with<T>(&self, count: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(&*self.recorder, count)
    }

    pub(crate) fn refused(&self, kind: Kind) {
        self.refusals[kind as usize].increment(1);
    }

    pub(crate) fn connection_refused(&self) {
        self.with(|| counter!("magray_http_connections_refused_total").increment(1));
    }

    pub(crate) fn computed(&self, model: usize, texts: usize, answer: &Answer, reading: Duration) {
        let passes = &self.passes;
        let of_model = &passes.by_model[model];
        of_model.requests.increment(1);
        of_model.texts.increment(texts as u64);
        of_model.tokens.increment(answer.tokens as u64);
        passes.read.record(reading);
        // Texts that were known all were in no batch.
        if answer.batch_texts > 0 {
            passes.queue.record(answer.queued);
            passes.compute.record(answer.computed);
            passes.batch_texts.record(answer.batch_texts);
        }
        passes.replays.increment(answer.replays.into());
        if let Some(reason) = &answer.fallback {
            self.with(|| counter!("magray_fallbacks_total", "reason" => reason.code()).increment(1));
        }
    }

    pub(crate) fn first_token_after(&self, time: Duration) {
        self.passes.first_token.record(time);
    }

    /// So many tokens came this long after the ones before them.
    pub(crate) fn tokens_after(&self, time: Duration, tokens: u64) {
        self.passes.token_gaps.add(time, tokens);
    }

    pub(crate) fn generated(&self, model: usize, generated: Generated) {
        let of_model = &self.passes.by_model[model];
        of_model.requests.increment(1);
        of_model.prompt_tokens.increment(generated.prompt_tokens as u64);
        of_model.cached_tokens.increment(generated.cached_tokens as u64);
        self.passes.replays.increment(generated.replays.into());
        self.passes.proposed.increment(generated.speculation.proposed);
        self.passes.accepted.increment(generated.speculation.accepted);
        let device = generated.device.map_or_else(|| "unknown".to_owned(), |device| device.to_string());
        self.with(|| generated_tokens(&of_model.name, device).increment(generated.tokens as u64));
    }

    pub(crate) fn render(
        &self,
        held: Held,
        cache: &CacheUse,
        (cpu_searches, gpu_searches): (u64, u64),
        engine: &EngineReport,
    ) -> String {
        self.with(|| {
            counter!("magray_text_cache_hits_total").absolute(cache.hits);
            counter!("magray_text_cache_misses_total").absolute(cache.misses);
            gauge!("magray_text_cache_entries").set(cache.entries as f64);
            gauge!("magray_text_cache_bytes").set(cache.bytes as f64);
            counter!("magray_vector_searches_total", "device" => "cpu").absolute(cpu_searches);
            counter!("magray_vector_searches_total", "device" => "gpu").absolute(gpu_searches);
            gauge!("magray_http_connections").set(held.connections as f64);
            gauge!("magray_http_held_bytes").set(held.bytes as f64);
        });
        self.handle.run_upkeep();
        let mut page = Page::after(self.handle.render());
        self.passes.token_gaps.write(&mut page);
        engine::add(&mut page, engine);
        if self.has_aliases {
            engine::add_aliases(&mut page, engine);
        }
        page.into_text()
    }

    /// Sums up samples, which would pile up between two reads of the page.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

fn generated_tokens(model: &str, device: String) -> Counter {
    let labels = vec![Label::new("model", model.to_owned()), Label::new("device", device)];
    counter!("magray_generated_tokens_total", labels)
}

fn refusals_of(kind: Kind) -> Counter {
    let count = counter!("magray_http_refusals_total", "reason" => kind.code());
    count.absolute(0);
    count
}

impl ModelCounters {
    fn of(name: &str, does: Does) -> Self {
        if does == Does::Generate {
            generated_tokens(name, DeviceName::Cpu.to_string()).absolute(0);
        }
        let label = || vec![Label::new("model", name.to_owned())];
        Self {
            requests: counter!("magray_requests_total", label()),
            texts: counter!("magray_texts_total", label()),
            tokens: counter!("magray_tokens_total", label()),
            prompt_tokens: counter!("magray_prompt_tokens_total", label()),
            cached_tokens: counter!("magray_prompt_tokens_cached_total", label()),
            name: name.to_owned(),
        }
    }
}

impl Passes {
    /// Counters start at 0, so that Prometheus sees a first failure as an increase.
    fn new(models: &Models) -> Self {
        counter!("magray_http_connections_refused_total").absolute(0);
        for reason in Fallback::CODES {
            counter!("magray_fallbacks_total", "reason" => reason).absolute(0);
        }
        Self {
            by_model: models.iter().map(|(_, model)| ModelCounters::of(&model.name, model.does)).collect(),
            read: histogram!("magray_read_seconds"),
            queue: histogram!("magray_queue_seconds"),
            compute: histogram!("magray_compute_seconds"),
            batch_texts: histogram!("magray_batch_texts"),
            replays: counter!("magray_replays_total"),
            proposed: counter!("magray_speculated_tokens_total"),
            accepted: counter!("magray_speculated_tokens_accepted_total"),
            first_token: histogram!("magray_first_token_seconds"),
            token_gaps: TokenGaps::default(),
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
    describe_counter!("magray_text_cache_hits_total", "Texts that were answered without computing them.");
    describe_counter!("magray_text_cache_misses_total", "Texts that were not known yet.");
    describe_gauge!("magray_text_cache_entries", "Texts that are known.");
    describe_gauge!("magray_text_cache_bytes", "Bytes of what is known of texts.");
    describe_counter!("magray_vector_searches_total", "Searches of dense vectors, by where they were done.");
    describe_counter!("magray_requests_total", "Requests that were answered by a model.");
    describe_counter!("magray_texts_total", "Texts that were answered by a model.");
    describe_counter!("magray_tokens_total", "Tokens of texts that were answered by a model.");
    describe_histogram!("magray_read_seconds", "Time in which the texts of a request became tokens.");
    describe_histogram!("magray_queue_seconds", "Time that a request waited.");
    describe_histogram!("magray_compute_seconds", "Time that a request was computed.");
    describe_histogram!("magray_batch_texts", "Texts of the batch that ended a request.");
    describe_counter!("magray_fallbacks_total", "Requests that the CPU computed in place of a GPU, by reason.");
    describe_histogram!("magray_first_token_seconds", "From the beginning of an answer to its first token.");
    describe_counter!("magray_prompt_tokens_total", "Tokens of prompts that a model has answered.");
    describe_counter!(
        "magray_prompt_tokens_cached_total",
        "Tokens of prompts that were not computed, since another prompt began with them."
    );
    describe_counter!("magray_generated_tokens_total", "Tokens that a model generated, by the device of the last one.");
    describe_counter!("magray_speculated_tokens_total", "Tokens that were proposed for passes and verified.");
    describe_counter!("magray_speculated_tokens_accepted_total", "Proposed tokens that a model chose.");
    describe_counter!("magray_replays_total", "Times that requests were started again after a failure.");
}
