//! Faults on purpose, for the page of a demonstration: only its server has this route.
//! Breaks simulated devices alone: on real ones nothing is injected.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use magray_engine::{engine::InjectError, testing::FaultOnDemand};
use serde::{Deserialize, Serialize};

use crate::server::{
    app::App,
    errors::{Kind, Problem},
    fields::Fields,
};

/// A fault of a simulated device.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct FaultRequest {
    /// A simulated device, such as `sim:0`.
    device: String,
    /// `kill` (its worker is killed), `hang` (its next batch never ends), `oom` (its memory is full at the next batch), `wrong` (the answers
    /// of its next batch are wrong) or `gpu_fault` (its next batch writes to an unmapped address).
    fault: String,
}

/// A fault that was injected.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Injected {
    device: String,
    fault: &'static str,
}

/// Breaks a simulated device: its worker is killed at once, the other faults come with its next batch.
#[utoipa::path(
    post, path = "",
    request_body = FaultRequest,
    responses((status = 200, description = "It happens", body = Injected))
)]
pub(crate) async fn inject(
    State(app): State<App>,
    Fields(FaultRequest { device, fault }): Fields<FaultRequest>,
) -> Result<Response, Problem> {
    let fault = fault.parse::<FaultOnDemand>().map_err(|error| Problem::invalid("fault", error.to_string()))?;
    app.engine().inject(&device, fault).map_err(|error| match error {
        InjectError::NoDevice { .. } => Problem::invalid("device", error.to_string()),
        InjectError::NoWorker(_) => Problem::new(Kind::Unavailable, error.to_string()),
    })?;
    Ok(axum::Json(Injected { device, fault: fault.code() }).into_response())
}
