//! The server from moment to moment, as events of a page.
//! Makes an event once for all that look, and none while there are none.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as HttpBody, Frame};

use super::check_own_page;
use crate::{
    control::Snapshot,
    server::{
        app::App,
        connections::ActiveRequest,
        errors::{Kind, Problem},
        scope::RequestScope,
        streaming::EVENTS,
        viewers::Viewer,
    },
};

/// What dies is seen within a second.
const EVERY: Duration = Duration::from_millis(500);

/// Sends the server's state twice a second to a client that accepts `text/event-stream`; to another once.
#[utoipa::path(
    get, path = "",
    responses((
        status = 200, description = "Events named `state`, whose data is what `/ui/state` answers",
        body = String, content_type = "text/event-stream"
    ))
)]
pub(crate) async fn events(
    State(app): State<App>,
    Extension(scope): Extension<RequestScope>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    check_own_page(&headers)?;
    let now = event(&app.snapshot());
    let wants_more =
        headers.get(header::ACCEPT).is_some_and(|kinds| kinds.to_str().is_ok_and(|kinds| kinds.contains(EVENTS)));
    let mut response = if wants_more {
        let many = || Problem::busy(Kind::Busy, "too many pages are open", Duration::from_secs(5));
        let viewer = app.viewers().enter().ok_or_else(many)?;
        let (first, _active) = (Some(now), scope.connection.begin_request());
        Body::new(UnsyncBoxBody::new(Events { first, next: Box::pin(next(viewer)), _active })).into_response()
    } else {
        Body::from(now).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENTS));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that gather answers are asked not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Shows the state to all that look, until the server stops.
pub(crate) async fn feed(app: App) {
    let mut clock = tokio::time::interval(EVERY);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !app.is_draining() {
        tokio::select! {
            () = app.viewers().wait() => {
                clock.tick().await;
                app.viewers().show(event(&app.snapshot()));
            }
            // Also where none looks: one that comes while the server stops is not to wait.
            () = tokio::time::sleep(EVERY) => {}
        }
    }
    app.viewers().end();
}

fn event(snapshot: &Snapshot) -> Bytes {
    let mut event = BytesMut::from("event: state\ndata: ").writer();
    // It has no maps with keys that are no texts, and the writer does not fail.
    let _ = serde_json::to_writer(&mut event, snapshot);
    let mut event = event.into_inner();
    event.extend_from_slice(b"\n\n");
    event.freeze()
}

type Next = Pin<Box<dyn Future<Output = Option<(Viewer, Bytes)>> + Send>>;

struct Events {
    first: Option<Bytes>,
    next: Next,
    /// The connection is not idle meanwhile.
    _active: ActiveRequest,
}

async fn next(mut viewer: Viewer) -> Option<(Viewer, Bytes)> {
    let event = viewer.next().await?;
    Some((viewer, event))
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        self.next.as_mut().poll(context).map(|shown| {
            let (viewer, event) = shown?;
            self.next = Box::pin(next(viewer));
            Some(Ok(Frame::data(event)))
        })
    }
}
