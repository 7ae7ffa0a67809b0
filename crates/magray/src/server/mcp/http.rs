//! Carries the model context protocol through HTTP: one request, one answer, at `/mcp`.
//! Keeps no sessions, so that clients cannot pile them up; hosts, origins and keys are checked before.

use std::sync::Arc;

use ::http::{HeaderValue, StatusCode, header};
use axum::{
    Extension,
    extract::{FromRequest, Request, State},
    response::{IntoResponse, Response},
};
use http_body_util::Full;
use rmcp::{
    model::ServerJsonRpcMessage,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
    },
};

use super::{Tools, Transport, lines::read_message};
use crate::server::{
    app::App,
    body::Body,
    errors::{PlainError, Problem},
};

type Carrier = StreamableHttpService<Tools, NeverSessionManager>;

/// Answers in one piece, or as events where a caller is told of progress.
#[derive(Clone)]
pub(in crate::server) struct Service {
    whole: Carrier,
    events: Carrier,
}

/// Requests of agents are read into a tree of JSON, which takes many times their bytes.
const BODY_BYTES_MAX: usize = 4 << 20;

pub(in crate::server) fn service(app: &App) -> Service {
    let tools = Tools::new(app.clone(), Transport::Http);
    let carrier = |is_whole| {
        let tools = tools.clone();
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(is_whole)
            .with_max_request_body_bytes(BODY_BYTES_MAX)
            // Checked for every route alike.
            .disable_allowed_hosts()
            .disable_allowed_origins();
        StreamableHttpService::new(move || Ok(tools.clone()), Arc::default(), config)
    };
    Service { whole: carrier(true), events: carrier(false) }
}

/// Whether a message asks to be told of progress, as far as its text tells: a wrong guess costs another form of the answer.
fn wants_progress(message: &[u8]) -> bool {
    const FIELD: &[u8] = b"\"progressToken\"";
    message.windows(FIELD.len()).any(|part| part == FIELD)
}

/// Takes a message of the model context protocol: tools to embed, compare, rerank and control the GPUs. The tools that
/// change something need a key of an administrator where there is any key, and a caller on the same machine where there is none.
#[utoipa::path(
    post, path = "", operation_id = "mcp",
    request_body(content = serde_json::Value, description = "A message of JSON-RPC 2.0"),
    responses(
        (status = 200, description = "The answer, a message of JSON-RPC 2.0; as events where progress is asked for", content(
            (serde_json::Value = "application/json"), (String = "text/event-stream")
        )),
        (status = 202, description = "The notification was taken"),
        (status = 400, description = "No message of the protocol (the body says why, by JSON-RPC's codes), or of a version that is not known"),
        (status = 403, description = "A name of the server or an origin that may not ask"),
        (status = 406, description = "The client must accept application/json"),
        (status = 408, description = "The body came too slowly", body = PlainError),
        (status = 413, description = "It is too much for one request", body = PlainError),
        (status = 415, description = "The content must be application/json"),
        (status = 429, description = "There is too much to do, or the key asked too often", body = PlainError),
        (status = 503, description = "Not answered in time", body = PlainError),
    )
)]
pub(in crate::server) async fn call(
    State(app): State<App>,
    Extension(service): Extension<Service>,
    request: Request,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    // Read within the server's own limits of size, time and memory, and held until it is answered.
    let held = Body::from_request(Request::from_parts(parts.clone(), body), &app).await?;
    let is_json =
        parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    // Answers are JSON: a client that takes that need not take events as well.
    let accepts =
        parts.headers.get(header::ACCEPT).and_then(|kinds| kinds.to_str().ok()).unwrap_or_default().to_owned();
    if accepts.contains("application/json") || accepts.contains("*/*") {
        parts.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    }
    let carrier = match accepts.contains("text/event-stream") && wants_progress(held.bytes()) {
        true => &service.events,
        false => &service.whole,
    };
    let request = Request::from_parts(parts, Full::new(held.shared()));
    let answer = carrier.handle(request).await;
    // The library says so with a text, which no client of the protocol reads.
    let is_unread = matches!(answer.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::UNPROCESSABLE_ENTITY);
    if is_unread
        && is_json
        && let Err(error) = read_message(&held.shared())
    {
        let answer = axum::Json(ServerJsonRpcMessage::error(error, None));
        return Ok((StatusCode::BAD_REQUEST, answer).into_response());
    }
    Ok(answer.map(axum::body::Body::new))
}
