//! Rounds by chance: models are moved by hand while callers ask for them, and every answer is checked.
//! Never pins all memory: some of the GPU is always left to models that are not favoured.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use magray_core::SplitMix64;
use magray_engine::engine::{Allowed, Answer, Engine, EngineError, Priority, Residency, Work};
use serde::Serialize;

use magray_load::Span;

use super::{
    bits::{FirstAnswers, Question},
    subjects::Subject,
};

/// A move that takes longer is not done.
pub(super) const MOVE_MAX: Duration = Duration::from_secs(60);
const REQUESTS_A_ROUND: usize = 4;
const TEXTS_MAX: usize = 4;
const MOVES_MAX: usize = 3;

pub(super) struct Play<'a> {
    pub(super) engine: Engine,
    pub(super) subjects: &'a [Subject],
    pub(super) callers: usize,
    /// How many models fit at once.
    pub(super) fit: usize,
    pub(super) seed: u64,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) answered: u64,
    /// For want of room in the queue.
    pub(super) refused: u64,
    pub(super) failed: u64,
    pub(super) wrong: u64,
    pub(super) other_bits: u64,
    pub(super) moves: BTreeMap<&'static str, u64>,
    pub(super) moves_failed: u64,
    pub(super) by_device: BTreeMap<String, u64>,
    pub(super) fallbacks: BTreeMap<&'static str, u64>,
    /// Models that took memory of the GPU at once.
    pub(super) resident_max: usize,
    /// Questions whose answers were compared bit by bit.
    pub(super) compared: usize,
    pub(super) complaints: Vec<String>,
}

impl Counts {
    const COMPLAINTS_MAX: usize = 8;

    fn complain(&mut self, complaint: String) {
        if self.complaints.len() < Self::COMPLAINTS_MAX {
            self.complaints.push(complaint);
        }
    }
}

#[derive(Default)]
struct Score {
    counts: Mutex<Counts>,
    first: Mutex<FirstAnswers>,
}

impl Play<'_> {
    pub(super) fn run(&self, rounds: u32, on_round: impl Fn(u32)) -> Counts {
        let score = Score::default();
        let mut hand = Hand { play: self, score: &score, chance: SplitMix64::new(self.seed), favoured: Vec::new() };
        for round in 0..rounds {
            on_round(round);
            thread::scope(|scope| {
                for caller in 0..self.callers {
                    let score = &score;
                    let seed = self.seed ^ ((u64::from(round) << 32) | (caller as u64 + 1));
                    scope.spawn(move || self.call(score, &mut SplitMix64::new(seed)));
                }
                hand.play_round();
            });
        }
        hand.let_all_go();
        let mut counts = score.counts.into_inner().unwrap_or_else(PoisonError::into_inner);
        counts.compared = lock(&score.first).len();
        counts
    }

    fn call(&self, score: &Score, chance: &mut SplitMix64) {
        for _ in 0..REQUESTS_A_ROUND {
            let model = chance.below(self.subjects.len());
            let pool = &self.subjects[model].pool;
            let span = Span { first: chance.below(pool.len()), count: 1 + chance.below(TEXTS_MAX) };
            // Most go wherever it is done first, some must wait for the GPU to have the model.
            let allowed = match chance.below(10) {
                0 => Allowed::Cpu,
                1..4 => Allowed::Gpu,
                _ => Allowed::Any,
            };
            lock(&score.counts).requests += 1;
            let work = Work { allowed, ..Work::from_ids(model, pool.take(span)) };
            match self.engine.process(work) {
                Ok(answer) => self.check(score, model, span, &answer),
                Err(EngineError::Full { .. }) => lock(&score.counts).refused += 1,
                Err(error) => {
                    let mut counts = lock(&score.counts);
                    counts.failed += 1;
                    counts.complain(format!("a request for {} failed: {error}", self.subjects[model].name));
                }
            }
        }
    }

    fn check(&self, score: &Score, model: usize, span: Span, answer: &Answer) {
        let Subject { name, pool, .. } = &self.subjects[model];
        let checked = pool.check(span, &answer.values, answer.precision);
        let question = Question { model, first: span.first, texts: span.count };
        let is_same = lock(&score.first).is_same(question, answer);
        let mut counts = lock(&score.counts);
        counts.answered += 1;
        *counts.by_device.entry(answer.device.to_string()).or_default() += 1;
        if let Some(reason) = &answer.fallback {
            *counts.fallbacks.entry(reason.code()).or_default() += 1;
        }
        if let Err(wrong) = checked {
            counts.wrong += 1;
            counts.complain(format!("{} answered wrongly for {name}: {wrong}", answer.device));
        } else if !is_same {
            counts.other_bits += 1;
            counts.complain(format!("{} answered other bits than at first for {name}", answer.device));
        }
    }
}

struct Hand<'a> {
    play: &'a Play<'a>,
    score: &'a Score,
    chance: SplitMix64,
    /// Models that are pinned or count more than others: fewer than have room.
    favoured: Vec<usize>,
}

impl Hand<'_> {
    fn play_round(&mut self) {
        for _ in 0..=self.chance.below(MOVES_MAX) {
            let model = self.chance.below(self.play.subjects.len());
            let (what, moved) = self.play_one(model);
            self.note(what, model, moved);
            self.look();
        }
    }

    fn play_one(&mut self, model: usize) -> (&'static str, Result<(), EngineError>) {
        let engine = &self.play.engine;
        match self.chance.below(9) {
            0..2 => ("preheat", engine.preheat(model, MOVE_MAX).map(drop)),
            2..4 => ("offload", engine.offload(model, MOVE_MAX).map(drop)),
            4..6 => ("release", engine.release(model, MOVE_MAX).map(drop)),
            6 => {
                let ms = [0, 1, 20, 200].get(self.chance.below(5)).copied();
                ("timeout", engine.set_idle_timeout(model, ms.map(Duration::from_millis)))
            }
            7 => ("after_use", engine.set_offload_after_use(model, self.chance.below(3) == 0)),
            _ => ("favour", self.favour(model)),
        }
    }

    /// Favours a model, or stops favouring it.
    fn favour(&mut self, model: usize) -> Result<(), EngineError> {
        let engine = &self.play.engine;
        if let Some(at) = self.favoured.iter().position(|favoured| *favoured == model) {
            self.favoured.swap_remove(at);
            engine.set_pinned(model, false)?;
            return engine.set_priority(model, Priority::Normal);
        }
        if self.favoured.len() + 1 >= self.play.fit {
            return Ok(());
        }
        self.favoured.push(model);
        match self.chance.below(2) {
            0 => engine.set_pinned(model, true),
            _ => engine.set_priority(model, Priority::High),
        }
    }

    /// Releases every model; possible because no request is left.
    fn let_all_go(&mut self) {
        for model in 0..self.play.subjects.len() {
            let engine = &self.play.engine;
            let moved = engine.set_pinned(model, false).and_then(|()| engine.release(model, MOVE_MAX).map(drop));
            self.note("release", model, moved);
        }
    }

    fn note(&self, what: &'static str, model: usize, moved: Result<(), EngineError>) {
        let mut counts = lock(&self.score.counts);
        *counts.moves.entry(what).or_default() += 1;
        if let Err(error) = moved {
            counts.moves_failed += 1;
            counts.complain(format!("{what} of {}: {error}", self.play.subjects[model].name));
        }
    }

    /// Counts the models that take GPU memory now.
    fn look(&self) {
        let takes = |at: &Residency| matches!(at, Residency::OnDevice | Residency::Loading | Residency::Leaving);
        let models = self.play.engine.status().models;
        // The first device is the CPU.
        let resident = models.iter().filter(|model| model.view.residency.get(1).is_some_and(takes)).count();
        let mut counts = lock(&self.score.counts);
        counts.resident_max = counts.resident_max.max(resident);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
