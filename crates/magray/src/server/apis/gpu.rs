//! Where the models are, moves of them, and what the GPUs cache: status, offload, release, preheat, priority, timeout, cache.
//! No request fails because a model moves. Callers wait until a move is done; above a number of moves they are refused.

use std::time::Duration;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use magray_engine::engine::{Move, Moved, Priority};
use rmcp::schemars::JsonSchema;
use serde::Serialize;
use tracing::Instrument;

use crate::{
    control::{Cleared, DeviceReport, DeviceResidency, EngineReport},
    server::{
        app::App,
        errors::{Kind, Problem},
        fields::Fields,
        model_changes::{change_models, too_many},
        requests::gpu::{MoveRequest, PinRequest, PreheatRequest, PriorityRequest, Timeout, TimeoutRequest},
    },
};

/// How long a caller waits for a move; it goes on after that.
const MOVE_MAX: Duration = Duration::from_secs(30);

/// Shows where the models are, what they hold, and the state of the devices.
#[utoipa::path(
    get, path = "",
    responses((status = 200, description = "The engine at this moment", body = EngineReport))
)]
pub(crate) async fn status(State(app): State<App>) -> Response {
    axum::Json(app.report()).into_response()
}

/// Shows the state of the devices; the CPU is the first.
#[utoipa::path(get, path = "", responses((status = 200, description = "The devices", body = Vec<DeviceReport>)))]
pub(crate) async fn devices(State(app): State<App>) -> Response {
    axum::Json(app.report().devices).into_response()
}

/// The models that were moved.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct MovedReport {
    models: Vec<MovedModel>,
}

/// A model that was moved.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct MovedModel {
    name: String,
    took_s: f64,
    residency: Vec<DeviceResidency>,
}

/// Takes models off the GPUs; their weights stay in the memory of the host.
#[utoipa::path(
    post, path = "",
    request_body = MoveRequest,
    responses((status = 200, description = "Where the models are now", body = MovedReport))
)]
pub(crate) async fn offload(State(app): State<App>, Fields(which): Fields<MoveRequest>) -> Result<Response, Problem> {
    move_models(app, which, Move::Offload).await
}

/// Takes models out of all memory; the next request loads them again.
#[utoipa::path(
    post, path = "",
    request_body = MoveRequest,
    responses((status = 200, description = "Where the models are now", body = MovedReport))
)]
pub(crate) async fn release(State(app): State<App>, Fields(which): Fields<MoveRequest>) -> Result<Response, Problem> {
    move_models(app, which, Move::Release).await
}

/// Loads models onto a GPU before a request needs them; onto the CPU where there is no GPU.
#[utoipa::path(
    post, path = "",
    request_body = PreheatRequest,
    responses((status = 200, description = "Where the models are now", body = MovedReport))
)]
pub(crate) async fn preheat(
    State(app): State<App>,
    Fields(PreheatRequest { model, priority }): Fields<PreheatRequest>,
) -> Result<Response, Problem> {
    let how = Move::Preheat(priority.map_or(Ok(Priority::Normal), |word| word.parse())?);
    move_models(app, MoveRequest { model }, how).await
}

async fn move_models(app: App, which: MoveRequest, how: Move) -> Result<Response, Problem> {
    Ok(axum::Json(moved(&app, which.model.as_deref(), how).await?).into_response())
}

pub(crate) async fn moved(app: &App, model: Option<&str>, how: Move) -> Result<MovedReport, Problem> {
    let (own, indices) = (app.clone(), chosen(app, model)?);
    let permit = app.begin_move().ok_or_else(too_many)?;
    let moving = async move {
        let _permit = permit;
        let mut models = Vec::with_capacity(indices.len());
        for index in indices {
            let moved = own.engine().move_model(index, how, MOVE_MAX).await?;
            models.push(MovedModel::of(&own.models().get(index).name, &moved));
        }
        Ok::<_, Problem>(MovedReport { models })
    };
    // A task of its own: all models are moved also where the caller has left.
    let failed = |_| Err(Problem::new(Kind::Internal, "moving the models failed"));
    tokio::spawn(moving.in_current_span()).await.unwrap_or_else(failed)
}

impl MovedModel {
    fn of(name: &str, moved: &Moved) -> Self {
        let residency = moved.residency.iter().map(|(device, place)| DeviceResidency::of(*device, *place)).collect();
        Self { name: name.to_owned(), took_s: moved.took.as_secs_f64(), residency }
    }
}

/// The priority in force.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct PriorityReport {
    models: Vec<String>,
    /// `high`, `normal` or `low`.
    priority: String,
}

/// Changes how much models count when they compete for the memory of a GPU.
#[utoipa::path(
    post, path = "",
    request_body = PriorityRequest,
    responses((status = 200, description = "It is changed", body = PriorityReport))
)]
pub(crate) async fn priority(
    State(app): State<App>,
    Fields(request): Fields<PriorityRequest>,
) -> Result<Response, Problem> {
    Ok(axum::Json(set_priority(&app, request.model.as_deref(), &request.priority)?).into_response())
}

pub(crate) fn set_priority(app: &App, model: Option<&str>, word: &str) -> Result<PriorityReport, Problem> {
    let (priority, indices) = (word.parse::<Priority>()?, chosen(app, model)?);
    for index in &indices {
        app.engine().set_priority(*index, priority)?;
    }
    Ok(PriorityReport { models: names(app, &indices), priority: priority.code().to_owned() })
}

fn names(app: &App, indices: &[usize]) -> Vec<String> {
    indices.iter().map(|index| app.models().get(*index).name.clone()).collect()
}

/// What is pinned now.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct PinReport {
    models: Vec<String>,
    pinned: bool,
}

/// Changes whether models stay on their GPU, whatever needs its memory and however long they are idle.
#[utoipa::path(
    post, path = "",
    request_body = PinRequest,
    responses((status = 200, description = "It is changed", body = PinReport))
)]
pub(crate) async fn pin(State(app): State<App>, Fields(request): Fields<PinRequest>) -> Result<Response, Problem> {
    let pinned = request.pinned.read().map_err(|wrong| Problem::invalid("pinned", wrong))?;
    let indices = chosen(&app, request.model.as_deref())?;
    for index in &indices {
        app.engine().set_pinned(*index, pinned)?;
    }
    Ok(axum::Json(PinReport { models: names(&app, &indices), pinned }).into_response())
}

/// The timeout in force.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct TimeoutReport {
    models: Vec<String>,
    /// Null: never.
    timeout: Option<f64>,
}

/// Changes how long models stay on a GPU without being used.
#[utoipa::path(
    post, path = "",
    request_body = TimeoutRequest,
    responses((status = 200, description = "It is changed", body = TimeoutReport))
)]
pub(crate) async fn timeout(
    State(app): State<App>,
    Fields(request): Fields<TimeoutRequest>,
) -> Result<Response, Problem> {
    Ok(axum::Json(set_timeout(&app, request.model.as_deref(), &request.timeout)?).into_response())
}

pub(crate) fn set_timeout(app: &App, model: Option<&str>, timeout: &Timeout) -> Result<TimeoutReport, Problem> {
    let timeout = timeout.read().map_err(|wrong| Problem::invalid("timeout", wrong))?;
    let indices = chosen(app, model)?;
    for index in &indices {
        app.engine().set_idle_timeout(*index, timeout)?;
        app.engine().set_offload_after_use(*index, timeout == Some(Duration::ZERO))?;
    }
    Ok(TimeoutReport { models: names(app, &indices), timeout: timeout.map(|timeout| timeout.as_secs_f64()) })
}

/// Frees what the memory pools of the GPUs hold and do not use. Models stay.
#[utoipa::path(post, path = "", responses((status = 200, description = "What came back", body = Cleared)))]
pub(crate) async fn clear_cache(State(app): State<App>) -> Result<Response, Problem> {
    Ok(axum::Json(cleared(&app).await?).into_response())
}

pub(crate) async fn cleared(app: &App) -> Result<Cleared, Problem> {
    change_models(app, |app| Ok(Cleared::by(app.engine()))).await
}

fn chosen(app: &App, name: Option<&str>) -> Result<Vec<usize>, Problem> {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => Ok(vec![app.models().named(name)?]),
        None => Ok(app.models().iter().map(|(number, _)| number).collect()),
    }
}
