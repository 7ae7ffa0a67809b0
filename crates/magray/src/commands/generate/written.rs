//! An answer as it comes: its text, its tokens, and what is told of them.
//! Asks for nothing.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use magray_engine::{
    decoder::{TextBuilder, TokenLogprobs},
    engine::{Token, TokenStream},
    tokenize::Vocabulary,
};
use serde_json::{Value, json};

use crate::{exit::Failure, output};

/// What has come so far.
pub(super) struct Written<'a> {
    vocabulary: &'a Vocabulary,
    builder: TextBuilder,
    /// Whether it is printed as it comes.
    is_printed: bool,
    is_terminal: bool,
    tokens: Vec<Token>,
    text: String,
    seed: u64,
    device: Option<String>,
    started: Instant,
    first: Option<Duration>,
    last: Option<Duration>,
}

impl<'a> Written<'a> {
    pub(super) fn new(vocabulary: &'a Vocabulary, stops: &[String], seed: u64, is_printed: bool) -> Self {
        Self {
            vocabulary,
            builder: TextBuilder::new(stops),
            is_printed,
            is_terminal: std::io::stdout().is_terminal(),
            tokens: Vec::new(),
            text: String::new(),
            seed,
            device: None,
            started: Instant::now(),
            first: None,
            last: None,
        }
    }

    pub(super) async fn take_all(&mut self, mut stream: TokenStream) -> Result<(), Failure> {
        while let Some(token) = stream.next().await {
            let token = token?;
            self.last = Some(self.started.elapsed());
            self.first = self.first.or(self.last);
            if !self.vocabulary.is_control(token.id) {
                let text = self.builder.push(self.vocabulary.bytes(token.id));
                self.add(&text)?;
            }
            self.tokens.push(token);
            if self.builder.has_ended() {
                break;
            }
        }
        let text = self.builder.finish();
        self.add(&text)?;
        self.device = stream.answer().map(|answer| answer.device.to_string());
        Ok(())
    }

    fn add(&mut self, text: &str) -> Result<(), Failure> {
        if self.is_printed {
            self.show(text)?;
        }
        self.text += text;
        Ok(())
    }

    /// Prints all of it.
    pub(super) fn print(&self) -> Result<(), Failure> {
        self.show(&self.text)
    }

    fn show(&self, text: &str) -> Result<(), Failure> {
        // What a model says must not steer a terminal.
        let is_shown = |character: &char| !self.is_terminal || !character.is_control() || "\n\t".contains(*character);
        if !text.is_empty() {
            output::print(&text.chars().filter(is_shown).collect::<String>())?;
        }
        Ok(())
    }

    /// All of it for programs. These tokens end an answer, and it had up to this many.
    pub(super) fn object(&self, ends: &[u32], new_tokens_max: u32) -> Value {
        let ids: Vec<u32> = self.tokens.iter().map(|token| token.id).collect();
        let mut object = json!({
            "text": self.text, "ids": ids, "prompt_tokens": 0, "tokens": ids.len(),
            "finish_reason": self.finish_reason(ends, new_tokens_max), "device": self.device, "seed": self.seed,
            "first_token_ms": self.first.map(|first| first.as_secs_f64() * 1000.0), "tokens_per_s": self.rate(),
        });
        let logprobs = |token: &Token| token.logprobs.as_ref().map(|logprobs| self.logprobs(token.id, logprobs));
        let logprobs: Vec<Value> = self.tokens.iter().filter_map(logprobs).collect();
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
        let place = self.device.as_ref().map_or_else(String::new, |device| format!(" on {device}"));
        format!("{} new{rate}{place}", self.tokens.len())
    }

    /// New tokens a second after the first.
    fn rate(&self) -> Option<f64> {
        let took = (self.last? - self.first?).as_secs_f64();
        (took > 0.0).then(|| (self.tokens.len() - 1) as f64 / took)
    }

    fn finish_reason(&self, ends: &[u32], new_tokens_max: u32) -> &'static str {
        let has_ended = self.tokens.last().is_some_and(|last| ends.contains(&last.id));
        match has_ended || self.builder.has_ended() || self.tokens.len() < new_tokens_max as usize {
            true => "stop",
            false => "length",
        }
    }
}
