//! Reads the text of a model as it streams: what is said, what is thought, which tools are called.
//! A call that is broken or unfinished comes out as text; nothing is lost but white space around thoughts and calls.

#[cfg(test)]
mod tests;

use crate::calls::{self, ReadCall};
use crate::format::{AnswerFormat, CallStyle};
use crate::json_span::JsonSpan;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text for the reader.
    Text(String),
    /// What the model thinks before it answers.
    Thinking(String),
    /// A call begins. Its arguments follow at once.
    CallBegins {
        /// The number of the call in this answer, from 0.
        index: usize,
        /// The tool.
        name: String,
    },
    /// The arguments of a call.
    CallArguments {
        /// The number of the call.
        index: usize,
        /// JSON text as the model wrote it.
        json: String,
    },
}

/// Splits one answer into parts.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    format: AnswerFormat,
    reads_calls: bool,
    state: State,
    /// Text whose meaning is not known yet.
    pending: String,
    calls: usize,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing was said: a thought may begin.
    Start,
    Thinking(Thought),
    Body {
        /// A bare JSON object may begin here.
        may_be_bare: bool,
        /// White space that follows a thought or a call is dropped.
        skips_space: bool,
    },
    /// `pending` begins with `lead` bytes of white space and the mark, then the call.
    Call {
        lead: usize,
        span: JsonSpan,
    },
}

/// How far a thought has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thought {
    /// The prompt has opened the block; a model may open it again.
    MayReopen,
    /// White space at the beginning is dropped.
    SkipsSpace,
    Begun,
}

/// What reading a call has come to.
enum CallStep {
    Wait,
    /// The calls, and the bytes of `pending` that they took.
    Read(Vec<ReadCall>, usize),
    Broken,
}

const PLAIN: State = State::Body { may_be_bare: false, skips_space: false };

impl AnswerReader {
    /// A reader of one answer. What is not asked for stays in the text.
    pub fn new(format: &AnswerFormat, reads_calls: bool, splits_thinking: bool) -> Self {
        let state = match format.thinking {
            Some(_) if splits_thinking => State::Start,
            _ => State::Body { may_be_bare: true, skips_space: false },
        };
        Self { format: format.clone(), reads_calls, state, pending: String::new(), calls: 0 }
    }

    /// Tells the reader how its prompt ends: some templates open the block of thoughts there.
    pub fn starts_after(&mut self, prompt: &str) {
        let is_open = self.format.thinking.is_some_and(|block| prompt.trim_end().ends_with(block.open));
        if is_open && matches!(self.state, State::Start) {
            self.state = State::Thinking(Thought::MayReopen);
        }
    }

    /// Takes more text and returns the parts that are known now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.pending.push_str(text);
        self.read(false)
    }

    /// The answer has ended: returns all that was held back.
    pub fn finish(&mut self) -> Vec<Part> {
        self.read(true)
    }

    fn read(&mut self, is_last: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        while !self.pending.is_empty() {
            let goes_on = match self.state {
                State::Start => self.step_start(is_last),
                State::Thinking(thought) => self.step_thinking(thought, is_last, &mut parts),
                State::Body { .. } => self.step_body(is_last, &mut parts),
                State::Call { .. } => self.step_call(is_last, &mut parts),
            };
            if !goes_on {
                break;
            }
        }
        parts
    }

    fn step_start(&mut self, is_last: bool) -> bool {
        let open = self.format.thinking.map_or("", |block| block.open);
        let text = self.pending.trim_start();
        if text.starts_with(open) {
            let used = self.pending.len() - text.len() + open.len();
            self.pending.drain(..used);
            self.state = State::Thinking(Thought::SkipsSpace);
        } else if open.starts_with(text) && !is_last {
            return false;
        } else {
            self.state = State::Body { may_be_bare: true, skips_space: false };
        }
        true
    }

    fn step_thinking(&mut self, thought: Thought, is_last: bool, parts: &mut Vec<Part>) -> bool {
        let Some(block) = self.format.thinking else {
            self.state = PLAIN;
            return true;
        };
        if thought != Thought::Begun {
            let text = self.pending.trim_start();
            let spaces = self.pending.len() - text.len();
            if thought == Thought::MayReopen && text.starts_with(block.open) {
                self.pending.drain(..spaces + block.open.len());
                self.state = State::Thinking(Thought::SkipsSpace);
                return true;
            }
            let may_reopen = thought == Thought::MayReopen && block.open.starts_with(text);
            if text.is_empty() || (may_reopen && !is_last) {
                return false;
            }
            self.pending.drain(..spaces);
            self.state = State::Thinking(Thought::Begun);
        }
        if let Some(at) = self.pending.find(block.close) {
            let thought = self.pending[..at].trim_end().to_owned();
            self.pending.drain(..at + block.close.len());
            emit(parts, Part::Thinking(thought));
            self.state = State::Body { may_be_bare: true, skips_space: true };
            return true;
        }
        let known = if is_last { self.pending.len() } else { known_bytes(&self.pending, block.close) };
        emit(parts, Part::Thinking(self.pending.drain(..known).collect()));
        false
    }

    fn step_body(&mut self, is_last: bool, parts: &mut Vec<Part>) -> bool {
        let State::Body { may_be_bare, skips_space } = self.state else { return true };
        if skips_space {
            let spaces = self.pending.len() - self.pending.trim_start().len();
            self.pending.drain(..spaces);
            if self.pending.is_empty() {
                return false;
            }
            self.state = State::Body { may_be_bare, skips_space: false };
        }
        if !self.reads_calls {
            emit(parts, Part::Text(std::mem::take(&mut self.pending)));
            return false;
        }
        if may_be_bare && self.format.calls == CallStyle::Llama {
            match self.bare_call_at(is_last) {
                Some(Some(lead)) => {
                    self.state = State::Call { lead, span: JsonSpan::default() };
                    return true;
                }
                Some(None) => {}
                None => return false,
            }
        }
        self.state = PLAIN;
        let marker = self.format.call_marker();
        let Some(at) = self.pending.find(marker) else {
            let known = if is_last { self.pending.len() } else { known_bytes(&self.pending, marker) };
            emit(parts, Part::Text(self.pending.drain(..known).collect()));
            return false;
        };
        let said = self.pending[..at].trim_end().len();
        emit(parts, Part::Text(self.pending.drain(..said).collect()));
        self.state = State::Call { lead: at - said + marker.len(), span: JsonSpan::default() };
        true
    }

    /// Where a bare object begins, after the semicolon that may stand between two. The outer `None`: not known yet.
    fn bare_call_at(&self, is_last: bool) -> Option<Option<usize>> {
        let mut text = self.pending.trim_start();
        if self.calls > 0 {
            text = text.strip_prefix(';').unwrap_or(text).trim_start();
        }
        if text.is_empty() && !is_last {
            return None;
        }
        Some(text.starts_with('{').then_some(self.pending.len() - text.len()))
    }

    fn step_call(&mut self, is_last: bool, parts: &mut Vec<Part>) -> bool {
        let State::Call { lead, ref mut span } = self.state else { return true };
        let text = &self.pending[lead..];
        let step = match self.format.calls {
            CallStyle::Tagged(block) => read_tagged(text, span, block.close, is_last),
            CallStyle::Llama => read_object(text, span),
            CallStyle::Mistral => read_mistral(text, span),
        };
        match step {
            CallStep::Wait if !is_last => return false,
            CallStep::Read(calls, used) => {
                self.pending.drain(..lead + used);
                for call in calls {
                    let index = self.calls;
                    self.calls += 1;
                    parts.push(Part::CallBegins { index, name: call.name });
                    parts.push(Part::CallArguments { index, json: call.arguments });
                }
                self.state = State::Body { may_be_bare: true, skips_space: true };
            }
            // The mark was only text. What follows it is read as text, which may hold another one.
            CallStep::Wait | CallStep::Broken => {
                emit(parts, Part::Text(self.pending.drain(..lead).collect()));
                self.state = PLAIN;
            }
        }
        true
    }
}

/// Reads JSON and the mark that closes it, which may be missing.
fn read_tagged(text: &str, span: &mut JsonSpan, close: &str, is_last: bool) -> CallStep {
    let json = text.trim_start();
    let spaces = text.len() - json.len();
    if !json.is_empty() && !json.starts_with(['{', '[']) {
        return CallStep::Broken;
    }
    let Some(end) = (!json.is_empty()).then(|| span.find_end(json)).flatten() else { return CallStep::Wait };
    let Some(calls) = calls::read_json(&json[..end]) else { return CallStep::Broken };
    let rest = json[end..].trim_start();
    let used = text.len() - rest.len();
    if rest.starts_with(close) {
        CallStep::Read(calls, used + close.len())
    } else if close.starts_with(rest) && !is_last {
        CallStep::Wait
    } else if close.starts_with(rest) {
        // The answer has ended within the mark.
        CallStep::Read(calls, text.len())
    } else {
        CallStep::Read(calls, spaces + end)
    }
}

/// Reads one object with `parameters`.
fn read_object(text: &str, span: &mut JsonSpan) -> CallStep {
    let json = text.trim_start();
    let spaces = text.len() - json.len();
    match json.as_bytes().first() {
        None => CallStep::Wait,
        Some(b'{') => match span.find_end(json) {
            None => CallStep::Wait,
            Some(end) => match calls::read_bare(&json[..end]) {
                Some(calls) => CallStep::Read(calls, spaces + end),
                None => CallStep::Broken,
            },
        },
        Some(_) => CallStep::Broken,
    }
}

/// Reads an array of objects, or a name and its arguments.
fn read_mistral(text: &str, span: &mut JsonSpan) -> CallStep {
    let trimmed = text.trim_start();
    let spaces = text.len() - trimmed.len();
    let (header, json) = match trimmed.as_bytes().first() {
        None => return CallStep::Wait,
        Some(b'[' | b'{') => (None, trimmed),
        Some(_) => match trimmed.find('{') {
            None if calls::may_be_header(trimmed) => return CallStep::Wait,
            None => return CallStep::Broken,
            Some(at) if !calls::may_be_header(&trimmed[..at]) => return CallStep::Broken,
            Some(at) => match calls::read_header(&trimmed[..at]) {
                Some(name) => (Some((name, at)), &trimmed[at..]),
                None => return CallStep::Broken,
            },
        },
    };
    let Some(end) = span.find_end(json) else { return CallStep::Wait };
    let (calls, header_bytes) = match header {
        Some((name, at)) => (calls::read_arguments(name, &json[..end]), at),
        None => (calls::read_json(&json[..end]), 0),
    };
    match calls {
        Some(calls) => CallStep::Read(calls, spaces + header_bytes + end),
        None => CallStep::Broken,
    }
}

/// How many bytes are known not to belong to the mark, nor to white space before it.
fn known_bytes(text: &str, mark: &str) -> usize {
    let held = (1..mark.len()).rev().find(|&length| text.ends_with(&mark[..length])).unwrap_or(0);
    text[..text.len() - held].trim_end().len()
}

/// Adds a part. Texts without a character between are one part.
fn emit(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (_, Part::Text(text) | Part::Thinking(text)) if text.is_empty() => {}
        (Some(Part::Text(last)), Part::Text(text)) | (Some(Part::Thinking(last)), Part::Thinking(text)) => {
            last.push_str(&text);
        }
        (_, part) => parts.push(part),
    }
}
