//! Who asks for what, and when: streams, bursts and clients that wait for their answers.
//! Only makes requests up; whether they are taken is the machine's decision.

use crate::chance::Chance;
use magray_core::schedule::{Allowed, DeviceId, Group, ModelId, Moment, Priority, Request, RequestId, Sequence};
use std::time::Duration;

/// Everything that is asked in a world.
#[derive(Clone, Debug)]
pub struct Load {
    /// Requests in all.
    pub requests: usize,
    /// When they come.
    pub arrivals: Arrivals,
    /// What they are like.
    pub shape: Shape,
}

/// When requests come.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// Independently of each other, this long apart on average.
    Stream {
        /// The mean time between two.
        gap: Duration,
    },
    /// Many at once, again and again.
    Bursts {
        /// Requests of a burst.
        size: usize,
        /// The mean time between two bursts.
        gap: Duration,
    },
    /// Clients, each of which asks again after its answer.
    Clients {
        /// How many.
        count: usize,
        /// How long each waits before it asks again, on average.
        think: Duration,
    },
}

/// What requests are like.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Models that requests are for.
    pub models: u32,
    /// Ways in which each is used.
    pub groups: u32,
    /// Texts of most requests, at least and at most.
    pub texts: (u64, u64),
    /// Tokens of most texts, at least and at most, all magnitudes alike.
    pub tokens: (u64, u64),
    /// The part of requests that have very many texts.
    pub huge: f64,
    /// Texts of those, at most.
    pub huge_texts: u64,
    /// The part of texts that are longer than a batch may be.
    pub overlong: f64,
    /// Tokens of those, at most.
    pub overlong_tokens: u64,
    /// The part of requests that are more or less urgent than the others.
    pub urgent: f64,
    /// The part of requests with a deadline, and how far away that is at most.
    pub deadlines: (f64, Duration),
    /// The part of requests that nobody waits for any more before long, and after how long at most.
    pub cancels: (f64, Duration),
    /// Where most may be computed.
    pub allowed: Allowed,
    /// The part of requests that may be computed elsewhere.
    pub choosy: f64,
    /// The part of requests that end each worker that computes them.
    pub poison: f64,
    /// Devices of the world: a choosy request may name one of them, or one that does not exist.
    pub devices: usize,
    /// Requests that are generated token by token, if there are such.
    pub generated: Option<Generated>,
}

/// What requests are like whose sequences have many steps.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// A chance of their own: the other requests are the same with them and without.
    pub seed: u64,
    /// The part of requests.
    pub part: f64,
    /// Sequences of a request, at most.
    pub sequences_max: usize,
    /// New tokens of a sequence, at most.
    pub new_tokens_max: u64,
    /// The part of readers that are slow, and how long they take at most before they read on.
    pub slow: (f64, Duration),
}

impl Generated {
    /// How quickly others read.
    const READ_ON: Duration = Duration::from_micros(20);

    /// Makes sequences of many steps of texts, or leaves them as they are. Says how quickly they are read.
    fn change(&self, id: RequestId, sequences: &mut Vec<Sequence>) -> Option<Duration> {
        let mut chance = Chance::new(self.seed ^ id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if !chance.is(self.part) {
            return None;
        }
        sequences.truncate(self.sequences_max);
        for sequence in sequences {
            let new_tokens_max = chance.magnitude(1.0, self.new_tokens_max as f64 + 0.5) as u32;
            *sequence = Sequence::prompt(sequence.tokens, new_tokens_max);
        }
        let (slow, longest) = self.slow;
        Some(if chance.is(slow) { longest.mul_f64(chance.unit()) } else { Self::READ_ON })
    }
}

impl Shape {
    /// Requests of one kind, which nobody regrets: for measurements.
    pub fn plain(texts: (u64, u64), tokens: (u64, u64)) -> Self {
        Self {
            models: 1,
            groups: 1,
            texts,
            tokens,
            huge: 0.0,
            huge_texts: 1,
            overlong: 0.0,
            overlong_tokens: 1,
            urgent: 0.0,
            deadlines: (0.0, Duration::ZERO),
            cancels: (0.0, Duration::ZERO),
            allowed: Allowed::Any,
            choosy: 0.0,
            poison: 0.0,
            devices: 0,
            generated: None,
        }
    }

    /// The next request.
    pub(crate) fn demand(&self, id: RequestId, now: Moment, chance: &mut Chance) -> Demand {
        let texts = match chance.is(self.huge) {
            true => chance.whole(self.texts.1, self.huge_texts.max(self.texts.1)),
            false => chance.whole(self.texts.0, self.texts.1),
        };
        let mut sequences: Vec<Sequence> =
            (0..texts).map(|_| Sequence::one_step(self.tokens_of_text(chance))).collect();
        let poison = chance.is(self.poison).then(|| Poison {
            text: chance.whole(0, texts - 1) as u32,
            effect: *chance.pick(&[Effect::Crash, Effect::Sticky, Effect::Hang]),
            breaks_cpu: chance.is(0.5),
        });
        let within = |(part, most): (f64, Duration), chance: &mut Chance| {
            chance.is(part).then(|| most.mul_f64(chance.unit() * chance.unit()))
        };
        let pause = self.generated.and_then(|generated| generated.change(id, &mut sequences));
        let last = sequences.len() as u32 - 1;
        let poison = poison.map(|poison| Poison { text: poison.text.min(last), ..poison });
        let request = Request {
            id,
            group: Group {
                model: ModelId(chance.whole(0, u64::from(self.models) - 1) as u32),
                key: chance.whole(1, u64::from(self.groups)) as u32,
            },
            sequences,
            priority: match chance.is(self.urgent) {
                true => *chance.pick(&[Priority::Low, Priority::High]),
                false => Priority::Normal,
            },
            deadline: within(self.deadlines, chance).map(|after| now + after),
            allowed: self.allowed(chance),
        };
        Demand { request, poison, cancel_after: within(self.cancels, chance), pause: pause.unwrap_or_default() }
    }

    fn tokens_of_text(&self, chance: &mut Chance) -> u32 {
        if chance.is(self.overlong) {
            return chance.whole(self.tokens.1, self.overlong_tokens.max(self.tokens.1)) as u32;
        }
        chance.magnitude(self.tokens.0 as f64, self.tokens.1 as f64 + 0.5) as u32
    }

    fn allowed(&self, chance: &mut Chance) -> Allowed {
        if !chance.is(self.choosy) {
            return self.allowed;
        }
        match chance.whole(0, 4) {
            0 | 1 => Allowed::Gpu,
            2 => Allowed::Cpu,
            // Now and then a device that does not exist.
            _ => Allowed::Only(DeviceId(chance.whole(0, self.devices as u64 * 20 / 19) as u16)),
        }
    }
}

/// A request, and what only the world knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) request: Request,
    pub(crate) poison: Option<Poison>,
    pub(crate) cancel_after: Option<Duration>,
    /// How long its readers take before they read on.
    pub(crate) pause: Duration,
}

/// A text that no worker survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poison {
    /// Which of the request's texts.
    pub(crate) text: u32,
    pub(crate) effect: Effect,
    /// Whether the CPU cannot compute it either.
    pub(crate) breaks_cpu: bool,
}

/// What a poison does to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Crash,
    Sticky,
    /// It computes for ever, and says all the while that it lives.
    Hang,
}
