//! How soon a thread gets a core that others compute on. Takes no larger share of the cores, and needs no rights.
//!
//! A thread that has run more than its share of late is not given the core as soon as it has something to do, but when the
//! system looks next, which is every few milliseconds: a server that was busy for one of them answers nobody for the next
//! four. So threads that compute ask the system to look more often, where others of the process have callers who wait.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a thread computes before it offers its core again.
const OFFERS_APART: Duration = Duration::from_micros(500);

/// Threads of this process have callers who wait.
static HAS_CALLERS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// When this thread last offered its core.
    static OFFERED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The calling thread looks after callers from now on: it takes short turns, and threads that compute let it have theirs.
pub fn look_after_callers() {
    take_short_turns();
    HAS_CALLERS.store(true, Ordering::Relaxed);
}

/// Lets others have the core of this thread, which computes, if some have callers and it is time for it.
#[inline]
pub(super) fn offer_core() {
    // Nothing else depends on it: a moment later is as good.
    if !HAS_CALLERS.load(Ordering::Relaxed) {
        return;
    }
    let offered = OFFERED.get();
    match offered.map(|offered| offered.elapsed()) {
        // Whoever offers its core loses the rest of its turn, also to programs of others: that must not be much.
        None => take_short_turns(),
        Some(since) if since < OFFERS_APART => return,
        Some(_) => std::thread::yield_now(),
    }
    OFFERED.set(Some(Instant::now()));
}

/// What a thread runs before another may have its turn: the least that Linux takes.
#[cfg(target_os = "linux")]
const SHORT_NS: u64 = 100_000;

/// Asks for short turns for the calling thread: whenever it has something to do, it then has it at once and not when those
/// that compute have used up their turns, which is milliseconds later. Heard by Linux from 6.12 on; others pass over it.
#[cfg(target_os = "linux")]
pub fn take_short_turns() {
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
    // SAFETY: the structure is as long as is said, and both calls touch nothing else.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, own, &raw mut how, size, 0) != 0 {
            return;
        }
        // Other kinds of turns are the user's own choice.
        if how.sched_policy == libc::SCHED_OTHER as u32 {
            how.size = size;
            how.sched_runtime = SHORT_NS;
            libc::syscall(libc::SYS_sched_setattr, own, &raw const how, 0);
        }
    }
}

/// Other systems have no such wish.
#[cfg(not(target_os = "linux"))]
pub fn take_short_turns() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn those_who_compute_offer_their_core_now_and_then() {
        use super::{OFFERED, OFFERS_APART, look_after_callers, offer_core};
        let own = std::thread::spawn(|| {
            look_after_callers();
            offer_core();
            let first = OFFERED.get().unwrap();
            while first.elapsed() < OFFERS_APART {
                let before = first.elapsed();
                offer_core();
                assert!(OFFERED.get() == Some(first) || first.elapsed() >= OFFERS_APART, "{before:?}: too soon");
            }
            offer_core();
            assert!(OFFERED.get().unwrap() > first);
        });
        own.join().unwrap();
    }

    #[test]
    fn short_turns_change_nothing_else_of_a_thread() {
        let nice = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().to_owned()
        };
        let own = std::thread::spawn(move || {
            let before = nice();
            super::take_short_turns();
            super::take_short_turns();
            (before, nice())
        });
        let (before, after) = own.join().unwrap();
        assert_eq!(before, after);
    }
}
