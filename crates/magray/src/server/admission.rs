//! How much work the server has taken and not answered, in bytes of requests; more than a bound is refused at once.
//! Counts work and not clients: after a large request was refused, small ones wait too until there is room for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::errors::{Kind, Problem};

/// The work that is there.
#[derive(Debug)]
pub(crate) struct Admission {
    most: AtomicU64,
    held: AtomicU64,
    /// The room that a request was refused for; 0 while nobody was.
    wanted: AtomicU64,
    /// The queue is full until then, in nanoseconds since the server started.
    full_until: AtomicU64,
}

/// A part of the room, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    bytes: u64,
}

/// What a request takes beside its body: its connection, its answer's head, its place in the queue.
const LEAST_BYTES: u64 = 512;
/// What callers are told to wait who are refused here.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// The queue tells when a quarter of it should be done. A small part of that time cannot empty it.
const FULL_PART: u32 = 8;
const FULL_MAX: Duration = Duration::from_millis(25);

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Admission {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { most: bytes_max.into(), held: 0.into(), wanted: 0.into(), full_until: 0.into() }
    }

    /// From now on so much may be held; what is held already stays.
    pub(crate) fn set_most(&self, bytes_max: u64) {
        self.most.store(bytes_max, Ordering::Relaxed);
    }

    /// Bytes that are held.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The queue was full: for a part of the time until it has room, requests are refused before they are read, so that
    /// those that are not taken cost those that are next to nothing.
    pub(crate) fn note_full(&self, now: Duration, retry_after: Duration) {
        let until = now + (retry_after / FULL_PART).min(FULL_MAX);
        self.full_until.fetch_max(nanos(until), Ordering::Relaxed);
    }

    /// Refuses while the queue is known to be full.
    pub(crate) fn check_room(&self, now: Duration) -> Result<(), Problem> {
        if nanos(now) >= self.full_until.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Problem::busy(Kind::Busy, "too much is waiting: try again later", RETRY_AFTER))
    }

    /// Takes room for a request of so many bytes.
    pub(crate) fn enter(self: &Arc<Self>, bytes: u64) -> Result<Place, Problem> {
        let bytes = bytes.saturating_add(LEAST_BYTES);
        self.take(bytes, self.wanted.load(Ordering::Relaxed))?;
        self.wanted.store(0, Ordering::Relaxed);
        Ok(Place { admission: Arc::clone(self), bytes })
    }

    /// Takes so many bytes, if so many or as many as are wanted are free. Whoever is alone is always taken.
    fn take(&self, bytes: u64, wanted: u64) -> Result<(), Problem> {
        let most = self.most.load(Ordering::Relaxed);
        let mut held = self.held.load(Ordering::Relaxed);
        loop {
            let has_room = held == 0 || held.saturating_add(bytes.max(wanted)) <= most;
            if !has_room {
                // Room for more than half of all would hold up everybody else for too long.
                self.wanted.fetch_max(bytes.min(most / 2), Ordering::Relaxed);
                return Err(Problem::busy(Kind::Busy, "the server has enough to do: try again later", RETRY_AFTER));
            }
            match self.held.compare_exchange_weak(held, held + bytes, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => held = other,
            }
        }
    }
}

impl Place {
    /// Takes more room for a body whose length was not told.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Problem> {
        self.admission.take(bytes, 0)?;
        self.bytes += bytes;
        Ok(())
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

    #[test]
    fn what_is_dropped_makes_room() {
        let admission = Arc::new(Admission::new(10_000));
        let first = admission.enter(6_000).unwrap();
        assert!(admission.enter(6_000).is_err());
        drop(first);
        assert_eq!(admission.held(), 0);
        assert!(admission.enter(6_000).is_ok());
    }

    #[test]
    fn a_request_that_is_alone_is_taken_whatever_its_size() {
        let admission = Arc::new(Admission::new(100));
        let alone = admission.enter(1_000).unwrap();
        assert!(admission.enter(1).is_err());
        drop(alone);
        assert!(admission.enter(1_000).is_ok());
    }

    #[test]
    fn small_requests_do_not_starve_a_large_one() {
        let admission = Arc::new(Admission::new(10_000));
        let mut small: Vec<Place> = (0..9).map(|_| admission.enter(500).unwrap()).collect();
        assert!(admission.enter(4_000).is_err());
        // There is room for a small one, and it is kept for the large one.
        small.pop();
        assert!(admission.enter(500).is_err());
        while small.len() > 4 {
            small.pop();
        }
        assert!(admission.enter(4_000).is_ok());
        assert!(admission.enter(500).is_ok());
    }

    #[test]
    fn a_full_queue_is_asked_again_after_a_while() {
        let admission = Admission::new(1);
        let (now, ms) = (Duration::from_secs(1), Duration::from_millis(1));
        assert!(admission.check_room(now).is_ok());
        admission.note_full(now, ms * 80);
        assert!(admission.check_room(now + ms * 9).is_err());
        assert!(admission.check_room(now + ms * 10).is_ok());
        admission.note_full(now, Duration::from_secs(5));
        assert!(admission.check_room(now + ms * 24).is_err());
        assert!(admission.check_room(now + FULL_MAX).is_ok());
    }

    #[test]
    fn a_body_that_grows_is_counted_and_bounded() {
        let admission = Arc::new(Admission::new(10_000));
        let mut place = admission.enter(0).unwrap();
        place.grow(5_000).unwrap();
        assert!(place.grow(5_000).is_err());
        drop(place);
        assert_eq!(admission.held(), 0);
    }
}
