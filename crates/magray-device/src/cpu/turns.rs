//! How soon a thread gets a core that others compute on. Takes no larger share of the cores, and needs no rights.
//!
//! A thread that has run more than its share of late is not given the core as soon as it has something to do, but when the
//! system looks next, which is every few milliseconds: a server that was busy for one of them answers nobody for the next
//! four. So threads that compute ask the system to look more often, where others of the process have callers who wait.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a thread computes before it offers its core again, at least.
const OFFERS_APART: Duration = Duration::from_micros(500);

/// What a thread runs before another may have its turn: the least that Linux takes.
#[cfg(target_os = "linux")]
const SHORT_NS: u64 = 100_000;

/// Threads of this process have callers who wait.
static HAS_CALLERS: AtomicBool = AtomicBool::new(false);

/// What a thread that computes does about its core.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Offers {
    NotYet,
    /// Its turns are long. Whoever offers its core loses the rest of a turn, also to programs of others: too much then.
    Never,
    Since(Instant),
}

thread_local! {
    static OFFERS: Cell<Offers> = const { Cell::new(Offers::NotYet) };
}

/// The calling thread looks after callers from now on, and for as long as the process lasts threads that compute offer their
/// cores: it has one soon, also when it has had more than its share of late.
pub fn look_after_callers() {
    take_short_turns();
    HAS_CALLERS.store(true, Ordering::Relaxed);
}

/// Lets others have the core of this thread, which computes, if some have callers and it is time for it.
#[inline]
pub(super) fn offer_core() {
    // Nothing else depends on it: a moment later is as good.
    if HAS_CALLERS.load(Ordering::Relaxed) {
        offer_if_due();
    }
}

#[inline(never)]
fn offer_if_due() {
    let offers = match OFFERS.get() {
        Offers::Never => return,
        Offers::Since(last) if last.elapsed() < OFFERS_APART => return,
        Offers::NotYet if !take_short_turns() => Offers::Never,
        Offers::NotYet => Offers::Since(Instant::now()),
        Offers::Since(_) => {
            std::thread::yield_now();
            Offers::Since(Instant::now())
        }
    };
    OFFERS.set(offers);
}

/// Asks for short turns for the calling thread, and those that it starts: when it has something to do and has not had more
/// than its share, it then need not wait until those that compute have used up their turns. Heard by Linux from 6.12 on;
/// whether it was.
#[cfg(target_os = "linux")]
pub fn take_short_turns() -> bool {
    // Other kinds of turns are the user's own choice.
    let Some(mut how) = turns().filter(|how| how.sched_policy == libc::SCHED_OTHER as u32) else { return false };
    how.sched_runtime = SHORT_NS;
    let own: libc::pid_t = 0;
    // SAFETY: the structure is as long as it says, and the call touches nothing else.
    unsafe { libc::syscall(libc::SYS_sched_setattr, own, &raw const how, 0) };
    // Older systems take it and do nothing.
    turns().is_some_and(|how| how.sched_runtime == SHORT_NS)
}

/// How the calling thread takes turns.
#[cfg(target_os = "linux")]
fn turns() -> Option<libc::sched_attr> {
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
    let told = unsafe { libc::syscall(libc::SYS_sched_getattr, own, &raw mut how, size, 0) };
    // The system may know more of it than is asked for here.
    how.size = size;
    (told == 0).then_some(how)
}

/// Other systems have no such request.
#[cfg(not(target_os = "linux"))]
pub fn take_short_turns() -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn those_who_compute_offer_their_core_now_and_then() {
        let own = std::thread::spawn(|| {
            look_after_callers();
            offer_core();
            let Offers::Since(first) = OFFERS.get() else {
                assert_eq!((OFFERS.get(), take_short_turns()), (Offers::Never, false));
                offer_core();
                return assert_eq!(OFFERS.get(), Offers::Never);
            };
            while first.elapsed() < OFFERS_APART {
                offer_core();
                let is_same = OFFERS.get() == Offers::Since(first);
                assert!(is_same || first.elapsed() >= OFFERS_APART, "too soon");
            }
            offer_core();
            assert!(matches!(OFFERS.get(), Offers::Since(last) if last > first));
        });
        own.join().unwrap();
    }

    #[test]
    fn threads_that_take_items_offer_their_core() {
        let own = std::thread::spawn(|| {
            look_after_callers();
            let shares = crate::cpu::items::Shares::new(1);
            shares.fill(3);
            assert_eq!(OFFERS.get(), Offers::NotYet);
            assert_eq!(shares.of(0).count(), 3);
            assert_ne!(OFFERS.get(), Offers::NotYet);
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
            let first = take_short_turns();
            assert_eq!(first, take_short_turns());
            (before, nice())
        });
        let (before, after) = own.join().unwrap();
        assert_eq!(before, after);
    }
}
