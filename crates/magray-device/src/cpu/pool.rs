//! The one thread pool of the CPU. Forks a closure to all threads and joins them; queues nothing.
//!
//! A forward pass forks some forty times, so threads wait for the next fork by spinning for a while and
//! only then sleep: inside a pass no thread is woken by the system, and an idle pool costs nothing.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

/// Threads that run one closure together; the caller is the first of them.
pub struct ThreadPool {
    shared: Arc<Shared>,
    others: Vec<Other>,
    /// Held during a run, so that two callers cannot fork at once.
    turn: Mutex<()>,
}

struct Other {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

struct Shared {
    /// Counts forks; a change makes the others look at `job`.
    fork: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    running: AtomicUsize,
    asleep: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// A borrowed closure whose lifetime `run` guards by not returning before all have left it.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

// SAFETY: `job` is written by the caller of `run` alone, before it announces the fork with a release store, and read
// by the others after an acquire load of it; it is next written after all of them have left it.
unsafe impl Sync for Shared {}
// SAFETY: the closure behind the pointer is Sync.
unsafe impl Send for Shared {}

/// Some tens of microseconds: meant to be longer than the gaps between the forks of one pass.
const SPINS_BEFORE_SLEEP: u32 = 4_000;

impl ThreadPool {
    /// A pool of this many threads, the caller's included.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            fork: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            running: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Self { shared, others: Vec::new(), turn: Mutex::new(()) };
        for rank in 1..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let spawned = std::thread::Builder::new().name(format!("magray-cpu-{rank}"));
            let handle = spawned.spawn(move || shared.work(rank))?;
            pool.others.push(Other { thread: handle.thread().clone(), handle: Some(handle) });
        }
        Ok(pool)
    }

    /// How many threads run each closure.
    pub fn threads(&self) -> usize {
        self.others.len() + 1
    }

    /// Announces a run: sleeping threads wake up while the caller still prepares it.
    pub fn rouse(&self) {
        if self.shared.asleep.load(Ordering::Relaxed) > 0 {
            self.others.iter().for_each(|other| other.thread.unpark());
        }
    }

    /// Runs `f(rank)` on every thread, ranks 0 to `threads() - 1`, and returns when all have.
    /// A panic of any of them is raised again here.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        if self.others.is_empty() {
            return f(0);
        }
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased, but no thread calls the closure after `running` is back at zero,
        // and this function waits for that, also when `f(0)` panics.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(f) };
        // SAFETY: `turn` is held and `running` is zero, so no other thread touches `job`.
        unsafe { *shared.job.get() = Some(Job(job)) };
        shared.running.store(self.others.len(), Ordering::Relaxed);
        // Sequentially consistent with the sleeper's announcement: either it sees the fork or we see it asleep.
        shared.fork.fetch_add(1, Ordering::SeqCst);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            self.others.iter().for_each(|other| other.thread.unpark());
        }
        let mine = catch_unwind(AssertUnwindSafe(|| f(0)));
        let mut spins = 0;
        while shared.running.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS_BEFORE_SLEEP {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        let theirs = shared.panic.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(panic) = theirs {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    fn work(&self, rank: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_fork(seen);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: the acquire load of `fork` in `wait_for_fork` makes the job visible, and `run` keeps the closure
            // alive until `running` drops below.
            let outcome = unsafe { (*self.job.get()).map(|job| catch_unwind(AssertUnwindSafe(|| (*job.0)(rank)))) };
            if let Some(Err(panic)) = outcome {
                *self.panic.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(panic);
            }
            self.running.fetch_sub(1, Ordering::Release);
        }
    }

    fn wait_for_fork(&self, seen: u64) -> u64 {
        loop {
            for _ in 0..SPINS_BEFORE_SLEEP {
                let now = self.fork.load(Ordering::Acquire);
                if now != seen {
                    return now;
                }
                std::hint::spin_loop();
            }
            self.asleep.fetch_add(1, Ordering::SeqCst);
            // Woken without a fork: it was roused, and spins again.
            if self.fork.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.fork.fetch_add(1, Ordering::SeqCst);
        for other in &mut self.others {
            other.thread.unpark();
            if let Some(handle) = other.handle.take() {
                // A thread of the pool catches every panic, so this cannot fail.
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_runs_once_a_fork() {
        let pool = ThreadPool::new(3).unwrap();
        let counts: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..1000 {
            pool.run(&|rank| {
                counts[rank].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1000));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = ThreadPool::new(2).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(&|rank| assert_ne!(rank, 1, "boom"))));
        assert!(outcome.is_err());
        let ran = AtomicUsize::new(0);
        pool.run(&|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 2);
    }
}
