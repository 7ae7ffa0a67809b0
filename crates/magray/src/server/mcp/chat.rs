//! The tool by which agents let a language model of this server answer.
//! Tells its progress to callers that want to know it.

use std::time::{Duration, Instant};

use magray_chat::{Conversation, Message, Role};
use magray_engine::decoder::Sampling;
use rmcp::{
    Json, Peer, RoleServer,
    handler::server::wrapper::Parameters,
    model::{ProgressNotificationParam, ProgressToken, RequestMetaObject},
    schemars::JsonSchema,
    tool, tool_router,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Tools;
use crate::{
    generation::{AnswerEnd, Job, JobInput, TokensMax, ToolChoice, WholeAnswer, new_seed},
    server::{
        chats::{chat_input, json_constraint},
        errors::Problem,
        request_record::RequestRecord,
    },
};

/// A question, and what was said before it.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Question {
    /// What is to be answered.
    prompt: String,
    /// Instructions for the model.
    #[serde(default)]
    system: Option<String>,
    /// What was said before, from the oldest to the newest.
    #[serde(default)]
    history: Option<Vec<Said>>,
    /// A name of list_models; without it, the first that generates.
    #[serde(default)]
    model: Option<String>,
    /// Tokens of the answer at most; without it, up to 4,096.
    #[serde(default)]
    #[schemars(range(min = 1))]
    max_tokens: Option<u32>,
    /// Draws tokens, the likelier the lower; without it, 0, which takes the likeliest.
    #[serde(default)]
    temperature: Option<f32>,
    /// A JSON schema that the answer has to fit.
    #[serde(default)]
    json_schema: Option<Value>,
    /// `high`, `normal` or `low`: which of several waiting calls goes first. Without it, normal.
    #[serde(default)]
    priority: Option<String>,
}

/// A message of the conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Said {
    /// `user` or `assistant`.
    role: String,
    content: String,
}

/// An answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct GivenAnswer {
    model: String,
    text: String,
    /// What the model thought first.
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    /// `stop`, or `length` where it has as many tokens as it may.
    finish_reason: &'static str,
    prompt_tokens: usize,
    tokens: usize,
    /// The device that computed it.
    device: Option<String>,
}

/// Between two words of progress.
const TOLD_EVERY: Duration = Duration::from_millis(200);

#[tool_router(router = chat_routes, vis = "pub(super)")]
impl Tools {
    /// Lets a language model of this server answer a question, in text or as JSON of a schema.
    #[tool(annotations(
        title = "Ask a language model",
        read_only_hint = true,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn chat(
        &self,
        Parameters(question): Parameters<Question>,
        meta: RequestMetaObject,
        peer: Peer<RoleServer>,
    ) -> Result<Json<GivenAnswer>, String> {
        let progress = meta.get_progress_token().map(|token| Progress { peer, token, told: None });
        self.answer(question, progress).await.map(Json).map_err(|problem| problem.message)
    }
}

impl Tools {
    async fn answer(&self, question: Question, mut progress: Option<Progress>) -> Result<GivenAnswer, Problem> {
        if let Some(word) = question.priority.as_deref() {
            RequestRecord::current().set_priority(word.parse()?)?;
        }
        let bytes = question.prompt.len();
        let read = self.app.read(bytes, move |app| {
            let model = app.generator(question.model.as_deref())?;
            app.read_jobs(vec![job(model, question)?])
        });
        let mut generating = self.app.generate(read.await?).await?;
        let mut answer = WholeAnswer::default();
        while let Some(event) = generating.next().await {
            answer.add(event?.1);
            if let Some(progress) = &mut progress {
                progress.tell(answer.ids.len()).await;
            }
        }
        let end = answer.end.as_ref();
        Ok(GivenAnswer {
            model: self.app.models().get(generating.model()).name.clone(),
            thinking: Some(answer.thinking).filter(|thinking| !thinking.is_empty()),
            finish_reason: end.map_or("stop", |end| end.finish.code()),
            prompt_tokens: generating.prompt_tokens(),
            tokens: answer.ids.len(),
            device: end.and_then(AnswerEnd::device).map(|device| device.to_string()),
            text: answer.text,
        })
    }
}

fn job(model: usize, question: Question) -> Result<Job, Problem> {
    let mut messages: Vec<Message> =
        question.system.map(|system| Message::new(Role::System, system)).into_iter().collect();
    for said in question.history.unwrap_or_default() {
        let role =
            Role::from_name(&said.role).ok_or_else(|| Problem::invalid("history", "a role is user or assistant"))?;
        messages.push(Message::new(role, said.content));
    }
    messages.push(Message::new(Role::User, question.prompt));
    let input = chat_input(Conversation { messages, ..Conversation::default() }, ToolChoice::Auto)?;
    let sampling = Sampling {
        temperature: question.temperature.unwrap_or(0.0),
        seed: new_seed(),
        constraint: question.json_schema.as_ref().map(|schema| json_constraint(Some(schema))),
        ..Sampling::default()
    };
    let tokens_max = question.max_tokens.map_or(TokensMax::Usual, TokensMax::Exactly);
    let input = JobInput::Chat(Box::new(input));
    Ok(Job { model, input, sampling, stops: Vec::new(), answers: 1, tokens_max })
}

/// Tells a caller how many tokens there are.
struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    told: Option<Instant>,
}

impl Progress {
    async fn tell(&mut self, tokens: usize) {
        if self.told.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        let told = ProgressNotificationParam::new(self.token.clone(), tokens as f64);
        let told = told.with_message(format!("{tokens} tokens"));
        // A caller that cannot be told still gets its answer.
        let _ = self.peer.notify_progress(told).await;
    }
}
