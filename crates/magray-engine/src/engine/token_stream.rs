//! Generated tokens as a stream: awaited one by one, in order, while the sequence goes on.
//! Holds a bounded number of tokens: a reader that is slow pauses its own sequence, and one that leaves ends it.

use super::{Answer, CallerId, Engine, EngineError, Priority, RequestId};
use crate::decoder::{Sampling, TokenLogprobs, grammar};
use crate::encoder::EmbedError;
use crate::executors::NewTokens;
use magray_core::DeviceName;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Tokens to go on from.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    /// Which of the engine's models.
    pub model: usize,
    /// Its tokens, special ones included.
    pub ids: Vec<u32>,
    /// New tokens at most; at least one.
    pub new_tokens_max: u32,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Who shares the devices with others.
    pub caller: CallerId,
    /// How urgent it is.
    pub priority: Priority,
    /// After this time no more tokens are wanted.
    pub deadline: Option<Duration>,
    /// The device that computes it, in place of where the model's other work goes.
    pub device: Option<DeviceName>,
}

/// A new token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Which.
    pub id: u32,
    /// How likely it was, where that was asked for ([`Sampling::logprobs`]).
    pub logprobs: Option<TokenLogprobs>,
    /// When it came from its device; all tokens of a turn come together.
    pub at: Instant,
}

/// Tokens that were proposed for passes, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speculation {
    /// Tokens that were proposed.
    pub proposed: u64,
    /// Those that the model chose: each saved a pass.
    pub accepted: u64,
}

/// Refuses prompts that leave no room for this number of new tokens.
pub(super) fn check_context(max_tokens: usize, prompt: usize, new: u32) -> Result<(), EngineError> {
    if prompt as u64 + u64::from(new) > max_tokens as u64 {
        return Err(EmbedError::Context { prompt, new, max_tokens }.into());
    }
    Ok(())
}

/// New tokens of a prompt. Dropped before its end, the work is cancelled.
#[must_use = "tokens that are not read are not generated"]
pub struct TokenStream {
    engine: Engine,
    /// `None` where the work was refused at once.
    id: Option<RequestId>,
    buffer: Arc<TokenBuffer>,
    /// Tokens that were there when the buffer was last looked into: a turn brings several, and they cost one lock.
    ready: VecDeque<Token>,
    /// Tokens that were taken since the engine was told.
    taken: u32,
    /// It is told after this many.
    told_after: u32,
}

impl TokenStream {
    pub(super) fn begin(engine: &Engine, mut prompt: Prompt) -> Result<Self, EngineError> {
        prompt.sampling.speculate.get_or_insert(engine.0.speculate);
        let reader = engine.reader(prompt.model)?;
        reader.check(std::iter::once(prompt.ids.as_slice()))?;
        prompt.sampling.check().map_err(EmbedError::from)?;
        if reader.spec.generates().is_none() {
            return Err(EmbedError::WrongTask { does: "generates no text", wanted: "does" }.into());
        }
        if let Some(constraint) = &prompt.sampling.constraint {
            reader.vocabulary.as_ref().ok_or(EmbedError::NoTokenizer)?;
            grammar::check(constraint).map_err(EmbedError::from)?;
        }
        check_context(reader.spec.max_tokens, prompt.ids.len(), prompt.new_tokens_max)?;
        let allowed = match prompt.device {
            Some(device) => engine.0.choices.allowed_on(device)?,
            None => engine.0.choices.allowed(prompt.model),
        };
        let buffer = Arc::new(TokenBuffer::default());
        let told_after = (engine.0.unread_max / 2).max(1);
        let id = engine.dispatcher().generate(prompt, allowed, Arc::clone(&buffer));
        Ok(Self { engine: engine.clone(), id: Some(id), buffer, ready: VecDeque::new(), taken: 0, told_after })
    }

    /// The next token; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Token, EngineError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The next token, if it is there; else the task is woken when it is. `None` at the end.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Token, EngineError>>> {
        let next = match self.ready.pop_front() {
            Some(token) => Poll::Ready(Some(Ok(token))),
            None => self.buffer.poll(&mut self.ready, context),
        };
        match &next {
            Poll::Ready(Some(Ok(_))) => self.note_taken(),
            Poll::Ready(end) => {
                self.id = None;
                if let (None, Some(answer)) = (end, self.answer()) {
                    self.engine.0.passes.note(&answer);
                }
            }
            Poll::Pending => {}
        }
        next
    }

    /// How it went: the device of the last token, the times; `None` before the end.
    pub fn answer(&self) -> Option<Answer> {
        self.buffer.lock().answer.clone()
    }

    /// What was proposed for it and verified, so far.
    pub fn speculation(&self) -> Speculation {
        self.buffer.lock().speculation
    }

    /// Tokens that were in the cache of prompts so far. A sequence that was started again counts anew.
    pub fn cached_tokens(&self) -> u32 {
        self.buffer.cached()
    }

    fn note_taken(&mut self) {
        self.taken += 1;
        if let Some(id) = self.id.filter(|_| self.taken >= self.told_after) {
            self.engine.dispatcher().tokens_read(id, std::mem::take(&mut self.taken), self.engine.0.unread_max);
        }
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.engine.dispatcher().cancel(id);
        }
    }
}

/// Tokens between the engine and a reader.
#[derive(Default)]
pub(super) struct TokenBuffer(Mutex<State>);

#[derive(Default)]
struct State {
    tokens: VecDeque<Token>,
    /// Tokens that were not computed.
    cached: u32,
    /// Why the answer is not complete at its end.
    problem: Option<String>,
    speculation: Speculation,
    end: Option<Result<(), EngineError>>,
    /// How it went, at the end.
    answer: Option<Answer>,
    waker: Option<Waker>,
}

impl TokenBuffer {
    /// Adds tokens. Their reader is to be woken when no lock is held. What comes without a token wakes nobody.
    #[must_use = "the reader is to be woken"]
    pub(super) fn push(&self, new: NewTokens) -> Option<Waker> {
        let NewTokens { tokens, logprobs, problem, cached, proposed, accepted, .. } = new;
        let logprobs = logprobs.into_iter().map(Some).chain(std::iter::repeat(None));
        let at = Instant::now();
        let mut state = self.lock();
        state.tokens.extend(tokens.into_iter().zip(logprobs).map(|(id, logprobs)| Token { id, logprobs, at }));
        state.problem = state.problem.take().or(problem);
        state.speculation.proposed += u64::from(proposed);
        state.speculation.accepted += u64::from(accepted);
        state.cached += cached;
        if state.tokens.is_empty() { None } else { state.waker.take() }
    }

    /// There will be no more tokens; an error says why.
    pub(super) fn end(&self, end: Result<Answer, EngineError>) {
        let mut state = self.lock();
        let problem = state.problem.take().map_or(Ok(()), |problem| Err(EmbedError::Constrained(problem).into()));
        state.end = Some(end.map(|answer| state.answer = Some(answer)).and(problem));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Tokens of the prompt that were not computed so far.
    pub(super) fn cached(&self) -> u32 {
        self.lock().cached
    }

    /// The next token; those behind it are moved into `ready`, which is empty.
    fn poll(&self, ready: &mut VecDeque<Token>, context: &mut Context<'_>) -> Poll<Option<Result<Token, EngineError>>> {
        let mut state = self.lock();
        if !state.tokens.is_empty() {
            std::mem::swap(&mut state.tokens, ready);
            drop(state);
            return Poll::Ready(ready.pop_front().map(Ok));
        }
        match state.end.take() {
            Some(end) => {
                state.end = Some(Ok(()));
                Poll::Ready(end.err().map(Err))
            }
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_end_wakes_a_reader_after_news_without_tokens() {
        let (buffer, woken) = (TokenBuffer::default(), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut ready = VecDeque::new();
        assert!(buffer.poll(&mut ready, &mut context).is_pending());
        let news = NewTokens { problem: Some("it fits nothing".to_owned()), ..NewTokens::default() };
        assert!(buffer.push(news).is_none());
        buffer.end(Err(EngineError::NoText));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(matches!(buffer.poll(&mut ready, &mut context), Poll::Ready(Some(Err(_)))));
    }
}
