//! The server as a target of load: requests through HTTP, as any client sends them, and what its answers say of themselves.
//! Retries nothing: what a client would see is what is counted.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use http::HeaderMap;
use magray_core::schedule::{Fallback, Moment};
use magray_engine::{DeviceName, Precision, engine::Engine};
use magray_load::{DeviceNow, Done, Fault, Outcome, Target, Ticket, Vectors};
use serde::Deserialize;
use serde_json::json;
use ureq::Agent;

use super::model::DemoModel;

pub(super) struct HttpTarget {
    jobs: SyncSender<Job>,
    texts: Vec<String>,
    engine: Engine,
    replayed: Arc<Mutex<Vec<Replayed>>>,
}

/// An answer that was computed again after a device failed under it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Replayed {
    pub(super) at: Instant,
    pub(super) device: DeviceName,
    pub(super) latency: Duration,
}

struct Job {
    texts: Vec<String>,
    ticket: Ticket,
}

/// Connections: as many requests are open at most while a device hangs.
const CLIENTS: usize = 32;
/// Requests that wait for a connection; more hold the generator back, which is counted as its lateness.
const WAITING_MAX: usize = 256;
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Answers that were computed again and are remembered.
const REPLAYED_MAX: usize = 4096;

impl HttpTarget {
    pub(super) fn start(url: &str, key: Option<String>, model: &DemoModel, engine: Engine) -> io::Result<Self> {
        let (jobs, waiting) = sync_channel(WAITING_MAX);
        let (waiting, replayed) = (Arc::new(Mutex::new(waiting)), Arc::default());
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(ANSWER_MAX)).proxy(None);
        let config = config.max_idle_connections(CLIENTS).max_idle_connections_per_host(CLIENTS);
        let client = Client {
            agent: config.build().into(),
            url: format!("{url}/v1/embeddings"),
            key,
            model: model.name.clone(),
            devices: engine.status().devices.iter().map(|device| device.name).collect(),
            replayed: Arc::clone(&replayed),
        };
        for _ in 0..CLIENTS {
            let (client, waiting) = (client.clone(), Arc::clone(&waiting));
            thread::Builder::new().name("client".to_owned()).spawn(move || client.run(&waiting))?;
        }
        Ok(Self { jobs, texts: model.texts.clone(), engine, replayed })
    }

    /// The answers that were computed again, in the order in which they came; the last ones.
    pub(super) fn replayed(&self) -> MutexGuard<'_, Vec<Replayed>> {
        lock(&self.replayed)
    }
}

impl Target for HttpTarget {
    fn submit(&self, texts: Vec<Vec<u32>>, ticket: Ticket) {
        let text = |place: &Vec<u32>| self.texts[place[0] as usize].clone();
        let job = Job { texts: texts.iter().map(text).collect(), ticket };
        // Clients are there as long as this is.
        let _ = self.jobs.send(job);
    }

    fn devices(&self) -> Vec<DeviceNow> {
        let now = |device: &magray_engine::engine::DeviceStatus| DeviceNow {
            name: device.name,
            state: String::new(),
            pid: device.pid,
            done: Done {
                batches: device.schedule.batches_finished,
                texts: device.schedule.texts_finished,
                busy: device.schedule.busy,
            },
        };
        self.engine.status().devices.iter().map(now).collect()
    }

    fn incidents(&self) -> Vec<Fault> {
        let status = self.engine.status();
        let now = Instant::now();
        // The engine counts from its start.
        let at = |moment: Moment| {
            let since = status.uptime.saturating_sub(Duration::from_nanos(moment.as_nanos()));
            now.checked_sub(since).unwrap_or(now)
        };
        let fault = |incident: &magray_engine::engine::Incident| Fault {
            device: status.devices[usize::from(incident.device.0)].name,
            code: incident.code,
            noticed: at(incident.noticed),
            back: incident.served_again.map(at),
        };
        self.engine.incidents().iter().map(fault).collect()
    }
}

#[derive(Clone)]
struct Client {
    agent: Agent,
    url: String,
    key: Option<String>,
    model: String,
    devices: Vec<DeviceName>,
    replayed: Arc<Mutex<Vec<Replayed>>>,
}

#[derive(Deserialize)]
struct Embeddings {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    embedding: Vec<f32>,
}

impl Client {
    fn run(&self, waiting: &Mutex<Receiver<Job>>) {
        loop {
            let job = lock(waiting).recv();
            let Ok(Job { texts, ticket }) = job else { return };
            let outcome = self.ask(&texts).unwrap_or_else(|error| refused("unreachable", error.to_string()));
            if let Outcome::Vectors(vectors) = &outcome
                && vectors.replays > 0
            {
                let at = Instant::now();
                let latency = at.saturating_duration_since(ticket.request.due);
                let mut replayed = lock(&self.replayed);
                if replayed.len() == REPLAYED_MAX {
                    replayed.drain(..REPLAYED_MAX / 2);
                }
                replayed.push(Replayed { at, device: vectors.device, latency });
            }
            ticket.answer(outcome);
        }
    }

    fn ask(&self, texts: &[String]) -> Result<Outcome, ureq::Error> {
        let body = json!({ "model": self.model, "input": texts, "encoding_format": "float" }).to_string();
        let mut request = self.agent.post(&self.url).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut answer = request.send(body)?;
        let text = answer.body_mut().read_to_string()?;
        if !answer.status().is_success() {
            let code = match answer.status().as_u16() {
                429 => "full",
                408 | 504 => "expired",
                _ => "error",
            };
            return Ok(refused(code, format!("{}: {text}", answer.status())));
        }
        let Ok(embeddings) = serde_json::from_str::<Embeddings>(&text) else {
            return Ok(refused("error", "the answer holds no vectors".to_owned()));
        };
        let values = embeddings.data.into_iter().flat_map(|row| row.embedding).collect();
        Ok(Outcome::Vectors(self.vectors(values, answer.headers())))
    }

    /// What the head of an answer says of where and how it was computed.
    fn vectors(&self, values: Vec<f32>, headers: &HeaderMap) -> Vectors {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let device = self.devices.iter().copied().find(|device| device.to_string() == text("x-magray-device"));
        let timing = |part: &str| {
            let found = text("server-timing")
                .split(',')
                .find_map(|entry| entry.trim().strip_prefix(part)?.strip_prefix(";dur="));
            let ms: f64 = found.and_then(|ms| ms.parse().ok()).unwrap_or_default();
            Duration::from_secs_f64((ms / 1e3).clamp(0.0, 3600.0))
        };
        Vectors {
            values,
            device: device.unwrap_or(DeviceName::Cpu),
            // All devices of a demonstration compute in 32 bits.
            precision: Precision::F32,
            queued: timing("queue"),
            computed: timing("compute"),
            replays: text("x-magray-replays").parse().unwrap_or_default(),
            fallback: Fallback::CODES.into_iter().find(|code| *code == text("x-magray-fallback")),
        }
    }
}

fn refused(code: &'static str, message: String) -> Outcome {
    Outcome::Refused { code, message }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
