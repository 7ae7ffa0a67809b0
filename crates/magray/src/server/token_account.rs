//! What a request uses of its caller's tokens a minute: an estimate before its body is read, then what is computed and generated.
//! Cuts nothing off: what a request uses beyond the estimate is owed, and later requests wait for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    errors::Problem,
    live::Live,
    meter::{Counted, Use},
};

/// Dropped, it gives back what was taken for work that did not come about.
pub(crate) struct TokenAccount {
    live: Arc<Live>,
    of: Counted,
    /// When the server started, by which meters count.
    epoch: Instant,
    /// Taken, and not used yet.
    taken: AtomicU64,
    /// Whether anything was taken or used.
    is_open: AtomicBool,
}

impl TokenAccount {
    /// `None`: tokens are not limited.
    pub(crate) fn open(live: &Arc<Live>, of: Counted, uptime: Duration) -> Option<Arc<Self>> {
        let epoch = Instant::now().checked_sub(uptime)?;
        let account = || Self { live: Arc::clone(live), of, epoch, taken: 0.into(), is_open: false.into() };
        live.rates().limits_tokens().then(|| Arc::new(account()))
    }

    /// Takes an estimate.
    pub(crate) fn take(&self, tokens: u64) -> Result<(), Problem> {
        self.live.rates().take_tokens(self.of_now(tokens))?;
        self.is_open.store(true, Ordering::Relaxed);
        self.taken.fetch_add(tokens, Ordering::Relaxed);
        Ok(())
    }

    /// Counts tokens that are about to be computed. The first of a request without an estimate are refused where there are none.
    pub(crate) fn spend(&self, tokens: u64) -> Result<(), Problem> {
        if !self.is_open.swap(true, Ordering::Relaxed) {
            return self.live.rates().take_tokens(self.of_now(tokens));
        }
        self.charge(tokens);
        Ok(())
    }

    /// Counts tokens that were used.
    pub(crate) fn charge(&self, tokens: u64) {
        let less = |taken: u64| Some(taken.saturating_sub(tokens));
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default();
        if tokens > taken {
            self.live.rates().charge_tokens(self.of_now(tokens - taken));
        }
    }

    /// Gives back tokens of work that was not computed.
    pub(crate) fn give_back(&self, tokens: u64) {
        self.live.rates().give_tokens_back(self.of_now(tokens));
    }

    fn of_now(&self, units: u64) -> Use {
        Use { of: self.of, units, now: self.epoch.elapsed() }
    }
}

impl Drop for TokenAccount {
    fn drop(&mut self) {
        let taken = *self.taken.get_mut();
        if taken > 0 {
            self.give_back(taken);
        }
    }
}

impl std::fmt::Debug for TokenAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenAccount").field("of", &self.of).field("taken", &self.taken).finish_non_exhaustive()
    }
}
