//! Bounds what the server holds: bytes of requests and answers, and tokens of requests that are not in the queue yet.
//! Counts work and not clients, and only what has arrived: a `content-length` takes nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use magray_engine::engine::{Allowed, Coming, Engine, Sketch};

use super::{
    errors::{Kind, Problem},
    request_record::Asker,
};

#[derive(Debug)]
pub(crate) struct Admission {
    bytes_max: AtomicU64,
    held: AtomicU64,
    /// Bytes in the buffers of connections that no request has read.
    unread: AtomicU64,
    /// Requests that have a reservation and are not in the queue yet.
    reserved: AtomicU64,
    /// Their tokens and new tokens, estimated.
    reserved_tokens: AtomicU64,
    reserved_new_tokens: AtomicU64,
    /// Moving averages over recent requests to embed, and to generate.
    tokens_per_kib: [AtomicU64; 2],
    /// Of those to generate: new tokens that they asked for.
    new_tokens: AtomicU64,
    /// The time that all of the queue should take, as it was when it was asked last.
    backlog_ms: AtomicU64,
}

/// Bytes that count as held until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    admission: Arc<Admission>,
    bytes: u64,
}

/// Room in the queue for a request that is being tokenized, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct QueueReservation {
    admission: Arc<Admission>,
    body_bytes: u64,
    generates: bool,
    tokens: u64,
    new_tokens: u64,
}

/// What a request takes beside its body: its connection, its answer's head, its entry in the queue.
const REQUEST_BYTES: u64 = 512;
/// A request that finds no memory is told to come back after this time at least and at most.
const RETRY_LEAST_MS: u64 = 250;
const RETRY_MOST_MS: u64 = 60_000;
/// A request that holds more than one part in `LARGE_PART` of the limit leaves one part in `SPARED_PART` to others.
const LARGE_PART: u64 = 64;
const SPARED_PART: u64 = 4;
/// The first estimate: English text.
const TOKENS_PER_KIB: u64 = 256;
const NEW_TOKENS: u64 = 256;
/// What requests that ask for more are learnt as: a few of them would have all others guessed as too large for the queue.
const NEW_TOKENS_MOST: u64 = 8_192;
/// The weight of a request in the moving average is one part in this.
const AVERAGE_PART: u64 = 8;

impl Admission {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max: bytes_max.into(),
            held: 0.into(),
            unread: 0.into(),
            reserved: 0.into(),
            reserved_tokens: 0.into(),
            reserved_new_tokens: 0.into(),
            tokens_per_kib: [TOKENS_PER_KIB.into(), TOKENS_PER_KIB.into()],
            new_tokens: NEW_TOKENS.into(),
            backlog_ms: 0.into(),
        }
    }

    /// Changes the limit; what is held already stays.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Bytes that are held, unread ones included.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed) + self.unread.load(Ordering::Relaxed)
    }

    pub(super) fn add_unread(&self, bytes: u64) {
        self.unread.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove_unread(&self, bytes: u64) {
        let before = self.unread.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "no more is read than has arrived");
    }

    /// Holds what a request takes beside its body.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<HeldBytes, Problem> {
        self.hold(REQUEST_BYTES)
    }

    pub(crate) fn hold(self: &Arc<Self>, bytes: u64) -> Result<HeldBytes, Problem> {
        self.take(bytes, 0)?;
        Ok(HeldBytes { admission: Arc::clone(self), bytes })
    }

    /// Holds bytes that are in memory already.
    pub(crate) fn hold_anyway(self: &Arc<Self>, bytes: u64) -> HeldBytes {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        HeldBytes { admission: Arc::clone(self), bytes }
    }

    /// Takes bytes for a request that holds `own` already. The only request there is may hold any size.
    fn take(&self, bytes: u64, own: u64) -> Result<(), Problem> {
        let all = self.bytes_max.load(Ordering::Relaxed);
        let unread = self.unread.load(Ordering::Relaxed);
        let is_large = own.saturating_add(bytes) > all / LARGE_PART;
        let most = if is_large { all - all / SPARED_PART } else { all };
        let mut held = self.held.load(Ordering::Relaxed);
        loop {
            if held > own && held.saturating_add(bytes).saturating_add(unread) > most {
                return Err(Problem::busy(
                    Kind::Busy,
                    "the server holds as many bytes as it may: try again later",
                    self.time_to_free((held + bytes + unread).saturating_sub(most), held),
                ));
            }
            match self.held.compare_exchange_weak(held, held + bytes, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => held = other,
            }
        }
    }

    /// When this many of the held bytes should be free: they are freed as the queue is computed.
    fn time_to_free(&self, bytes: u64, held: u64) -> Duration {
        let backlog_ms = self.backlog_ms.load(Ordering::Relaxed);
        let part_ms = u128::from(backlog_ms) * u128::from(bytes.min(held)) / u128::from(held.max(1));
        Duration::from_millis(u64::try_from(part_ms).unwrap_or(u64::MAX).clamp(RETRY_LEAST_MS, RETRY_MOST_MS))
    }

    /// What a body of this size should have, by recent ones.
    pub(crate) fn tokens_of(&self, body_bytes: u64, generates: bool) -> u64 {
        let per_kib = self.tokens_per_kib[usize::from(generates)].load(Ordering::Relaxed);
        (body_bytes.saturating_mul(per_kib) / 1024).max(1)
    }

    fn learn(&self, of: &QueueReservation, tokens: u64, new_tokens: u64) {
        // Two threads may overwrite each other's result: these are estimates.
        let average = |known: &AtomicU64, found: u64| {
            let sum = known.load(Ordering::Relaxed) * (AVERAGE_PART - 1) + found;
            known.store(sum.div_ceil(AVERAGE_PART), Ordering::Relaxed);
        };
        let per_kib = (tokens * 1024 / of.body_bytes.max(1)).clamp(1, 1024);
        average(&self.tokens_per_kib[usize::from(of.generates)], per_kib);
        if of.generates {
            average(&self.new_tokens, new_tokens.clamp(1, NEW_TOKENS_MOST));
        }
    }

    /// What is known of a request with a body of this size.
    fn sketch(&self, body_bytes: u64, asker: Asker) -> Sketch {
        let Asker { caller, priority, generates, mark } = asker;
        let (tokens, coming) = (self.tokens_of(body_bytes, generates), self.coming());
        let new_tokens = if generates { self.new_tokens.load(Ordering::Relaxed) } else { 0 };
        Sketch { caller, tokens, new_tokens, jobs: 1, mark, is_here: false, coming, priority, allowed: Allowed::Any }
    }

    fn coming(&self) -> Coming {
        Coming {
            requests: self.reserved.load(Ordering::Relaxed),
            tokens: self.reserved_tokens.load(Ordering::Relaxed),
            new_tokens: self.reserved_new_tokens.load(Ordering::Relaxed),
        }
    }

    /// Whether the queue has room for a request with a body of this size, from any caller.
    pub(crate) fn is_queue_free(&self, engine: &Engine, body_bytes: u64, asker: Asker) -> bool {
        let Sketch { tokens, coming, .. } = self.sketch(body_bytes, asker);
        !asker.generates && engine.has_free(tokens.saturating_add(coming.tokens).saturating_add(coming.new_tokens))
    }

    /// Refuses a request with a body of this size while the queue has no room for it.
    pub(crate) fn check_queue(&self, engine: &Engine, body_bytes: u64, asker: Asker) -> Result<(), Problem> {
        self.note_backlog(engine.would_take(self.sketch(body_bytes, asker))?);
        Ok(())
    }

    fn note_backlog(&self, time: Duration) {
        self.backlog_ms.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Keeps room in the queue for a request whose body has arrived, until it is submitted.
    pub(crate) fn reserve_queue(
        self: &Arc<Self>,
        engine: &Engine,
        body_bytes: u64,
        asker: Asker,
    ) -> Result<QueueReservation, Problem> {
        let sketch = self.sketch(body_bytes, asker);
        let Sketch { tokens, new_tokens, .. } = sketch;
        // Of requests that arrive together each sees those that were counted before it.
        let coming = Coming {
            requests: self.reserved.fetch_add(1, Ordering::Relaxed),
            tokens: self.reserved_tokens.fetch_add(tokens, Ordering::Relaxed),
            new_tokens: self.reserved_new_tokens.fetch_add(new_tokens, Ordering::Relaxed),
        };
        let generates = asker.generates;
        let reservation = QueueReservation { admission: Arc::clone(self), body_bytes, generates, tokens, new_tokens };
        self.note_backlog(engine.would_take(Sketch { is_here: true, coming, ..sketch })?);
        Ok(reservation)
    }

    /// Refuses a request that is read and will be submitted as several, where there is no room for all of them.
    pub(crate) fn check_jobs(
        &self,
        engine: &Engine,
        asker: Asker,
        jobs: u32,
        [tokens, new_tokens]: [usize; 2],
    ) -> Result<(), Problem> {
        let (tokens, new_tokens) = (tokens as u64, new_tokens as u64);
        engine.would_take(Sketch { tokens, new_tokens, jobs, is_here: true, ..self.sketch(0, asker) })?;
        Ok(())
    }
}

impl QueueReservation {
    /// Holds the bytes of its answer, of any size where there is no other request.
    pub(crate) fn hold_answer(&self, bytes: u64) -> Result<HeldBytes, Problem> {
        self.admission.take(bytes, self.body_bytes.saturating_add(REQUEST_BYTES))?;
        Ok(HeldBytes { admission: Arc::clone(&self.admission), bytes })
    }

    /// It is submitted, with this many tokens and new tokens at most.
    pub(crate) fn submitted(self, tokens: usize, new_tokens: usize) {
        self.admission.learn(&self, tokens as u64, new_tokens as u64);
    }
}

impl Drop for QueueReservation {
    fn drop(&mut self) {
        self.admission.reserved.fetch_sub(1, Ordering::Relaxed);
        self.admission.reserved_tokens.fetch_sub(self.tokens, Ordering::Relaxed);
        self.admission.reserved_new_tokens.fetch_sub(self.new_tokens, Ordering::Relaxed);
    }
}

impl HeldBytes {
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Problem> {
        self.admission.take(bytes, self.bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    pub(crate) fn absorb(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    pub(crate) fn resize(&mut self, bytes: u64) {
        self.admission.held.fetch_add(bytes, Ordering::Relaxed);
        self.admission.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let before = self.admission.held.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(before >= self.bytes, "no more is given back than was held");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(bytes_max: u64) -> Arc<Admission> {
        Arc::new(Admission::new(bytes_max))
    }

    /// One whose tokens are not counted among the reserved ones.
    fn reservation(admission: &Arc<Admission>, body_bytes: u64, generates: bool) -> QueueReservation {
        admission.reserved.fetch_add(1, Ordering::Relaxed);
        QueueReservation { admission: Arc::clone(admission), body_bytes, generates, tokens: 0, new_tokens: 0 }
    }

    #[test]
    fn dropped_requests_give_their_bytes_back() {
        let admission = admission(100_000);
        let mut first = admission.enter().unwrap();
        first.grow(60_000).unwrap();
        let mut second = admission.enter().unwrap();
        assert!(second.grow(60_000).is_err());
        drop(first);
        assert_eq!(admission.held(), REQUEST_BYTES);
        assert!(second.grow(60_000).is_ok());
    }

    #[test]
    fn the_only_request_is_taken_at_any_size() {
        let admission = admission(100);
        let mut only = admission.enter().unwrap();
        only.grow(1_000).unwrap();
        only.grow(1_000).unwrap();
        assert!(admission.enter().is_err());
        drop(only);
        assert!(admission.hold(1_000).is_ok());
    }

    #[test]
    fn the_answer_of_the_only_request_is_taken_at_any_size() {
        let admission = admission(2_000);
        let mut body = admission.enter().unwrap();
        body.grow(100).unwrap();
        let reservation = reservation(&admission, 100, false);
        let answer = reservation.hold_answer(10_000).unwrap();
        assert!(admission.enter().is_err());
        drop(answer);
        let _other = admission.enter().unwrap();
        assert!(reservation.hold_answer(10_000).is_err());
    }

    #[test]
    fn a_request_without_memory_is_told_when_the_queue_will_have_freed_some() {
        let admission = admission(100_000);
        let _held = admission.hold(70_000).unwrap();
        let retry_after = || admission.hold(35_000).unwrap_err().retry_after.unwrap();
        assert_eq!(retry_after(), Duration::from_millis(RETRY_LEAST_MS));
        // 30,000 of 70,000 bytes must be freed, since a large request leaves a quarter to others.
        admission.note_backlog(Duration::from_secs(7));
        assert_eq!(retry_after(), Duration::from_secs(3));
    }

    #[test]
    fn large_requests_leave_room_to_small_ones() {
        let admission = admission(100_000);
        let large: Vec<HeldBytes> = (0..10).map_while(|_| admission.hold(10_000).ok()).collect();
        assert_eq!(large.len(), 7);
        assert!(admission.enter().is_ok());
    }

    #[test]
    fn held_bytes_follow_the_size_of_the_answer() {
        let admission = admission(100_000);
        let mut answer = admission.hold(1_000).unwrap();
        answer.resize(200);
        assert_eq!(admission.held(), 200);
        answer.resize(5_000);
        assert_eq!(admission.held(), 5_000);
        let anyway = admission.hold_anyway(1 << 20);
        assert_eq!(admission.held(), (1 << 20) + 5_000);
        drop((answer, anyway));
        assert_eq!(admission.held(), 0);
    }

    #[test]
    fn the_estimate_of_tokens_follows_recent_requests() {
        let admission = admission(1);
        let tokens_of = |body_bytes| admission.tokens_of(body_bytes, false);
        let learn = |body_bytes, tokens| {
            (0..100).for_each(|_| reservation(&admission, body_bytes, false).submitted(tokens, 0));
        };
        assert_eq!(tokens_of(4_096), 1_024);
        learn(10_000, 1_000);
        assert!((400..500).contains(&tokens_of(4_096)), "{}", tokens_of(4_096));
        // Large bodies with few tokens do not bring the estimate to zero.
        learn(1 << 30, 1);
        assert!(tokens_of(1 << 20) >= 1 << 10);
        assert_eq!(tokens_of(0), 1);
        // Of prompts nothing was learnt from texts to embed, and nothing is taken for an answer of no token.
        assert_eq!(admission.tokens_of(4_096, true), 1_024);
        (0..100).for_each(|_| reservation(&admission, 1_024, true).submitted(64, 32));
        let asker = Asker { generates: true, ..Asker::default() };
        let sketch = admission.sketch(1_024, asker);
        assert!((64..=72).contains(&sketch.tokens) && (32..=40).contains(&sketch.new_tokens), "{sketch:?}");
        assert_eq!(admission.sketch(1_024, Asker::default()).new_tokens, 0);
        // A few that ask for all that there is do not make every other one too large.
        (0..100).for_each(|_| reservation(&admission, 1_024, true).submitted(64, 128 * 130_000));
        assert_eq!(admission.sketch(1_024, asker).new_tokens, NEW_TOKENS_MOST);
    }
}
