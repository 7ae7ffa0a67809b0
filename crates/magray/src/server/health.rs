//! Tells whether the server can do its work: the engine proves it by a real pass through the device in use.
//! Decides nothing of it; says no while the server is stopping.

use std::time::Duration;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use magray_engine::engine::EngineError;
use serde::Serialize;

use super::{
    errors::{Kind, PlainError, Problem},
    state::App,
};

/// A proof that takes longer shows that something is wrong.
const PROOF_MAX: Duration = Duration::from_secs(30);

/// That the server works.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Healthy {
    /// `ok`.
    status: &'static str,
    /// The device that computed last.
    device: String,
    /// Seconds since it did.
    last_pass_s: f64,
}

impl App {
    /// Proves that a request can be computed now, unless that is known.
    pub(crate) async fn check_health(&self) -> Result<Healthy, Problem> {
        if self.is_draining() {
            return Err(Problem::new(Kind::Unavailable, "the server is stopping"));
        }
        let proving = async {
            // One proof at a time: whoever comes meanwhile waits for it and finds it.
            let _turn = self.proving().lock().await;
            self.engine().health().await
        };
        let late = Err(EngineError::NotYet { within: PROOF_MAX });
        let health = tokio::time::timeout(PROOF_MAX, proving).await.unwrap_or(late);
        let ill = |error| Problem::new(Kind::Unavailable, format!("no device computes: {error}"));
        let health = health.map_err(ill)?;
        Ok(Healthy { status: "ok", device: health.device.to_string(), last_pass_s: health.since.as_secs_f64() })
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
