//! Jobs of the CPU threads: each thread takes a chunk of a job, and of the next job when the
//! first has no more. No thread waits for the last chunk of a job while there are others to compute.

use super::Failure;
use super::feed::{Bell, Feed, Job};
use magray_core::{ChunkLimits, Schedule, plan_chunks, plan_stream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A job and how its texts are divided.
pub(super) struct Planned<'a> {
    pub(super) job: Box<dyn Job + 'a>,
    pub(super) schedule: Schedule,
}

impl<'a> Planned<'a> {
    /// `is_joining`: other threads are busy with the job before it.
    pub(super) fn new(job: Box<dyn Job + 'a>, limits: ChunkLimits, is_joining: bool) -> Self {
        let lengths: Vec<usize> = (0..job.count()).map(|at| job.text(at).ids.len()).collect();
        // Threads that have no more of it begin with the next: none waits, however unequal its chunks are.
        let is_enough = lengths.iter().sum::<usize>() >= limits.tokens_each * limits.threads;
        let is_stream = is_joining || job.is_followed() && is_enough;
        let schedule = match plan_chunks(&lengths, limits) {
            Schedule::Together(_) if is_stream => Schedule::Each(plan_stream(&lengths, limits.tokens_each)),
            schedule => schedule,
        };
        Self { job, schedule }
    }
}

/// A chunk of a job: the texts in it.
struct Chunk<'a> {
    job: Arc<UnderWay<'a>>,
    at: usize,
}

/// A job of which some chunks are taken.
struct UnderWay<'a> {
    job: Box<dyn Job + 'a>,
    chunks: Vec<Vec<usize>>,
    /// Chunks that are not computed yet.
    left: AtomicUsize,
    answer: Mutex<Result<Vec<f32>, Failure>>,
}

/// Jobs one after the other, whose chunks are for a thread each.
pub(super) struct Stream<'a> {
    feed: &'a dyn Feed,
    limits: ChunkLimits,
    /// Numbers in a text's answer.
    outputs: usize,
    state: Mutex<State<'a>>,
}

struct State<'a> {
    /// The job that chunks are taken from, and the next of them.
    current: Option<(Arc<UnderWay<'a>>, usize)>,
    /// Threads that compute a chunk.
    busy: usize,
    /// No job is begun any more: a thread has left or must. It could not come back, and the others would compute what comes without it.
    has_ended: bool,
    /// A job that all threads must compute together: the stream ends before it.
    last: Option<Planned<'a>>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(feed: &'a dyn Feed, limits: ChunkLimits, outputs: usize) -> Self {
        let state = State { current: None, busy: 0, has_ended: false, last: None };
        Self { feed, limits, outputs, state: Mutex::new(state) }
    }

    /// Begins with a job.
    pub(super) fn start(&self, job: Box<dyn Job + 'a>, chunks: Vec<Vec<usize>>) {
        self.begin(&mut self.lock(), job, chunks);
    }

    /// What the stream ended before.
    pub(super) fn into_last(self) -> Option<Planned<'a>> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).last
    }

    /// Computes chunk after chunk, as one of the threads, until there are no more: `pass` computes some texts of a job and
    /// gives a row for each.
    pub(super) fn work(&self, mut pass: impl FnMut(&dyn Job, &[usize], &mut dyn FnMut(&[f32]))) {
        while let Some(chunk) = self.take() {
            let UnderWay { job, chunks, answer, .. } = &*chunk.job;
            let texts = &chunks[chunk.at];
            let mut keep = |rows: &[f32]| {
                if let Ok(answer) = &mut *answer.lock().unwrap_or_else(PoisonError::into_inner) {
                    scatter(rows, texts, self.outputs, answer);
                }
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| pass(&**job, texts, &mut keep))) {
                *answer.lock().unwrap_or_else(PoisonError::into_inner) = Err(Failure::panicked(&*panic));
            }
            self.finish(&chunk.job);
        }
    }

    /// The next chunk; waits for it while others are busy, who may be followed by more. `None`: the stream has ended.
    fn take(&self) -> Option<Chunk<'a>> {
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
                let planned = Planned::new(job, self.limits, state.busy > 0);
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

    fn begin(&self, state: &mut State<'a>, job: Box<dyn Job + 'a>, chunks: Vec<Vec<usize>>) {
        let texts: usize = chunks.iter().map(Vec::len).sum();
        let left = AtomicUsize::new(chunks.len());
        let answer = Mutex::new(Ok(vec![0.0; texts * self.outputs]));
        if chunks.is_empty() {
            return job.done(Ok(Vec::new()));
        }
        state.current = Some((Arc::new(UnderWay { job, chunks, left, answer }), 0));
        // Others may wait for it.
        self.stir();
    }

    /// A thread is done with a chunk.
    fn finish(&self, under_way: &UnderWay<'a>) {
        if under_way.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut answer = under_way.answer.lock().unwrap_or_else(PoisonError::into_inner);
            under_way.job.done(std::mem::replace(&mut *answer, Ok(Vec::new())));
        }
        let mut state = self.lock();
        state.busy -= 1;
        let is_idle = state.busy == 0;
        drop(state);
        if is_idle {
            // No thread is busy: those that waited leave, unless the answer brought a job.
            self.stir();
        }
    }

    fn stir(&self) {
        if let Some(bell) = self.feed.bell() {
            bell.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> State<'a> {
    fn take(&mut self) -> Option<Chunk<'a>> {
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
pub(super) fn scatter(rows: &[f32], chunk: &[usize], outputs: usize, out: &mut [f32]) {
    for (row, &text) in rows.chunks_exact(outputs).zip(chunk) {
        out[text * outputs..(text + 1) * outputs].copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::Tokens;
    use std::collections::{BTreeMap, VecDeque};
    use std::sync::mpsc::channel;

    /// Each text is one token, and its answer is that token.
    struct Texts {
        name: u32,
        ids: Vec<u32>,
    }

    /// Texts and where their answers go.
    struct Asked<'a> {
        texts: Texts,
        jobs: &'a Jobs,
    }

    impl Job for Asked<'_> {
        fn count(&self) -> usize {
            self.texts.ids.len()
        }

        fn text(&self, at: usize) -> Tokens<'_> {
            Tokens { ids: &self.texts.ids[at..=at], types: &[] }
        }

        fn skip(&self) -> usize {
            0
        }

        fn done(&self, outcome: Result<Vec<f32>, Failure>) {
            let outcome = outcome.map_err(|failure| failure.message);
            assert!(self.jobs.done.lock().unwrap().insert(self.texts.name, outcome).is_none(), "done once");
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
        fn next(&self, is_spare: bool) -> Option<Box<dyn Job + '_>> {
            let kept_back = || is_spare.then(|| self.kept_back.lock().unwrap().pop_front()).flatten();
            let texts = self.waiting.lock().unwrap().pop_front().or_else(kept_back)?;
            Some(Box::new(Asked { texts, jobs: self }))
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
    fn run(jobs: &Jobs, on_chunk: impl Fn(u32, &[usize]) + Sync) -> Option<Planned<'_>> {
        let stream = Stream::new(jobs, LIMITS, 1);
        let first = Planned::new(jobs.next(false).unwrap(), LIMITS, false);
        let Schedule::Each(chunks) = first.schedule else { panic!("the first is for threads of their own") };
        stream.start(first.job, chunks);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    stream.work(|job, chunk, keep| {
                        on_chunk(name_of(job), chunk);
                        let rows: Vec<f32> = chunk.iter().map(|&text| job.text(text).ids[0] as f32).collect();
                        keep(&rows);
                    });
                });
            }
        });
        stream.into_last()
    }

    fn name_of(job: &dyn Job) -> u32 {
        job.text(0).ids[0] / 1000
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
        // The first chunk of the first job ends when all of the second job was begun: only two threads do that.
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
        stream.start(Box::new(Asked { texts: texts(0, 2), jobs: &jobs }), vec![vec![0], vec![1]]);
        let taken = [stream.take().unwrap(), stream.take().unwrap()];
        taken.iter().for_each(|chunk| stream.finish(&chunk.job));
        assert!(stream.take().is_none(), "nothing is at hand: a thread leaves");
        jobs.waiting.lock().unwrap().push_back(texts(1, 9));
        assert!(stream.take().is_none(), "another that is a moment later leaves too");
        assert!(stream.into_last().is_none());
        drop(taken);
        assert_eq!(jobs.waiting.into_inner().unwrap().len(), 1, "and the job is left to those who come next");
    }

    #[test]
    fn a_panic_loses_its_job_alone() {
        let jobs = Jobs::default();
        jobs.waiting.lock().unwrap().extend((0..9).map(|name| texts(name, 20)));
        run(&jobs, |name, chunk| assert!(name != 4 || !chunk.contains(&7), "boom"));
        let done = jobs.done.into_inner().unwrap();
        assert_eq!(done[&4], Err("the computation panicked: boom".to_owned()));
        assert!((0..9).filter(|&name| name != 4).all(|name| done[&name] == right(&texts(name, 20))));
    }

    #[test]
    fn a_short_job_waited_until_all_threads_had_ended_the_one_before_it() {
        let jobs = Jobs::default();
        let stream = Stream::new(&jobs, LIMITS, 1);
        stream.start(Box::new(Asked { texts: texts(0, 2), jobs: &jobs }), vec![vec![0], vec![1]]);
        let long = [stream.take().unwrap(), stream.take().unwrap()];
        stream.finish(&long[0].job);
        jobs.waiting.lock().unwrap().extend([texts(1, 1), texts(2, 1)]);
        let short = stream.take().unwrap();
        assert_eq!(name_of(&*short.job.job), 1, "a thread computes it while the other is busy");
        [&long[1], &short].iter().for_each(|chunk| stream.finish(&chunk.job));
        assert!(stream.take().is_none(), "no thread is busy: all of them compute it together");
        drop((long, short));
        let last = stream.into_last().unwrap();
        assert!(name_of(&*last.job) == 2 && matches!(last.schedule, Schedule::Together(_)));
    }
}
