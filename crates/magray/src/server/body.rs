//! Reads a request's body once, into one piece, within its limits of bytes and time.
//! Never holds more than `admission` allows, and copies nothing that arrived in one piece.

use std::{sync::Arc, time::Duration};

use axum::{
    body::HttpBody,
    extract::{FromRequest, Request},
};
use bytes::{Bytes, BytesMut};
use http::header;
use http_body_util::BodyExt;
use serde::Deserialize;

use super::{
    admission::HeldBytes,
    app::App,
    errors::{Kind, Problem},
    keys::Access,
    requests, reservation,
    scope::RequestScope,
};

/// A body that was read. It counts as held until its last clone is dropped.
#[derive(Clone)]
pub(crate) struct Body(Arc<Read>);

struct Read {
    bytes: Bytes,
    _held: HeldBytes,
}

impl Body {
    pub(crate) fn len(&self) -> usize {
        self.0.bytes.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// The bytes to keep; nothing is copied.
    pub(crate) fn shared(&self) -> Bytes {
        self.0.bytes.clone()
    }

    /// The body as JSON; its texts may borrow from the body.
    pub(crate) fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        Ok(requests::read(&self.0.bytes)?)
    }

    /// Reads its texts: on this thread if it is short, else on the engine's threads for that.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        app: &App,
        read: impl FnOnce(&App, &Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let body = self.clone();
        app.read(self.len(), move |app| read(app, &body)).await
    }
}

impl FromRequest<App> for Body {
    type Rejection = Problem;

    /// Where the request takes a place in the queue, room is reserved as soon as the body is there, and not before: a
    /// client that only announces a body takes nothing from others.
    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let limits = app.limits();
        let most = limits.body_bytes_max as u64;
        let scope = request.extensions().get::<RequestScope>().filter(|scope| scope.access == Access::Compute);
        let asker = scope.map(|scope| scope.record.asker());
        let (parts, mut body) = request.into_parts();
        let announced = body.size_hint().exact();
        let entered = match announced {
            Some(bytes) if bytes > most => Err(too_large(most)),
            _ => app.admission().enter(),
        };
        let read = match entered {
            Ok(mut held) => {
                let reading = tokio::time::timeout(limits.body_within, read(&mut body, announced, most, &mut held));
                let Ok(read) = reading.await else {
                    return Err(Problem::new(Kind::TooSlow, "the body of the request did not arrive in time"));
                };
                read.map(|bytes| Self(Arc::new(Read { bytes, _held: held })))
            }
            Err(problem) => Err(problem),
        };
        match read {
            Ok(body) => {
                if let Some(asker) = asker {
                    reservation::keep_queue(app.reserve_queue(body.len() as u64, asker)?);
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

async fn read(
    body: &mut axum::body::Body,
    announced: Option<u64>,
    most: u64,
    held: &mut HeldBytes,
) -> Result<Bytes, Problem> {
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let broken = |error| Problem::new(Kind::Malformed, format!("the body of the request broke off: {error}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        let so_far = (first.len() + whole.len() + data.len()) as u64;
        if so_far > most {
            return Err(too_large(most));
        }
        held.grow(data.len() as u64)?;
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            // The system backs reserved memory only as it is written.
            whole.reserve(announced.unwrap_or(so_far * 2).min(most) as usize);
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

/// Reads and drops the body of a refused request, up to a bound: a client that is still sending when its connection is
/// closed does not see why it was refused. A client that waits for `100 Continue` gets none.
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
    let _ = tokio::time::timeout(WITHIN, reading).await;
}

fn too_large(most: u64) -> Problem {
    Problem::new(Kind::TooLarge, format!("the body of the request is larger than {most} bytes: send fewer texts"))
}
