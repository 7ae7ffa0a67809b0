//! An answer that is sent as it is generated: each token leaves as soon as it is there.
//! Reads no faster than its client: a slow one pauses its own answer, and one that leaves ends it.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as HttpBody, Frame};

use super::{
    app::App,
    errors::Problem,
    generating::{Generating, ReadJobs},
    scope::RequestScope,
    writing::Json,
};
use crate::generation::{AnswerEnd, AnswerEvent, AnswerToken, WholeAnswer};

/// How an API writes what comes.
pub(crate) trait AnswerWriter: Send + Unpin + 'static {
    /// The type of its stream.
    const CONTENT_TYPE: &str;

    /// Before the first token.
    fn begin(&mut self, out: &mut Json);
    fn token(&mut self, answer: usize, token: AnswerToken, out: &mut Json);
    fn end(&mut self, answer: usize, end: AnswerEnd, out: &mut Json);
    /// After the end of all answers.
    fn finish(&mut self, out: &mut Json);
    /// In place of the rest.
    fn fail(&mut self, problem: &Problem, out: &mut Json);
    /// All answers at once, for clients that want no stream.
    fn whole(self, answers: &[WholeAnswer]) -> Json;
}

/// Events of a page's `EventSource`.
pub(crate) const EVENTS: &str = "text/event-stream";
/// Lines of JSON.
pub(crate) const LINES: &str = "application/x-ndjson";

/// A frame has about this many bytes at most: tokens that wait leave together.
const FRAME_BYTES: usize = 16 << 10;

/// Answers jobs in the words of an API: as the tokens come, or whole.
pub(crate) async fn respond<W: AnswerWriter>(
    app: &App,
    scope: &RequestScope,
    jobs: ReadJobs,
    is_streamed: bool,
    writer: impl FnOnce(&Generating) -> W,
) -> Result<Response, Problem> {
    let mut generating = app.generate(jobs).await?;
    let writer = writer(&generating);
    if is_streamed {
        return Ok(stream(generating, scope, writer));
    }
    let answers = generating.collect().await?;
    Ok(generating.with_headers(&answers, writer.whole(&answers)))
}

/// Sends an answer as it comes.
fn stream<W: AnswerWriter>(mut generating: Generating, scope: &RequestScope, writer: W) -> Response {
    generating.keep(scope.connection.begin_request());
    let body = Streamed { generating, writer, stage: Stage::Begins, frame_bytes: 0 };
    let mut response = Body::new(UnsyncBoxBody::new(body)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(W::CONTENT_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that gather answers are asked not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Streamed<W> {
    generating: Generating,
    writer: W,
    stage: Stage,
    /// The most that a frame had so far: the next will have about as much.
    frame_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begins,
    GoesOn,
    IsOver,
}

impl<W: AnswerWriter> HttpBody for Streamed<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self { generating, writer, stage, frame_bytes } = &mut *self;
        let mut out = Json::default();
        if *stage == Stage::Begins {
            writer.begin(&mut out);
            *stage = Stage::GoesOn;
        }
        while *stage == Stage::GoesOn && out.len() < FRAME_BYTES {
            let Poll::Ready(next) = generating.poll_next(context) else { break };
            if out.len() == 0 {
                out.reserve(*frame_bytes);
            }
            match next {
                Some(Ok((answer, AnswerEvent::Token(token)))) => writer.token(answer, token, &mut out),
                Some(Ok((answer, AnswerEvent::End(end)))) => writer.end(answer, end, &mut out),
                Some(Err(problem)) => {
                    tracing::warn!(target: "magray::server", error = problem.message, "a stream broke off");
                    writer.fail(&problem, &mut out);
                    *stage = Stage::IsOver;
                }
                None => {
                    writer.finish(&mut out);
                    *stage = Stage::IsOver;
                }
            }
        }
        *frame_bytes = out.len().max(*frame_bytes);
        match (out.len(), *stage) {
            (0, Stage::IsOver) => Poll::Ready(None),
            (0, _) => Poll::Pending,
            _ => Poll::Ready(Some(Ok(Frame::data(out.into_bytes())))),
        }
    }
}
