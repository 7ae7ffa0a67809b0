//! Batches for an executor that can begin the next one before the last is done.
//! Computes nothing and decides nothing.

use super::Failure;
use crate::packed::Tokens;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Texts that are answered together.
pub trait Job: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// One of them.
    fn text(&self, at: usize) -> Tokens<'_>;

    /// Leading tokens of each text that are not pooled.
    fn skip(&self) -> usize;

    /// Whether more is expected to follow: then no thread need wait for the others to end it.
    fn is_followed(&self) -> bool {
        false
    }

    /// Takes the answers: one row a text, in their order. Called once, from any thread.
    fn done(&self, outcome: Result<Vec<f32>, Failure>);
}

/// Where jobs come from. Called from all threads of an executor.
pub trait Feed: Sync {
    /// The next job, if one is at hand; `is_spare`: the thread that asks has nothing to do, while others are busy.
    fn next(&self, is_spare: bool) -> Option<Box<dyn Job + '_>>;

    /// Rings when a job has come. `None`: none comes while others are computed.
    fn bell(&self) -> Option<&Bell>;
}

/// Tells threads that wait that something has changed.
#[derive(Debug, Default)]
pub struct Bell {
    /// How often it has rung.
    rings: AtomicU64,
    /// Held to ring, and from the last look at `rings` until one sleeps.
    door: Mutex<()>,
    rang: Condvar,
}

/// Some tens of microseconds: those that end a batch together mostly do so within them.
const SPINS_BEFORE_SLEEP: u32 = 4_000;

impl Bell {
    /// Wakes all that wait.
    pub fn ring(&self) {
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        self.rings.fetch_add(1, Ordering::Release);
        drop(door);
        self.rang.notify_all();
    }

    pub(super) fn rings(&self) -> u64 {
        self.rings.load(Ordering::Acquire)
    }

    /// Waits until it has rung more often than that.
    pub(super) fn wait(&self, heard: u64) {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.rings() != heard {
                return;
            }
            std::hint::spin_loop();
        }
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let door = self.rang.wait_while(door, |()| self.rings() == heard);
        drop(door.unwrap_or_else(PoisonError::into_inner));
    }
}
