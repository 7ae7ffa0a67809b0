//! Answers of Ollama's chats and texts, whole or in lines.
//! Asks for nothing.

use std::time::{Duration, Instant, SystemTime};

use magray_engine::health::utc;
use serde_json::Value;

use crate::{
    generation::{AnswerEnd, AnswerToken, Finish, Part, WholeAnswer},
    server::{
        app::App,
        errors::Problem,
        generating::Generating,
        streaming::{AnswerWriter, LINES},
        writing::Json,
    },
};

/// Where the text of an answer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// In a message, as chats have it.
    Message,
    /// By itself, as texts have it.
    Response,
}

pub(super) struct LineWriter {
    model: String,
    field: Field,
    prompt_tokens: usize,
    citations: Option<Value>,
    started: Instant,
    begun: Instant,
    /// A call whose arguments have not come.
    call: Option<String>,
}

impl LineWriter {
    pub(super) fn new(app: &App, generating: &Generating, field: Field, started: Instant) -> Self {
        let model = app.models().get(generating.model()).name.clone();
        let (prompt_tokens, begun) = (generating.prompt_tokens(), generating.begun());
        let citations = generating.citations().cloned();
        Self { model, field, prompt_tokens, citations, started, begun, call: None }
    }

    fn head(&self, out: &mut Json) {
        head(&self.model, out);
    }

    fn line(&self, text: &str, thinking: &str, calls: &[(&str, &str)], out: &mut Json) {
        self.head(out);
        content(self.field, text, thinking, calls, out);
        out.raw(r#","done":false}"#).raw("\n");
    }

    fn parts(&mut self, parts: Vec<Part>, out: &mut Json) {
        for part in parts {
            match part {
                Part::Text(text) => self.line(&text, "", &[], out),
                Part::Thinking(text) => self.line("", &text, &[], out),
                Part::CallBegins { name, .. } => self.call = Some(name),
                // Arguments come in one piece.
                Part::CallArguments { json, .. } => {
                    let name = self.call.take().unwrap_or_default();
                    self.line("", "", &[(&name, &json)], out);
                }
            }
        }
    }

    /// How it ended, and what it took.
    fn tail(&self, end: &AnswerEnd, out: &mut Json) {
        let reason = match end.finish {
            Finish::Stop | Finish::ToolCalls => "stop",
            Finish::Length => "length",
        };
        let ns = |time: Duration| time.as_nanos() as usize;
        let first = end.times.first_token.unwrap_or_default();
        let queued = end.answer.as_ref().map_or(Duration::ZERO, |answer| answer.queued);
        let evaluated = end.times.last_token.unwrap_or_default().saturating_sub(first);
        let read = self.begun.saturating_duration_since(self.started);
        out.raw(r#","done":true,"done_reason":"#).text(reason);
        out.raw(r#","total_duration":"#).whole(ns(self.started.elapsed()));
        out.raw(r#","load_duration":"#).whole(ns(queued.min(first)));
        out.raw(r#","prompt_eval_count":"#).whole(self.prompt_tokens);
        out.raw(r#","prompt_eval_duration":"#).whole(ns(read + first.saturating_sub(queued)));
        out.raw(r#","eval_count":"#).whole(end.tokens);
        out.raw(r#","eval_duration":"#).whole(ns(evaluated));
        if let Some(citations) = &self.citations {
            out.raw(r#","magray_citations":"#).value(citations);
        }
    }
}

/// To a request that asked nothing: what has become of the model.
pub(super) fn without_answer(app: &App, model: usize, field: Field, reason: &str) -> Json {
    let mut out = Json::default();
    head(&app.models().get(model).name, &mut out);
    content(field, "", "", &[], &mut out);
    out.raw(r#","done":true,"done_reason":"#).text(reason).raw("}");
    out
}

fn head(model: &str, out: &mut Json) {
    out.raw(r#"{"model":"#).text(model).raw(r#","created_at":"#).text(&utc(SystemTime::now())).raw(",");
}

fn content(field: Field, text: &str, thinking: &str, calls: &[(&str, &str)], out: &mut Json) {
    match field {
        Field::Message => out.raw(r#""message":{"role":"assistant","content":"#),
        Field::Response => out.raw(r#""response":"#),
    };
    out.text(text);
    if !thinking.is_empty() {
        out.raw(r#","thinking":"#).text(thinking);
    }
    if !calls.is_empty() {
        out.raw(r#","tool_calls":"#).list(calls, |out, (name, arguments)| {
            // Clients expect an object.
            let arguments =
                serde_json::from_str::<Value>(arguments).unwrap_or_else(|_| Value::Object(Default::default()));
            out.raw(r#"{"function":{"name":"#).text(name).raw(r#","arguments":"#).value(&arguments).raw("}}");
        });
    }
    if field == Field::Message {
        out.raw("}");
    }
}

impl AnswerWriter for LineWriter {
    const CONTENT_TYPE: &str = LINES;

    fn begin(&mut self, _: &mut Json) {}

    fn token(&mut self, _: usize, token: AnswerToken, out: &mut Json) {
        self.parts(token.parts, out);
    }

    fn end(&mut self, _: usize, mut end: AnswerEnd, out: &mut Json) {
        self.parts(std::mem::take(&mut end.parts), out);
        self.head(out);
        content(self.field, "", "", &[], out);
        self.tail(&end, out);
        out.raw("}\n");
    }

    fn finish(&mut self, _: &mut Json) {}

    fn fail(&mut self, problem: &Problem, out: &mut Json) {
        out.raw(r#"{"error":"#).text(&problem.message).raw("}\n");
    }

    fn whole(self, answers: &[WholeAnswer]) -> Json {
        let (nothing, mut out) = (WholeAnswer::default(), Json::default());
        let answer = answers.first().unwrap_or(&nothing);
        self.head(&mut out);
        let calls: Vec<(&str, &str)> =
            answer.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        content(self.field, &answer.text, &answer.thinking, &calls, &mut out);
        if let Some(end) = &answer.end {
            self.tail(end, &mut out);
        }
        out.raw("}");
        out
    }
}
