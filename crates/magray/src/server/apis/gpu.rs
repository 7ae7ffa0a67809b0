//! Where the models are and how they come and go: status, offload, release, preheat, timeout.
//! No request fails because a model moves; those who ask for a move wait until it is done, a few at a time.

use std::time::Duration;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use magray_engine::engine::{Move, Moved};
use rmcp::schemars::JsonSchema;
use serde::Serialize;
use tracing::Instrument;

use crate::{
    control::{DeviceReport, EngineReport, Whereabouts},
    server::{
        app::App,
        errors::{Kind, Problem},
        fields::Fields,
        requests::gpu::{MoveRequest, Timeout, TimeoutRequest},
    },
};

/// A move is waited for this long; it goes on after it.
const MOVE_MAX: Duration = Duration::from_secs(30);

/// Tells where the models are, what they hold, and how the devices are.
#[utoipa::path(
    get, path = "",
    responses((status = 200, description = "The engine at this moment", body = EngineReport))
)]
pub(crate) async fn status(State(app): State<App>) -> Response {
    axum::Json(app.report()).into_response()
}

/// Tells how the devices are; the CPU is the first.
#[utoipa::path(get, path = "", responses((status = 200, description = "The devices", body = Vec<DeviceReport>)))]
pub(crate) async fn devices(State(app): State<App>) -> Response {
    axum::Json(app.report().devices).into_response()
}

/// What came of it.
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
    residency: Vec<Whereabouts>,
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

/// Brings models to a GPU before anybody asks; to the CPU where there is no GPU.
#[utoipa::path(
    post, path = "",
    request_body = MoveRequest,
    responses((status = 200, description = "Where the models are now", body = MovedReport))
)]
pub(crate) async fn preheat(State(app): State<App>, Fields(which): Fields<MoveRequest>) -> Result<Response, Problem> {
    move_models(app, which, Move::Preheat).await
}

async fn move_models(app: App, which: MoveRequest, how: Move) -> Result<Response, Problem> {
    Ok(axum::Json(moved(&app, which.model.as_deref(), how).await?).into_response())
}

/// Moves the model of this name, or all, and waits until that is done.
pub(crate) async fn moved(app: &App, model: Option<&str>, how: Move) -> Result<MovedReport, Problem> {
    let (own, places) = (app.clone(), chosen(app, model)?);
    let moving = async move {
        let mut models = Vec::with_capacity(places.len());
        for place in places {
            let moved = own.engine().move_model(place, how, MOVE_MAX).await?;
            models.push(MovedModel::of(&own.models().get(place).name, &moved));
        }
        Ok::<_, Problem>(MovedReport { models })
    };
    // A task of its own: all models are moved also where nobody waits for it any more.
    let failed = |_| Err(Problem::new(Kind::Internal, "moving the models failed"));
    tokio::spawn(moving.in_current_span()).await.unwrap_or_else(failed)
}

impl MovedModel {
    fn of(name: &str, moved: &Moved) -> Self {
        let residency = moved.residency.iter().map(|(device, place)| Whereabouts::of(*device, *place)).collect();
        Self { name: name.to_owned(), took_s: moved.took.as_secs_f64(), residency }
    }
}

/// What holds now.
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

/// Changes how long the model of this name, or all, stay on a GPU without being used.
pub(crate) fn set_timeout(app: &App, model: Option<&str>, timeout: &Timeout) -> Result<TimeoutReport, Problem> {
    let timeout = timeout.read().map_err(|wrong| Problem::invalid("timeout", wrong))?;
    let places = chosen(app, model)?;
    for place in &places {
        app.engine().set_idle_timeout(*place, timeout)?;
        app.engine().set_offload_after_use(*place, timeout == Some(Duration::ZERO))?;
    }
    let models = places.iter().map(|place| app.models().get(*place).name.clone()).collect();
    Ok(TimeoutReport { models, timeout: timeout.map(|timeout| timeout.as_secs_f64()) })
}

/// The places of the models that are meant.
fn chosen(app: &App, name: Option<&str>) -> Result<Vec<usize>, Problem> {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => Ok(vec![app.models().named(name)?]),
        None => Ok((0..app.models().iter().len()).collect()),
    }
}
