//! Answers that count for as long as they are in memory: their room, and the time that their clients have to take them.
//! Small answers are not counted; nothing is copied.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;

use super::{
    admission::Place,
    connections::{Connection, Delivery},
    errors::{Kind, Problem},
    state::App,
};

/// Smaller answers are not counted.
const LARGE_ANSWER: u64 = 16 << 10;
/// An answer must be taken as fast as this, after the time that every answer has.
const BYTES_PER_S_LEAST: u64 = 128 << 10;

/// What an answer is counted against.
pub(super) struct Held<'a> {
    pub(super) app: &'a App,
    /// The room that was taken for it before it was computed.
    pub(super) room: Option<Place>,
    /// The connection that it goes to.
    pub(super) connection: Arc<Connection>,
}

/// Lets a large answer count until it is taken.
pub(super) async fn counted(response: Response, held: Held<'_>) -> Response {
    let Some(bytes) = response.body().size_hint().exact().filter(|bytes| *bytes > LARGE_ANSWER) else {
        return response;
    };
    let mut room = held.room.unwrap_or_else(|| held.app.admission().hold_anyway(0));
    room.resize(bytes);
    let within = held.app.live().limits.body_within + Duration::from_secs(bytes / BYTES_PER_S_LEAST);
    let delivery = held.connection.give(within);
    let (parts, body) = response.into_parts();
    // It is in one piece: nothing is waited for or copied.
    match body.collect().await {
        Ok(whole) => {
            let counted = Counted { bytes: whole.to_bytes(), _room: room, _delivery: delivery };
            Response::from_parts(parts, Body::from(Bytes::from_owner(counted)))
        }
        Err(_) => Problem::new(Kind::Internal, "the answer could not be written").into_response(),
    }
}

/// An answer that takes room, and its client's time, for as long as it is in memory.
struct Counted {
    bytes: Bytes,
    _room: Place,
    _delivery: Delivery,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
