//! The server itself: its settings are read again.
//! Changes nothing that a restart is needed for, and says so.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};

use crate::server::{
    app::App,
    errors::{Kind, PlainError, Problem},
    reload::Reloaded,
};

/// Reads the settings again, as SIGHUP does.
#[utoipa::path(
    post, path = "",
    responses(
        (status = 200, description = "What has changed, and what needs a restart", body = Reloaded),
        (status = 422, description = "The configuration is wrong; nothing has changed", body = PlainError),
    )
)]
pub(crate) async fn reload(State(app): State<App>) -> Result<Response, Problem> {
    let reloading = tokio::task::spawn_blocking(move || app.reload());
    let reloaded = reloading.await.unwrap_or_else(|_| Err(Problem::new(Kind::Internal, "reading the settings failed")));
    Ok(axum::Json(reloaded?).into_response())
}
