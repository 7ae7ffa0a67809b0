//! Answers of OpenAI's completions, whole or as events.
//! Asks for nothing.

use magray_engine::decoder::TokenLogprobs;

use super::{
    logprobs::Spelling,
    writing::{Usage, head},
};
use crate::{
    generation::{AnswerEnd, AnswerToken, Part, WholeAnswer},
    server::{
        app::App,
        chats::AnswerId,
        errors::{OpenAiError, Problem},
        generating::Generating,
        streaming::{AnswerWriter, EVENTS},
        writing::Json,
    },
};

pub(super) struct CompletionWriter {
    /// `"id":...,"created":...,"model":...`.
    head: String,
    spelling: Spelling,
    /// By answer: the text that stands before it.
    echoed: Option<Vec<String>>,
    tells_usage: bool,
    usage: Usage,
    answers: Vec<Sent>,
}

/// What was sent of an answer.
#[derive(Clone, Debug, Default)]
struct Sent {
    characters: usize,
    /// What is to be told of its tokens with its next part.
    logprobs: Vec<(u32, TokenLogprobs)>,
}

impl CompletionWriter {
    pub(super) fn new(app: &App, generating: &Generating, echoed: Option<Vec<String>>, tells_usage: bool) -> Self {
        Self {
            head: head(&AnswerId::new().whole("cmpl-"), &app.models().get(generating.model()).name),
            spelling: Spelling::new(app.engine(), generating.model()),
            echoed,
            tells_usage,
            usage: Usage { prompt: generating.prompt_tokens(), ..Usage::default() },
            answers: vec![Sent::default(); generating.answers()],
        }
    }

    fn echoed(&self, index: usize) -> &str {
        self.echoed.as_ref().and_then(|echoed| echoed.get(index)).map_or("", String::as_str)
    }

    fn event(&mut self, index: usize, text: &str, finish: Option<&str>, out: &mut Json) {
        let sent = &mut self.answers[index];
        let (offset, logprobs) = (sent.characters, std::mem::take(&mut sent.logprobs));
        sent.characters += text.chars().count();
        out.raw("data: {").raw(&self.head);
        out.raw(r#","object":"text_completion","system_fingerprint":null,"choices":[{"index":"#).whole(index);
        out.raw(r#","text":"#).text(text).raw(r#","logprobs":"#);
        self.spelling.write_completion_or_null(&logprobs, offset, out);
        out.raw(r#","finish_reason":"#);
        match finish {
            Some(finish) => out.text(finish),
            None => out.raw("null"),
        };
        out.raw("}]").raw(if self.tells_usage { r#","usage":null}"# } else { "}" }).raw("\n\n");
    }
}

/// Bare texts have no other parts.
fn text_of(parts: Vec<Part>) -> String {
    let texts = parts.into_iter().filter_map(|part| match part {
        Part::Text(text) => Some(text),
        _ => None,
    });
    texts.collect()
}

impl AnswerWriter for CompletionWriter {
    const CONTENT_TYPE: &str = EVENTS;

    fn begin(&mut self, out: &mut Json) {
        for (index, prompt) in self.echoed.take().unwrap_or_default().iter().enumerate() {
            self.event(index, prompt, None, out);
        }
    }

    fn token(&mut self, answer: usize, token: AnswerToken, out: &mut Json) {
        self.answers[answer].logprobs.extend(token.logprobs.map(|logprobs| (token.id, logprobs)));
        let text = text_of(token.parts);
        if !text.is_empty() {
            self.event(answer, &text, None, out);
        }
    }

    fn end(&mut self, answer: usize, end: AnswerEnd, out: &mut Json) {
        self.usage.add(&end);
        let finish = end.finish.code();
        self.event(answer, &text_of(end.parts), Some(finish), out);
    }

    fn finish(&mut self, out: &mut Json) {
        if self.tells_usage {
            out.raw("data: {").raw(&self.head);
            out.raw(r#","object":"text_completion","system_fingerprint":null,"choices":[],"#);
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
        out.raw("{").raw(&self.head).raw(r#","object":"text_completion","system_fingerprint":null,"choices":"#);
        out.list(answers.iter().enumerate(), |out, (index, answer)| {
            let echoed = self.echoed(index);
            out.raw(r#"{"index":"#).whole(index).raw(r#","text":"#).text(&format!("{echoed}{}", answer.text));
            out.raw(r#","logprobs":"#);
            self.spelling.write_completion_or_null(&answer.logprobs, echoed.chars().count(), out);
            let finish = answer.end.as_ref().map_or("stop", |end| end.finish.code());
            out.raw(r#","finish_reason":"#).text(finish).raw("}");
        });
        answers.iter().filter_map(|answer| answer.end.as_ref()).for_each(|end| self.usage.add(end));
        out.raw(",");
        self.usage.write(&mut out);
        out.raw("}");
        out
    }
}
