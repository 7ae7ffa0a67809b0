//! Where `magray top` looks: an engine of this user by its control socket, or a server through HTTP.
//! Asks once and waits for no one: what does not answer is told, and asked again.

use std::time::Instant;

use http::Method;
use magray_engine::engine::Priority;
use serde_json::json;

use super::{super::gpu::status::unexpected, metrics::Metrics};
use crate::{
    control::{AskError, EngineReport, Reply, Request, Running},
    exit::Failure,
    remote::Remote,
};

#[derive(Clone)]
pub(super) enum Source {
    Local(Running),
    Server(Remote),
}

/// How an engine is at a moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) engine: EngineReport,
    /// `None`: it is an engine of a command, which has none.
    pub(super) metrics: Option<Metrics>,
}

/// How a model is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveKind {
    Offload,
    Preheat,
    Release,
}

impl MoveKind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Offload => "offload",
            Self::Preheat => "preheat",
            Self::Release => "release",
        }
    }
}

/// The time for a move; it goes on after that.
const MOVE_MS: u64 = 30_000;

impl Source {
    /// For the head of the screen.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Local(running) => format!("pid {}", running.pid),
            Self::Server(remote) => remote.url().to_owned(),
        }
    }

    pub(super) fn sample(&self) -> Result<Sample, Failure> {
        let (engine, metrics) = match self {
            Self::Local(running) => (local_report(running)?, local_metrics(running)?),
            Self::Server(remote) => {
                let status = remote.once(&Method::GET, "/gpu/status", None)?;
                let engine = serde_json::from_slice(&status.body).map_err(|error| remote.unexpected(error))?;
                let page = remote.once(&Method::GET, "/metrics", None)?;
                (engine, Some(String::from_utf8_lossy(&page.body).into_owned()))
            }
        };
        Ok(Sample { at: Instant::now(), engine, metrics: metrics.as_deref().map(Metrics::read) })
    }

    /// Moves a model, and waits until it is done.
    pub(super) fn move_model(&self, how: MoveKind, model: &str) -> Result<(), Failure> {
        match self {
            Self::Local(running) => {
                let (model, within_ms) = (Some(model.to_owned()), MOVE_MS);
                let reply = running.ask(&match how {
                    MoveKind::Offload => Request::Offload { model, within_ms },
                    MoveKind::Release => Request::Release { model, within_ms },
                    MoveKind::Preheat => Request::Preheat { model, within_ms, priority: Priority::Normal },
                })?;
                match reply {
                    Reply::Done(_) => Ok(()),
                    other => Err(unexpected(running.pid, &other).into()),
                }
            }
            Self::Server(remote) => {
                let path = format!("/gpu/{}", how.word());
                Ok(remote.once(&Method::POST, &path, Some(&json!({ "model": model }))).map(drop)?)
            }
        }
    }
}

fn local_report(running: &Running) -> Result<EngineReport, AskError> {
    match running.ask(&Request::Status {})? {
        Reply::Status(report) => Ok(report),
        other => Err(unexpected(running.pid, &other)),
    }
}

/// `None`: it has no metrics.
fn local_metrics(running: &Running) -> Result<Option<String>, AskError> {
    match running.ask(&Request::Metrics {}) {
        Ok(Reply::Metrics(page)) => Ok(Some(page)),
        Ok(other) => Err(unexpected(running.pid, &other)),
        // An engine of a command, or of an older magray.
        Err(AskError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
