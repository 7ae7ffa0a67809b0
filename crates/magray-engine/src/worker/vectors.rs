//! The vectors that a worker holds, and the thread that searches them beside the batches.
//! Reads no messages. Searches that wait for the same vectors are done by one scan.

use super::channel::SharedOutgoing;
use super::holdings::Holdings;
use super::message::{FromWorker, HeldShape, ToSupervisor, VectorOrder, VectorReply, VectorSearch};
use super::vector_window::VectorWindow;
use crate::executors::{Executor, Failure, FailureKind, HeldVectors, catching};
use magray_device::cuda::Scan;
use magray_device::scan::HELD_BEST_MAX;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Queries of one scan.
const QUERIES_MAX: usize = 64;

/// An order for vectors; what came of it is told under its number.
pub(super) struct VectorJob {
    pub(super) call: u64,
    pub(super) vectors: u32,
    pub(super) order: VectorOrder,
    pub(super) fd: Option<OwnedFd>,
}

/// Hands orders to the thread. It ends with the process.
pub(super) struct Searches(Sender<VectorJob>);

impl Searches {
    pub(super) fn start(
        executor: Arc<dyn Executor>,
        holdings: Arc<Holdings>,
        outgoing: SharedOutgoing,
    ) -> io::Result<Self> {
        let (sender, jobs) = channel();
        let mut all = AllVectors { executor, holdings, outgoing, held: HashMap::new() };
        std::thread::Builder::new().name("search".to_owned()).spawn(move || all.work(&jobs))?;
        Ok(Self(sender))
    }

    pub(super) fn take(&self, job: VectorJob) {
        // The thread ends when no more can come.
        let _ = self.0.send(job);
    }
}

/// All vectors of the worker.
struct AllVectors {
    executor: Arc<dyn Executor>,
    holdings: Arc<Holdings>,
    outgoing: SharedOutgoing,
    held: HashMap<u32, Held>,
}

struct Held {
    vectors: Box<dyn HeldVectors>,
    window: VectorWindow,
    shape: HeldShape,
}

impl AllVectors {
    fn work(&mut self, jobs: &Receiver<VectorJob>) {
        let mut waiting = VecDeque::new();
        while let Some(job) = waiting.pop_front().or_else(|| jobs.recv().ok()) {
            waiting.extend(jobs.try_iter());
            let VectorJob { call, vectors, order, fd } = job;
            match order {
                VectorOrder::Search(search) => self.search(call, vectors, search, &mut waiting),
                order => {
                    let reply = catching(|| self.carry_out(vectors, order, fd)).unwrap_or_else(VectorReply::Failed);
                    self.tell(call, vectors, reply);
                }
            }
        }
    }

    fn carry_out(&mut self, vectors: u32, order: VectorOrder, fd: Option<OwnedFd>) -> Result<VectorReply, Failure> {
        match order {
            VectorOrder::Hold(shape) => {
                let holding = self.holdings.change_vectors(vectors, || {
                    match self.executor.hold_vectors(shape.dims as usize, shape.room as usize) {
                        Ok(held) => {
                            let bytes = held.bytes();
                            (Ok(held), bytes)
                        }
                        Err(failure) => (Err(failure), 0),
                    }
                });
                let missing = || io::Error::from(io::ErrorKind::NotFound);
                let window = fd.ok_or_else(missing).and_then(|fd| VectorWindow::from_fd(fd, shape));
                let held = holding.and_then(|vectors| Ok(Held { vectors, window: window.map_err(not_mapped)?, shape }));
                match held {
                    Ok(held) => {
                        self.held.insert(vectors, held);
                    }
                    Err(failure) => {
                        self.holdings.change_vectors(vectors, || ((), 0));
                        return Err(failure);
                    }
                }
            }
            VectorOrder::Put(count) => {
                let held = self.find(vectors)?;
                let count = (count as usize).min(held.window.put_max());
                let (slots, rows, offsets) = held.window.read(count);
                if slots.iter().any(|slot| *slot >= held.shape.room) {
                    return Err(refused("a vector beyond the room"));
                }
                held.vectors.put(&slots, &rows, &offsets)?;
            }
            VectorOrder::KeepSigns(centre) => {
                let held = self.find(vectors)?;
                if centre.len() != held.shape.dims as usize {
                    return Err(refused("a centre of another length"));
                }
                let kept = held.vectors.keep_signs(centre);
                let bytes = held.vectors.bytes();
                self.holdings.change_vectors(vectors, || ((), bytes));
                kept?;
            }
            VectorOrder::Drop => {
                let held = self.held.remove(&vectors);
                self.holdings.change_vectors(vectors, || (drop(held), 0));
                return Ok(VectorReply::Dropped);
            }
            VectorOrder::Search(_) => {}
        }
        Ok(VectorReply::Done)
    }

    /// Searches, and with it for all that wait for the same.
    fn search(&mut self, call: u64, vectors: u32, search: VectorSearch, waiting: &mut VecDeque<VectorJob>) {
        let mut calls = vec![call];
        let mut queries = search.query.clone();
        if !search.is_filtered {
            waiting.retain(|job| match &job.order {
                VectorOrder::Search(other)
                    if job.vectors == vectors && search.goes_with(other) && calls.len() < QUERIES_MAX =>
                {
                    calls.push(job.call);
                    queries.extend_from_slice(&other.query);
                    false
                }
                _ => true,
            });
        }
        let found = catching(|| self.find(vectors)?.best(&search, &queries));
        match found {
            Ok(found) => {
                let pairs = |near: Vec<magray_device::cuda::Near>| {
                    near.iter().map(|near| (near.slot, near.score.to_bits())).collect()
                };
                let found = found.into_iter().map(pairs);
                calls
                    .into_iter()
                    .zip(found)
                    .for_each(|(call, found)| self.tell(call, vectors, VectorReply::Found(found)));
            }
            Err(failure) => {
                calls.into_iter().for_each(|call| self.tell(call, vectors, VectorReply::Failed(failure.clone())));
            }
        }
    }

    fn find(&mut self, vectors: u32) -> Result<&mut Held, Failure> {
        self.held.get_mut(&vectors).ok_or_else(|| refused("vectors that are not held"))
    }

    fn tell(&self, call: u64, vectors: u32, reply: VectorReply) {
        // A supervisor that cannot be told is gone, and then the watcher ends the process.
        let _ = self.outgoing.send(&ToSupervisor::Event(FromWorker::Vectors { call, vectors, reply }));
    }
}

impl Held {
    fn best(&mut self, search: &VectorSearch, queries: &[f32]) -> Result<Vec<Vec<magray_device::cuda::Near>>, Failure> {
        let VectorSearch { rows, most, is_filtered, is_exact, .. } = *search;
        let (rows, most) = (rows as usize, most as usize);
        let is_whole = search.query.len() == self.shape.dims as usize && rows <= self.shape.room as usize;
        if !is_whole || !(1..=HELD_BEST_MAX).contains(&most) {
            return Err(refused("a search of another shape"));
        }
        let bits = is_filtered.then(|| self.window.read_bits());
        self.vectors.best(&Scan { queries, rows, most, allowed: bits.as_deref(), least: None, is_exact })
    }
}

impl VectorSearch {
    /// Whether one scan does for both.
    fn goes_with(&self, other: &Self) -> bool {
        let same = |search: &Self| (search.query.len(), search.rows, search.most, search.is_exact);
        !other.is_filtered && same(self) == same(other)
    }
}

fn refused(what: &str) -> Failure {
    Failure::new(FailureKind::Transient, "vectors_refused", format!("the worker was told of {what}"))
}

fn not_mapped(error: io::Error) -> Failure {
    let message = format!("the shared memory for vectors cannot be mapped: {error}");
    Failure::new(FailureKind::Transient, "window_not_mapped", message)
}
