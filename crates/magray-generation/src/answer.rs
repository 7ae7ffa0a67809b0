//! One answer as it comes: tokens of the engine become text, thoughts and calls, and at the end it is known why there are no more.
//! Holds back what may still become part of a character or of a text that ends it. Dropped, its work is cancelled.

use std::{
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use magray_chat::AnswerReader;
pub use magray_chat::Part;
use magray_engine::{
    DeviceName,
    decoder::{TextBuilder, TokenLogprobs},
    engine::{Answer, Engine, EngineError, Speculation, Token, TokenStream},
};

/// What comes of an answer.
#[derive(Debug)]
pub enum AnswerEvent {
    /// A new token.
    Token(AnswerToken),
    /// The last one.
    End(AnswerEnd),
}

/// A token, and what is certain of the answer with it.
#[derive(Debug)]
pub struct AnswerToken {
    /// Which.
    pub id: u32,
    /// How likely it was, where that was asked for.
    pub logprobs: Option<TokenLogprobs>,
    /// When it came from its device.
    pub at: Instant,
    /// What is certain of the answer with it.
    pub parts: Vec<Part>,
}

/// The end of an answer.
#[derive(Debug)]
pub struct AnswerEnd {
    /// What was held back.
    pub parts: Vec<Part>,
    /// Why there is no more.
    pub finish: Finish,
    /// The text that ended it.
    pub stop: Option<String>,
    /// How many it has.
    pub tokens: usize,
    /// Tokens of its prompt that were not computed: another sequence began with them.
    pub cached_tokens: usize,
    /// Those of its tokens in which it thought.
    pub thinking_tokens: usize,
    /// How it was computed; not known of an answer that a text ended.
    pub answer: Option<Answer>,
    /// Tokens that were proposed for its passes.
    pub speculation: Speculation,
    /// When tokens came.
    pub times: Times,
}

impl AnswerEnd {
    /// What computed the last token.
    pub fn device(&self) -> Option<DeviceName> {
        self.answer.as_ref().map(|answer| answer.device)
    }
}

/// Since the answer was begun.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The first token.
    pub first_token: Option<Duration>,
    /// The last token so far.
    pub last_token: Option<Duration>,
}

impl Times {
    /// New tokens a second after the first.
    pub fn tokens_per_s(&self, tokens: usize) -> Option<f64> {
        let took = (self.last_token? - self.first_token?).as_secs_f64();
        (took > 0.0).then(|| (tokens - 1) as f64 / took)
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a text that was to end it came.
    Stop,
    /// It had as many tokens as it may.
    Length,
    /// It calls tools.
    ToolCalls,
}

/// How tokens become an answer.
#[derive(Clone, Debug)]
pub(super) struct AnswerRules {
    pub(super) model: usize,
    /// Texts before which it ends.
    pub(super) stops: Vec<String>,
    pub(super) tokens_max: u32,
    /// `None` for a bare text.
    pub(super) chat: Option<ChatReading>,
}

/// What reads the text of an answer to a conversation.
#[derive(Clone, Debug)]
pub(super) struct ChatReading {
    pub(super) reader: AnswerReader,
    /// Control tokens that it has to see.
    pub(super) markers: Vec<&'static str>,
    pub(super) has_one_call: bool,
}

/// An answer that is being generated.
pub struct AnswerStream {
    engine: Engine,
    model: usize,
    /// `None` when it is over.
    stream: Option<TokenStream>,
    builder: TextBuilder,
    /// `None` for a bare text.
    chat: Option<ChatReading>,
    tokens_max: u32,
    tokens: usize,
    thinking_tokens: usize,
    has_calls: bool,
    last: Option<u32>,
    started: Instant,
    times: Times,
}

impl AnswerStream {
    pub(super) fn new(engine: &Engine, rules: &AnswerRules, stream: TokenStream, started: Instant) -> Self {
        Self {
            engine: engine.clone(),
            model: rules.model,
            stream: Some(stream),
            builder: TextBuilder::new(&rules.stops),
            chat: rules.chat.clone(),
            tokens_max: rules.tokens_max,
            tokens: 0,
            thinking_tokens: 0,
            has_calls: false,
            last: None,
            started,
            times: Times::default(),
        }
    }

    /// What comes next, if it is there; else the task is woken when it is. `None` after the end and after an error.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AnswerEvent, EngineError>>> {
        let is_done = self.builder.has_ended() || self.has_all_calls();
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        if is_done {
            return Poll::Ready(Some(Ok(AnswerEvent::End(self.end()))));
        }
        let next = match ready!(stream.poll_next(context)) {
            Some(Ok(token)) => Ok(AnswerEvent::Token(self.take(token))),
            Some(Err(error)) => {
                self.stream = None;
                Err(error)
            }
            None => Ok(AnswerEvent::End(self.end())),
        };
        Poll::Ready(Some(next))
    }

    fn take(&mut self, token: Token) -> AnswerToken {
        let Token { id, logprobs, at } = token;
        self.tokens += 1;
        self.last = Some(id);
        self.times.last_token = Some(at.saturating_duration_since(self.started));
        self.times.first_token = self.times.first_token.or(self.times.last_token);
        let text = self.builder.push(self.engine.vocabulary(self.model).map_or(&[][..], |known| {
            let bytes = known.bytes(id);
            let is_read = !known.is_control(id) || self.chat.as_ref().is_some_and(|chat| chat.has_marker(bytes));
            if is_read { bytes } else { &[] }
        }));
        let parts = self.split(text);
        self.thinking_tokens += usize::from(parts.iter().any(|part| matches!(part, Part::Thinking(_))));
        AnswerToken { id, logprobs, at, parts }
    }

    fn split(&mut self, text: String) -> Vec<Part> {
        let parts = match &mut self.chat {
            Some(chat) if !text.is_empty() => chat.reader.push(&text),
            None if !text.is_empty() => vec![Part::Text(text)],
            _ => Vec::new(),
        };
        self.note_calls(parts)
    }

    /// The parts that are told.
    fn note_calls(&mut self, mut parts: Vec<Part>) -> Vec<Part> {
        if self.chat.as_ref().is_some_and(|chat| chat.has_one_call) {
            let is_told = |part: &Part| match part {
                Part::CallBegins { index, .. } | Part::CallArguments { index, .. } => *index == 0,
                Part::Text(_) | Part::Thinking(_) => !self.has_calls,
            };
            parts.retain(is_told);
        }
        self.has_calls |= parts.iter().any(|part| matches!(part, Part::CallBegins { .. }));
        parts
    }

    /// Whether it has its one call.
    fn has_all_calls(&self) -> bool {
        self.has_calls && self.chat.as_ref().is_some_and(|chat| chat.has_one_call)
    }

    fn end(&mut self) -> AnswerEnd {
        let has_ended = self.has_ended();
        let text = self.builder.finish();
        let mut parts = self.split(text);
        let rest = self.chat.as_mut().map(|chat| chat.reader.finish()).unwrap_or_default();
        parts.extend(self.note_calls(rest));
        let finish = match has_ended {
            true if self.has_calls => Finish::ToolCalls,
            true => Finish::Stop,
            false => Finish::Length,
        };
        // Dropped at once: what a text ended goes on otherwise.
        let stream = self.stream.take();
        let speculation = stream.as_ref().map(TokenStream::speculation).unwrap_or_default();
        let cached_tokens = stream.as_ref().map_or(0, |stream| stream.cached_tokens() as usize);
        let answer = stream.and_then(|stream| stream.answer());
        let (tokens, thinking_tokens, times) = (self.tokens, self.thinking_tokens, self.times);
        let stop = self.builder.ended_by().map(str::to_owned);
        AnswerEnd { parts, finish, stop, tokens, cached_tokens, thinking_tokens, answer, speculation, times }
    }

    /// Whether it ended before it had as many tokens as it may.
    fn has_ended(&self) -> bool {
        let ends = self.engine.spec(self.model).and_then(|spec| spec.generates()).map(|generate| &generate.ends[..]);
        let is_end = self.last.is_some_and(|last| ends.unwrap_or_default().contains(&last));
        is_end || self.builder.has_ended() || self.has_all_calls() || self.tokens < self.tokens_max as usize
    }
}

impl ChatReading {
    fn has_marker(&self, bytes: &[u8]) -> bool {
        self.markers.iter().any(|marker| marker.as_bytes() == bytes)
    }
}

impl Finish {
    /// The word that OpenAI's API has for it; it never changes its meaning.
    pub fn code(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}
