//! What the page and `magray top` show of a server at one moment: the engine, its memory by owner, the last minute, incidents, moves.
//! Copies what the engine says and judges nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use magray_core::ledger::Owner;
use magray_engine::engine::{DeviceStatus, Engine, Incident, ModelMove, Moment, SecondFigures, Status};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::report::EngineReport;

/// A server at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Snapshot {
    /// When, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) engine: EngineReport,
    /// By device, in the order of the engine's devices.
    pub(crate) memory: Vec<MemoryMap>,
    /// The seconds of the last minute in which anything was computed.
    pub(crate) seconds: Vec<SecondReport>,
    /// Upper bounds of the buckets of `latencies`; the last bucket has none.
    pub(crate) latency_bounds_ms: Vec<u32>,
    /// Upper bounds of the buckets of `batches`; the last bucket has none.
    pub(crate) batch_bounds: Vec<u32>,
    /// Requests that the CPU computed in place of a GPU since the start.
    pub(crate) fallbacks: Vec<FallbackReport>,
    /// What went wrong with devices, the newest first; the last 64.
    pub(crate) incidents: Vec<IncidentReport>,
    /// When models came and left, the newest first; the last 128.
    pub(crate) moves: Vec<MoveReport>,
}

/// Who holds which part of a device's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MemoryMap {
    pub(crate) device: String,
    /// All that it has; null where that is not known.
    pub(crate) total_bytes: Option<u64>,
    /// What other processes hold, where telemetry tells it.
    pub(crate) others_bytes: Option<u64>,
    /// The largest first.
    pub(crate) accounts: Vec<MemoryAccount>,
}

/// A part of a device's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MemoryAccount {
    /// `weights`, `kv`, `vectors`, `workspace` or `context`.
    pub(crate) owner: String,
    /// The model, where it is one's.
    pub(crate) model: Option<String>,
    pub(crate) bytes: u64,
}

/// What was computed in one second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SecondReport {
    /// Counted from the engine's start.
    pub(crate) second: u64,
    pub(crate) requests: u64,
    pub(crate) texts: u64,
    /// Tokens of texts.
    pub(crate) tokens: u64,
    /// Tokens that language models generated.
    pub(crate) generated: u64,
    pub(crate) fallbacks: u64,
    /// Requests by latency.
    pub(crate) latencies: Vec<u32>,
    /// Requests by the size of their batch.
    pub(crate) batches: Vec<u32>,
}

/// How often the CPU computed in place of a GPU, for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct FallbackReport {
    pub(crate) reason: String,
    pub(crate) requests: u64,
}

/// Something that went wrong with a device, and what became of the requests that it had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct IncidentReport {
    pub(crate) device: String,
    /// What was noticed first, such as `killed`, `overdue` or `out_of_memory`.
    pub(crate) code: String,
    /// Since the engine's start.
    pub(crate) at_s: f64,
    /// Until the device had finished a batch again; null while it has not.
    pub(crate) back_after_s: Option<f64>,
    /// Requests whose batch was lost with it.
    pub(crate) requests: u64,
    /// Of these, computed again and answered.
    pub(crate) answered: u64,
    /// Of these, answered with an error.
    pub(crate) refused: u64,
    /// Of these, not waited for any more.
    pub(crate) cancelled: u64,
}

/// A model came to a device or left it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MoveReport {
    pub(crate) model: String,
    /// Null: the host's memory.
    pub(crate) device: Option<String>,
    /// `load`, `offload` or `forget`.
    pub(crate) kind: String,
    /// `needed`, `preheated`, `restored`, `requested`, `evicted`, `idle` or `after_use`.
    pub(crate) reason: Option<String>,
    /// Since the engine's start.
    pub(crate) at_s: f64,
    /// Null while it is under way.
    pub(crate) took_s: Option<f64>,
    /// False: the weights did not come.
    pub(crate) is_done: Option<bool>,
}

const INCIDENTS_MAX: usize = 64;
const MOVES_MAX: usize = 128;

impl Snapshot {
    pub(crate) fn of(engine: &Engine, memory_limit: Option<u64>) -> Self {
        let status = engine.status();
        let (seconds, fallbacks) = engine.pace();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            at_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            engine: EngineReport::of(&status, memory_limit),
            memory: status.devices.iter().map(|device| MemoryMap::of(device, &status)).collect(),
            seconds: seconds.iter().map(SecondReport::of).collect(),
            latency_bounds_ms: SecondFigures::LATENCY_MS.to_vec(),
            batch_bounds: SecondFigures::BATCH_TEXTS.to_vec(),
            fallbacks: fallbacks
                .into_iter()
                .map(|(reason, requests)| FallbackReport { reason: reason.to_owned(), requests })
                .collect(),
            incidents: newest(&engine.incidents(), INCIDENTS_MAX)
                .map(|incident| IncidentReport::of(incident, &status))
                .collect(),
            moves: newest(&engine.model_moves(), MOVES_MAX).map(|moved| MoveReport::of(moved, &status)).collect(),
        }
    }
}

fn newest<T>(all: &[T], most: usize) -> impl Iterator<Item = &T> {
    all.iter().rev().take(most)
}

fn device_name(status: &Status, at: u16) -> String {
    status.devices.get(usize::from(at)).map(|device| device.name.to_string()).unwrap_or_default()
}

fn model_name(status: &Status, at: u32) -> String {
    status.models.get(at as usize).map(|model| model.name.clone()).unwrap_or_default()
}

fn seconds(moment: Moment) -> f64 {
    moment.since(Moment::START).as_secs_f64()
}

impl MemoryMap {
    fn of(device: &DeviceStatus, status: &Status) -> Self {
        let total = device.memory.map(|memory| memory.total).filter(|total| *total > 0);
        let mut accounts: Vec<MemoryAccount> =
            device.schedule.accounts.iter().map(|(owner, bytes)| MemoryAccount::of(*owner, *bytes, status)).collect();
        accounts.sort_by_key(|account| std::cmp::Reverse(account.bytes));
        let held: u64 = accounts.iter().map(|account| account.bytes).sum();
        let used = device.health.as_ref().and_then(|health| health.memory_used_bytes);
        Self {
            device: device.name.to_string(),
            total_bytes: total,
            others_bytes: used.map(|used| used.saturating_sub(held)),
            accounts,
        }
    }
}

impl MemoryAccount {
    fn of(owner: Owner, bytes: u64, status: &Status) -> Self {
        let (owner, model) = match owner {
            Owner::Context => ("context", None),
            Owner::Workspace => ("workspace", None),
            Owner::Weights(model) => ("weights", Some(model)),
            Owner::Kv(model) => ("kv", Some(model)),
            Owner::Vectors(_) => ("vectors", None),
        };
        Self { owner: owner.to_owned(), model: model.map(|model| model_name(status, model.0)), bytes }
    }
}

impl SecondReport {
    fn of(second: &SecondFigures) -> Self {
        let sums = &second.sums;
        Self {
            second: second.number,
            requests: sums.requests,
            texts: sums.texts,
            tokens: sums.tokens,
            generated: second.generated,
            fallbacks: sums.fallbacks,
            latencies: second.latencies.to_vec(),
            batches: second.batches.to_vec(),
        }
    }
}

impl IncidentReport {
    fn of(incident: &Incident, status: &Status) -> Self {
        let requests = incident.requests;
        Self {
            device: device_name(status, incident.device.0),
            code: incident.code.to_owned(),
            at_s: seconds(incident.noticed),
            back_after_s: incident.served_again.map(|again| again.since(incident.noticed).as_secs_f64()),
            requests: requests.lost.into(),
            answered: requests.answered.into(),
            refused: requests.refused.into(),
            cancelled: requests.cancelled.into(),
        }
    }
}

impl MoveReport {
    fn of(moved: &ModelMove, status: &Status) -> Self {
        Self {
            model: model_name(status, moved.model.0),
            device: moved.device.map(|device| device_name(status, device.0)),
            kind: moved.kind.code().to_owned(),
            reason: moved.reason.map(|reason| reason.code().to_owned()),
            at_s: seconds(moved.began),
            took_s: moved.ended.map(|end| end.took.as_secs_f64()),
            is_done: moved.ended.map(|end| end.is_done),
        }
    }
}
