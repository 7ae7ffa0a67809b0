//! Jobs on their way through the threads of the CPU: each thread takes a chunk of a job, and of the next job when the
//! first has no more. Nobody waits for the last chunk of a job while there are others to compute.

use crate::packed::Tokens;
use magray_core::{ChunkLimits, Schedule, plan_chunks};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Texts that are answered together.
pub(crate) trait Job: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    fn text(&self, at: usize) -> Tokens<'_>;

    /// Leading tokens of each text that are not pooled.
    fn skip(&self) -> usize;
}

/// The answers of a job, one row a text in their order; or the panic that they were lost in.
pub(crate) type Outcome = Result<Vec<f32>, Box<dyn Any + Send>>;

/// Where jobs come from and answers go to. Called from all threads.
pub(crate) trait Feed: Sync {
    type Job: Job;

    /// The next job, if one is at hand; `is_spare`: the thread that asks has nothing to do, while others are busy.
    fn next(&self, is_spare: bool) -> Option<Self::Job>;

    fn done(&self, job: &Self::Job, outcome: Outcome);

    /// Rings when a job has come. `None`: none comes while others are under way.
    fn bell(&self) -> Option<&Bell>;
}

/// Tells threads that wait that something has changed.
#[derive(Default)]
pub(crate) struct Bell {
    /// How often it has rung.
    rings: AtomicU64,
    /// Held to ring, and from the last look at `rings` until one sleeps.
    door: Mutex<()>,
    rang: Condvar,
}

/// Some tens of microseconds: those that end a batch together mostly do so within them.
const SPINS_BEFORE_SLEEP: u32 = 4_000;

impl Bell {
    pub(crate) fn ring(&self) {
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        self.rings.fetch_add(1, Ordering::Release);
        drop(door);
        self.rang.notify_all();
    }

    fn rings(&self) -> u64 {
        self.rings.load(Ordering::Acquire)
    }

    /// Waits until it has rung more often than that.
    fn wait(&self, heard: u64) {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.rings() != heard {
                return;
            }
            std::hint::spin_loop();
        }
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let door = self.rang.wait_while(door, |()| self.rings() == heard);
        drop(door.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A job and how its texts are divided.
pub(crate) struct Planned<J> {
    pub(crate) job: J,
    pub(crate) schedule: Schedule,
}

impl<J: Job> Planned<J> {
    pub(crate) fn new(job: J, limits: ChunkLimits) -> Self {
        let lengths: Vec<usize> = (0..job.count()).map(|at| job.text(at).ids.len()).collect();
        Self { job, schedule: plan_chunks(&lengths, limits) }
    }
}

/// A chunk of a job: the texts in it.
struct Chunk<J> {
    job: Arc<UnderWay<J>>,
    at: usize,
}

/// A job of which some chunks are taken.
struct UnderWay<J> {
    job: J,
    chunks: Vec<Vec<usize>>,
    /// Chunks that nobody has computed yet.
    left: AtomicUsize,
    answer: Mutex<Outcome>,
}

/// Jobs one after the other, whose chunks are for a thread each.
pub(crate) struct Stream<'a, F: Feed> {
    feed: &'a F,
    limits: ChunkLimits,
    /// Numbers in a text's answer.
    outputs: usize,
    state: Mutex<State<F::Job>>,
}

struct State<J> {
    /// The job that chunks are taken from, and the next of them.
    current: Option<(Arc<UnderWay<J>>, usize)>,
    /// Threads that compute a chunk.
    busy: usize,
    /// No job is begun any more: a thread has left or must. It could not come back, and the others would compute alone what comes.
    has_ended: bool,
    /// A job that all threads must compute together: the stream ends before it.
    last: Option<Planned<J>>,
}

impl<'a, F: Feed> Stream<'a, F> {
    pub(crate) fn new(feed: &'a F, limits: ChunkLimits, outputs: usize) -> Self {
        let state = State { current: None, busy: 0, has_ended: false, last: None };
        Self { feed, limits, outputs, state: Mutex::new(state) }
    }

    /// Begins with a job.
    pub(crate) fn start(&self, job: F::Job, chunks: Vec<Vec<usize>>) {
        self.begin(&mut self.lock(), job, chunks);
    }

    /// What the stream ended before.
    pub(crate) fn into_last(self) -> Option<Planned<F::Job>> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).last
    }

    /// Computes chunk after chunk, as one of the threads, until there are no more: `pass` computes some texts of a job and
    /// gives a row for each.
    pub(crate) fn work(&self, mut pass: impl FnMut(&F::Job, &[usize], &mut dyn FnMut(&[f32]))) {
        while let Some(chunk) = self.take() {
            let UnderWay { job, chunks, answer, .. } = &*chunk.job;
            let texts = &chunks[chunk.at];
            let mut keep = |rows: &[f32]| {
                if let Ok(answer) = &mut *answer.lock().unwrap_or_else(PoisonError::into_inner) {
                    scatter(rows, texts, self.outputs, answer);
                }
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| pass(job, texts, &mut keep))) {
                *answer.lock().unwrap_or_else(PoisonError::into_inner) = Err(panic);
            }
            self.finish(&chunk.job);
        }
    }

    /// The next chunk; waits for it while others are busy, who may be followed by more. `None`: the stream has ended.
    fn take(&self) -> Option<Chunk<F::Job>> {
        loop {
            let heard = self.feed.bell().map(Bell::rings);
            let mut state = self.lock();
            if let Some(chunk) = state.take() {
                return Some(chunk);
            }
            if state.has_ended {
                return None;
            }
            if let Some(job) = self.feed.next(state.busy > 0) {
                let planned = Planned::new(job, self.limits);
                match planned.schedule {
                    Schedule::Each(chunks) => self.begin(&mut state, planned.job, chunks),
                    Schedule::Together(_) => (state.has_ended, state.last) = (true, Some(planned)),
                }
                continue;
            }
            match (self.feed.bell(), heard) {
                (Some(bell), Some(heard)) if state.busy > 0 => {
                    drop(state);
                    bell.wait(heard);
                }
                _ => {
                    state.has_ended = true;
                    return None;
                }
            }
        }
    }

    fn begin(&self, state: &mut State<F::Job>, job: F::Job, chunks: Vec<Vec<usize>>) {
        let texts: usize = chunks.iter().map(Vec::len).sum();
        let left = AtomicUsize::new(chunks.len());
        let answer = Mutex::new(Ok(vec![0.0; texts * self.outputs]));
        if chunks.is_empty() {
            return self.feed.done(&job, Ok(Vec::new()));
        }
        state.current = Some((Arc::new(UnderWay { job, chunks, left, answer }), 0));
        // Others may wait for it.
        self.stir();
    }

    /// A thread is done with a chunk.
    fn finish(&self, under_way: &UnderWay<F::Job>) {
        if under_way.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut answer = under_way.answer.lock().unwrap_or_else(PoisonError::into_inner);
            self.feed.done(&under_way.job, std::mem::replace(&mut *answer, Ok(Vec::new())));
        }
        let mut state = self.lock();
        state.busy -= 1;
        let is_idle = state.busy == 0;
        drop(state);
        if is_idle {
            // Nobody is busy: who waited leaves, unless the answer brought a job.
            self.stir();
        }
    }

    fn stir(&self) {
        if let Some(bell) = self.feed.bell() {
            bell.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<F::Job>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    fn take(&mut self) -> Option<Chunk<J>> {
        let (job, next) = self.current.as_mut()?;
        let chunk = Chunk { job: Arc::clone(job), at: *next };
        *next += 1;
        if *next == job.chunks.len() {
            self.current = None;
        }
        self.busy += 1;
        Some(chunk)
    }
}

/// Puts each row of a chunk where its text belongs.
pub(crate) fn scatter(rows: &[f32], chunk: &[usize], outputs: usize, out: &mut [f32]) {
    for (row, &text) in rows.chunks_exact(outputs).zip(chunk) {
        out[text * outputs..(text + 1) * outputs].copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, VecDeque};
    use std::sync::mpsc::channel;

    /// Each text is one token, and its answer is that token.
    struct Texts {
        name: u32,
        ids: Vec<u32>,
    }

    impl Job for Texts {
        fn count(&self) -> usize {
            self.ids.len()
        }

        fn text(&self, at: usize) -> Tokens<'_> {
            Tokens { ids: &self.ids[at..=at], types: &[] }
        }

        fn skip(&self) -> usize {
            0
        }
    }

    #[derive(Default)]
    struct Jobs {
        waiting: Mutex<VecDeque<Texts>>,
        /// Come only when threads have nothing to do.
        kept_back: Mutex<VecDeque<Texts>>,
        done: Mutex<BTreeMap<u32, Result<Vec<f32>, String>>>,
        bell: Bell,
    }

    impl Feed for Jobs {
        type Job = Texts;

        fn next(&self, is_spare: bool) -> Option<Texts> {
            let kept_back = || is_spare.then(|| self.kept_back.lock().unwrap().pop_front()).flatten();
            self.waiting.lock().unwrap().pop_front().or_else(kept_back)
        }

        fn done(&self, job: &Texts, outcome: Outcome) {
            let outcome = outcome.map_err(|panic| (*panic.downcast_ref::<&str>().unwrap()).to_owned());
            assert!(self.done.lock().unwrap().insert(job.name, outcome).is_none(), "done once");
        }

        fn bell(&self) -> Option<&Bell> {
            Some(&self.bell)
        }
    }

    const THREADS: usize = 3;
    const LIMITS: ChunkLimits = ChunkLimits { tokens_each: 4, tokens_least: 1, tokens_together: 64, threads: THREADS };

    fn texts(name: u32, count: u32) -> Texts {
        Texts { name, ids: (0..count).map(|i| name * 1000 + i).collect() }
    }

    /// Runs a stream that begins with the first job, `on_chunk` before each chunk.
    fn run(jobs: &Jobs, on_chunk: impl Fn(u32, &[usize]) + Sync) -> Option<Planned<Texts>> {
        let stream = Stream::new(jobs, LIMITS, 1);
        let first = Planned::new(jobs.next(false).unwrap(), LIMITS);
        let Schedule::Each(chunks) = first.schedule else { panic!("the first is for threads of their own") };
        stream.start(first.job, chunks);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    stream.work(|job, chunk, keep| {
                        on_chunk(job.name, chunk);
                        let rows: Vec<f32> = chunk.iter().map(|&text| job.text(text).ids[0] as f32).collect();
                        keep(&rows);
                    });
                });
            }
        });
        stream.into_last()
    }

    fn right(job: &Texts) -> Result<Vec<f32>, String> {
        Ok(job.ids.iter().map(|&id| id as f32).collect())
    }

    #[test]
    fn every_job_is_answered_once_and_in_its_order() {
        let jobs = Jobs::default();
        let job = |name| texts(name, THREADS as u32 * (1 + name * 7 % 13));
        jobs.waiting.lock().unwrap().extend((0..50).map(job));
        assert!(run(&jobs, |_, _| {}).is_none());
        let done = jobs.done.into_inner().unwrap();
        assert_eq!(done.len(), 50);
        assert!((0..50).all(|name| done[&name] == right(&job(name))));
    }

    #[test]
    fn a_thread_without_work_gets_what_was_kept_back_while_the_others_compute() {
        let jobs = Jobs::default();
        jobs.waiting.lock().unwrap().push_back(texts(0, 3));
        jobs.kept_back.lock().unwrap().push_back(texts(1, 3));
        let (tell, told) = channel();
        let told = Mutex::new(told);
        // The first chunk of the first job ends when all of the second job was begun: two threads alone do that.
        run(&jobs, |name, chunk| match (name, chunk) {
            (0, [0]) => (0..3).for_each(|_| told.lock().unwrap().recv().unwrap()),
            (0, _) => {}
            _ => tell.send(()).unwrap(),
        });
        assert_eq!(jobs.done.into_inner().unwrap().len(), 2);
    }

    #[test]
    fn a_thread_that_waits_hears_of_a_job_that_comes() {
        let jobs = Jobs::default();
        jobs.waiting.lock().unwrap().push_back(texts(0, 3));
        let (tell, told) = channel();
        let told = Mutex::new(told);
        run(&jobs, |name, chunk| match (name, chunk) {
            (0, [0]) => {
                jobs.waiting.lock().unwrap().push_back(texts(1, 3));
                jobs.bell.ring();
                (0..3).for_each(|_| told.lock().unwrap().recv().unwrap());
            }
            (0, _) => {}
            _ => tell.send(()).unwrap(),
        });
        assert_eq!(jobs.done.into_inner().unwrap().len(), 2);
    }

    #[test]
    fn what_comes_when_a_thread_has_left_is_for_all_threads_again() {
        let jobs = Jobs::default();
        let stream = Stream::new(&jobs, LIMITS, 1);
        stream.start(texts(0, 2), vec![vec![0], vec![1]]);
        let taken = [stream.take().unwrap(), stream.take().unwrap()];
        taken.iter().for_each(|chunk| stream.finish(&chunk.job));
        assert!(stream.take().is_none(), "nothing is at hand: a thread leaves");
        jobs.waiting.lock().unwrap().push_back(texts(1, 9));
        assert!(stream.take().is_none(), "another that is a moment later leaves too");
        assert!(stream.into_last().is_none());
        assert_eq!(jobs.waiting.into_inner().unwrap().len(), 1, "and the job is left to those who come next");
    }

    #[test]
    fn a_panic_loses_its_job_alone() {
        let jobs = Jobs::default();
        jobs.waiting.lock().unwrap().extend((0..9).map(|name| texts(name, 20)));
        run(&jobs, |name, chunk| assert!(name != 4 || !chunk.contains(&7), "boom"));
        let done = jobs.done.into_inner().unwrap();
        assert_eq!(done[&4], Err("boom".to_owned()));
        assert!((0..9).filter(|&name| name != 4).all(|name| done[&name] == right(&texts(name, 20))));
    }

    #[test]
    fn a_job_for_all_threads_together_ends_the_stream() {
        let jobs = Jobs::default();
        jobs.waiting.lock().unwrap().extend([texts(0, 9), texts(1, 1), texts(2, 9)]);
        let last = run(&jobs, |_, _| {}).unwrap();
        assert!(last.job.name == 1 && matches!(last.schedule, Schedule::Together(_)));
        assert_eq!(jobs.done.into_inner().unwrap().into_keys().collect::<Vec<_>>(), [0]);
        assert_eq!(jobs.waiting.into_inner().unwrap().len(), 1, "what follows it waits");
    }
}
