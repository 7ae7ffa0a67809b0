//! Ollama's chats and texts.
//! Takes what their clients send; options that choose devices or contexts have no effect here.

mod keeping;
mod reading;
mod writing;

use std::time::Instant;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use http::HeaderMap;

use self::{
    keeping::{Keeping, Resident},
    reading::{read_chat, read_generate},
    writing::{Field, LineWriter},
};
use crate::{
    generation::Job,
    server::{
        app::App,
        body::Body,
        errors::Problem,
        requests::{
            collection_field::CollectionField,
            ollama_chat::{ChatRequest, GenerateRequest},
        },
        scope::RequestScope,
        streaming::respond,
    },
};

/// Answers a conversation. Unless `stream` is false, the answer comes in lines of JSON, each a part of it.
#[utoipa::path(
    post, path = "",
    operation_id = "ollama_chat",
    request_body = ChatRequest,
    responses(
        (status = 200, description = "The answer, or lines with its parts", content(
            (doc::Chat = "application/json"), (String = "application/x-ndjson")
        )),
    )
)]
pub(crate) async fn chat(
    State(app): State<App>,
    Extension(scope): Extension<RequestScope>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let mut request: ChatRequest = body.json()?;
        let wanted = request.magray_collection.take();
        let how = How { is_streamed: request.how.stream.unwrap_or(true), field: Field::Message };
        let keeping = Keeping::of(app, request.model.as_deref(), request.how.keep_alive.as_ref())?;
        Ok((read_chat(app, request)?, wanted, how, keeping))
    };
    let (job, wanted, how, keeping) = body.read(&app, read).await?;
    answer(app, scope, &headers, Asked { body, job, wanted, how, keeping }).await
}

/// Goes on with a text. Unless `stream` is false, the answer comes in lines of JSON, each a part of it.
#[utoipa::path(
    post, path = "",
    operation_id = "ollama_generate",
    request_body = GenerateRequest,
    responses(
        (status = 200, description = "The answer, or lines with its parts", content(
            (doc::Generated = "application/json"), (String = "application/x-ndjson")
        )),
    )
)]
pub(crate) async fn generate(
    State(app): State<App>,
    Extension(scope): Extension<RequestScope>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: GenerateRequest = body.json()?;
        let how = How { is_streamed: request.how.stream.unwrap_or(true), field: Field::Response };
        let keeping = Keeping::of(app, request.model.as_deref(), request.how.keep_alive.as_ref())?;
        Ok((read_generate(app, request)?, how, keeping))
    };
    let (job, how, keeping) = body.read(&app, read).await?;
    answer(app, scope, &headers, Asked { body, job, wanted: None, how, keeping }).await
}

/// How an answer is written.
#[derive(Clone, Copy, Debug)]
struct How {
    is_streamed: bool,
    field: Field,
}

struct Asked {
    body: Body,
    /// `None`: there is nothing to answer.
    job: Option<Job>,
    wanted: Option<CollectionField>,
    how: How,
    keeping: Keeping,
}

async fn answer(app: App, scope: RequestScope, headers: &HeaderMap, asked: Asked) -> Result<Response, Problem> {
    let started = Instant::now();
    let Asked { body, job, wanted, how, keeping } = asked;
    let Some(job) = job else {
        let resident = keeping.move_model(&app, headers, &scope).await?;
        let reason = match resident {
            Resident::Loaded => "load",
            Resident::Unloaded => "unload",
        };
        return Ok(writing::without_answer(&app, keeping.model(), how.field, reason).into_response());
    };
    keeping.apply(&app, headers, &scope);
    let bytes = body.len();
    let asking = app.read(bytes, move |app| app.read_chat(job, wanted)).await?;
    let read = app.with_passages(asking, bytes).await?;
    drop(body);
    respond(&app, &scope, read, how.is_streamed, |generating| LineWriter::new(&app, generating, how.field, started))
        .await
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    #[schema(as = OllamaChatAnswer)]
    pub(super) struct Chat {
        model: String,
        created_at: String,
        message: Message,
        done: bool,
        /// `stop`, `length`, `load` or `unload`.
        #[schema(nullable = false)]
        done_reason: Option<String>,
        /// Nanoseconds, as all durations.
        #[schema(nullable = false)]
        total_duration: Option<u64>,
        #[schema(nullable = false)]
        load_duration: Option<u64>,
        #[schema(nullable = false)]
        prompt_eval_count: Option<usize>,
        #[schema(nullable = false)]
        prompt_eval_duration: Option<u64>,
        #[schema(nullable = false)]
        eval_count: Option<usize>,
        #[schema(nullable = false)]
        eval_duration: Option<u64>,
        /// At the end, where it was answered from a collection: the passages, by the numbers that cite them.
        #[schema(value_type = Option<Vec<Object>>, nullable = false)]
        magray_citations: Option<Vec<serde_json::Value>>,
    }

    #[derive(ToSchema)]
    #[schema(as = OllamaAnswerMessage)]
    struct Message {
        /// `assistant`.
        role: String,
        content: String,
        #[schema(nullable = false)]
        thinking: Option<String>,
        #[schema(value_type = Option<Vec<Object>>, nullable = false)]
        tool_calls: Option<Vec<serde_json::Value>>,
    }

    #[derive(ToSchema)]
    #[schema(as = OllamaGenerateAnswer)]
    pub(super) struct Generated {
        model: String,
        created_at: String,
        response: String,
        #[schema(nullable = false)]
        thinking: Option<String>,
        done: bool,
        /// `stop`, `length`, `load` or `unload`.
        #[schema(nullable = false)]
        done_reason: Option<String>,
        /// Nanoseconds, as all durations.
        #[schema(nullable = false)]
        total_duration: Option<u64>,
        #[schema(nullable = false)]
        load_duration: Option<u64>,
        #[schema(nullable = false)]
        prompt_eval_count: Option<usize>,
        #[schema(nullable = false)]
        prompt_eval_duration: Option<u64>,
        #[schema(nullable = false)]
        eval_count: Option<usize>,
        #[schema(nullable = false)]
        eval_duration: Option<u64>,
    }
}
