//! Reads a request's body once, into one piece, within its limits of bytes and time.
//! Never holds more than `admission` allows, and copies nothing that arrived in one piece.

use std::{
    hash::{DefaultHasher, Hasher},
    sync::Arc,
    time::Duration,
};

use axum::{
    body::HttpBody,
    extract::{FromRequest, Request},
};
use bytes::{Bytes, BytesMut};
use http::header;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_path_to_error::Segment;

use super::{
    admission::HeldBytes,
    app::App,
    codings::Coding,
    errors::{Kind, Problem},
    keys::Access,
    requests, reservation,
    scope::RequestScope,
};

/// A longer body is known by its length alone.
const MARKED_BYTES_MAX: u64 = 1 << 16;

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
        requests::read(self.bytes()).map_err(|error| self.wrong::<T>(error))
    }

    /// Why it is no request of this type. The field at fault is found by reading it again, which only wrong requests pay for.
    fn wrong<'a, T: Deserialize<'a>>(&'a self, error: serde_json::Error) -> Problem {
        let mut json = serde_json::Deserializer::from_slice(self.bytes());
        let field = match serde_path_to_error::deserialize::<_, T>(&mut json) {
            Err(found) if error.is_data() => field_of(&found),
            _ => None,
        };
        let problem = Problem::from(error);
        match field {
            Some(field) => problem.about(field),
            None => problem,
        }
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
        let entered = match (announced, Coding::of(&parts.headers)) {
            (Some(bytes), _) if bytes > most => Err(too_large(most)),
            (_, coding) => coding.and_then(|coding| Ok((app.admission().enter()?, coding))),
        };
        let read = match entered {
            Ok((mut held, coding)) => {
                let reading = tokio::time::timeout(limits.body_within, read(&mut body, announced, most, &mut held));
                let Ok(read) = reading.await else { return Err(too_slow()) };
                match (read, coding) {
                    (Ok(packed), Some(coding)) => unpack(app, coding, packed, held).await,
                    (read, _) => read.map(|bytes| Self(Arc::new(Read { bytes, _held: held }))),
                }
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

/// Unpacks a body that has arrived, within the same limits; not on this thread if it is long.
async fn unpack(app: &App, coding: Coding, packed: Bytes, of_packed: HeldBytes) -> Result<Body, Problem> {
    // The unpacked bytes count for themselves, beside the packed ones.
    let mut held = app.admission().enter()?;
    let (most, bytes) = (app.limits().body_bytes_max as u64, packed.len());
    let unpack = move |_: &App| {
        let unpacked = coding.unpack(&packed, most, &mut held)?;
        drop(of_packed);
        Ok(Body(Arc::new(Read { bytes: unpacked, _held: held })))
    };
    app.read(bytes, unpack).await
}

/// What tells a request that may be refused from others, and is the same when it comes again: its body, or the length of a long one.
/// `None` where neither is known. What is read of it stays in the request.
pub(crate) async fn mark(app: &App, request: &mut Request) -> Result<Option<u64>, Problem> {
    let Some(bytes) = request.body().size_hint().exact() else { return Ok(None) };
    if bytes > MARKED_BYTES_MAX || request.headers().contains_key(header::EXPECT) {
        return Ok(Some(bytes));
    }
    let mut held = app.admission().enter()?;
    let mut body = std::mem::take(request.body_mut());
    let reading = tokio::time::timeout(app.limits().body_within, read(&mut body, Some(bytes), bytes, &mut held));
    let read = match reading.await.unwrap_or_else(|_| Err(too_slow())) {
        Ok(read) => read,
        Err(problem) => {
            // The rest is read as that of any refused request is.
            *request.body_mut() = body;
            return Err(problem);
        }
    };
    let mut hasher = DefaultHasher::new();
    hasher.write(&read);
    *request.body_mut() = read.into();
    Ok(Some(hasher.finish()))
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

/// The field of the request that an error is about: the one it was found in, or the one it misses.
fn field_of(error: &serde_path_to_error::Error<serde_json::Error>) -> Option<String> {
    match error.path().iter().next() {
        Some(Segment::Map { key }) => Some(key.clone()),
        Some(_) => None,
        None => {
            let message = error.inner().to_string();
            let (name, _) = message.strip_prefix("missing field `")?.split_once('`')?;
            Some(name.to_owned())
        }
    }
}

fn too_slow() -> Problem {
    Problem::new(Kind::TooSlow, "the body of the request did not arrive in time")
}

fn too_large(most: u64) -> Problem {
    Problem::new(Kind::TooLarge, format!("the body of the request is larger than {most} bytes: send fewer texts"))
}
