//! Anthropic's API: messages that a language model answers, and how many tokens they have.
//! Takes what their clients send, ignores what has no meaning here, and refuses what would change the answer.

mod reading;
mod writing;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};

use self::{reading::read_messages, writing::MessageWriter};
use crate::server::{
    app::App, body::Body, errors::Problem, requests::anthropic::MessagesRequest, scope::RequestScope,
    streaming::respond, writing::Json,
};

/// Answers a conversation. With `stream` the answer comes as events, each a part of it.
#[utoipa::path(
    post, path = "",
    request_body = MessagesRequest,
    responses(
        (status = 200, description = "The answer, or events with its parts", content(
            (doc::Message = "application/json"), (String = "text/event-stream")
        )),
    )
)]
pub(crate) async fn messages(
    State(app): State<App>,
    Extension(scope): Extension<RequestScope>,
    body: Body,
) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let mut request: MessagesRequest = body.json()?;
        let (is_streamed, wanted) = (request.stream.unwrap_or(false), request.magray_collection.take());
        Ok((app.read_chat(read_messages(app, request)?, wanted)?, is_streamed))
    };
    let (asking, is_streamed) = body.read(&app, read).await?;
    let read = app.with_passages(asking, body.len()).await?;
    drop(body);
    respond(&app, &scope, read, is_streamed, |generating| MessageWriter::new(&app, generating)).await
}

/// Counts the tokens of a conversation.
#[utoipa::path(
    post, path = "",
    request_body = MessagesRequest,
    responses((status = 200, description = "How many tokens it has", body = doc::TokenCount))
)]
pub(crate) async fn count_tokens(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: MessagesRequest = body.json()?;
        Ok(app.read_jobs(vec![read_messages(app, request)?])?.prompt_tokens())
    };
    let tokens = body.read(&app, read).await?;
    let mut json = Json::default();
    json.raw(r#"{"input_tokens":"#).whole(tokens).raw("}");
    Ok(json.into_response())
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    #[schema(as = MessagesAnswer)]
    pub(super) struct Message {
        id: String,
        /// `message`.
        r#type: String,
        /// `assistant`.
        role: String,
        model: String,
        /// Blocks of the types `thinking`, `text` and `tool_use`.
        #[schema(value_type = Vec<Object>)]
        content: Vec<serde_json::Value>,
        /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
        stop_reason: String,
        stop_sequence: Option<String>,
        usage: Usage,
        /// Where it was answered from a collection: the passages, by the numbers that cite them.
        #[schema(value_type = Option<Vec<Object>>, nullable = false)]
        magray_citations: Option<Vec<serde_json::Value>>,
    }

    #[derive(ToSchema)]
    #[schema(as = MessagesUsage)]
    struct Usage {
        input_tokens: usize,
        output_tokens: usize,
        cache_creation_input_tokens: usize,
        cache_read_input_tokens: usize,
    }

    #[derive(ToSchema)]
    #[schema(as = MessagesTokenCount)]
    pub(super) struct TokenCount {
        input_tokens: usize,
    }
}
