//! Whether the server works, and its metrics.
//! Decides nothing of it.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header};

use crate::server::{
    app::App,
    errors::{PlainError, Problem},
    health::Healthy,
};

/// Whether a request can be computed now: true after a real pass through the device in use.
#[utoipa::path(
    get, path = "",
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
    get, path = "",
    responses(
        (status = 200, description = "A request can be computed", body = Healthy),
        (status = 503, description = "No device computes, or the server is stopping", body = PlainError),
    )
)]
pub(crate) async fn ping(state: State<App>) -> Result<Response, Problem> {
    health(state).await
}

/// Whether the process answers at all; says nothing of devices.
#[utoipa::path(get, path = "", responses((status = 200, description = "The process answers")))]
pub(crate) async fn live() -> StatusCode {
    StatusCode::OK
}

/// Whether the process answers, for Qdrant's clients.
#[utoipa::path(
    get, path = "",
    responses((status = 200, description = "The process answers", body = String, content_type = "text/plain"))
)]
pub(crate) async fn healthz() -> &'static str {
    "healthz check passed"
}

/// All counters, for Prometheus.
#[utoipa::path(
    get, path = "",
    responses((status = 200, description = "Prometheus' text format", body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.render_metrics()).into_response()
}
