//! More clients than the devices can carry, which ask without a pause and come again when they were refused: how true the
//! times are that they are told, and what gets done.
//! One device, no faults, and nothing but the machine decides.

mod device;

use crate::agenda::Agenda;
use crate::chance::Chance;
use crate::scenario::Cost;
use device::Device;
use magray_core::schedule::{
    Action, Allowed, Batching, CallerId, Coming, Event, Group, Limits, Machine, ModelId, ModelPlan, Moment, Options,
    Priority, Refused, Request, RequestId, Sequence, Sketch, Slices,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an answer or a request is on its way, at most.
const LATENCY: Duration = Duration::from_millis(2);

/// The clients, and what they meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overload {
    /// Everything that is left to chance follows from it.
    pub seed: u64,
    /// Clients that ask for generated answers.
    pub chats: usize,
    /// Clients that ask for embeddings.
    pub embedders: usize,
    /// When clients come again.
    pub manners: Manners,
    /// Tokens of a prompt, at least and at most.
    pub prompt: (u64, u64),
    /// New tokens that are asked for, at least and at most; before a request is read, the mean is guessed.
    pub new_tokens: (u64, u64),
    /// The part of these at which answers end, at least.
    pub ends: f64,
    /// Texts of a request to embed, of 32 tokens.
    pub texts: usize,
    /// Space for the state of this many tokens.
    pub space: u64,
    /// The setting `queue.tokens_max`.
    pub tokens_max: u64,
    /// The setting `server.queue_wait_s`.
    pub wait_max: Duration,
    /// Callers that the clients belong to.
    pub callers: u64,
    /// Whether the device is like a GPU.
    pub is_gpu: bool,
    /// How long it lasts.
    pub lasts: Duration,
    /// From when on answers and refusals count.
    pub counted_from: Duration,
}

/// When clients that were refused come again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Manners {
    /// After the milliseconds that they are told.
    Obey,
    /// After the whole seconds that they are told.
    WholeSeconds,
    /// Half of them after this part of the time told, the others when told.
    HalfEarly(f64),
    /// Always after this time, whatever they are told.
    Fixed(Duration),
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Of each refusal of a request that was taken later: the time told as a part of the time that it took. Chats first.
    pub told: [Vec<f64>; 2],
    /// Tokens a second of chats and of embeddings.
    pub rates: [f64; 2],
    /// Refusals a second.
    pub refusals: f64,
    /// Requests that were answered.
    pub answered: [usize; 2],
    /// The longest that a request waited until it was taken, in seconds.
    pub longest: [f64; 2],
    /// Seconds between a token and the next one of its answer.
    pub gaps: Vec<f64>,
}

impl Seen {
    /// The share of times told that were true within a factor of two.
    pub fn true_share(&self, kind: usize) -> f64 {
        let near = self.told[kind].iter().filter(|ratio| (0.5..=2.0).contains(*ratio)).count();
        if self.told[kind].is_empty() { 1.0 } else { near as f64 / self.told[kind].len() as f64 }
    }

    /// The gap between tokens than which this part of them is no longer; nothing where nothing was generated.
    pub fn gap(&self, part: f64) -> f64 {
        let mut gaps = self.gaps.clone();
        gaps.sort_unstable_by(f64::total_cmp);
        let at = (gaps.len() as f64 * part) as usize;
        gaps.get(at.min(gaps.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Ask(usize),
    Computed,
}

/// A client and its request.
#[derive(Clone, Debug, Default)]
struct Client {
    texts: Vec<u32>,
    /// Tells it from other requests, as the text of its body does.
    mark: u64,
    new_tokens: u32,
    ends_at: u32,
    /// When it was refused, and what it was told.
    refusals: Vec<(Moment, Duration)>,
    asked_first: Option<Moment>,
    /// When it got its last token.
    last_token: Option<Moment>,
}

struct World {
    setting: Overload,
    machine: Machine,
    device: Device,
    agenda: Agenda<Due>,
    clients: Vec<Client>,
    /// Whose request it is.
    owners: BTreeMap<RequestId, usize>,
    chance: Chance,
    now: Moment,
    requests: u64,
    seen: Seen,
    refusals: usize,
    done: [f64; 2],
}

/// Lets the clients ask for a time.
pub fn overload(setting: Overload) -> Seen {
    let mut world = World::new(setting);
    let end = Moment::START + setting.lasts;
    world.step(Event::Tick);
    loop {
        let wake = world.machine.next_wake().map(|wake| wake.max(world.now));
        let Some(next) = [wake, world.agenda.next_at()].into_iter().flatten().min().filter(|next| *next < end) else {
            break;
        };
        if world.agenda.next_at() == Some(next)
            && let Some((at, due)) = world.agenda.take()
        {
            world.now = at;
            match due {
                Due::Ask(client) => world.ask(client),
                Due::Computed => world.computed(),
            }
        } else {
            world.now = next;
            world.step(Event::Tick);
        }
    }
    let seconds = (setting.lasts - setting.counted_from).as_secs_f64();
    Seen { rates: world.done.map(|tokens| tokens / seconds), refusals: world.refusals as f64 / seconds, ..world.seen }
}

impl World {
    fn new(setting: Overload) -> Self {
        let device = Device::new(setting.is_gpu, setting.space);
        let limits = Limits { tokens_max: setting.tokens_max, wait_max: Some(setting.wait_max), ..Limits::default() };
        let batching = Batching { slices: Some(Slices::default()), ..Batching::default() };
        let options = Options { limits, batching, ..Options::default() };
        let plan = ModelPlan { idle_timeout: None, ..ModelPlan::default() };
        let mut chance = Chance::new(setting.seed);
        let mut agenda = Agenda::new();
        let clients = setting.chats + setting.embedders;
        (0..clients).for_each(|client| agenda.plan(Moment::START + LATENCY.mul_f64(chance.unit()), Due::Ask(client)));
        Self {
            machine: Machine::new(vec![device.spec()], vec![plan; 2], options),
            device,
            agenda,
            clients: vec![Client::default(); clients],
            owners: BTreeMap::new(),
            chance,
            now: Moment::START,
            requests: 0,
            seen: Seen::default(),
            refusals: 0,
            done: [0.0; 2],
            setting,
        }
    }

    fn kind(&self, client: usize) -> usize {
        usize::from(client >= self.setting.chats)
    }

    /// A client asks, as the server does for it: before its body is read, when that is there, and when it is tokenised.
    fn ask(&mut self, client: usize) {
        let kind = self.kind(client);
        if self.clients[client].asked_first.is_none() {
            self.clients[client] = self.think_up(kind);
        }
        let asking = self.clients[client].clone();
        let tokens: u64 = asking.texts.iter().map(|tokens| u64::from(*tokens)).sum();
        let caller = CallerId(1 + client as u64 % self.setting.callers);
        let sketch = Sketch {
            caller,
            tokens,
            new_tokens: if kind == 0 { (self.setting.new_tokens.0 + self.setting.new_tokens.1) / 2 } else { 0 },
            jobs: 1,
            mark: Some(asking.mark),
            is_here: false,
            coming: Coming::default(),
            priority: Priority::Normal,
            allowed: Allowed::Any,
        };
        for is_here in [false, true] {
            if let Err(refused) = self.machine.would_take(&Sketch { is_here, ..sketch }, self.now) {
                return self.refused(client, refused);
            }
        }
        self.requests += 1;
        let id = RequestId(self.requests);
        let sequences = asking.texts.iter();
        let request = Request {
            id,
            group: Group { model: ModelId(kind as u32), key: 0 },
            sequences: sequences.map(|tokens| Sequence::prompt(*tokens, asking.new_tokens)).collect(),
            caller,
            priority: Priority::Normal,
            deadline: None,
            allowed: Allowed::Any,
        };
        self.owners.insert(id, client);
        self.device.expect(id, asking.ends_at);
        self.step(Event::Submitted(request));
        if self.owners.contains_key(&id) {
            self.taken(client);
        }
    }

    fn think_up(&mut self, kind: usize) -> Client {
        let Overload { prompt, new_tokens, ends, texts, .. } = self.setting;
        let mark = self.chance.bits();
        if kind == 1 {
            return Client { texts: vec![32; texts], mark, asked_first: Some(self.now), ..Client::default() };
        }
        let tokens = self.chance.whole(prompt.0, prompt.1) as u32;
        let new_tokens = self.chance.whole(new_tokens.0, new_tokens.1) as u32;
        let ends_at = (f64::from(new_tokens) * self.chance.between(ends, 1.0)).ceil() as u32;
        let (texts, asked_first) = (vec![tokens], Some(self.now));
        Client { texts, mark, new_tokens, ends_at, asked_first, ..Client::default() }
    }

    fn refused(&mut self, client: usize, refused: Refused) {
        let Refused::Full { retry_after } = refused else { panic!("{refused:?}") };
        // As the headers have it.
        let told = Duration::from_millis(retry_after.as_millis() as u64);
        let seconds = Duration::from_secs((told.as_millis() as u64).div_ceil(1000).max(1));
        let wait = match self.setting.manners {
            Manners::Obey => told,
            Manners::WholeSeconds => seconds,
            Manners::HalfEarly(part) if client % 2 == 1 => told.mul_f64(part),
            Manners::HalfEarly(_) => told,
            Manners::Fixed(wait) => wait,
        };
        let told = if self.setting.manners == Manners::WholeSeconds { seconds } else { told };
        self.clients[client].refusals.push((self.now, told));
        self.refusals += usize::from(self.is_counted());
        self.come(client, wait);
    }

    fn come(&mut self, client: usize, after: Duration) {
        let way = LATENCY.mul_f64(self.chance.between(0.1, 1.0));
        self.agenda.plan(self.now + after + way, Due::Ask(client));
    }

    fn is_counted(&self) -> bool {
        self.now >= Moment::START + self.setting.counted_from
    }

    fn taken(&mut self, client: usize) {
        let (kind, now) = (self.kind(client), self.now);
        let is_counted = self.is_counted();
        let refusals = std::mem::take(&mut self.clients[client].refusals);
        if !is_counted {
            return;
        }
        let from = Moment::START + self.setting.counted_from;
        for (at, told) in refusals.into_iter().filter(|(at, _)| *at >= from) {
            self.seen.told[kind].push(told.as_secs_f64() / now.since(at).as_secs_f64().max(1e-3));
        }
        let asked = self.clients[client].asked_first.unwrap_or(now);
        self.seen.longest[kind] = self.seen.longest[kind].max(now.since(asked).as_secs_f64());
    }

    fn computed(&mut self) {
        let (event, next) = self.device.computed(self.now);
        if let Some(next) = next {
            self.agenda.plan(next, Due::Computed);
        }
        self.step(event);
    }

    fn delivered(&mut self, request: RequestId, tokens: u32) {
        let before = self.owners.get(&request).and_then(|client| self.clients[*client].last_token.replace(self.now));
        if self.is_counted() {
            self.done[0] += f64::from(tokens);
            self.seen.gaps.extend(before.map(|before| self.now.since(before).as_secs_f64()));
        }
    }

    fn step(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.machine.step(event, self.now, &mut actions);
        for action in actions {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Start { batch, steps, .. } => {
                if let Some(end) = self.device.start(batch, steps, self.now) {
                    self.agenda.plan(end, Due::Computed);
                }
            }
            Action::Deliver { request, sequence, tokens, .. } => {
                self.delivered(request, tokens);
                self.step(Event::Read { request, sequence, tokens });
            }
            Action::Complete { request, .. } => {
                let Some(client) = self.owners.remove(&request) else { return };
                let kind = self.kind(client);
                let tokens: u32 = self.clients[client].texts.iter().sum();
                if self.is_counted() {
                    self.done[kind] += f64::from(tokens);
                    self.seen.answered[kind] += 1;
                }
                self.clients[client].asked_first = None;
                self.come(client, Duration::ZERO);
            }
            Action::Refuse { request, refused } => {
                if let Some(client) = self.owners.remove(&request) {
                    self.refused(client, refused);
                }
            }
            Action::Load { device, model } => {
                let took = Duration::ZERO;
                self.step(Event::Loaded { device, model, bytes: 0, took, from_host: true });
            }
            _ => {}
        }
    }
}

/// The costs of a batch of chats and of embeddings.
fn costs(is_gpu: bool) -> [Cost; 2] {
    let cost = |fixed_us, token_us, text_us| Cost { fixed_us, token_us, text_us };
    match is_gpu {
        true => [cost(5_000.0, 20.0, 60.0), cost(110.0, 0.4, 1.0)],
        false => [cost(12_000.0, 2_500.0, 0.0), cost(400.0, 18.0, 0.0)],
    }
}
