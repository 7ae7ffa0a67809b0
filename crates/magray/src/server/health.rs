//! Proves by a real pass through the device in use that a request can be computed.
//! Runs one proof at a time, and none where the engine knows the answer.

use std::time::Duration;

use magray_engine::engine::{Engine, EngineError};
use serde::Serialize;

use super::errors::{Kind, Problem};

/// A proof that takes longer has failed.
const PROOF_MAX: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct HealthCheck {
    running: tokio::sync::Mutex<()>,
}

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

impl HealthCheck {
    pub(crate) async fn run(&self, engine: &Engine) -> Result<Healthy, Problem> {
        let proof = async {
            // Callers that come meanwhile wait for this proof and find its result.
            let _running = self.running.lock().await;
            engine.health().await
        };
        let late = Err(EngineError::NotYet { within: PROOF_MAX });
        let health = tokio::time::timeout(PROOF_MAX, proof).await.unwrap_or(late);
        let failed = |error| Problem::new(Kind::Unavailable, format!("no device computes: {error}"));
        let health = health.map_err(failed)?;
        Ok(Healthy { status: "ok", device: health.device.to_string(), last_pass_s: health.since.as_secs_f64() })
    }
}
