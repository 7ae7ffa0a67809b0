//! What is recorded of a request: its key, its priority, what was computed, how long that took.
//! Belongs to one request; the list of its passes is bounded.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use magray_engine::{
    DeviceName,
    engine::{Answer, CallerId, Priority},
};
use tracing::{Instrument, Span};

use super::{
    errors::{Kind, Problem},
    meter::Counted,
    token_account::TokenAccount,
};

/// Clones share one record.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    recorded: Arc<Mutex<Recorded>>,
    /// Lines of the log that belong to the request are written in it, and so carry its id.
    span: Span,
}

/// Who computes, and how urgently: what the queue is asked by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asker {
    pub(crate) caller: CallerId,
    pub(crate) priority: Priority,
    /// Whether it asks for what is generated.
    pub(crate) generates: bool,
    /// What tells it from other requests of its caller, and is the same when it comes again.
    pub(crate) mark: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) key: Option<Arc<str>>,
    pub(crate) asker: Asker,
    /// Whose rates it counts for.
    pub(crate) counted: Option<Counted>,
    /// `None` where tokens are not limited.
    account: Option<Arc<TokenAccount>>,
    /// Whether its caller may not ask for a high priority.
    is_held_back: bool,
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
    /// The first ones; the sums above are of all.
    pub(crate) passes: Vec<Pass>,
}

#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) model: usize,
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
    pub(crate) device: DeviceName,
    pub(crate) fallback: Option<&'static str>,
    /// Texts of the batch that ended it, those of other requests included.
    pub(crate) batch_texts: u32,
    pub(crate) read: Instant,
    pub(crate) reading: Duration,
    pub(crate) queued: Duration,
    pub(crate) computed: Duration,
    pub(crate) answered: Instant,
}

/// No API computes so often for one request.
const PASSES_MAX: usize = 16;

tokio::task_local! {
    static CURRENT: RequestRecord;
}

impl RequestRecord {
    pub(crate) fn new(span: Span) -> Self {
        Self { recorded: Arc::default(), span }
    }

    /// Runs a future as part of this request: what it records and logs belongs to it.
    pub(crate) async fn scope<F: Future>(&self, future: F) -> F::Output {
        CURRENT.scope(self.clone(), future.instrument(self.span.clone())).await
    }

    /// That of the request that this task answers; a new one where it answers none.
    pub(crate) fn current() -> Self {
        CURRENT.try_with(Self::clone).unwrap_or_else(|_| Self::new(Span::none()))
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn set_caller(&self, caller: CallerId, key: Option<Arc<str>>, is_held_back: bool) {
        let mut recorded = self.recorded();
        recorded.asker.caller = caller;
        recorded.key = key;
        recorded.is_held_back = is_held_back;
    }

    /// What it asks for, and how it is known when it comes again.
    pub(crate) fn set_mark(&self, generates: bool, mark: Option<u64>) {
        let asker = &mut self.recorded().asker;
        (asker.generates, asker.mark) = (generates, mark);
    }

    pub(crate) fn set_counted(&self, counted: Counted, account: Option<Arc<TokenAccount>>) {
        let mut recorded = self.recorded();
        (recorded.counted, recorded.account) = (Some(counted), account);
    }

    /// What it uses of its caller's tokens; `None` where they are not limited.
    pub(crate) fn account(&self) -> Option<Arc<TokenAccount>> {
        self.recorded().account.clone()
    }

    /// What the request computes from here on is as urgent as this, if its caller may ask for it.
    pub(crate) fn set_priority(&self, priority: Priority) -> Result<(), Problem> {
        let mut recorded = self.recorded();
        if priority == Priority::High && recorded.is_held_back {
            let name = recorded.key.as_deref().unwrap_or_default();
            let message = format!("the key '{name}' may not ask for a high priority: see server.high_priority_keys");
            return Err(Problem::new(Kind::Forbidden, message));
        }
        recorded.asker.priority = priority;
        Ok(())
    }

    pub(crate) fn asker(&self) -> Asker {
        self.recorded().asker
    }

    pub(crate) fn add_pass(&self, pass: Pass) {
        let mut recorded = self.recorded();
        recorded.texts += pass.texts;
        recorded.tokens += pass.tokens;
        if recorded.passes.len() < PASSES_MAX {
            recorded.passes.push(pass);
        }
    }

    pub(crate) fn within(&self, span: Span) -> Self {
        Self { recorded: Arc::clone(&self.recorded), span }
    }

    pub(crate) fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAt {
    pub(crate) at: Instant,
    pub(crate) took: Duration,
}

impl Pass {
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
        let record = RequestRecord::new(Span::none());
        for _ in 0..100 {
            record.add_pass(pass(3));
        }
        let recorded = record.recorded();
        assert_eq!((recorded.texts, recorded.tokens, recorded.passes.len()), (300, 600, PASSES_MAX));
    }

    #[test]
    fn a_caller_that_is_held_back_may_be_less_urgent_and_not_more() {
        let record = RequestRecord::new(Span::none());
        assert_eq!(record.asker().priority, Priority::Normal);
        record.set_priority(Priority::High).unwrap();
        record.set_caller(CallerId(1), None, true);
        assert_eq!(record.set_priority(Priority::High).unwrap_err().kind, Kind::Forbidden);
        record.set_priority(Priority::Low).unwrap();
        assert_eq!(record.asker().priority, Priority::Low);
    }

    #[test]
    fn passes_outside_of_a_request_are_not_recorded_in_it() {
        let record = RequestRecord::new(Span::none());
        RequestRecord::current().add_pass(pass(1));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(record.scope(async { RequestRecord::current().add_pass(pass(2)) }));
        assert_eq!(record.recorded().texts, 2);
    }
}
