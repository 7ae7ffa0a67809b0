//! How soon a thread gets a core that others compute on. Takes no larger share of the cores, and needs no rights.

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
