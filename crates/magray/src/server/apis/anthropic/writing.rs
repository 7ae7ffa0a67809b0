//! Answers of Anthropic's API, whole or as events.
//! Asks for nothing.

use serde_json::{Value, json};

use crate::{
    generation::{AnswerEnd, AnswerToken, Finish, Part, WholeAnswer},
    server::{
        app::App,
        chats::AnswerId,
        errors::{AnthropicError, Problem},
        generating::Generating,
        streaming::{AnswerWriter, EVENTS},
        writing::Json,
    },
};

pub(super) struct MessageWriter {
    id: AnswerId,
    model: String,
    prompt_tokens: usize,
    citations: Option<Value>,
    /// The block that is being sent.
    open: Option<Kind>,
    /// Blocks that were begun.
    blocks: usize,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

impl MessageWriter {
    pub(super) fn new(app: &App, generating: &Generating) -> Self {
        let model = app.models().get(generating.model()).name.clone();
        let (prompt_tokens, citations) = (generating.prompt_tokens(), generating.citations().cloned());
        Self { id: AnswerId::new(), model, prompt_tokens, citations, open: None, blocks: 0 }
    }

    fn message(&self, content: Vec<Value>, reason: Option<&str>, stop: Option<&str>, tokens: usize) -> Value {
        let mut message = json!({
            "id": self.id.whole("msg_"), "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": reason, "stop_sequence": stop,
            "usage": {
                "input_tokens": self.prompt_tokens, "output_tokens": tokens,
                "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            },
        });
        if let Some(citations) = &self.citations {
            message["magray_citations"] = citations.clone();
        }
        message
    }

    fn call_id(&self, call: usize) -> String {
        self.id.part("toolu_", 0, call)
    }

    /// Begins a block unless one of this kind is open.
    fn open(&mut self, kind: Kind, block: impl FnOnce() -> Value, out: &mut Json) {
        if self.open == Some(kind) && kind != Kind::Call {
            return;
        }
        self.close(out);
        let event = json!({"type": "content_block_start", "index": self.blocks, "content_block": block()});
        write_event("content_block_start", &event, out);
        self.open = Some(kind);
        self.blocks += 1;
    }

    fn close(&mut self, out: &mut Json) {
        if let Some(kind) = self.open.take() {
            if kind == Kind::Thinking {
                self.delta("signature_delta", "signature", "", out);
            }
            let event = json!({"type": "content_block_stop", "index": self.blocks - 1});
            write_event("content_block_stop", &event, out);
        }
    }

    fn delta(&self, kind: &str, field: &str, text: &str, out: &mut Json) {
        out.raw("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":")
            .whole(self.blocks - 1);
        out.raw(r#","delta":{"type":"#).text(kind).raw(",").text(field).raw(":").text(text).raw("}}\n\n");
    }

    fn parts(&mut self, parts: Vec<Part>, out: &mut Json) {
        for part in parts {
            match part {
                Part::Text(text) => {
                    self.open(Kind::Text, || json!({"type": "text", "text": ""}), out);
                    self.delta("text_delta", "text", &text, out);
                }
                Part::Thinking(text) => {
                    let block = || json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.open(Kind::Thinking, block, out);
                    self.delta("thinking_delta", "thinking", &text, out);
                }
                Part::CallBegins { index, name } => {
                    let id = self.call_id(index);
                    self.open(Kind::Call, || json!({"type": "tool_use", "id": id, "name": name, "input": {}}), out);
                }
                Part::CallArguments { json, .. } => self.delta("input_json_delta", "partial_json", &json, out),
            }
        }
    }
}

/// Why an answer ended, and the text that ended it.
fn reason_of(end: &AnswerEnd) -> (&'static str, Option<&str>) {
    match (end.finish, end.stop.as_deref()) {
        (Finish::Length, _) => ("max_tokens", None),
        (Finish::ToolCalls, _) => ("tool_use", None),
        (Finish::Stop, Some(stop)) => ("stop_sequence", Some(stop)),
        (Finish::Stop, None) => ("end_turn", None),
    }
}

fn write_event(name: &str, data: &Value, out: &mut Json) {
    out.raw("event: ").raw(name).raw("\ndata: ").value(data).raw("\n\n");
}

impl AnswerWriter for MessageWriter {
    const CONTENT_TYPE: &str = EVENTS;

    fn begin(&mut self, out: &mut Json) {
        let message = self.message(Vec::new(), None, None, 0);
        write_event("message_start", &json!({"type": "message_start", "message": message}), out);
    }

    fn token(&mut self, _: usize, token: AnswerToken, out: &mut Json) {
        self.parts(token.parts, out);
    }

    fn end(&mut self, _: usize, mut end: AnswerEnd, out: &mut Json) {
        self.parts(std::mem::take(&mut end.parts), out);
        self.close(out);
        let (reason, stop) = reason_of(&end);
        let event = json!({
            "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": stop},
            "usage": {"output_tokens": end.tokens},
        });
        write_event("message_delta", &event, out);
    }

    fn finish(&mut self, out: &mut Json) {
        write_event("message_stop", &json!({"type": "message_stop"}), out);
    }

    fn fail(&mut self, problem: &Problem, out: &mut Json) {
        out.raw("event: error\ndata: ").value(&AnthropicError::from(problem)).raw("\n\n");
    }

    fn whole(self, answers: &[WholeAnswer]) -> Json {
        let (nothing, mut out) = (WholeAnswer::default(), Json::default());
        let answer = answers.first().unwrap_or(&nothing);
        let mut content = Vec::new();
        if !answer.thinking.is_empty() {
            content.push(json!({"type": "thinking", "thinking": answer.thinking, "signature": ""}));
        }
        if !answer.text.is_empty() || answer.calls.is_empty() {
            content.push(json!({"type": "text", "text": answer.text}));
        }
        for (at, call) in answer.calls.iter().enumerate() {
            let input = serde_json::from_str::<Value>(&call.arguments).unwrap_or_else(|_| json!({}));
            content.push(json!({"type": "tool_use", "id": self.call_id(at), "name": call.name, "input": input}));
        }
        let (reason, stop) = answer.end.as_ref().map_or(("end_turn", None), reason_of);
        let tokens = answer.end.as_ref().map_or(0, |end| end.tokens);
        out.value(&self.message(content, Some(reason), stop, tokens));
        out
    }
}
