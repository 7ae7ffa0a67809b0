//! The generator: sends requests by their schedule or as clients that wait, until the time is over, and collects the
//! answers. Judges none of them.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use magray_core::SplitMix64;

use crate::{
    arrivals::{Arrivals, Pacer},
    latency::Latencies,
    pool::{Pool, Span},
    tally::{Rules, Tally},
    target::{Arrived, Outcome, Request, Target, Ticket},
};

/// How requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sending {
    /// This many a second, by their schedule, whatever the answers do.
    Open {
        /// Requests a second.
        rate: f64,
    },
    /// By this many clients, each of which waits for its answer before it sends again.
    Closed {
        /// How many.
        clients: usize,
    },
}

/// What is sent, and for how long.
#[derive(Clone, Debug)]
pub struct Load {
    /// How requests are sent.
    pub sending: Sending,
    /// Texts of a request.
    pub texts: usize,
    /// Requests of this time are checked and measured in nothing.
    pub warmup: Duration,
    /// How long it goes on after that.
    pub measured: Duration,
    /// No more requests than these, however much time is left.
    pub requests_max: u64,
    /// Repeats moments and texts of a run.
    pub seed: u64,
    /// Refusals that are no fault.
    pub expected: Vec<&'static str>,
    /// Requests that end workers.
    pub poison: Option<Poison>,
    /// An answer that does not come within this time after the last request was sent is lost.
    pub lost_after: Duration,
    /// Once it is set, nothing more is sent; what was sent is waited for.
    pub stop: Arc<AtomicBool>,
}

/// Requests with a token that ends workers, among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poison {
    /// The token.
    pub token: u32,
    /// From one such request to the next.
    pub every: Duration,
}

/// What came of a load.
#[derive(Debug)]
pub struct Outcomes {
    /// When the load began.
    pub start: Instant,
    /// Without those that warmed up.
    pub sent: u64,
    /// Requests that warmed up.
    pub warmed_up: u64,
    /// Of all: requests of the schedule that the generator was too slow to send.
    pub unsent: u64,
    /// Of all.
    pub lost: u64,
    /// What came of each request.
    pub tally: Tally,
    /// How much later than due requests were sent.
    pub lateness: Latencies,
}

/// A load that is running, for progress and watching.
pub struct Underway<'a> {
    /// When the load began.
    pub start: Instant,
    sent: &'a AtomicU64,
    tally: &'a Mutex<Tally>,
}

impl Underway<'_> {
    /// Requests so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// What came of them so far. Answers wait to be counted while it is held.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(self.tally)
    }
}

/// Puts a load on a target and waits for its answers. `watch` runs meanwhile; its receiver tells when the last request was
/// sent.
pub fn drive(
    target: &dyn Target,
    pool: &Pool,
    load: &Load,
    watch: impl FnOnce(&Underway<'_>, Receiver<()>) + Send,
) -> Outcomes {
    let start = Instant::now();
    let end = start + load.warmup + load.measured;
    let rules = Rules { start, warmup: load.warmup, measured: load.measured, expected: load.expected.clone() };
    let (sent, warmed_up) = (AtomicU64::new(0), AtomicU64::new(0));
    let tally = Mutex::new(Tally::new(rules));
    let (answers, arrived) = mpsc::sync_channel(load.answers_max(pool));
    let poison = load.poison.map(|poison| (poison, start + poison.every));
    let lateness = Latencies::new();
    let warm_at = start + load.warmup;
    let (texts, sent, warmed_up) = (load.texts, &sent, &warmed_up);
    let mut sender = Sender { target, pool, texts, poison, warm_at, sent, warmed_up, answers, lateness };
    let collector = Collector { pool, tally: &tally, arrived, lost_after: load.lost_after };
    let (unsent, lateness) = thread::scope(|scope| {
        let underway = Underway { start, sent, tally: &tally };
        let (over, looks_on) = mpsc::channel();
        scope.spawn(move || watch(&underway, looks_on));
        let done = match load.sending {
            Sending::Open { rate } => {
                let senders: Vec<_> = Arrivals::divide(rate, load.seed)
                    .into_iter()
                    .enumerate()
                    .map(|(index, arrivals)| OpenLoop { arrivals, index: index as u64, start, end, load })
                    .collect();
                let of = senders.len() as u64;
                let handles: Vec<_> = senders
                    .into_iter()
                    .map(|open| (open, sender.fork()))
                    .map(|(open, sender)| scope.spawn(move || open.run(of, sender)))
                    .collect();
                // Once all of them have ended and all tickets are answered, no sender of answers is left.
                drop(sender);
                collector.run(|| handles.iter().any(|handle| !handle.is_finished()));
                join_all(handles)
            }
            Sending::Closed { clients } => (0, collector.run_clients(sender, clients, load, end)),
        };
        drop(over);
        done
    });
    let (all, warmed_up) = (sent.load(Ordering::Relaxed), warmed_up.load(Ordering::Relaxed));
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (sent, lost) = (all - warmed_up, all.saturating_sub(tally.settled_count()));
    Outcomes { start, sent, warmed_up, unsent, lost, tally, lateness }
}

impl Load {
    /// Memory for answers that wait for the collector; faster targets are held back.
    const WAITING_BYTES_MAX: usize = 256 << 20;

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits for a due time; false where the load was stopped before.
    fn waits_until(&self, due: Instant, pacer: Pacer) -> bool {
        /// How often it looks whether it is to stop.
        const LOOK_EVERY: Duration = Duration::from_millis(50);
        while !self.is_stopped() {
            let left = due.saturating_duration_since(Instant::now());
            if left <= LOOK_EVERY {
                pacer.wait_until(due);
                return true;
            }
            thread::sleep(LOOK_EVERY);
        }
        false
    }

    fn answers_max(&self, pool: &Pool) -> usize {
        let bytes = self.texts * pool.dimensions().unwrap_or(1024) * size_of::<f32>();
        let open = (Self::WAITING_BYTES_MAX / bytes.max(1)).clamp(16, 1 << 16);
        match self.sending {
            Sending::Open { .. } => open,
            // The collector sends for the clients, and must not wait for itself: all their answers, doubled ones too,
            // have room.
            Sending::Closed { clients } => open.max(2 * clients + 16),
        }
    }
}

struct Sender<'a> {
    target: &'a dyn Target,
    pool: &'a Pool,
    texts: usize,
    /// With the time when the next one is due.
    poison: Option<(Poison, Instant)>,
    /// Requests that are due before this warm up.
    warm_at: Instant,
    sent: &'a AtomicU64,
    warmed_up: &'a AtomicU64,
    answers: SyncSender<Arrived>,
    lateness: Latencies,
}

impl Sender<'_> {
    /// A sender for another thread. It takes over the poison, which is sent once, however many senders there are.
    fn fork(&mut self) -> Self {
        let poison = self.poison.take();
        Self { poison, answers: self.answers.clone(), lateness: Latencies::new(), ..*self }
    }

    fn send(&mut self, number: u64, due: Instant, chance: &mut SplitMix64) {
        let texts = Span { first: chance.below(self.pool.len()), count: self.texts };
        let mut ids = self.pool.take(texts);
        let is_poison = self.put_poison(&mut ids, due);
        self.lateness.record(due.elapsed());
        // Counted before it is sent, so that an answer is never ahead of its request.
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.warmed_up.fetch_add(u64::from(due < self.warm_at), Ordering::Relaxed);
        let request = Request { number, texts, due, is_poison };
        self.target.submit(ids, Ticket { request, answers: self.answers.clone() });
    }

    /// Puts poison into a request if it is time; says whether it was.
    fn put_poison(&mut self, ids: &mut [Vec<u32>], due: Instant) -> bool {
        let Some((poison, next)) = self.poison.as_mut().filter(|(_, next)| due >= *next) else { return false };
        *next = due + poison.every;
        let first = ids.first_mut().and_then(|text| text.first_mut());
        first.map(|token| *token = poison.token).is_some()
    }
}

/// One of the threads that send by a schedule.
struct OpenLoop<'a> {
    arrivals: Arrivals,
    /// Its index among them.
    index: u64,
    start: Instant,
    end: Instant,
    load: &'a Load,
}

impl OpenLoop<'_> {
    /// How long requests that are due are still sent after the end, where sending is late.
    const CATCH_UP_MAX: Duration = Duration::from_secs(1);

    /// Sends all requests; returns how many it was too late for.
    fn run(self, of: u64, mut sender: Sender<'_>) -> (u64, Latencies) {
        let pacer = Pacer::new();
        let mut chance = SplitMix64::new(self.load.seed.wrapping_mul(31).wrapping_add(self.index));
        let (mut number, mut unsent) = (self.index, 0);
        for at in self.arrivals {
            let due = self.start + at;
            if due >= self.end || number >= self.load.requests_max {
                break;
            }
            if self.end.elapsed() > Self::CATCH_UP_MAX {
                unsent += 1;
                continue;
            }
            if !self.load.waits_until(due, pacer) {
                break;
            }
            sender.send(number, due, &mut chance);
            number += of;
        }
        (unsent, sender.lateness)
    }
}

struct Collector<'a> {
    pool: &'a Pool,
    tally: &'a Mutex<Tally>,
    arrived: Receiver<Arrived>,
    lost_after: Duration,
}

impl Collector<'_> {
    /// Counts answers until all senders are gone, or none came for long enough after the last request.
    fn run(self, is_sending: impl Fn() -> bool) {
        /// How often it looks whether requests are still sent, while no answer comes.
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        let mut give_up: Option<Instant> = None;
        loop {
            let wait = give_up.map_or(LOOK_EVERY, |at| at.saturating_duration_since(Instant::now()));
            match self.arrived.recv_timeout(wait) {
                Ok(arrived) => {
                    lock(self.tally).count(&arrived, self.pool);
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if give_up.is_some() => return,
                Err(RecvTimeoutError::Timeout) if is_sending() => {}
                Err(RecvTimeoutError::Timeout) => give_up = Some(Instant::now() + self.lost_after),
            }
        }
    }

    /// Sends for clients, and counts their answers, as [`Collector::run`] does.
    fn run_clients(self, mut sender: Sender<'_>, clients: usize, load: &Load, end: Instant) -> Latencies {
        /// A client that was refused pauses before it sends again.
        const PAUSE: Duration = Duration::from_millis(10);
        let mut chance = SplitMix64::new(load.seed);
        let is_over = |number: u64| number >= load.requests_max || Instant::now() >= end || load.is_stopped();
        let mut number = 0;
        let mut send = |sender: &mut Sender<'_>, number: &mut u64| {
            sender.send(*number, Instant::now(), &mut chance);
            *number += 1;
        };
        (0..load.requests_max.min(clients as u64)).for_each(|_| send(&mut sender, &mut number));
        let mut pausing: VecDeque<Instant> = VecDeque::new();
        while !is_over(number) {
            while !is_over(number) && pausing.front().is_some_and(|until| *until <= Instant::now()) {
                pausing.pop_front();
                send(&mut sender, &mut number);
            }
            let wake = pausing.front().map_or(end, |until| end.min(*until));
            match self.arrived.recv_timeout(wake.saturating_duration_since(Instant::now())) {
                Ok(arrived) => {
                    // The client sends before its answer is looked at: it does not wait for the checker. An answer
                    // that is not its request's first makes no second client of it.
                    let is_open = lock(self.tally).is_open(&arrived.request);
                    match arrived.outcome {
                        Outcome::Vectors(_) if is_open && !is_over(number) => send(&mut sender, &mut number),
                        Outcome::Refused { .. } if is_open => pausing.push_back(arrived.at + PAUSE),
                        _ => {}
                    }
                    lock(self.tally).count(&arrived, self.pool);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is held here"),
            }
        }
        let lateness = sender.lateness;
        drop(sender.answers);
        self.run(|| false);
        lateness
    }
}

fn join_all(senders: Vec<thread::ScopedJoinHandle<'_, (u64, Latencies)>>) -> (u64, Latencies) {
    let mut all = (0, Latencies::new());
    for sender in senders {
        let (unsent, lateness) = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        all.0 += unsent;
        all.1.merge(&lateness);
    }
    all
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}
