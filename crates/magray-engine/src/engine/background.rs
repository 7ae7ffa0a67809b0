//! Few threads beside those that compute: texts are read here, so that no runtime waits and the cores stay with the models.
//! Takes no more than a bound, and does nothing for a caller that has left. Short jobs do not wait for long ones.

use super::EngineError;
use crate::pause;
use futures_channel::oneshot::{self, Receiver};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Jobs that wait at most. What they hold is bounded by their callers.
const WAITING_MAX: usize = 1024;
/// A job that reads no more than this is short: some tens of milliseconds.
const SHORT_BYTES: usize = 256 << 10;
/// What callers are told to wait who find the threads busy.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The threads. They end when this is dropped and what waits is done; dropping does not wait for them.
pub(super) struct Threads(Arc<Shared>);

struct Shared {
    jobs: Mutex<Jobs>,
    has_changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    /// Those that read few bytes and those that read many, each with its number.
    short: VecDeque<(u64, Job)>,
    long: VecDeque<(u64, Job)>,
    numbers: u64,
    is_closed: bool,
}

impl Jobs {
    /// The one that came first.
    fn next(&mut self) -> Option<Job> {
        let number = |jobs: &VecDeque<(u64, Job)>| jobs.front().map_or(u64::MAX, |(number, _)| *number);
        let is_short = number(&self.short) < number(&self.long);
        let first = if is_short { self.short.pop_front() } else { self.long.pop_front() };
        first.map(|(_, job)| job)
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Something that is done beside the devices, awaited. Dropped before its turn comes, it is not done at all.
#[must_use = "what is not awaited is not done"]
pub struct Background<T>(Receiver<Result<T, EngineError>>);

impl Threads {
    /// Starts this many threads.
    pub(super) fn start(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { jobs: Mutex::default(), has_changed: Condvar::new() });
        // Dropped where a thread cannot be had, so that the others end.
        let all = Self(shared);
        for _ in 0..threads.max(1) {
            let shared = Arc::clone(&all.0);
            std::thread::Builder::new().name("read".to_owned()).spawn(move || shared.work())?;
        }
        Ok(all)
    }

    /// Does a job that reads this many bytes.
    pub(super) fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Background<T> {
        let (sender, done) = oneshot::channel();
        let mut jobs = self.0.lock();
        if jobs.short.len() + jobs.long.len() < WAITING_MAX {
            let job = Box::new(move || {
                if !sender.is_canceled() {
                    drop(sender.send(caught(job)));
                }
            });
            jobs.numbers += 1;
            let numbered = (jobs.numbers, job as Job);
            if bytes <= SHORT_BYTES { &mut jobs.short } else { &mut jobs.long }.push_back(numbered);
            drop(jobs);
            self.0.has_changed.notify_one();
        } else {
            drop(jobs);
            drop(sender.send(Err(EngineError::Full { retry_after: RETRY_AFTER })));
        }
        Background(done)
    }
}

impl<T: Send + 'static> Background<T> {
    /// Something that mostly waits: it has a thread of its own, and goes on when it is not awaited any more.
    pub(super) fn on_own_thread(job: impl FnOnce() -> T + Send + 'static) -> std::io::Result<Self> {
        let (sender, done) = oneshot::channel();
        std::thread::Builder::new().name("wait".to_owned()).spawn(move || drop(sender.send(caught(job))))?;
        Ok(Self(done))
    }
}

fn caught<T>(job: impl FnOnce() -> T) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(job)).map_err(|_| EngineError::Panicked)
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.has_changed.notify_all();
    }
}

impl Shared {
    /// Does job after job until the end.
    fn work(self: &Arc<Self>) {
        // A caller waits for this, also where all cores compute.
        magray_device::cpu::request_short_slices();
        let own = Arc::clone(self);
        pause::on_this_thread(move || own.pass_short());
        while let Some(job) = self.next() {
            job();
        }
    }

    /// Does the short jobs that wait, while a long one is under way.
    fn pass_short(&self) {
        loop {
            let job = self.lock().short.pop_front();
            let Some((_, job)) = job else { return };
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.next() {
                return Some(job);
            }
            if jobs.is_closed {
                return None;
            }
            jobs = self.has_changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Future for Background<T> {
    type Output = Result<T, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // What waits is done before the threads end.
        Pin::new(&mut self.0).poll(context).map(|done| done.unwrap_or(Err(EngineError::Draining)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::task::{Wake, Waker};

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn wait<T>(mut background: Background<T>) -> Result<T, EngineError> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match Pin::new(&mut background).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => return done,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    /// One thread, busy until the sender's other end is dropped.
    fn busy() -> (Threads, std::sync::mpsc::Sender<()>, Background<()>) {
        let threads = Threads::start(1).unwrap();
        let (release, held): (_, Receiver<()>) = channel();
        let (started, has_started) = channel();
        let first = threads.run(0, move || {
            started.send(()).unwrap();
            let _ = held.recv();
        });
        has_started.recv().unwrap();
        (threads, release, first)
    }

    #[test]
    fn a_job_that_nobody_awaits_any_more_is_not_done() {
        let (threads, release, first) = busy();
        let (sender, done) = channel();
        let other = sender.clone();
        drop(threads.run(0, move || other.send("left").unwrap()));
        let stays = threads.run(0, move || sender.send("stays").unwrap());
        drop(release);
        wait(first).unwrap();
        wait(stays).unwrap();
        assert_eq!(done.iter().collect::<Vec<_>>(), ["stays"]);
    }

    #[test]
    fn more_than_a_bound_is_refused_at_once() {
        let (threads, release, first) = busy();
        let waiting: Vec<_> = (0..WAITING_MAX).map(|at| threads.run(0, move || at)).collect();
        assert!(matches!(wait(threads.run(0, || ())), Err(EngineError::Full { .. })));
        drop(release);
        wait(first).unwrap();
        let done: Vec<_> = waiting.into_iter().map(|background| wait(background).unwrap()).collect();
        assert!(done.into_iter().eq(0..WAITING_MAX));
    }

    #[test]
    fn a_job_that_panics_loses_itself_alone() {
        let threads = Threads::start(1).unwrap();
        let broken = threads.run(0, || panic!("a job's own business"));
        assert!(matches!(wait::<()>(broken), Err(EngineError::Panicked)));
        assert_eq!(wait(threads.run(0, || 7)).unwrap(), 7);
    }

    #[test]
    fn what_waits_is_done_also_when_the_threads_are_let_go() {
        let (threads, release, first) = busy();
        let last = threads.run(0, || 7);
        drop(threads);
        drop(release);
        wait(first).unwrap();
        assert_eq!(wait(last).unwrap(), 7);
    }

    #[test]
    fn a_short_job_waited_for_a_long_one() {
        let threads = Threads::start(1).unwrap();
        let (sender, done) = channel();
        let (long, short) = (sender.clone(), sender);
        let (begun, has_begun) = channel();
        let (go_on, may_go_on): (_, Receiver<()>) = channel();
        let first = threads.run(SHORT_BYTES + 1, move || {
            begun.send(()).unwrap();
            may_go_on.recv().unwrap();
            pause::point();
            long.send("long").unwrap();
        });
        has_begun.recv().unwrap();
        let second = threads.run(1, move || short.send("short").unwrap());
        go_on.send(()).unwrap();
        wait(first).unwrap();
        wait(second).unwrap();
        assert_eq!(done.iter().collect::<Vec<_>>(), ["short", "long"]);
    }
}
