//! Large answers count as held until their clients have taken them, and have a deadline for that.
//! Small answers are not counted; nothing is copied.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;

use super::{
    admission::HeldBytes,
    app::App,
    connections::{Connection, PendingAnswer},
    errors::{Kind, Problem},
};

const LARGE_BYTES: u64 = 16 << 10;
/// An answer must be taken as fast as this, after the time that every answer has.
const BYTES_PER_S_MIN: u64 = 128 << 10;

/// Counts a large answer until it is taken. `reserved` is what was held for it before it was computed.
pub(super) async fn hold_until_taken(
    response: Response,
    app: &App,
    connection: &Arc<Connection>,
    reserved: Option<HeldBytes>,
) -> Response {
    let Some(bytes) = response.body().size_hint().exact().filter(|bytes| *bytes > LARGE_BYTES) else {
        return response;
    };
    let mut held = reserved.unwrap_or_else(|| app.admission().hold_anyway(0));
    held.resize(bytes);
    let (parts, body) = response.into_parts();
    // It is in one piece: nothing is waited for or copied.
    match body.collect().await {
        Ok(whole) => Response::from_parts(parts, Body::from(held_bytes(whole.to_bytes(), app, connection, held))),
        Err(_) => Problem::new(Kind::Internal, "the answer could not be written").into_response(),
    }
}

/// Bytes of an answer that count until they are taken, and have to be within their time.
pub(super) fn held_bytes(bytes: Bytes, app: &App, connection: &Arc<Connection>, held: HeldBytes) -> Bytes {
    let within = app.limits().body_within + Duration::from_secs(bytes.len() as u64 / BYTES_PER_S_MIN);
    Bytes::from_owner(HeldAnswer { bytes, _held: held, _pending: connection.begin_answer(within) })
}

struct HeldAnswer {
    bytes: Bytes,
    _held: HeldBytes,
    _pending: PendingAnswer,
}

impl AsRef<[u8]> for HeldAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
