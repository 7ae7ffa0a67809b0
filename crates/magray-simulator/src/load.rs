//! Who asks for what, and when: streams, bursts and clients that wait for their answers.
//! Only makes requests up; whether they are taken is the machine's decision.

use crate::chance::Chance;
use magray_core::schedule::{
    Allowed, CallerId, DeviceId, Group, ModelId, Moment, Priority, Request, RequestId, Sequence,
};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) requests: usize,
    pub(crate) arrivals: Arrivals,
    pub(crate) shape: Shape,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrivals {
    /// Poisson arrivals with this mean gap.
    Stream { gap: Duration },
    /// Many at once, again and again.
    Bursts { size: usize, gap: Duration },
    /// Clients, each of which asks again after its answer.
    Clients {
        count: usize,
        /// How long each waits before it asks again, on average.
        think: Duration,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Models that requests are for.
    pub(crate) models: u32,
    /// Groups of compatible requests, for each model.
    pub(crate) groups: u32,
    /// Texts of most requests, at least and at most.
    pub(crate) texts: (u64, u64),
    /// Tokens of most texts, at least and at most, all magnitudes alike.
    pub(crate) tokens: (u64, u64),
    /// Share of requests with very many texts.
    pub(crate) huge: f64,
    /// Texts of those, at most.
    pub(crate) huge_texts: u64,
    /// Share of texts that are longer than a batch may be.
    pub(crate) overlong: f64,
    /// Tokens of those, at most.
    pub(crate) overlong_tokens: u64,
    /// Share of requests with another priority.
    pub(crate) urgent: f64,
    /// Share of requests with a deadline, and the longest one.
    pub(crate) deadlines: (f64, Duration),
    /// Share of requests that are cancelled, and the longest time until then.
    pub(crate) cancels: (f64, Duration),
    /// Where most may be computed.
    pub(crate) allowed: Allowed,
    /// Share of requests with another choice of devices.
    pub(crate) choosy: f64,
    /// Share of requests that end each worker that computes them.
    pub(crate) poison: f64,
    /// Devices of the world: a choosy request may name one of them, or one that does not exist.
    pub(crate) devices: usize,
    /// Requests that are generated token by token, if there are such.
    pub(crate) generated: Option<Generated>,
    /// Who asks; `None`: one caller.
    pub(crate) callers: Option<Callers>,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callers {
    /// A chance of their own, as below.
    pub(crate) seed: u64,
    pub(crate) count: u64,
    /// Share of requests that one of them makes beside its part.
    pub(crate) greedy: f64,
}

impl Callers {
    fn of(&self, id: RequestId) -> CallerId {
        let mut chance = Chance::new(self.seed ^ id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        CallerId(if chance.is(self.greedy) { 0 } else { chance.whole(0, self.count - 1) })
    }
}

/// What requests are like whose sequences have many steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generated {
    /// A chance of their own: the other requests are the same with them and without.
    pub(crate) seed: u64,
    /// Share of requests.
    pub(crate) part: f64,
    /// Sequences of a request, at most.
    pub(crate) sequences_max: usize,
    /// New tokens of a sequence, at most.
    pub(crate) new_tokens_max: u64,
    /// Share of slow readers, and how long they pause at most.
    pub(crate) slow: (f64, Duration),
}

impl Generated {
    /// The pause of all other readers.
    const READ_ON: Duration = Duration::from_micros(20);

    /// Turns texts into sequences of many steps, or leaves them as they are. Returns the pause of their readers.
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
    /// Requests of one kind without faults or deadlines, for measurements.
    pub(crate) fn plain(texts: (u64, u64), tokens: (u64, u64)) -> Self {
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
            callers: None,
        }
    }

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
            caller: self.callers.map_or(CallerId(0), |callers| callers.of(id)),
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
    /// The pause of its readers.
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
    /// It computes for ever and keeps sending heartbeats.
    Hang,
}
