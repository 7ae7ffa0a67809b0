//! Counts the tokens of a request's answers as they come: for its caller's budget, and how far they are apart.
//! What came together is counted together.

use std::{sync::Arc, time::Instant};

use super::{metrics::Metrics, token_account::TokenAccount};

pub(super) struct TokenCounts {
    metrics: Metrics,
    account: Option<Arc<TokenAccount>>,
    begun: Instant,
    /// By answer: when its last token came.
    last: Vec<Option<Instant>>,
    /// Tokens that the caller was not charged for yet.
    uncounted: u64,
    /// Tokens that came with the one before them, and are in no metric yet.
    together: u64,
}

impl TokenCounts {
    /// Tokens that a caller is charged for at once.
    const TOGETHER: u64 = 16;

    /// Of answers that begin now.
    pub(super) fn new(metrics: Metrics, account: Option<Arc<TokenAccount>>) -> Self {
        Self { metrics, account, begun: Instant::now(), last: Vec::new(), uncounted: 0, together: 0 }
    }

    pub(super) fn set_answers(&mut self, answers: usize) {
        self.last.resize(answers, None);
    }

    pub(super) fn answers(&self) -> usize {
        self.last.len()
    }

    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    /// A token of an answer came at this time.
    pub(super) fn add(&mut self, answer: usize, at: Instant) {
        self.uncounted += 1;
        if self.uncounted >= Self::TOGETHER {
            self.charge();
        }
        match self.last[answer].replace(at) {
            Some(last) if last == at => self.together += 1,
            Some(last) => self.metrics.tokens_after(at.saturating_duration_since(last), 1),
            None => self.metrics.first_token_after(at.saturating_duration_since(self.begun)),
        }
    }

    /// Counts what was left for later.
    pub(super) fn settle(&mut self) {
        self.charge();
        let together = std::mem::take(&mut self.together);
        if together > 0 {
            self.metrics.tokens_after(std::time::Duration::ZERO, together);
        }
    }

    fn charge(&mut self) {
        if let Some(account) = &self.account {
            account.charge(self.uncounted);
        }
        self.uncounted = 0;
    }
}

impl Drop for TokenCounts {
    fn drop(&mut self) {
        self.settle();
    }
}
