//! An answer as it is shown: its text as it comes, all of it for programs, its numbers for people.
//! Asks for nothing.

use std::io::IsTerminal;

use magray_engine::{DeviceName, decoder::TokenLogprobs, engine::Speculation, tokenize::Vocabulary};
use serde_json::{Value, json};

use crate::{
    exit::Failure,
    generation::{AnswerEnd, AnswerEvent, Part, WholeAnswer},
    output,
};

/// What has come so far.
pub(super) struct Written<'a> {
    vocabulary: &'a Vocabulary,
    /// Whether it is printed as it comes.
    is_printed: bool,
    is_terminal: bool,
    answer: WholeAnswer,
    seed: u64,
}

impl<'a> Written<'a> {
    pub(super) fn new(vocabulary: &'a Vocabulary, seed: u64, is_printed: bool) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { vocabulary, is_printed, is_terminal, answer: WholeAnswer::default(), seed }
    }

    pub(super) fn add(&mut self, event: AnswerEvent) -> Result<(), Failure> {
        if self.is_printed {
            let parts = match &event {
                AnswerEvent::Token(token) => &token.parts,
                AnswerEvent::End(end) => &end.parts,
            };
            for part in parts {
                if let Part::Text(text) = part {
                    self.show(text)?;
                }
            }
        }
        self.answer.add(event);
        Ok(())
    }

    /// Prints all of it.
    pub(super) fn print(&self) -> Result<(), Failure> {
        self.show(&self.answer.text)
    }

    fn show(&self, text: &str) -> Result<(), Failure> {
        // What a model says must not steer a terminal.
        let is_shown = |character: &char| !self.is_terminal || !character.is_control() || "\n\t".contains(*character);
        if !text.is_empty() {
            output::print(&text.chars().filter(is_shown).collect::<String>())?;
        }
        Ok(())
    }

    /// All of it for programs.
    pub(super) fn object(&self, prompt_tokens: usize) -> Value {
        let (ids, end) = (&self.answer.ids, self.answer.end.as_ref());
        let first = end.and_then(|end| end.times.first_token);
        let mut object = json!({
            "text": self.answer.text, "ids": ids, "prompt_tokens": prompt_tokens, "tokens": ids.len(),
            "finish_reason": end.map(|end| end.finish.code()), "device": self.device(), "seed": self.seed,
            "first_token_ms": first.map(|first| first.as_secs_f64() * 1000.0), "tokens_per_s": self.rate(),
        });
        let speculation = end.map(|end| end.speculation).filter(|speculation| speculation.proposed > 0);
        if let Some(Speculation { proposed, accepted }) = speculation {
            object["speculated"] = json!({"proposed": proposed, "accepted": accepted});
        }
        let logprobs = self.answer.logprobs.iter().map(|(id, logprobs)| self.logprobs(*id, logprobs));
        let logprobs: Vec<Value> = logprobs.collect();
        if !logprobs.is_empty() {
            object["logprobs"] = logprobs.into();
        }
        object
    }

    fn logprobs(&self, id: u32, logprobs: &TokenLogprobs) -> Value {
        let one = |id: u32, logprob: f32| {
            let token = String::from_utf8_lossy(self.vocabulary.bytes(id));
            json!({"id": id, "token": token, "logprob": logprob})
        };
        let mut object = one(id, logprobs.chosen);
        object["top"] = logprobs.top.iter().map(|(id, logprob)| one(*id, *logprob)).collect();
        object
    }

    /// Its numbers for people.
    pub(super) fn summary(&self) -> String {
        let rate = self.rate().map_or_else(String::new, |rate| format!(", {rate:.1}/s"));
        let place = self.device().map_or_else(String::new, |device| format!(" on {device}"));
        format!("{} new{rate}{place}", self.answer.ids.len())
    }

    fn device(&self) -> Option<String> {
        self.answer.end.as_ref().and_then(AnswerEnd::device).as_ref().map(DeviceName::to_string)
    }

    /// New tokens a second after the first.
    fn rate(&self) -> Option<f64> {
        self.answer.end.as_ref().and_then(|end| end.times.tokens_per_s(end.tokens))
    }
}
