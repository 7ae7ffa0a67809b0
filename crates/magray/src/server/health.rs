//! Whether the server can do its work: proved by a real pass through the device in use, not by being there.
//! Never keeps an idle model on its device: what was proved holds until a device changes.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use magray_engine::engine::{Answer, DeviceState, EngineError, Priority, Status, Work};
use serde::Serialize;

use super::{
    errors::{Kind, PlainError, Problem},
    state::App,
};

/// What is known of the last passes.
#[derive(Debug, Default)]
pub(crate) struct Health {
    last: Mutex<Option<Pass>>,
    /// How the devices were when a pass was proved last.
    proved: Mutex<Option<Devices>>,
    /// One proof at a time: whoever comes meanwhile waits for it.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
struct Pass {
    at: Instant,
    device: String,
}

/// By device: whether it is used, and how many workers it has had.
type Devices = Vec<(bool, u64)>;

/// A server with a full queue computes something at least this often.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// A pass that takes longer proves that something is wrong.
const PROOF_MAX: Duration = Duration::from_secs(30);

/// That the server works.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Healthy {
    /// `ok`.
    status: &'static str,
    /// The device that computed last.
    device: Option<String>,
    /// Seconds since it did.
    last_pass_s: Option<f64>,
}

impl Health {
    /// A request was computed.
    pub(crate) fn passed(&self, answer: &Answer) {
        // Whoever is just reading it will see the next.
        if let Ok(mut last) = self.last.try_lock() {
            let device = match last.take() {
                Some(pass) if answer.device.to_string() == pass.device => pass.device,
                _ => answer.device.to_string(),
            };
            *last = Some(Pass { at: Instant::now(), device });
        }
    }

    fn has_passed_within(&self, time: Duration) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().is_some_and(|pass| pass.at.elapsed() < time)
    }

    fn is_proved(&self, devices: &Devices) -> bool {
        self.proved.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(devices)
    }

    fn prove(&self, devices: Devices) {
        *self.proved.lock().unwrap_or_else(PoisonError::into_inner) = Some(devices);
    }

    fn told(&self) -> Healthy {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let last_pass_s = last.as_ref().map(|pass| pass.at.elapsed().as_secs_f64());
        Healthy { status: "ok", device: last.map(|pass| pass.device), last_pass_s }
    }
}

fn devices(status: &Status) -> Devices {
    let device = |state: DeviceState| matches!(state, DeviceState::InRotation | DeviceState::Resting);
    status.devices.iter().map(|status| (device(status.schedule.state), status.schedule.restarts)).collect()
}

impl App {
    /// Proves that a request can be computed now, unless that is known.
    pub(crate) async fn check_health(&self) -> Result<Healthy, Problem> {
        if self.is_draining() {
            return Err(Problem::new(Kind::Unavailable, "the server is stopping"));
        }
        let now = || devices(&self.engine().status());
        if self.health().is_proved(&now()) {
            return Ok(self.health().told());
        }
        let _turn = self.health().turn.lock().await;
        let before = now();
        if self.health().is_proved(&before) {
            return Ok(self.health().told());
        }
        match self.pass().await {
            Ok(answer) => {
                self.health().passed(&answer);
                let after = now();
                // A device that came up for it is proved by it; a worker that was replaced meanwhile may not be.
                let workers = |devices: &Devices| devices.iter().map(|(_, workers)| *workers).collect::<Vec<_>>();
                self.health().prove(if workers(&before) == workers(&after) { after } else { before });
            }
            // Too much to do is no illness, as long as it is being done.
            Err(EngineError::Full { .. }) if self.health().has_passed_within(BUSY_MAX) => {}
            Err(EngineError::Full { .. }) => {
                let message = "the queue is full and nothing has been computed for a while";
                return Err(Problem::new(Kind::Unavailable, message));
            }
            Err(error) => {
                return Err(Problem::new(Kind::Unavailable, format!("no device computes: {error}")));
            }
        }
        Ok(self.health().told())
    }

    /// One token through the first model, on whichever device is in use.
    async fn pass(&self) -> Result<Answer, EngineError> {
        let work = self.engine().read_ids(0, vec![vec![1]])?;
        let work = Work { priority: Priority::High, deadline: Some(PROOF_MAX), ..work };
        let asking = self.engine().ask(work);
        let late = Err(EngineError::NotYet { within: PROOF_MAX });
        tokio::time::timeout(PROOF_MAX, asking).await.unwrap_or(late)
    }
}

/// Whether a request can be computed now: true after a real pass through the device in use.
#[utoipa::path(
    get, path = "/health", tag = "health",
    responses(
        (status = 200, description = "A request can be computed", body = Healthy),
        (status = 503, description = "No device computes, or the server is stopping", body = PlainError),
    )
)]
pub(crate) async fn health(State(app): State<App>) -> Result<Response, Problem> {
    Ok(axum::Json(app.check_health().await?).into_response())
}

/// The same as `/health`, for clients that expect it there.
#[utoipa::path(
    get, path = "/ping", tag = "health",
    responses(
        (status = 200, description = "A request can be computed", body = Healthy),
        (status = 503, description = "No device computes, or the server is stopping", body = PlainError),
    )
)]
pub(crate) async fn ping(state: State<App>) -> Result<Response, Problem> {
    health(state).await
}

/// Whether the process answers at all; says nothing of devices.
#[utoipa::path(
    get, path = "/health/live", tag = "health",
    responses((status = 200, description = "The process answers"))
)]
pub(crate) async fn live() -> StatusCode {
    StatusCode::OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_said_ok_with_a_full_queue_that_nobody_computed() {
        let health = Health::default();
        assert!(!health.has_passed_within(BUSY_MAX), "nothing was ever computed");
        *health.last.lock().unwrap() = Some(Pass { at: Instant::now(), device: "cpu".to_owned() });
        assert!(health.has_passed_within(BUSY_MAX) && !health.has_passed_within(Duration::ZERO));
    }
}
