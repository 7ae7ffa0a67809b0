//! What is known of a request at its end, for its line in the log and its trace: who asked, what was computed, how long.
//! Belongs to one request; a request that does a great deal is summed up.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use magray_engine::{DeviceName, engine::Answer};
use tracing::{Instrument, Span};

/// The account of a request. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    entries: Arc<Mutex<Entries>>,
    /// All that is logged on the request's behalf is logged in it, and so carries its name.
    span: Span,
}

/// What stands in it.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// What the caller's key is called.
    pub(crate) key: Option<Arc<str>>,
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
    /// The first ones; the sums above are of all.
    pub(crate) passes: Vec<Pass>,
}

/// Texts that were computed together for a request.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) model: usize,
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
    pub(crate) device: DeviceName,
    /// Why the CPU computed it in place of a GPU.
    pub(crate) fallback: Option<&'static str>,
    /// Texts of the batch that ended it, others' included.
    pub(crate) batch_texts: u32,
    /// When the texts were tokens.
    pub(crate) read: Instant,
    /// How long that took.
    pub(crate) reading: Duration,
    pub(crate) queued: Duration,
    pub(crate) computed: Duration,
    /// When there was an answer.
    pub(crate) answered: Instant,
}

/// No API computes so often for one request.
const PASSES_MAX: usize = 16;

tokio::task_local! {
    /// The account of the request that this task is about.
    static CURRENT: Account;
}

impl Account {
    pub(crate) fn new(span: Span) -> Self {
        Self { entries: Arc::default(), span }
    }

    /// Whatever is noted or logged while this future runs belongs to this request.
    pub(crate) async fn kept_during<F: Future>(&self, future: F) -> F::Output {
        CURRENT.scope(self.clone(), future.instrument(self.span.clone())).await
    }

    /// That of the request that this task is about; one of nobody's where it is about none.
    pub(crate) fn current() -> Self {
        CURRENT.try_with(Self::clone).unwrap_or_else(|_| Self::new(Span::none()))
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// The caller has this key.
    pub(crate) fn note_key(&self, name: Option<&Arc<str>>) {
        self.entries().key = name.cloned();
    }

    /// Something was computed.
    pub(crate) fn note_pass(&self, pass: Pass) {
        let mut entries = self.entries();
        entries.texts += pass.texts;
        entries.tokens += pass.tokens;
        if entries.passes.len() < PASSES_MAX {
            entries.passes.push(pass);
        }
    }

    /// The same account in another span.
    pub(crate) fn within(&self, span: Span) -> Self {
        Self { entries: Arc::clone(&self.entries), span }
    }

    /// What stands in it now.
    pub(crate) fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the texts of a request were read, and how long that took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAt {
    pub(crate) at: Instant,
    pub(crate) took: Duration,
}

impl Pass {
    /// An answer that has just come.
    pub(crate) fn of(model: usize, texts: usize, answer: &Answer, read: ReadAt) -> Self {
        Self {
            model,
            texts,
            tokens: answer.tokens,
            device: answer.device,
            fallback: answer.fallback.as_ref().map(|reason| reason.code()),
            batch_texts: answer.batch_texts,
            read: read.at,
            reading: read.took,
            queued: answer.queued,
            computed: answer.computed,
            answered: Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(texts: usize) -> Pass {
        let now = Instant::now();
        Pass {
            model: 0,
            texts,
            tokens: 2 * texts,
            device: DeviceName::Cpu,
            fallback: None,
            batch_texts: 1,
            read: now,
            reading: Duration::ZERO,
            queued: Duration::ZERO,
            computed: Duration::ZERO,
            answered: now,
        }
    }

    #[test]
    fn sums_are_of_all_passes_and_the_list_is_bounded() {
        let account = Account::new(Span::none());
        for _ in 0..100 {
            account.note_pass(pass(3));
        }
        let entries = account.entries();
        assert_eq!((entries.texts, entries.tokens, entries.passes.len()), (300, 600, PASSES_MAX));
    }

    #[test]
    fn what_is_noted_elsewhere_does_not_reach_a_request() {
        let account = Account::new(Span::none());
        Account::current().note_pass(pass(1));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(account.kept_during(async { Account::current().note_pass(pass(2)) }));
        assert_eq!(account.entries().texts, 2);
    }
}
