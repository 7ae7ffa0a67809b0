//! An answer as it is shown: on a terminal as Markdown, in a pipe as it is, for programs as JSON.
//! Asks for nothing.

use std::io::{self, IsTerminal};

use magray_engine::DeviceName;
use rustix::termios::tcgetwinsize;
use serde_json::{Value, json};

use super::markdown::Markdown;
use crate::{
    exit::Failure,
    generation::{AnswerEnd, AnswerEvent, Part},
    output,
};

/// Where the answer goes.
pub(super) struct Shown {
    form: Form,
    is_terminal: bool,
}

enum Form {
    /// Shown only at the end, in another form.
    Nothing,
    Plain {
        ends_line: bool,
    },
    /// Thoughts, and then the answer.
    Markdown(Box<Pages>),
}

struct Pages {
    columns: usize,
    thoughts: Option<Markdown>,
    answer: Option<Markdown>,
}

/// The columns of a terminal that does not tell.
const COLUMNS: usize = 80;

impl Shown {
    pub(super) fn new(is_plain: bool, is_nothing: bool) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let form = match (is_nothing, is_terminal && !is_plain) {
            (true, _) => Form::Nothing,
            (false, false) => Form::Plain { ends_line: true },
            (false, true) => Form::Markdown(Box::new(Pages { columns: columns(), thoughts: None, answer: None })),
        };
        Self { form, is_terminal }
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    fn show(&mut self, part: &Part) -> Result<(), Failure> {
        let text = match (&mut self.form, part) {
            (Form::Plain { ends_line }, Part::Text(text)) => {
                *ends_line = text.ends_with('\n');
                // What a model says must not steer a terminal.
                let is_shown = |c: &char| !self.is_terminal || !c.is_control() || "\n\t".contains(*c);
                text.chars().filter(is_shown).collect()
            }
            (Form::Markdown(pages), Part::Thinking(text)) => {
                pages.thoughts.get_or_insert_with(|| Markdown::dimmed(pages.columns)).push(text)
            }
            (Form::Markdown(pages), Part::Text(text)) => {
                let ended = pages.thoughts.take().map(|mut thoughts| thoughts.finish() + "\n").unwrap_or_default();
                ended + &pages.answer.get_or_insert_with(|| Markdown::new(pages.columns)).push(text)
            }
            _ => return Ok(()),
        };
        if !text.is_empty() {
            output::print(&text)?;
        }
        Ok(())
    }

    /// Ends the last line.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        let end = match &mut self.form {
            Form::Nothing => String::new(),
            Form::Plain { ends_line } => {
                if *ends_line {
                    String::new()
                } else {
                    "\n".to_owned()
                }
            }
            Form::Markdown(pages) => {
                let mut end = pages.thoughts.take().map(|mut thoughts| thoughts.finish()).unwrap_or_default();
                end += &pages.answer.take().map(|mut answer| answer.finish()).unwrap_or_default();
                end
            }
        };
        Ok(output::print(&end)?)
    }
}

pub(super) fn columns() -> usize {
    let size = tcgetwinsize(io::stdout());
    size.map_or(COLUMNS, |size| if size.ws_col == 0 { COLUMNS } else { size.ws_col.into() })
}

/// What a model said.
pub(super) struct Said {
    pub(super) text: String,
    pub(super) thinking: String,
    prompt_tokens: usize,
    tokens: usize,
    is_stopped: bool,
    end: Option<AnswerEnd>,
}

impl Said {
    pub(super) fn new(prompt_tokens: usize) -> Self {
        let (text, thinking) = Default::default();
        Self { text, thinking, prompt_tokens, tokens: 0, is_stopped: false, end: None }
    }

    /// It was stopped before its end.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub(super) fn add(&mut self, event: AnswerEvent, shown: &mut Shown) -> Result<(), Failure> {
        let parts = match event {
            AnswerEvent::Token(token) => {
                self.tokens += 1;
                token.parts
            }
            AnswerEvent::End(mut end) => {
                let parts = std::mem::take(&mut end.parts);
                self.end = Some(end);
                parts
            }
        };
        for part in parts {
            shown.show(&part)?;
            match part {
                Part::Text(text) => self.text += &text,
                Part::Thinking(text) => self.thinking += &text,
                // No tools are given.
                Part::CallBegins { .. } | Part::CallArguments { .. } => {}
            }
        }
        Ok(())
    }

    fn device(&self) -> Option<DeviceName> {
        self.end.as_ref().and_then(AnswerEnd::device)
    }

    fn tokens_per_s(&self) -> Option<f64> {
        self.end.as_ref().and_then(|end| end.times.tokens_per_s(end.tokens))
    }

    /// Its numbers for people.
    pub(super) fn summary(&self) -> String {
        if self.is_stopped {
            return format!("stopped after {} tokens", self.tokens);
        }
        let rate = self.tokens_per_s().map_or_else(String::new, |rate| format!(", {rate:.1}/s"));
        let place = self.device().map_or_else(String::new, |device| format!(" on {device}"));
        let cut = match self.finish() {
            "length" => "; it is as long as it may be",
            _ => "",
        };
        format!("{} tokens{rate}{place}{cut}", self.tokens)
    }

    fn finish(&self) -> &'static str {
        self.end.as_ref().map_or("stop", |end| end.finish.code())
    }

    /// All of it for programs.
    pub(super) fn object(&self, model: &str, seed: u64) -> Value {
        let first = self.end.as_ref().and_then(|end| end.times.first_token);
        let mut object = json!({
            "text": self.text, "model": model, "prompt_tokens": self.prompt_tokens, "tokens": self.tokens,
            "finish_reason": self.finish(), "device": self.device().map(|device| device.to_string()), "seed": seed,
            "first_token_ms": first.map(|first| first.as_secs_f64() * 1000.0), "tokens_per_s": self.tokens_per_s(),
        });
        if !self.thinking.is_empty() {
            object["thinking"] = self.thinking.as_str().into();
        }
        object
    }
}
