//! Two threads for orders that take long: one loads models, the other takes them off.
//! Never does two orders of one model at once nor out of their order, and never more than two in all.

use super::wire::Garbled;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Which of the two threads does an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferThread {
    /// Onto the device.
    In,
    /// Off the device. It need not wait for what comes: mostly it makes room for that.
    Out,
}

/// Something to do with a model.
pub(super) struct Job<T> {
    pub(super) model: usize,
    pub(super) thread: TransferThread,
    pub(super) what: T,
}

/// The two threads and what waits for them. When it goes, what was begun is waited for and the rest is dropped.
pub(super) struct Jobs<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    /// The oldest first.
    waiting: VecDeque<Job<T>>,
    /// The models that are being worked on.
    busy: Vec<usize>,
    is_closed: bool,
}

/// Orders that wait. A supervisor that sends more has lost count: it waits for the answers of those before.
const WAITING_MAX: usize = 1024;

impl<T: Send + 'static> Jobs<T> {
    /// Starts the threads, which do every job by `work`.
    pub(super) fn start(work: impl Fn(usize, T) + Send + Sync + 'static) -> io::Result<Self> {
        let state = State { waiting: VecDeque::new(), busy: Vec::new(), is_closed: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let work = Arc::new(work);
        let mut jobs = Self { shared, threads: Vec::new() };
        for (thread, name) in [(TransferThread::In, "loads"), (TransferThread::Out, "leaves")] {
            let (shared, work) = (Arc::clone(&jobs.shared), Arc::clone(&work));
            let serve = move || {
                while let Some(Job { model, what, .. }) = shared.next(thread) {
                    work(model, what);
                    shared.done(model);
                }
            };
            jobs.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(serve)?);
        }
        Ok(jobs)
    }

    /// Adds a job behind the others.
    pub(super) fn push(&self, job: Job<T>) -> Result<(), Garbled> {
        let mut state = self.shared.lock();
        if state.waiting.len() >= WAITING_MAX {
            return Err(Garbled("more orders than it waits for"));
        }
        state.waiting.push_back(job);
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }
}

impl<T> Drop for Jobs<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        let rest = std::mem::take(&mut state.waiting);
        drop(state);
        drop(rest);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was told where it happened.
            let _ = thread.join();
        }
    }
}

impl<T> Shared<T> {
    /// The next job of this thread; waits for it. `None`: there will be none.
    fn next(&self, thread: TransferThread) -> Option<Job<T>> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(at) = state.first(thread) {
                let job = state.waiting.remove(at)?;
                state.busy.push(job.model);
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, model: usize) {
        self.lock().busy.retain(|busy| *busy != model);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    /// The job whose turn it is.
    fn first(&self, thread: TransferThread) -> Option<usize> {
        let is_free = |at: usize| {
            let model = self.waiting[at].model;
            !self.busy.contains(&model) && self.waiting.iter().take(at).all(|before| before.model != model)
        };
        let mut own = self.waiting.iter().enumerate().filter(|(_, job)| job.thread == thread).map(|(at, _)| at);
        match thread {
            // The first is waited for: loads come in the order of their urgency.
            TransferThread::In => own.next().filter(|at| is_free(*at)),
            TransferThread::Out => own.find(|at| is_free(*at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Jobs that begin when they can and end when the test says so.
    struct Rig {
        jobs: Jobs<(&'static str, Receiver<()>)>,
        begun: Receiver<&'static str>,
    }

    impl Rig {
        fn new() -> Self {
            let (tell, begun) = channel();
            let tell = Mutex::new(tell);
            let jobs = Jobs::start(move |_, (name, end): (&'static str, Receiver<()>)| {
                tell.lock().unwrap().send(name).unwrap();
                let _ = end.recv();
            });
            Self { jobs: jobs.unwrap(), begun }
        }

        fn push(&self, name: &'static str, model: usize, thread: TransferThread) -> Sender<()> {
            let (end, ends) = channel();
            self.jobs.push(Job { model, thread, what: (name, ends) }).unwrap();
            end
        }

        fn begins(&self) -> &'static str {
            self.begun.recv().unwrap()
        }

        fn nothing_else_can(&self, thread: TransferThread) {
            assert_eq!(self.jobs.shared.lock().first(thread), None);
        }
    }

    #[test]
    fn loads_come_one_at_a_time_and_in_order() {
        let rig = Rig::new();
        let [a, b, _c] = [("a", 0), ("b", 1), ("c", 2)].map(|(name, model)| rig.push(name, model, TransferThread::In));
        assert_eq!(rig.begins(), "a");
        assert!(rig.begun.try_recv().is_err());
        drop(a);
        assert_eq!(rig.begins(), "b");
        drop(b);
        assert_eq!(rig.begins(), "c");
    }

    #[test]
    fn what_leaves_waits_for_its_own_load_and_for_no_other() {
        let rig = Rig::new();
        let load = rig.push("load a", 0, TransferThread::In);
        assert_eq!(rig.begins(), "load a");
        let _leave_a = rig.push("offload a", 0, TransferThread::Out);
        rig.nothing_else_can(TransferThread::Out);
        let leave_b = rig.push("offload b", 1, TransferThread::Out);
        assert_eq!(rig.begins(), "offload b");
        drop(leave_b);
        drop(load);
        assert_eq!(rig.begins(), "offload a");
    }

    #[test]
    fn a_load_waits_for_the_same_model_to_leave_and_others_wait_behind_it() {
        let rig = Rig::new();
        let leave = rig.push("offload a", 0, TransferThread::Out);
        assert_eq!(rig.begins(), "offload a");
        let load = rig.push("load a", 0, TransferThread::In);
        let _other = rig.push("load b", 1, TransferThread::In);
        rig.nothing_else_can(TransferThread::In);
        drop(leave);
        assert_eq!(rig.begins(), "load a");
        drop(load);
        assert_eq!(rig.begins(), "load b");
    }

    #[test]
    fn the_end_waits_for_what_was_begun_and_drops_the_rest() {
        let rig = Rig::new();
        let first = rig.push("first", 0, TransferThread::In);
        assert_eq!(rig.begins(), "first");
        let second = rig.push("second", 0, TransferThread::In);
        drop(first);
        // Whether the second has begun or not: it is dropped when the threads have ended.
        drop(second);
        let Rig { jobs, begun } = rig;
        drop(jobs);
        assert!(begun.iter().all(|name| name == "second"));
    }

    #[test]
    fn orders_without_end_are_refused() {
        let rig = Rig::new();
        let _first = rig.push("first", 0, TransferThread::In);
        assert_eq!(rig.begins(), "first");
        let kept: Vec<_> = (0..WAITING_MAX).map(|_| rig.push("more", 0, TransferThread::In)).collect();
        let (_end, ends) = channel();
        assert!(rig.jobs.push(Job { model: 0, thread: TransferThread::In, what: ("too many", ends) }).is_err());
        drop(kept);
    }
}
