//! The same work on several threads, the caller's among them.
//! Starts no thread for one.

/// Does the work on this many threads; returns when all are done, with the first failure if there was one.
pub(super) fn on_threads<E: Send>(threads: usize, work: impl Fn() -> Result<(), E> + Sync) -> Result<(), E> {
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(&work)).collect();
        let own = work();
        others.into_iter().fold(own, |before, other| match other.join() {
            Ok(result) => before.and(result),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_threads_work_and_a_failure_is_told() {
        let count = AtomicUsize::new(0);
        let work = || match count.fetch_add(1, Ordering::Relaxed) {
            2 => Err("the third"),
            _ => Ok(()),
        };
        assert_eq!(on_threads(4, work), Err("the third"));
        assert_eq!(count.load(Ordering::Relaxed), 4);
        assert_eq!(on_threads(0, || Ok::<(), ()>(())), Ok(()), "the caller always works");
    }
}
