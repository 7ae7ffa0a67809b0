//! Draws a world from a seed: small ones, in which much happens.
//! Knows nothing of how the world is run or checked.

use crate::chance::Chance;
use crate::load::{Arrivals, Callers, Generated, Load, Shape};
use crate::scenario::{Cost, Device, Intervention, Loads, Model, Scenario};
use crate::trouble;
use magray_core::ledger::{Budget, CollectionId};
use magray_core::schedule::{
    Allowed, Batching, DeviceId, DeviceKind, DeviceSpec, Generation, Keeping, Limits, Location, ModelId, ModelPlan,
    Moment, Options, Placement, Priority, Recovery, ResidencyRequest, Sizing, Slices, SpeedWatch,
};
use std::time::Duration;

impl Scenario {
    /// The world of this seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let gpus = chance.whole(0, 4) as usize;
        let cpu_at = chance.whole(0, gpus as u64) as usize;
        let requests = chance.magnitude(30.0, 250.0) as usize;
        // Everything is relative to how long the load takes: a fault of a second is nothing to one and all to another.
        let span = Duration::from_secs_f64(chance.magnitude(0.02, 10.0));
        let models = draw_models(span, &mut chance);
        let shape = Shape { models: models.len() as u32, ..draw_shape(gpus + 1, span, &mut chance) };
        let mean = typical(&shape);
        let cost = draw_cost(mean, &mut chance);
        let work = cost.of(mean.tokens, mean.texts).as_secs_f64() * requests as f64;
        let load_factor = chance.magnitude(0.05, 3.0);
        let fastest = cost.slower(load_factor * span.as_secs_f64() / work);
        let mut options = draw_options(&mut chance);
        if options.limits != Limits::default() {
            options.limits.wait_max = draw_wait(seed);
        }
        let mut devices: Vec<Device> =
            (0..=gpus).map(|at| draw_device(at == cpu_at, fastest, &models, &mut chance)).collect();
        // A load takes as long as the load of the world allows for, from a blink to a third of everything.
        let load_us = chance.magnitude(1e-4, 0.3) * span.as_secs_f64();
        devices.iter_mut().for_each(|device| device.loads = draw_loads(load_us, &models, &mut chance));
        options.keeping = draw_keeping(span, &devices, &models, &mut chance);
        devices.iter_mut().for_each(|device| device.keep_below_overdue(&options, &shape));
        let gpu_places: Vec<usize> = (0..=gpus).filter(|at| *at != cpu_at).collect();
        let trouble_span = span.mul_f64(chance.between(0.5, 2.0)).max(Duration::from_millis(100));
        let calm_at = Moment::START + trouble_span + Duration::from_nanos(2);
        let mut troubles = trouble::draw(&gpu_places, trouble_span, &mut chance);
        troubles.extend(trouble::draw_for_cpu(cpu_at, trouble_span, &mut chance));
        let interventions = draw_interventions(&devices, &models, trouble_span, &mut chance);
        let scenario = Self {
            seed: chance.bits(),
            devices,
            options,
            load: Load { requests, arrivals: draw_arrivals(requests, span, &mut chance), shape },
            troubles,
            interventions,
            models_known: models.len(),
            models,
            given_up: gpu_places.iter().filter(|_| chance.is(0.03)).map(|at| DeviceId(*at as u16)).collect(),
            slowed: None,
            calm_at,
            noise: if chance.is(0.2) { 0.0 } else { chance.between(0.0, 0.5) },
            latency: Duration::from_secs_f64(chance.magnitude(1e-6, 1e-3)),
            lateness: if chance.is(0.7) { Duration::ZERO } else { Duration::from_micros(chance.whole(1, 2000)) },
            stale: if chance.is(0.5) { 0.0 } else { chance.magnitude(0.001, 0.1) },
            early: 0.03,
            drain_after: if chance.is(0.7) { requests } else { chance.whole(1, requests as u64) as usize },
            idle_tail: if chance.is(0.7) { Duration::ZERO } else { span.mul_f64(chance.unit()) },
        };
        let scenario = scenario.with_generation(seed, span).with_memory(seed, trouble_span);
        scenario
            .with_changing_models(seed, trouble_span)
            .with_callers(seed, span)
            .with_full_memory(seed, trouble_span)
            .with_slowness(seed, span)
            .with_groups(seed)
    }

    /// In most worlds several callers share the devices, in some of them batches are short. A chance of its own decides, as
    /// below.
    fn with_callers(mut self, seed: u64, span: Duration) -> Self {
        const OWN: u64 = 0x4641_4952;
        let mut chance = Chance::new(seed ^ OWN);
        if chance.is(0.8) {
            let greedy = if chance.is(0.5) { 0.0 } else { chance.unit() };
            self.load.shape.callers = Some(Callers { seed: chance.bits(), count: chance.whole(2, 8), greedy });
        }
        if chance.is(0.5) {
            let slice = |chance: &mut Chance| span.mul_f64(chance.magnitude(1e-4, 0.1));
            self.options.batching.slices = Some(Slices { cpu: slice(&mut chance), gpu: slice(&mut chance) });
        }
        for device in &mut self.devices {
            device.spec.batch_tokens_least = chance.whole(1, 512) as u32;
        }
        self
    }

    /// In some worlds the memory of devices is nearly full for a while. A chance of its own decides, as below.
    fn with_full_memory(mut self, seed: u64, span: Duration) -> Self {
        const OWN: u64 = 0x4655_4c4c;
        let mut chance = Chance::new(seed ^ OWN);
        if !chance.is(0.1) {
            return self;
        }
        let gpus = self.devices.iter().enumerate().filter(|(_, device)| device.spec.location == Location::Worker);
        for device in gpus.map(|(at, _)| DeviceId(at as u16)) {
            for sample in 0..60 {
                let used = if sample < 45 { chance.whole(900, 1000) } else { 500 };
                let at = Moment::START + span.mul_f64(f64::from(sample) / 60.0);
                self.interventions.push((at, Intervention::MemoryUse(device, used)));
            }
        }
        self
    }

    /// In some worlds devices are groups of GPUs. A chance of its own decides, as above.
    fn with_groups(mut self, seed: u64) -> Self {
        const OWN: u64 = 0x4752_4f55;
        let mut chance = Chance::new(seed ^ OWN);
        // A GPU that is slow for a while has a story of its own.
        if self.slowed.is_none() && chance.is(0.4) {
            for device in self.devices.iter_mut().filter(|device| device.spec.location == Location::Worker) {
                device.ranks = if chance.is(0.6) { chance.whole(2, 4) as usize } else { 1 };
            }
        }
        self
    }

    /// The time after which a device counts as slow is drawn by a chance of its own, as above. In a few worlds nothing happens
    /// but that a GPU under steady load is slow for a while.
    fn with_slowness(mut self, seed: u64, span: Duration) -> Self {
        const OWN: u64 = 0x534c_4f57;
        let mut chance = Chance::new(seed ^ OWN);
        if !chance.is(0.01) {
            if chance.is(0.5) {
                self.options.speed.window = span.mul_f64(chance.magnitude(0.01, 0.3));
            }
            return self;
        }
        let cost = Cost { fixed_us: 400.0, token_us: 2.0, text_us: 10.0 };
        let gpus = chance.whole(1, 2) as usize;
        let (texts, tokens) = (chance.whole(1, 8), chance.whole(10, 60));
        let batch = cost.of(texts * tokens, texts);
        let mut devices = vec![Device::unlimited(DeviceKind::Cpu, 1, 4_096, cost.slower(20.0))];
        devices.extend((0..gpus).map(|_| Device::unlimited(DeviceKind::Gpu, 2, 16_384, cost)));
        let requests = 3_000;
        let clients = chance.whole(1, 4) as usize;
        // The part of the world in which it is not slow.
        let span = batch * requests / gpus as u32;
        let (from, until) = (Moment::START + span.mul_f64(0.4), Moment::START + span.mul_f64(0.8));
        let options =
            Options { speed: SpeedWatch { window: span / 20, ..SpeedWatch::default() }, ..Options::default() };
        let load = Load {
            requests: requests as usize,
            arrivals: Arrivals::Clients { count: clients, think: Duration::ZERO },
            shape: Shape::plain((texts, texts), (tokens, tokens)),
        };
        let kind = trouble::Kind::Slow { times: chance.between(2.0, 5.0) };
        Self {
            troubles: vec![trouble::Trouble { device: 1, from, until, kind }],
            // Where there is another, that one gets its work.
            slowed: (gpus == 1).then_some(1),
            calm_at: until,
            noise: chance.between(0.0, 0.2),
            ..Self::without_faults(self.seed, devices, options, load)
        }
    }

    /// In some worlds sequences have many steps. A chance of its own decides: the rest is the same with them and without.
    fn with_generation(mut self, seed: u64, span: Duration) -> Self {
        const OWN: u64 = 0x5354_4550;
        let mut chance = Chance::new(seed ^ OWN);
        if !chance.is(0.4) {
            return self;
        }
        let shape = &mut self.load.shape;
        let longest = shape.tokens.1;
        let generated = Generated {
            seed: chance.bits(),
            part: if chance.is(0.3) { 1.0 } else { chance.magnitude(0.05, 1.0) },
            sequences_max: chance.whole(1, 4) as usize,
            new_tokens_max: chance.magnitude(1.0, 60.0) as u64,
            slow: (if chance.is(0.5) { 0.0 } else { chance.unit() }, span.mul_f64(chance.magnitude(0.001, 0.2))),
        };
        shape.generated = Some(generated);
        let most = (longest + generated.new_tokens_max) as f64;
        for device in &mut self.devices {
            let is_able = device.spec.location == Location::Worker || chance.is(0.7);
            device.spec.memory.kv_max = if is_able { (most * chance.magnitude(0.7, 30.0)) as u64 } else { 0 };
        }
        for model in &mut self.models {
            model.plan.step_tokens_max = if chance.is(0.7) { 1 } else { chance.whole(2, 5) as u32 };
        }
        let step = self.devices[0].cost.of(longest, 1);
        self.options.generation = Generation {
            turn_max: step.mul_f64(chance.magnitude(0.3, 100.0)),
            unread_max: if chance.is(0.5) { 64 } else { chance.whole(1, 10) as u32 },
        };
        self
    }

    /// Beside the memory for weights there is some for the driver, for passes and for the state of sequences; in some worlds
    /// collections want vectors on devices. A chance of its own decides, as above.
    fn with_memory(mut self, seed: u64, span: Duration) -> Self {
        const OWN: u64 = 0x4d45_4d4f;
        let mut chance = Chance::new(seed ^ OWN);
        let mean = self.models.iter().map(|model| model.bytes as f64).sum::<f64>() / self.models.len() as f64;
        let has_large_tokens = chance.is(0.3);
        for model in self.models.iter_mut().filter(|_| has_large_tokens) {
            model.plan.kv_token_bytes = chance.whole(1, 4);
        }
        let token_bytes = self.models.iter().map(|model| model.plan.kv_token_bytes).max().unwrap_or(1);
        for device in &mut self.devices {
            let memory = &mut device.spec.memory;
            memory.context = if chance.is(0.5) { 0 } else { (mean * chance.unit()) as u64 };
            memory.kv_max *= token_bytes;
            memory.memory_max = memory_for(memory.memory_max, memory);
        }
        for (_, intervention) in &mut self.interventions {
            if let Intervention::Memory(device, room) = intervention {
                *room = memory_for(*room, &self.devices[usize::from(device.0)].spec.memory);
            }
        }
        let gpus: Vec<u16> = (0..)
            .zip(&self.devices)
            .filter(|(_, one)| one.spec.location == Location::Worker)
            .map(|(at, _)| at)
            .collect();
        if !gpus.is_empty() && chance.is(0.3) {
            for _ in 0..chance.whole(1, 20) {
                let at = Moment::from_nanos((span.as_nanos() as f64 * chance.unit()) as u64);
                let bytes = if chance.is(0.2) { 0.0 } else { mean * chance.magnitude(0.05, 2.0) };
                let (device, collection) = (DeviceId(*chance.pick(&gpus)), CollectionId(chance.whole(0, 2) as u32));
                self.interventions.push((at, Intervention::Vectors(device, collection, bytes as u64)));
            }
        }
        self
    }

    /// In some worlds models are added and removed. A chance of its own decides, as above.
    fn with_changing_models(mut self, seed: u64, span: Duration) -> Self {
        const OWN: u64 = 0x4144_4452;
        let mut chance = Chance::new(seed ^ OWN);
        let at = |chance: &mut Chance| Moment::from_nanos((span.as_nanos() as f64 * chance.unit()) as u64);
        if self.models.len() > 1 && chance.is(0.2) {
            self.models_known = chance.whole(1, self.models.len() as u64 - 1) as usize;
            for _ in self.models_known..self.models.len() {
                self.interventions.push((at(&mut chance), Intervention::AddModel));
            }
        }
        // The smallest one stays: each device needs some weights to be probed with.
        let smallest = (0..self.models.len()).min_by_key(|at| self.models[*at].bytes);
        for model in (0..self.models.len()).filter(|at| Some(*at) != smallest) {
            if chance.is(0.05) {
                self.interventions.push((at(&mut chance), Intervention::RemoveModel(ModelId(model as u32))));
            }
        }
        self
    }
}

/// Memory of which this much is left for weights.
fn memory_for(room: u64, memory: &Budget) -> u64 {
    if room == u64::MAX { room } else { (room + memory.context + memory.kv_max).div_ceil(15) * 16 }
}

impl Device {
    /// A device whose largest batches take longer than the settings call a hang cannot be used with them. That is a wrong
    /// setting and no fault, so such worlds are not drawn.
    fn keep_below_overdue(&mut self, options: &Options, shape: &Shape) {
        let tokens = u64::from(self.spec.batch_tokens_max).max(shape.tokens.1).max(shape.overlong_tokens);
        let longest = self.cost.of(tokens, u64::from(options.batching.texts_max)).as_secs_f64();
        let most = options.recovery.overdue_least.as_secs_f64() / 2.0;
        if self.spec.location == Location::Worker && longest > most {
            self.cost = self.cost.slower(most / longest);
        }
    }
}

/// The median request.
#[derive(Clone, Copy)]
struct Typical {
    tokens: u64,
    texts: u64,
}

fn typical(shape: &Shape) -> Typical {
    let texts = (shape.texts.0 + shape.texts.1).div_ceil(2);
    let tokens = (shape.tokens.0 as f64 * shape.tokens.1 as f64).sqrt();
    Typical { tokens: (texts as f64 * tokens) as u64 + 1, texts }
}

/// Some devices cost mostly by the batch, others by the token or by the text.
fn draw_cost(mean: Typical, chance: &mut Chance) -> Cost {
    Cost {
        fixed_us: chance.magnitude(0.1, 10.0),
        token_us: chance.magnitude(0.1, 10.0) / mean.tokens as f64,
        text_us: if chance.is(0.5) { 0.0 } else { chance.magnitude(0.01, 1.0) / mean.texts as f64 },
    }
}

fn draw_device(is_cpu: bool, fastest: Cost, models: &[Model], chance: &mut Chance) -> Device {
    let times = if chance.is(0.3) { 1.0 } else { chance.magnitude(1.0, 50.0) };
    Device {
        spec: DeviceSpec {
            kind: if is_cpu { DeviceKind::Cpu } else { DeviceKind::Gpu },
            location: if is_cpu { Location::InProcess } else { Location::Worker },
            slots: chance.whole(1, 3) as usize,
            batch_tokens_max: chance.magnitude(64.0, 16_384.0) as u32,
            batch_tokens_least: 1,
            // The room for weights; what else there must be is added when everything is drawn.
            memory: Budget { memory_max: draw_room(is_cpu, models, chance), context: 0, kv_max: 0 },
            is_reserved: false,
        },
        cost: fastest.slower(times),
        start: Duration::from_secs_f64(chance.magnitude(0.001, 0.4)),
        loads: Loads::QUICK,
        ranks: 1,
    }
}

/// One model or a few, of different sizes.
fn draw_models(span: Duration, chance: &mut Chance) -> Vec<Model> {
    let count = if chance.is(0.4) { 1 } else { chance.whole(2, 5) };
    let model = |chance: &mut Chance| {
        let told = chance.magnitude(1e6, 1e8);
        // What weights take is known only when they are there.
        let truly = if chance.is(0.5) { told } else { told * chance.between(0.9, 1.1) };
        let plan = ModelPlan {
            bytes: told as u64,
            is_preloaded: chance.is(0.6),
            idle_timeout: chance.is(0.7).then(|| span.mul_f64(chance.magnitude(0.01, 2.0))),
            offload_after_use: chance.is(0.1),
            is_pinned: chance.is(0.1),
            priority: draw_priority(chance),
            ..ModelPlan::default()
        };
        Model { plan, bytes: truly as u64 }
    };
    (0..count).map(|_| model(chance)).collect()
}

fn draw_priority(chance: &mut Chance) -> Priority {
    if chance.is(0.7) { Priority::Normal } else { *chance.pick(&[Priority::Low, Priority::High]) }
}

/// Room for everything, or for some models; at least for the smallest one, so that each device can be probed.
fn draw_room(is_cpu: bool, models: &[Model], chance: &mut Chance) -> u64 {
    if chance.is(if is_cpu { 0.95 } else { 0.3 }) {
        return u64::MAX;
    }
    let all: u64 = models.iter().map(|model| model.bytes).sum();
    let least = models.iter().map(|model| model.bytes).min().unwrap_or(0);
    let least = least as f64 * 1.3;
    (least + chance.unit() * (all as f64 * 1.1 - least).max(0.0)) as u64
}

fn draw_loads(load_s: f64, models: &[Model], chance: &mut Chance) -> Loads {
    let mean = models.iter().map(|model| model.bytes as f64).sum::<f64>() / models.len() as f64;
    let load_s = load_s * chance.magnitude(0.3, 3.0);
    let fixed = chance.unit();
    Loads {
        fixed: Duration::from_secs_f64(load_s * fixed + 1e-6),
        bytes_per_s: mean / (load_s * (1.0 - fixed)).max(1e-9),
        files: chance.magnitude(1.0, 10.0),
        offload: Duration::from_secs_f64(load_s * chance.magnitude(0.01, 0.5) + 1e-6),
    }
}

fn draw_keeping(span: Duration, devices: &[Device], models: &[Model], chance: &mut Chance) -> Keeping {
    let of_span = |chance: &mut Chance| span.mul_f64(chance.magnitude(0.01, 2.0));
    let loads = devices.iter().flat_map(|device| models.iter().map(|model| device.loads.of(model.bytes, false)));
    let longest = loads.max().unwrap_or_default();
    Keeping {
        worker: chance.is(0.6).then(|| of_span(chance)),
        host: chance.is(0.3).then(|| of_span(chance)),
        // Noise makes a load half as long again, and the way there and back takes its time.
        load_max: longest.mul_f64(2.0 * chance.magnitude(1.0, 10.0)) + Duration::from_millis(200),
    }
}

/// What people do to models, and what other programs do to the memory of devices. In the end there is as much as before.
fn draw_interventions(
    devices: &[Device],
    models: &[Model],
    span: Duration,
    chance: &mut Chance,
) -> Vec<(Moment, Intervention)> {
    let mut interventions = Vec::new();
    let at = |chance: &mut Chance| Moment::from_nanos((span.as_nanos() as f64 * chance.unit()) as u64);
    if chance.is(0.4) {
        for _ in 0..chance.whole(1, 10) {
            let model = ModelId(chance.whole(0, models.len() as u64 - 1) as u32);
            interventions
                .push((at(chance), Intervention::ResidencyRequest(model, draw_residency_request(span, chance))));
        }
    }
    if chance.is(0.2) {
        for (place, device) in devices.iter().enumerate().filter(|(_, device)| device.spec.location == Location::Worker)
        {
            let id = DeviceId(place as u16);
            for _ in 0..chance.whole(1, 3) {
                let room = draw_room(false, models, chance).min(device.spec.memory.memory_max);
                interventions.push((at(chance), Intervention::Memory(id, room)));
            }
            interventions.push((Moment::START + span, Intervention::Memory(id, device.spec.memory.memory_max)));
        }
    }
    interventions
}

fn draw_residency_request(span: Duration, chance: &mut Chance) -> ResidencyRequest {
    match chance.whole(0, 9) {
        0 | 1 => ResidencyRequest::Offload,
        2 | 3 => ResidencyRequest::Release,
        4 | 5 => ResidencyRequest::Preheat(Priority::Normal),
        6 => ResidencyRequest::IdleTimeout(chance.is(0.8).then(|| span.mul_f64(chance.magnitude(0.01, 1.0)))),
        7 => ResidencyRequest::OffloadAfterUse(chance.is(0.5)),
        8 => ResidencyRequest::Pin(chance.is(0.5)),
        _ => ResidencyRequest::Priority(draw_priority(chance)),
    }
}

fn draw_shape(devices: usize, span: Duration, chance: &mut Chance) -> Shape {
    let sometimes = |part: f64, chance: &mut Chance| if chance.is(part) { chance.magnitude(0.01, 0.5) } else { 0.0 };
    let patience = span.mul_f64(chance.magnitude(0.01, 2.0)).max(Duration::from_millis(1));
    Shape {
        models: 1,
        groups: chance.whole(1, 3) as u32,
        texts: (1, chance.magnitude(1.0, 16.0) as u64),
        tokens: (1, chance.magnitude(2.0, 512.0) as u64),
        huge: sometimes(0.3, chance) * 0.2,
        huge_texts: chance.magnitude(10.0, 1000.0) as u64,
        overlong: sometimes(0.3, chance) * 0.2,
        overlong_tokens: chance.magnitude(100.0, 20_000.0) as u64,
        urgent: sometimes(0.5, chance),
        deadlines: (sometimes(0.5, chance), patience),
        cancels: (sometimes(0.4, chance), patience),
        allowed: Allowed::Any,
        choosy: sometimes(0.5, chance),
        poison: sometimes(0.3, chance) * 0.2,
        devices,
        generated: None,
        callers: None,
    }
}

fn draw_arrivals(requests: usize, span: Duration, chance: &mut Chance) -> Arrivals {
    let gap = span.div_f64(requests as f64);
    match chance.whole(0, 3) {
        0 | 1 => Arrivals::Stream { gap },
        2 => {
            let size = chance.whole(2, 60) as usize;
            Arrivals::Bursts { size, gap: gap.mul_f64(size as f64) }
        }
        _ => {
            let count = chance.magnitude(1.0, 64.0) as usize;
            Arrivals::Clients { count, think: gap.mul_f64(count as f64 * chance.unit()) }
        }
    }
}

/// How long requests may wait, by a chance of its own: the rest of the world is the same with it and without.
fn draw_wait(seed: u64) -> Option<Duration> {
    const OWN: u64 = 0x5741_4954;
    let mut chance = Chance::new(seed ^ OWN);
    chance.is(0.7).then(|| Duration::from_secs_f64(chance.magnitude(0.001, 1.0)))
}

fn draw_options(chance: &mut Chance) -> Options {
    let defaults = Options::default();
    Options {
        limits: match chance.is(0.5) {
            true => defaults.limits,
            false => Limits {
                requests_max: chance.magnitude(2.0, 200.0) as usize,
                tokens_max: chance.magnitude(100.0, 100_000.0) as u64,
                wait_max: None,
            },
        },
        batching: Batching {
            sizing: match chance.is(0.8) {
                true => Sizing::Adaptive,
                false => Sizing::Fixed {
                    texts: chance.magnitude(1.0, 64.0) as u32,
                    timeout: Duration::from_micros(chance.whole(0, 20_000)),
                },
            },
            texts_max: chance.magnitude(1.0, 512.0) as u32,
            age_max: Duration::from_secs_f64(chance.magnitude(0.001, 0.5)),
            slices: None,
        },
        placement: if chance.is(0.85) { Placement::Weighted } else { Placement::RoundRobin },
        recovery: if chance.is(0.3) { defaults.recovery } else { draw_recovery(chance) },
        keeping: defaults.keeping,
        generation: defaults.generation,
        speed: defaults.speed,
    }
}

fn draw_recovery(chance: &mut Chance) -> Recovery {
    let seconds = |low: f64, high: f64, chance: &mut Chance| Duration::from_secs_f64(chance.magnitude(low, high));
    let retries_max = chance.whole(0, 5) as u32;
    let probe_after = seconds(0.005, 0.5, chance);
    Recovery {
        overdue_factor: chance.magnitude(3.0, 50.0),
        overdue_least: seconds(0.05, 1.0, chance),
        // Heartbeats come every fifth of a second: less than two of them would kill the living.
        silence_max: seconds(0.5, 1.5, chance),
        late_silence_max: seconds(0.45, 1.0, chance),
        start_max: seconds(0.6, 60.0, chance),
        retries_max,
        temporary_max: retries_max + chance.whole(0, 5) as u32,
        decay: seconds(0.05, 60.0, chance),
        probe_after,
        probe_after_max: probe_after.mul_f64(chance.magnitude(1.0, 60.0)),
        poison_kills: if chance.is(0.8) { 2 } else { chance.whole(1, 3) as u32 },
    }
}
