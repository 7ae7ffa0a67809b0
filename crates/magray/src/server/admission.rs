//! How much the server has taken and not given back: bytes of requests and answers, and tokens on their way to the queue.
//! Counts work and not clients, and takes nothing for what was only promised: a body counts as it arrives.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

use magray_engine::engine::{Allowed, Sketch};

use super::{
    errors::{Kind, Problem},
    state::App,
};

/// The work that is there.
#[derive(Debug)]
pub(crate) struct Admission {
    most: AtomicU64,
    held: AtomicU64,
    /// What lies in the buffers of connections, for requests that have not taken it yet.
    unread: AtomicU64,
    /// Tokens of requests that may come and are not in the queue yet.
    coming: AtomicU64,
    /// About how many tokens the model reads in so many bytes of a body, as it was lately.
    tokens_per_kib: AtomicU64,
}

/// A part of the room for bytes, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    bytes: u64,
}

/// The queue's room for a request that is being read, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Coming {
    admission: Arc<Admission>,
    body_bytes: u64,
    tokens: u64,
}

/// What a request takes beside its body: its connection, its answer's head, its place in the queue.
const LEAST_BYTES: u64 = 512;
/// What callers are told to wait who are refused here.
const RETRY_AFTER: Duration = Duration::from_millis(250);
/// A request is large that takes more than this part of the room, and leaves this part of it to the others.
const LARGE_PART: u64 = 64;
const LEFT_PART: u64 = 4;
/// English text, before anything was read.
const TOKENS_PER_KIB: u64 = 256;
/// How much the next request changes of what is known.
const LEARNT_PART: u64 = 8;

impl Admission {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            most: bytes_max.into(),
            held: 0.into(),
            unread: 0.into(),
            coming: 0.into(),
            tokens_per_kib: TOKENS_PER_KIB.into(),
        }
    }

    /// From now on so much may be held; what is held already stays.
    pub(crate) fn set_most(&self, bytes_max: u64) {
        self.most.store(bytes_max, Ordering::Relaxed);
    }

    /// Bytes that are held, also those that no request has taken yet.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed) + self.unread.load(Ordering::Relaxed)
    }

    pub(super) fn add_unread(&self, bytes: u64) {
        self.unread.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove_unread(&self, bytes: u64) {
        let before = self.unread.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "no more is taken than has come");
    }

    /// Takes room for a request of which nothing has come yet.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Place, Problem> {
        self.hold(LEAST_BYTES)
    }

    /// Takes room for so many bytes.
    pub(crate) fn hold(self: &Arc<Self>, bytes: u64) -> Result<Place, Problem> {
        self.take(bytes, 0)?;
        Ok(Place { admission: Arc::clone(self), bytes })
    }

    /// Takes room for bytes that are there already.
    pub(crate) fn hold_anyway(self: &Arc<Self>, bytes: u64) -> Place {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Place { admission: Arc::clone(self), bytes }
    }

    /// Takes so many bytes for one who has some. Whoever is alone is always taken.
    fn take(&self, bytes: u64, own: u64) -> Result<(), Problem> {
        let all = self.most.load(Ordering::Relaxed);
        let unread = self.unread.load(Ordering::Relaxed);
        let is_large = own.saturating_add(bytes) > all / LARGE_PART;
        let most = if is_large { all - all / LEFT_PART } else { all };
        let mut held = self.held.load(Ordering::Relaxed);
        loop {
            if held > own && held.saturating_add(bytes).saturating_add(unread) > most {
                return Err(Problem::busy(Kind::Busy, "the server has enough to do: try again later", RETRY_AFTER));
            }
            match self.held.compare_exchange_weak(held, held + bytes, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => held = other,
            }
        }
    }

    /// About how many tokens a body of so many bytes has.
    fn tokens_of(&self, body_bytes: u64) -> u64 {
        (body_bytes.saturating_mul(self.tokens_per_kib.load(Ordering::Relaxed)) / 1024).max(1)
    }

    fn learn(&self, body_bytes: u64, tokens: u64) {
        let found = (tokens * 1024 / body_bytes.max(1)).clamp(1, 1024);
        let known = self.tokens_per_kib.load(Ordering::Relaxed);
        // Whoever learns at the same time may be forgotten: it is a guess.
        let learnt = (known * (LEARNT_PART - 1) + found).div_ceil(LEARNT_PART);
        self.tokens_per_kib.store(learnt, Ordering::Relaxed);
    }
}

impl App {
    /// Refuses a request with a body of so many bytes while the queue has no room for it.
    pub(crate) fn check_room(&self, body_bytes: u64) -> Result<(), Problem> {
        let admission = self.admission();
        let sketch = Sketch {
            tokens: admission.tokens_of(body_bytes),
            coming: admission.coming.load(Ordering::Relaxed),
            allowed: Allowed::Any,
        };
        Ok(self.engine().would_take(sketch)?)
    }

    /// Keeps room in the queue for a request whose body has come, until it is read and submitted.
    pub(crate) fn promise_room(&self, body_bytes: u64) -> Result<Coming, Problem> {
        let admission = Arc::clone(self.admission());
        let tokens = admission.tokens_of(body_bytes);
        let others = admission.coming.fetch_add(tokens, Ordering::Relaxed);
        let promised = Coming { admission, body_bytes, tokens };
        self.engine().would_take(Sketch { tokens, coming: others, allowed: Allowed::Any })?;
        Ok(promised)
    }
}

impl Coming {
    /// Takes room for its answer, whatever that takes where there is no request but this one.
    pub(crate) fn hold_answer(&self, bytes: u64) -> Result<Place, Problem> {
        self.admission.take(bytes, self.body_bytes.saturating_add(LEAST_BYTES))?;
        Ok(Place { admission: Arc::clone(&self.admission), bytes })
    }

    /// The request was read and is submitted: it had so many tokens.
    pub(crate) fn has_come(self, tokens: usize) {
        self.admission.learn(self.body_bytes, tokens as u64);
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.admission.coming.fetch_sub(self.tokens, Ordering::Relaxed);
    }
}

impl Place {
    /// Takes more room, for what has come.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Problem> {
        self.admission.take(bytes, self.bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Makes another's room its own.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// It turned out to be so many bytes.
    pub(crate) fn resize(&mut self, bytes: u64) {
        self.admission.held.fetch_add(bytes, Ordering::Relaxed);
        self.admission.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let before = self.admission.held.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(before >= self.bytes, "no more is given back than was taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(bytes_max: u64) -> Arc<Admission> {
        Arc::new(Admission::new(bytes_max))
    }

    #[test]
    fn what_is_dropped_makes_room() {
        let admission = admission(100_000);
        let mut first = admission.enter().unwrap();
        first.grow(60_000).unwrap();
        let mut second = admission.enter().unwrap();
        assert!(second.grow(60_000).is_err());
        drop(first);
        assert_eq!(admission.held(), LEAST_BYTES);
        assert!(second.grow(60_000).is_ok());
    }

    #[test]
    fn a_request_that_is_alone_is_taken_whatever_its_size() {
        let admission = admission(100);
        let mut alone = admission.enter().unwrap();
        alone.grow(1_000).unwrap();
        alone.grow(1_000).unwrap();
        assert!(admission.enter().is_err());
        drop(alone);
        assert!(admission.hold(1_000).is_ok());
    }

    #[test]
    fn an_answer_of_a_request_that_is_alone_is_taken_whatever_its_size() {
        let admission = admission(2_000);
        let mut body = admission.enter().unwrap();
        body.grow(100).unwrap();
        let coming = Coming { admission: Arc::clone(&admission), body_bytes: 100, tokens: 0 };
        let answer = coming.hold_answer(10_000).unwrap();
        assert!(admission.enter().is_err());
        drop(answer);
        let _other = admission.enter().unwrap();
        assert!(coming.hold_answer(10_000).is_err());
    }

    #[test]
    fn large_requests_leave_room_to_small_ones() {
        let admission = admission(100_000);
        let large: Vec<Place> = (0..10).map_while(|_| admission.hold(10_000).ok()).collect();
        assert_eq!(large.len(), 7);
        assert!(admission.enter().is_ok());
    }

    #[test]
    fn what_was_reserved_becomes_what_it_is() {
        let admission = admission(100_000);
        let mut place = admission.hold(1_000).unwrap();
        place.resize(200);
        assert_eq!(admission.held(), 200);
        place.resize(5_000);
        assert_eq!(admission.held(), 5_000);
        let anyway = admission.hold_anyway(1 << 20);
        assert_eq!(admission.held(), (1 << 20) + 5_000);
        drop((place, anyway));
        assert_eq!(admission.held(), 0);
    }

    #[test]
    fn tokens_are_guessed_by_what_was_read_lately() {
        let admission = admission(1);
        assert_eq!(admission.tokens_of(4_096), 1_024);
        for _ in 0..100 {
            admission.learn(10_000, 1_000);
        }
        assert!((400..500).contains(&admission.tokens_of(4_096)), "{}", admission.tokens_of(4_096));
        // A body of zeros cannot make it forget that requests have tokens.
        for _ in 0..100 {
            admission.learn(1 << 30, 1);
        }
        assert!(admission.tokens_of(1 << 20) >= 1 << 10);
        assert_eq!(admission.tokens_of(0), 1);
    }
}
