//! An answer put together from what came of it.
//! Asks for nothing.

use magray_engine::decoder::TokenLogprobs;

use super::answer::{AnswerEnd, AnswerEvent, Part};

/// An answer so far; whole with its end.
#[derive(Debug, Default)]
pub struct WholeAnswer {
    /// What it says.
    pub text: String,
    /// What was thought before.
    pub thinking: String,
    /// The tools that it calls.
    pub calls: Vec<WholeCall>,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// One a token, where they were asked for.
    pub logprobs: Vec<(u32, TokenLogprobs)>,
    /// How it ended; `None` before that.
    pub end: Option<AnswerEnd>,
}

/// A call of a tool.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WholeCall {
    /// The tool.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

impl WholeAnswer {
    /// Takes what came.
    pub fn add(&mut self, event: AnswerEvent) {
        match event {
            AnswerEvent::Token(token) => {
                self.ids.push(token.id);
                self.logprobs.extend(token.logprobs.map(|logprobs| (token.id, logprobs)));
                self.add_parts(token.parts);
            }
            AnswerEvent::End(mut end) => {
                self.add_parts(std::mem::take(&mut end.parts));
                self.end = Some(end);
            }
        }
    }

    fn add_parts(&mut self, parts: Vec<Part>) {
        for part in parts {
            match part {
                Part::Text(text) => self.text += &text,
                Part::Thinking(text) => self.thinking += &text,
                Part::CallBegins { name, .. } => self.calls.push(WholeCall { name, arguments: String::new() }),
                Part::CallArguments { index, json } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments += &json;
                    }
                }
            }
        }
    }
}
