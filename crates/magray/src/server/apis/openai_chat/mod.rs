//! OpenAI's chats and completions: conversations and texts that a language model goes on with.
//! Takes what their clients send, ignores what has no meaning here, and refuses what would change the answer.

mod completion_writing;
mod logprobs;
mod reading;
mod writing;

pub(super) use self::reading::{choice_of, read_content};

use axum::{Extension, extract::State, response::Response};

use self::{
    completion_writing::CompletionWriter,
    reading::{read_chat, read_completion},
    writing::ChatWriter,
};
use crate::server::{
    app::App,
    body::Body,
    errors::Problem,
    requests::openai_chat::{ChatRequest, CompletionRequest},
    scope::RequestScope,
    streaming::respond,
};

/// Answers a conversation. With `stream` the answer comes as events, each a part of it.
#[utoipa::path(
    post, path = "",
    request_body = ChatRequest,
    responses(
        (status = 200, description = "The answer, or events with its parts", content(
            (doc::Chat = "application/json"), (String = "text/event-stream")
        )),
    )
)]
pub(crate) async fn chat(
    State(app): State<App>,
    Extension(scope): Extension<RequestScope>,
    body: Body,
) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let mut request: ChatRequest = body.json()?;
        let how = reading::How::of(&request.sampling);
        let told = writing::Told::of(&request);
        let wanted = request.magray_collection.take();
        let job = read_chat(app, request)?;
        Ok((app.read_chat(job, wanted)?, how, told))
    };
    let (asking, how, told) = body.read(&app, read).await?;
    let read = app.with_passages(asking, body.len()).await?;
    drop(body);
    respond(&app, &scope, read, how.is_streamed, |generating| ChatWriter::new(&app, generating, told, how.tells_usage))
        .await
}

/// Goes on with a text. With `stream` the answer comes as events, each a part of it.
#[utoipa::path(
    post, path = "",
    request_body = CompletionRequest<'_>,
    responses(
        (status = 200, description = "The answer, or events with its parts", content(
            (doc::Completion = "application/json"), (String = "text/event-stream")
        )),
    )
)]
pub(crate) async fn completions(
    State(app): State<App>,
    Extension(scope): Extension<RequestScope>,
    body: Body,
) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: CompletionRequest<'_> = body.json()?;
        let how = reading::How::of(&request.sampling);
        let (jobs, echoed) = read_completion(app, request)?;
        Ok((app.read_jobs(jobs)?, how, echoed))
    };
    let (read, how, echoed) = body.read(&app, read).await?;
    drop(body);
    respond(&app, &scope, read, how.is_streamed, |generating| {
        CompletionWriter::new(&app, generating, echoed, how.tells_usage)
    })
    .await
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    #[schema(as = ChatCompletion)]
    pub(super) struct Chat {
        id: String,
        /// `chat.completion`.
        object: String,
        /// Seconds since 1970.
        created: u64,
        model: String,
        choices: Vec<Choice>,
        usage: Usage,
        /// Where it was answered from a collection: the passages, by the numbers that cite them.
        #[schema(value_type = Option<Vec<Object>>, nullable = false)]
        magray_citations: Option<Vec<serde_json::Value>>,
    }

    #[derive(ToSchema)]
    #[schema(as = ChatChoice)]
    struct Choice {
        index: usize,
        message: Message,
        #[schema(value_type = Option<Object>)]
        logprobs: Option<serde_json::Value>,
        /// `stop`, `length` or `tool_calls`.
        finish_reason: String,
    }

    #[derive(ToSchema)]
    #[schema(as = ChatAnswer)]
    struct Message {
        /// `assistant`.
        role: String,
        /// Null where there are only calls.
        content: Option<String>,
        /// What the model thought, where it did.
        #[schema(nullable = false)]
        reasoning_content: Option<String>,
        #[schema(nullable = false)]
        tool_calls: Option<Vec<ToolCall>>,
        refusal: Option<String>,
    }

    #[derive(ToSchema)]
    #[schema(as = AnsweredToolCall)]
    struct ToolCall {
        id: String,
        /// `function`.
        r#type: String,
        function: Function,
    }

    #[derive(ToSchema)]
    #[schema(as = AnsweredFunction)]
    struct Function {
        name: String,
        /// JSON as a text.
        arguments: String,
    }

    #[derive(ToSchema)]
    #[schema(as = CompletionUsage)]
    struct Usage {
        prompt_tokens: usize,
        completion_tokens: usize,
        total_tokens: usize,
        completion_tokens_details: UsageDetails,
    }

    #[derive(ToSchema)]
    #[schema(as = CompletionUsageDetails)]
    struct UsageDetails {
        /// Those in which the model thought.
        reasoning_tokens: usize,
    }

    #[derive(ToSchema)]
    #[schema(as = TextCompletion)]
    pub(super) struct Completion {
        id: String,
        /// `text_completion`.
        object: String,
        /// Seconds since 1970.
        created: u64,
        model: String,
        choices: Vec<TextChoice>,
        usage: Usage,
    }

    #[derive(ToSchema)]
    #[schema(as = TextChoice)]
    struct TextChoice {
        index: usize,
        text: String,
        #[schema(value_type = Option<Object>)]
        logprobs: Option<serde_json::Value>,
        /// `stop` or `length`.
        finish_reason: String,
    }
}
