//! OpenAI's responses: text and calls of functions, whole or as events.
//! Keeps no answer: a request that refers to an earlier one is refused.

mod reading;
mod writing;

use axum::{Extension, extract::State, response::Response};

use self::{
    reading::{Asked, read_response},
    writing::ResponseWriter,
};
use crate::server::{
    app::App, body::Body, errors::Problem, requests::responses::ResponsesRequest, scope::RequestScope,
    streaming::respond,
};

/// Answers an input. With `stream` the answer comes as events, each a part of it.
#[utoipa::path(
    post, path = "",
    request_body = ResponsesRequest,
    responses(
        (status = 200, description = "The answer, or events with its parts", content(
            (doc::Response = "application/json"), (String = "text/event-stream")
        )),
    )
)]
pub(crate) async fn responses(
    State(app): State<App>,
    Extension(scope): Extension<RequestScope>,
    body: Body,
) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let mut request: ResponsesRequest = body.json()?;
        let wanted = request.magray_collection.take();
        let (is_streamed, asked) = (request.stream.unwrap_or(false), Asked::of(&request, body)?);
        Ok((app.read_chat(read_response(app, request)?, wanted)?, is_streamed, asked))
    };
    let (asking, is_streamed, asked) = body.read(&app, read).await?;
    let read = app.with_passages(asking, body.len()).await?;
    drop(body);
    respond(&app, &scope, read, is_streamed, |generating| ResponseWriter::new(&app, generating, asked)).await
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use serde_json::Value;
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    #[schema(as = ResponsesAnswer)]
    pub(super) struct Response {
        id: String,
        /// `response`.
        object: String,
        /// Seconds since 1970.
        created_at: u64,
        /// `completed`, or `incomplete` where it has as many tokens as it may.
        status: String,
        model: String,
        /// Items of the types `reasoning`, `message` and `function_call`.
        #[schema(value_type = Vec<Object>)]
        output: Vec<Value>,
        usage: Usage,
        /// Where it was answered from a collection: the passages, by the numbers that cite them.
        #[schema(value_type = Option<Vec<Object>>, nullable = false)]
        magray_citations: Option<Vec<Value>>,
    }

    #[derive(ToSchema)]
    #[schema(as = ResponsesUsage)]
    struct Usage {
        input_tokens: usize,
        output_tokens: usize,
        total_tokens: usize,
    }
}
