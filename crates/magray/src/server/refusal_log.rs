//! Says in the log that requests are refused for want of room, or by their rate: once a second at most, with counts.
//! Refuses nothing itself.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::errors::{Kind, Problem};

#[derive(Debug, Default)]
pub(crate) struct RefusalLog(Mutex<Unlogged>);

#[derive(Debug, Default)]
struct Unlogged {
    overloaded: u64,
    rate_limited: u64,
    /// Of the last one.
    retry_after: Duration,
    /// When the last line was written, since the server started.
    logged: Option<Duration>,
}

const LOG_EVERY: Duration = Duration::from_secs(1);

impl RefusalLog {
    /// A request is refused.
    pub(crate) fn add(&self, problem: &Problem, now: Duration) {
        let mut unlogged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match problem.kind {
            Kind::Busy => unlogged.overloaded += 1,
            Kind::TooOften => unlogged.rate_limited += 1,
            _ => return,
        }
        unlogged.retry_after = problem.retry_after.unwrap_or_default();
        unlogged.write(now);
    }

    /// Writes what was counted since the last line, where it is time for it.
    pub(crate) fn flush(&self, now: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(now);
    }
}

impl Unlogged {
    fn write(&mut self, now: Duration) {
        let is_early = self.logged.is_some_and(|logged| now < logged + LOG_EVERY);
        if is_early || self.overloaded + self.rate_limited == 0 {
            return;
        }
        let retry_after_ms = u64::try_from(self.retry_after.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(
            target: "magray::server",
            overloaded = self.overloaded,
            rate_limited = self.rate_limited,
            retry_after_ms,
            "requests were refused with 429: see server.queue_wait_s, server.held_bytes_max, server.requests_per_minute and \
             server.tokens_per_minute"
        );
        *self = Self { logged: Some(now), ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_until_the_next_line() {
        let log = RefusalLog::default();
        let second = Duration::from_secs(1);
        let busy = Problem::busy(Kind::Busy, "later", second);
        let left = || log.0.lock().unwrap().overloaded;
        log.add(&busy, second);
        assert_eq!(left(), 0, "the first is told at once");
        for _ in 0..3 {
            log.add(&busy, second + second / 2);
        }
        log.add(&Problem::new(Kind::Malformed, "no JSON"), 3 * second);
        log.flush(second + second / 2);
        assert_eq!(left(), 3);
        log.flush(2 * second);
        assert_eq!(left(), 0);
    }
}
