//! The server itself: its settings are read again.
//! Changes nothing that a restart is needed for, and says so.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::server::{
    errors::{Kind, PlainError, Problem},
    reload::Reloaded,
    state::App,
};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(reload))
}

/// Reads the settings again, as SIGHUP does.
#[utoipa::path(
    post, path = "/admin/reload", tag = "admin", security(("key" = []), ()),
    responses(
        (status = 200, description = "What has changed, and what needs a restart", body = Reloaded),
        (status = 401, description = "No key, or a wrong one", body = PlainError),
        (status = 403, description = "No key of an administrator", body = PlainError),
        (status = 422, description = "The configuration is wrong; nothing has changed", body = PlainError),
    )
)]
async fn reload(State(app): State<App>) -> Result<Response, Problem> {
    let reloading = tokio::task::spawn_blocking(move || app.reload());
    let reloaded = reloading.await.unwrap_or_else(|_| Err(Problem::new(Kind::Internal, "reading the settings failed")));
    Ok(axum::Json(reloaded?).into_response())
}
