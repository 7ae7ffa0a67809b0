//! Qdrant's API: collections, points and queries, with texts that the server embeds.
//! Holds no points itself; the crate magray-index does.

pub(crate) mod collections;
pub(crate) mod matrix;
pub(crate) mod points;
pub(crate) mod queries;
pub(crate) mod snapshots;

use std::time::Instant;

use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::server::{parameters::Names, writing::Json};

/// An answer: what was asked for, that it went well, and how long it took.
#[derive(utoipa::ToSchema)]
#[schema(as = QdrantAnswer)]
#[expect(dead_code, reason = "only its description is used")]
pub(crate) struct Answer {
    result: serde_json::Value,
    /// `ok`.
    status: String,
    /// Seconds.
    time: f64,
}

/// The version of Qdrant whose API this is. Clients compare it with their own, and are content with one above or below.
const VERSION: &str = "1.19.0";

/// What the server is, for clients that ask at `/`.
pub(super) fn version() -> Response {
    let own = concat!("magray ", env!("CARGO_PKG_VERSION"));
    axum::Json(serde_json::json!({ "title": own, "version": VERSION })).into_response()
}

/// The time that an answer took, written with it.
#[derive(Clone, Copy)]
struct Timed(Instant);

impl Timed {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn answer(self, result: &impl Serialize) -> Response {
        let mut json = Json::default();
        json.raw(r#"{"result":"#).value(result);
        json.raw(r#","status":"ok","time":"#).number(self.0.elapsed().as_secs_f32()).raw("}");
        json.into_response()
    }
}
