//! Answers of OpenAI's chats, whole or as events.
//! Asks for nothing.

use magray_engine::decoder::TokenLogprobs;

use super::logprobs::Spelling;
use crate::{
    generation::{AnswerEnd, AnswerToken, Part, WholeAnswer},
    server::{
        app::App,
        chats::{AnswerId, now_s},
        errors::{OpenAiError, Problem},
        generating::Generating,
        requests::openai_chat::ChatRequest,
        streaming::{AnswerWriter, EVENTS},
        writing::Json,
    },
};

/// What the client wants to be told beside the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    has_logprobs: bool,
}

impl Told {
    pub(super) fn of(request: &ChatRequest) -> Self {
        Self { has_logprobs: request.logprobs.unwrap_or(false) }
    }
}

pub(super) struct ChatWriter {
    id: AnswerId,
    /// `"id":...,"created":...,"model":...`.
    head: String,
    spelling: Spelling,
    told: Told,
    tells_usage: bool,
    usage: Usage,
    /// `,"magray_citations":...`, where there are any.
    citations: String,
    /// By answer: what is to be told of its tokens with its next part.
    logprobs: Vec<Vec<(u32, TokenLogprobs)>>,
}

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) completion: usize,
    pub(super) thinking: usize,
}

impl Usage {
    pub(super) fn add(&mut self, end: &AnswerEnd) {
        self.completion += end.tokens;
        self.thinking += end.thinking_tokens;
    }

    pub(super) fn write(&self, out: &mut Json) {
        out.raw(r#""usage":{"prompt_tokens":"#).whole(self.prompt);
        out.raw(r#","completion_tokens":"#).whole(self.completion);
        out.raw(r#","total_tokens":"#).whole(self.prompt + self.completion);
        out.raw(r#","completion_tokens_details":{"reasoning_tokens":"#).whole(self.thinking).raw("}}");
    }
}

/// What names an answer, without brackets.
pub(super) fn head(id: &str, model: &str) -> String {
    let mut head = Json::default();
    head.raw(r#""id":"#).text(id).raw(r#","created":"#).whole(now_s() as usize).raw(r#","model":"#).text(model);
    head.into_text()
}

/// A field to be put behind others.
fn citations(generating: &Generating) -> String {
    let Some(citations) = generating.citations() else { return String::new() };
    let mut field = Json::default();
    field.raw(r#","magray_citations":"#).value(citations);
    field.into_text()
}

impl ChatWriter {
    pub(super) fn new(app: &App, generating: &Generating, told: Told, tells_usage: bool) -> Self {
        let id = AnswerId::new();
        Self {
            id,
            head: head(&id.whole("chatcmpl-"), &app.models().get(generating.model()).name),
            spelling: Spelling::new(app.engine(), generating.model()),
            told,
            tells_usage,
            usage: Usage { prompt: generating.prompt_tokens(), ..Usage::default() },
            citations: citations(generating),
            logprobs: vec![Vec::new(); generating.answers()],
        }
    }

    fn write_choice(&self, index: usize, answer: &WholeAnswer, out: &mut Json) {
        out.raw(r#"{"index":"#).whole(index).raw(r#","message":{"role":"assistant","content":"#);
        match answer.text.is_empty() && !answer.calls.is_empty() {
            true => out.raw("null"),
            false => out.text(&answer.text),
        };
        if !answer.thinking.is_empty() {
            out.raw(r#","reasoning_content":"#).text(&answer.thinking);
        }
        if !answer.calls.is_empty() {
            out.raw(r#","tool_calls":"#).list(answer.calls.iter().enumerate(), |out, (at, call)| {
                out.raw(r#"{"id":"#).text(&self.id.part("call_", index, at));
                out.raw(r#","type":"function","function":{"name":"#).text(&call.name);
                out.raw(r#","arguments":"#).text(&call.arguments).raw("}}");
            });
        }
        out.raw(r#","refusal":null},"logprobs":"#);
        if self.told.has_logprobs {
            self.spelling.write_chat(&answer.logprobs, out);
        } else {
            out.raw("null");
        }
        let finish = answer.end.as_ref().map_or("stop", |end| end.finish.code());
        out.raw(r#","finish_reason":"#).text(finish).raw("}");
    }

    /// One event of an answer: what has come of it, and why it ended.
    fn event(&mut self, index: usize, finish: Option<&str>, out: &mut Json, delta: impl FnOnce(&mut Json)) {
        out.raw("data: {").raw(&self.head);
        out.raw(r#","object":"chat.completion.chunk","system_fingerprint":null,"choices":[{"index":"#).whole(index);
        out.raw(r#","delta":{"#);
        delta(out);
        out.raw(r#"},"logprobs":"#);
        let logprobs = std::mem::take(&mut self.logprobs[index]);
        self.spelling.write_chat_or_null(&logprobs, out);
        out.raw(r#","finish_reason":"#);
        match finish {
            Some(finish) => out.text(finish),
            None => out.raw("null"),
        };
        out.raw("}");
        out.raw("]")
            .raw(&std::mem::take(&mut self.citations))
            .raw(if self.tells_usage { r#","usage":null}"# } else { "}" })
            .raw("\n\n");
    }

    fn parts(&mut self, index: usize, parts: Vec<Part>, out: &mut Json) {
        for part in parts {
            let id = self.id;
            self.event(index, None, out, |out| match part {
                Part::Text(text) => {
                    out.raw(r#""content":"#).text(&text);
                }
                Part::Thinking(text) => {
                    out.raw(r#""reasoning_content":"#).text(&text);
                }
                Part::CallBegins { index: call, name } => {
                    out.raw(r#""tool_calls":[{"index":"#).whole(call).raw(r#","id":"#);
                    out.text(&id.part("call_", index, call)).raw(r#","type":"function","function":{"name":"#);
                    out.text(&name).raw(r#","arguments":""}}]"#);
                }
                Part::CallArguments { index: call, json } => {
                    out.raw(r#""tool_calls":[{"index":"#).whole(call).raw(r#","function":{"arguments":"#);
                    out.text(&json).raw("}}]");
                }
            });
        }
    }
}

impl AnswerWriter for ChatWriter {
    const CONTENT_TYPE: &str = EVENTS;

    fn begin(&mut self, out: &mut Json) {
        for index in 0..self.logprobs.len() {
            self.event(index, None, out, |out| {
                out.raw(r#""role":"assistant","content":"""#);
            });
        }
    }

    fn token(&mut self, answer: usize, token: AnswerToken, out: &mut Json) {
        self.logprobs[answer].extend(token.logprobs.map(|logprobs| (token.id, logprobs)));
        self.parts(answer, token.parts, out);
    }

    fn end(&mut self, answer: usize, end: AnswerEnd, out: &mut Json) {
        self.usage.add(&end);
        self.parts(answer, end.parts, out);
        self.event(answer, Some(end.finish.code()), out, |_| ());
    }

    fn finish(&mut self, out: &mut Json) {
        if self.tells_usage {
            out.raw("data: {").raw(&self.head);
            out.raw(r#","object":"chat.completion.chunk","system_fingerprint":null,"choices":[],"#);
            self.usage.write(out);
            out.raw("}\n\n");
        }
        out.raw("data: [DONE]\n\n");
    }

    fn fail(&mut self, problem: &Problem, out: &mut Json) {
        out.raw("data: ").value(&OpenAiError::from(problem)).raw("\n\n");
    }

    fn whole(mut self, answers: &[WholeAnswer]) -> Json {
        let mut out = Json::default();
        out.raw("{").raw(&self.head).raw(r#","object":"chat.completion","system_fingerprint":null,"choices":"#);
        out.list(answers.iter().enumerate(), |out, (index, answer)| self.write_choice(index, answer, out));
        answers.iter().filter_map(|answer| answer.end.as_ref()).for_each(|end| self.usage.add(end));
        out.raw(",");
        self.usage.write(&mut out);
        out.raw(&self.citations).raw("}");
        out
    }
}
