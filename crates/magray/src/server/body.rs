//! Reads a request's body: once, into one piece, within its limits of bytes and time.
//! Never holds more than the server has room for, and copies nothing that came in one piece.

use std::time::Duration;

use axum::{
    body::HttpBody,
    extract::{FromRequest, Request},
};
use bytes::{Bytes, BytesMut};
use http::header;
use http_body_util::BodyExt;
use serde::Deserialize;

use super::{
    admission::Place,
    errors::{Kind, Problem},
    gate, requests, reservation,
    state::App,
};

/// A body that was read. It holds its place among the server's work until it is dropped.
pub(crate) struct Body {
    bytes: Bytes,
    _place: Place,
}

impl Body {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes for somebody who keeps them; nothing is copied.
    pub(crate) fn shared(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The body as JSON of this form; its texts may point into the body.
    pub(crate) fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        Ok(requests::read(&self.bytes)?)
    }
}

impl FromRequest<App> for Body {
    type Rejection = Problem;

    /// Reads it. Where it is to be computed, the queue's room is kept for it as soon as it is there: what is only promised
    /// takes nothing from those who are here.
    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let limits = app.live().limits;
        let most = limits.body_bytes_max as u64;
        let is_work = gate::is_work(&request);
        let (parts, mut body) = request.into_parts();
        let told = body.size_hint().exact();
        let entered = match told {
            Some(bytes) if bytes > most => Err(too_large(most)),
            _ => app.admission().enter(),
        };
        let read = match entered {
            Ok(mut place) => {
                let reading = tokio::time::timeout(limits.body_within, read(&mut body, told, most, &mut place));
                let Ok(read) = reading.await else {
                    return Err(Problem::new(Kind::TooSlow, "the body of the request did not arrive in time"));
                };
                read.map(|bytes| Self { bytes, _place: place })
            }
            Err(problem) => Err(problem),
        };
        match read {
            Ok(body) => {
                if is_work {
                    reservation::keep_coming(app.promise_room(body.len() as u64)?);
                }
                Ok(body)
            }
            Err(problem) => {
                discard(Request::from_parts(parts, body)).await;
                Err(problem)
            }
        }
    }
}

async fn read(body: &mut axum::body::Body, told: Option<u64>, most: u64, place: &mut Place) -> Result<Bytes, Problem> {
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let broken = |error| Problem::new(Kind::Malformed, format!("the body of the request broke off: {error}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        let so_far = (first.len() + whole.len() + data.len()) as u64;
        if so_far > most {
            return Err(too_large(most));
        }
        place.grow(data.len() as u64)?;
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            // Memory that is asked for and not written to is not there yet.
            whole.reserve(told.unwrap_or(so_far * 2).min(most) as usize);
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

/// Reads what is on its way of a body that nobody wants, up to a bound. A client that is still sending when the connection
/// is closed would not see why it was refused. One that waits to be asked for its body is not asked.
pub(crate) async fn discard<B: HttpBody<Data = Bytes> + Unpin>(request: http::Request<B>) {
    const BYTES_MAX: usize = 1 << 20;
    const WITHIN: Duration = Duration::from_millis(100);
    if request.headers().contains_key(header::EXPECT) {
        return;
    }
    let mut body = request.into_body();
    let reading = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > BYTES_MAX {
                break;
            }
        }
    };
    // What does not come in that time is not waited for.
    let _ = tokio::time::timeout(WITHIN, reading).await;
}

fn too_large(most: u64) -> Problem {
    Problem::new(Kind::TooLarge, format!("the body of the request is larger than {most} bytes: send fewer texts"))
}
