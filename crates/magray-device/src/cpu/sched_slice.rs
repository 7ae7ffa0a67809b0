//! Scheduler slices: lets threads that answer requests preempt those that compute. Changes no priority, needs no rights.
//!
//! A thread that has used up its share is not scheduled when it wakes, but at the scheduler's next tick, which is every few
//! milliseconds: a server that was busy for one tick answers nothing for the next four. So compute threads ask for short
//! slices and yield between them, where other threads of the process answer requests.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A compute thread yields at most this often.
const YIELD_EVERY: Duration = Duration::from_micros(500);

/// The shortest slice that Linux accepts.
#[cfg(target_os = "linux")]
const SLICE_NS: u64 = 100_000;

/// Whether threads of this process answer requests.
static HAS_LATENCY_THREADS: AtomicBool = AtomicBool::new(false);

/// When a compute thread last yielded its core.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Yields {
    NotYet,
    /// Its slices stayed long: a yield would lose the rest of one, also to other programs.
    Never,
    Since(Instant),
}

thread_local! {
    static YIELDS: Cell<Yields> = const { Cell::new(Yields::NotYet) };
}

/// The calling thread answers requests from now on. For the rest of the process, compute threads yield, so that it is scheduled
/// soon even after it has used up its share.
pub fn register_latency_thread() {
    request_short_slices();
    HAS_LATENCY_THREADS.store(true, Ordering::Relaxed);
}

/// Yields the core of this compute thread, if other threads answer requests and it is time for it.
#[inline]
pub(super) fn yield_core() {
    // Nothing else depends on it: a moment later is as good.
    if HAS_LATENCY_THREADS.load(Ordering::Relaxed) {
        yield_if_due();
    }
}

#[inline(never)]
fn yield_if_due() {
    let yields = match YIELDS.get() {
        Yields::Never => return,
        Yields::Since(last) if last.elapsed() < YIELD_EVERY => return,
        Yields::NotYet if !request_short_slices() => Yields::Never,
        Yields::NotYet => Yields::Since(Instant::now()),
        Yields::Since(_) => {
            std::thread::yield_now();
            Yields::Since(Instant::now())
        }
    };
    YIELDS.set(yields);
}

/// Asks for short slices for the calling thread and those that it starts, so that it preempts compute threads as long as it has
/// not used up its share. Needs Linux 6.12; returns whether it was granted.
#[cfg(target_os = "linux")]
pub fn request_short_slices() -> bool {
    // Another policy is the user's own choice.
    let Some(mut how) = attributes().filter(|how| how.sched_policy == libc::SCHED_OTHER as u32) else { return false };
    how.sched_runtime = SLICE_NS;
    let own: libc::pid_t = 0;
    // SAFETY: the structure is as long as it says, and the call touches nothing else.
    unsafe { libc::syscall(libc::SYS_sched_setattr, own, &raw const how, 0) };
    // Older kernels accept it and do nothing.
    attributes().is_some_and(|how| how.sched_runtime == SLICE_NS)
}

#[cfg(target_os = "linux")]
fn attributes() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    let mut how = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let own: libc::pid_t = 0;
    // SAFETY: the structure is as long as is said, and the call touches nothing else.
    let status = unsafe { libc::syscall(libc::SYS_sched_getattr, own, &raw mut how, size, 0) };
    // The kernel may report a longer structure.
    how.size = size;
    (status == 0).then_some(how)
}

/// Other systems have no slices to ask for.
#[cfg(not(target_os = "linux"))]
pub fn request_short_slices() -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn compute_threads_yield_from_time_to_time() {
        let own = std::thread::spawn(|| {
            register_latency_thread();
            yield_core();
            let Yields::Since(first) = YIELDS.get() else {
                assert_eq!((YIELDS.get(), request_short_slices()), (Yields::Never, false));
                yield_core();
                return assert_eq!(YIELDS.get(), Yields::Never);
            };
            while first.elapsed() < YIELD_EVERY {
                yield_core();
                let is_same = YIELDS.get() == Yields::Since(first);
                assert!(is_same || first.elapsed() >= YIELD_EVERY, "too soon");
            }
            yield_core();
            assert!(matches!(YIELDS.get(), Yields::Since(last) if last > first));
        });
        own.join().unwrap();
    }

    #[test]
    fn threads_that_take_items_yield() {
        let own = std::thread::spawn(|| {
            register_latency_thread();
            let shares = crate::cpu::items::Shares::new(1);
            shares.fill(3);
            assert_eq!(YIELDS.get(), Yields::NotYet);
            assert_eq!(shares.of(0).count(), 3);
            assert_ne!(YIELDS.get(), Yields::NotYet);
        });
        own.join().unwrap();
    }

    #[test]
    fn short_slices_do_not_change_the_niceness() {
        let nice = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().to_owned()
        };
        let own = std::thread::spawn(move || {
            let before = nice();
            let first = request_short_slices();
            assert_eq!(first, request_short_slices());
            (before, nice())
        });
        let (before, after) = own.join().unwrap();
        assert_eq!(before, after);
    }
}
