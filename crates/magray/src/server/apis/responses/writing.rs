//! Answers of OpenAI's responses, whole or as events.
//! Asks for nothing.

use serde_json::{Value, json};

use super::reading::Asked;
use crate::{
    generation::{AnswerEnd, AnswerToken, Finish, Part, WholeAnswer},
    server::{
        app::App,
        chats::{AnswerId, now_s},
        errors::Problem,
        generating::Generating,
        streaming::{AnswerWriter, EVENTS},
        writing::Json,
    },
};

pub(super) struct ResponseWriter {
    id: AnswerId,
    created_at: u64,
    model: String,
    prompt_tokens: usize,
    citations: Option<Value>,
    asked: Asked,
    /// Events so far.
    events: usize,
    /// Items that are done.
    output: Vec<Value>,
    open: Option<Open>,
    /// Known with the end.
    end: Option<Ending>,
}

/// The item that is being sent.
struct Open {
    kind: Kind,
    text: String,
    /// Of a function.
    name: String,
    /// The number of the call.
    call: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    is_cut: bool,
    tokens: usize,
    thinking_tokens: usize,
}

impl Ending {
    fn of(end: &AnswerEnd) -> Self {
        let is_cut = end.finish == Finish::Length;
        Self { is_cut, tokens: end.tokens, thinking_tokens: end.thinking_tokens }
    }
}

impl ResponseWriter {
    pub(super) fn new(app: &App, generating: &Generating, asked: Asked) -> Self {
        Self {
            id: AnswerId::new(),
            created_at: now_s(),
            model: app.models().get(generating.model()).name.clone(),
            prompt_tokens: generating.prompt_tokens(),
            citations: generating.citations().cloned(),
            asked,
            events: 0,
            output: Vec::new(),
            open: None,
            end: None,
        }
    }

    fn last_status(&self) -> &'static str {
        if self.end.is_some_and(|end| end.is_cut) { "incomplete" } else { "completed" }
    }

    fn response(&self, status: &str) -> Value {
        let usage = self.end.map(|end| {
            json!({
                "input_tokens": self.prompt_tokens, "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": end.tokens, "output_tokens_details": {"reasoning_tokens": end.thinking_tokens},
                "total_tokens": self.prompt_tokens + end.tokens,
            })
        });
        let (asked, echoed) = (&self.asked, &self.asked.echoed);
        let mut response = json!({
            "id": self.id.whole("resp_"), "object": "response", "created_at": self.created_at, "status": status,
            "background": false, "error": null,
            "incomplete_details": (status == "incomplete").then(|| json!({"reason": "max_output_tokens"})),
            "instructions": asked.instructions, "max_output_tokens": asked.max_output_tokens, "model": self.model,
            "output": self.output, "parallel_tool_calls": asked.parallel_tool_calls, "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null}, "store": false, "temperature": asked.temperature,
            "text": echoed.text.clone().unwrap_or_else(|| json!({"format": {"type": "text"}})),
            "tool_choice": echoed.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            "tools": echoed.tools.clone().unwrap_or_else(|| json!([])), "top_p": asked.top_p,
            "truncation": "disabled", "usage": usage,
            "metadata": echoed.metadata.clone().unwrap_or_else(|| json!({})),
        });
        if let Some(citations) = &self.citations {
            response["magray_citations"] = citations.clone();
        }
        response
    }

    fn event(&mut self, kind: &str, mut data: Value, out: &mut Json) {
        data["type"] = kind.into();
        data["sequence_number"] = self.events.into();
        self.events += 1;
        out.raw("event: ").raw(kind).raw("\ndata: ").value(&data).raw("\n\n");
    }

    /// The item that is open, as far as it has come.
    fn item(&self, open: &Open, is_done: bool) -> Value {
        let (at, status) = (self.output.len(), if is_done { "completed" } else { "in_progress" });
        let text = if is_done { open.text.as_str() } else { "" };
        match open.kind {
            Kind::Text => {
                let content = if is_done { vec![text_part(text)] } else { Vec::new() };
                let id = self.id.part("msg_", 0, at);
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
            }
            Kind::Thinking => {
                let content = if is_done { vec![json!({"type": "reasoning_text", "text": text})] } else { Vec::new() };
                let id = self.id.part("rs_", 0, at);
                json!({"type": "reasoning", "id": id, "status": status, "summary": [], "content": content})
            }
            Kind::Call => json!({
                "type": "function_call", "id": self.id.part("fc_", 0, at), "call_id": self.id.part("call_", 0, open.call),
                "name": open.name, "arguments": text, "status": status,
            }),
        }
    }

    fn begin(&mut self, open: Open, out: &mut Json) {
        self.close(out);
        let (item, output_index) = (self.item(&open, false), self.output.len());
        self.event("response.output_item.added", json!({"output_index": output_index, "item": item}), out);
        if open.kind == Kind::Text {
            let data = json!({
                "item_id": item["id"], "output_index": output_index, "content_index": 0, "part": text_part(""),
            });
            self.event("response.content_part.added", data, out);
        }
        self.open = Some(open);
    }

    fn begin_call(&mut self, call: usize, name: String, out: &mut Json) {
        self.begin(Open { kind: Kind::Call, text: String::new(), name, call }, out);
    }

    /// More of an item, which is begun unless it is open.
    fn add(&mut self, kind: Kind, text: &str, out: &mut Json) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.begin(Open { kind, text: String::new(), name: String::new(), call: 0 }, out);
        }
        let Some(mut open) = self.open.take() else { return };
        open.text += text;
        let (item_id, output_index) = (self.item_id(&open), self.output.len());
        let mut data = json!({"item_id": item_id, "output_index": output_index, "delta": text});
        let name = match kind {
            Kind::Call => "response.function_call_arguments.delta",
            Kind::Text | Kind::Thinking => {
                data["content_index"] = 0.into();
                if kind == Kind::Thinking {
                    "response.reasoning_text.delta"
                } else {
                    data["logprobs"] = json!([]);
                    "response.output_text.delta"
                }
            }
        };
        self.event(name, data, out);
        self.open = Some(open);
    }

    fn item_id(&self, open: &Open) -> String {
        let prefix = match open.kind {
            Kind::Text => "msg_",
            Kind::Thinking => "rs_",
            Kind::Call => "fc_",
        };
        self.id.part(prefix, 0, self.output.len())
    }

    fn close(&mut self, out: &mut Json) {
        let Some(open) = self.open.take() else { return };
        let (item, item_id, output_index) = (self.item(&open, true), self.item_id(&open), self.output.len());
        let data = json!({"item_id": item_id, "output_index": output_index});
        let with = |fields: Value| {
            let mut data = data.clone();
            if let (Value::Object(data), Value::Object(fields)) = (&mut data, fields) {
                data.extend(fields);
            }
            data
        };
        match open.kind {
            Kind::Text => {
                let done = with(json!({"content_index": 0, "text": open.text, "logprobs": []}));
                self.event("response.output_text.done", done, out);
                let done = with(json!({"content_index": 0, "part": text_part(&open.text)}));
                self.event("response.content_part.done", done, out);
            }
            Kind::Thinking => {
                let done = with(json!({"content_index": 0, "text": open.text}));
                self.event("response.reasoning_text.done", done, out);
            }
            Kind::Call => {
                let done = with(json!({"name": open.name, "arguments": open.text}));
                self.event("response.function_call_arguments.done", done, out);
            }
        }
        self.event("response.output_item.done", json!({"output_index": output_index, "item": item}), out);
        self.output.push(item);
    }

    fn parts(&mut self, parts: Vec<Part>, out: &mut Json) {
        for part in parts {
            match part {
                Part::Text(text) => self.add(Kind::Text, &text, out),
                Part::Thinking(text) => self.add(Kind::Thinking, &text, out),
                Part::CallBegins { index, name } => self.begin_call(index, name, out),
                Part::CallArguments { json, .. } => self.add(Kind::Call, &json, out),
            }
        }
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

impl AnswerWriter for ResponseWriter {
    const CONTENT_TYPE: &str = EVENTS;

    fn begin(&mut self, out: &mut Json) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress");
            self.event(kind, json!({"response": response}), out);
        }
    }

    fn token(&mut self, _: usize, token: AnswerToken, out: &mut Json) {
        self.parts(token.parts, out);
    }

    fn end(&mut self, _: usize, mut end: AnswerEnd, out: &mut Json) {
        self.parts(std::mem::take(&mut end.parts), out);
        if self.open.is_none() && self.output.is_empty() {
            self.add(Kind::Text, "", out);
        }
        self.close(out);
        self.end = Some(Ending::of(&end));
    }

    fn finish(&mut self, out: &mut Json) {
        let status = self.last_status();
        let response = self.response(status);
        self.event(&format!("response.{status}"), json!({"response": response}), out);
    }

    fn fail(&mut self, problem: &Problem, out: &mut Json) {
        let mut response = self.response("failed");
        response["error"] = json!({"code": "server_error", "message": problem.message});
        self.event("response.failed", json!({"response": response}), out);
    }

    fn whole(mut self, answers: &[WholeAnswer]) -> Json {
        let nothing = WholeAnswer::default();
        let answer = answers.first().unwrap_or(&nothing);
        let mut ignored = Json::default();
        if !answer.thinking.is_empty() {
            self.add(Kind::Thinking, &answer.thinking, &mut ignored);
        }
        if !answer.text.is_empty() || answer.calls.is_empty() {
            self.add(Kind::Text, &answer.text, &mut ignored);
        }
        for (call, made) in answer.calls.iter().enumerate() {
            self.begin_call(call, made.name.clone(), &mut ignored);
            self.add(Kind::Call, &made.arguments, &mut ignored);
        }
        self.close(&mut ignored);
        self.end = answer.end.as_ref().map(Ending::of);
        let mut out = Json::default();
        out.value(&self.response(self.last_status()));
        out
    }
}
