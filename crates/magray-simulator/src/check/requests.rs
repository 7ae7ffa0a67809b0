//! The book of requests: what was asked, which of its texts wait, run or are done, and how it ended.
//! Knows devices by name only.

mod entry;

pub(crate) use entry::{Entry, Fate, Last, Text};

use super::rule::{Broken, Rule, Verdict, holds};
use super::weights::Weights;
use crate::load::Demand;
use crate::scenario::Scenario;
use magray_core::schedule::{
    DeviceId, DeviceSpec, DeviceState, Event, Fallback, Limits, Location, ModelId, Moment, Priority, Refused, Report,
    RequestId, Sequence, View,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Bounds of the retry time that a refused caller is given.
const RETRY_AFTER: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// Queue room is kept for a refused request until the time told, a quarter of it and this.
const KEPT_FOR: Duration = Duration::from_millis(250);

/// A model that is to leave for an urgent request ends its batch first, and leaves also where that request is over by then.
const URGENT_FOR: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Ledger {
    entries: BTreeMap<RequestId, Entry>,
    live: BTreeSet<RequestId>,
    deadlines: BTreeSet<(Moment, RequestId)>,
    /// Requests that may wait for a device that is out.
    choosy: BTreeSet<RequestId>,
    /// Ended, but still partly computed.
    lingering: BTreeSet<RequestId>,
    room: Room,
    lingering_room: Room,
    limits: Limits,
    specs: Vec<DeviceSpec>,
    /// By model: bytes of state a token.
    token_bytes: Vec<u64>,
    /// By model: when a request of high priority came or ended last.
    urgent: BTreeMap<ModelId, Moment>,
    /// Until when room may be kept for requests that were refused.
    turned_away: Moment,
    start_max: Duration,
    is_draining: bool,
    was_any_out: bool,
    /// Which devices were in rotation after the previous step.
    was_in_rotation: Vec<bool>,
    /// Refused at this step for lack of a device, to be compared with the view after it.
    without_device: Vec<(RequestId, Fallback)>,
}

/// What counts against the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    requests: usize,
    tokens: u64,
}

impl Room {
    fn take(&mut self, tokens: u64) {
        self.requests += 1;
        self.tokens += tokens;
    }

    fn free(&mut self, tokens: u64) {
        self.requests -= 1;
        self.tokens -= tokens;
    }
}

impl Ledger {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let options = &scenario.options;
        Self {
            specs: scenario.devices.iter().map(|device| device.spec).collect(),
            token_bytes: scenario.models.iter().map(|model| model.plan.kv_token_bytes).collect(),
            entries: BTreeMap::new(),
            live: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            choosy: BTreeSet::new(),
            lingering: BTreeSet::new(),
            room: Room::default(),
            lingering_room: Room::default(),
            limits: options.limits,
            urgent: BTreeMap::new(),
            turned_away: Moment::default(),
            start_max: options.recovery.start_max,
            is_draining: false,
            was_any_out: true,
            was_in_rotation: Vec::new(),
            without_device: Vec::new(),
        }
    }

    pub(crate) fn expect(&mut self, demand: &Demand) {
        let request = demand.request.clone();
        let generated = request.sequences.iter().filter(|one| one.is_generated());
        let tokens = generated.map(Sequence::tokens_max).max().unwrap_or(0);
        let needs = tokens * self.token_bytes[request.group.model.0 as usize];
        let entry = Entry {
            has_space: self.specs.iter().map(|spec| spec.memory.kv_max >= needs).collect(),
            poison: demand.poison,
            arrived: Moment::START,
            tokens: request.sequences.iter().map(Sequence::tokens_max).sum(),
            fate: Fate::Expected,
            texts: vec![Text::Waiting; request.sequences.len()],
            waiting: request.sequences.len(),
            running: 0,
            failed_on_gpu: false,
            out_of_memory: false,
            transients: 0,
            is_doubtful: false,
            is_shaken: false,
            restarted: false,
            stranded_since: None,
            last: None,
            started: None,
            request,
        };
        let before = self.entries.insert(entry.request.id, entry);
        assert!(before.is_none(), "the world used the name of a request twice");
    }

    pub(crate) fn heard(&mut self, event: &Event, now: Moment) {
        match event {
            Event::Submitted(request) => {
                let entry = self.entries.get_mut(&request.id).expect("the world announces what it submits");
                entry.fate = Fate::Live;
                entry.arrived = now;
                self.room.take(entry.tokens);
                self.live.insert(request.id);
                if request.priority == Priority::High {
                    self.urgent.insert(request.group.model, now);
                }
                if let Some(deadline) = request.deadline {
                    self.deadlines.insert((deadline, request.id));
                }
                // One that has many steps may have no device but one that is out.
                let is_anywhere = matches!(request.allowed, magray_core::schedule::Allowed::Any);
                if !is_anywhere {
                    self.choosy.insert(request.id);
                }
            }
            Event::Cancelled(request) if self.is_live(*request) => self.end(*request, Fate::Cancelled, now),
            Event::Draining => self.is_draining = true,
            _ => {}
        }
    }

    pub(crate) fn is_live(&self, request: RequestId) -> bool {
        self.live.contains(&request)
    }

    pub(crate) fn live_count(&self) -> usize {
        self.live.len()
    }

    /// Requests that are not answered yet.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Entry> {
        self.live.iter().map(|id| &self.entries[id])
    }

    /// Whether another model may have counted more than this one lately, for a request of high priority.
    pub(crate) fn is_urgent_elsewhere(&self, model: ModelId, now: Moment) -> bool {
        let is_other = |entry: &Entry| entry.request.priority == Priority::High && entry.request.group.model != model;
        let mut ended = self.urgent.iter().filter(|(other, _)| **other != model);
        self.live().any(is_other) || ended.any(|(_, last)| now <= *last + URGENT_FOR)
    }

    pub(crate) fn entry(&self, request: RequestId) -> Result<&Entry, Broken> {
        let entry = self.entries.get(&request).filter(|entry| entry.fate != Fate::Expected);
        entry.ok_or_else(|| Broken {
            rule: Rule::AskedOnly,
            message: format!("request {} is named and was never submitted", request.0),
        })
    }

    pub(crate) fn entry_mut(&mut self, request: RequestId) -> Option<&mut Entry> {
        self.entries.get_mut(&request)
    }

    pub(crate) fn complete(&mut self, request: RequestId, report: &Report, now: Moment) -> Verdict {
        let entry = self.answerable(request, "completed")?;
        let open = entry.texts.iter().position(|text| !matches!(text, Text::Done | Text::PerhapsDone));
        holds(open.is_none(), Rule::Complete, || {
            format!("request {} is completed, and its text {} is not computed", request.0, open.unwrap_or_default())
        })?;
        holds(entry.request.deadline.is_none_or(|deadline| now <= deadline), Rule::Deadlines, || {
            format!("request {} is answered after its deadline", request.0)
        })?;
        entry.judge_report(report, now)?;
        self.end(request, Fate::Answered, now);
        Ok(())
    }

    pub(crate) fn refuse(&mut self, request: RequestId, refused: Refused, now: Moment) -> Verdict {
        let entry = self.answerable(request, "refused")?;
        let is_new = entry.arrived == now && entry.running == 0;
        let others = Room {
            requests: self.room.requests - 1 + self.lingering_room.requests,
            tokens: self.room.tokens - entry.tokens + self.lingering_room.tokens,
        };
        let is_honest = match refused {
            Refused::Full { retry_after } => {
                // Room may be kept for others that were refused, up to three quarters of all.
                let tokens_max = self.limits.tokens_max;
                let kept = if now < self.turned_away { tokens_max - tokens_max / 4 } else { 0 };
                // A caller that holds much leaves a quarter to others.
                let requests_max = self.limits.requests_max - self.limits.requests_max / 4;
                let tokens_max = self.limits.tokens_max - self.limits.tokens_max / 4;
                // So do requests that generate, together.
                let tokens_max = if entry.is_generated() { tokens_max - tokens_max / 4 } else { tokens_max };
                let is_crowded =
                    others.requests >= requests_max.div_ceil(2) || others.tokens > self.limits.tokens_max / 2;
                let is_full = others.requests + 1 > requests_max
                    || others.tokens + entry.tokens + kept > tokens_max
                    || entry.request.priority == Priority::Low && is_crowded;
                // Only the machine knows how long it would wait; in an empty queue none waits.
                let is_long = self.limits.wait_max.is_some() && others.tokens > 0;
                is_new && (is_full || is_long) && RETRY_AFTER.contains(&retry_after)
            }
            Refused::TooLarge => {
                let mut devices = self.specs.iter().enumerate();
                let has_no_space = !devices.any(|(at, spec)| entry.may_use(at, spec.kind));
                is_new && (entry.tokens > self.limits.tokens_max || entry.is_generated() && has_no_space)
            }
            Refused::Expired => entry.request.deadline.is_some_and(|deadline| deadline <= now),
            Refused::Draining => is_new && self.is_draining,
            Refused::NoDevice(fallback) => {
                self.without_device.push((request, fallback));
                true
            }
            // The book of suspects judges it.
            Refused::Poison => true,
        };
        holds(is_honest, Rule::HonestRefusal, || {
            let tokens = self.entries[&request].tokens;
            format!("request {} of {tokens} tokens is refused as {refused:?} beside {others:?}", request.0)
        })?;
        if let Refused::Full { retry_after } = refused {
            self.turned_away = self.turned_away.max(now + retry_after + retry_after / 4 + KEPT_FOR);
        }
        self.end(request, Fate::Refused(refused), now);
        Ok(())
    }

    pub(crate) fn settle(&mut self, view: &View, weights: &Weights, now: Moment) -> Verdict {
        if let Some((deadline, request)) = self.deadlines.first().filter(|(deadline, _)| *deadline + WAKE_LEAST <= now)
        {
            let message = format!("request {} still waits, and its deadline was {deadline:?}", request.0);
            return Err(Broken { rule: Rule::Deadlines, message });
        }
        holds(
            self.room.requests <= self.limits.requests_max && self.room.tokens <= self.limits.tokens_max,
            Rule::Limits,
            || format!("taken are {:?}, and the limits are {:?}", self.room, self.limits),
        )?;
        let most = Room {
            requests: self.room.requests + self.lingering_room.requests,
            tokens: self.room.tokens + self.lingering_room.tokens,
        };
        let is_so = (self.room.requests..=most.requests).contains(&view.requests)
            && (self.room.tokens..=most.tokens).contains(&view.tokens);
        holds(is_so, Rule::HonestView, || {
            format!("the view has {} requests and {} tokens, and there are {:?}", view.requests, view.tokens, self.room)
        })?;
        self.judge_without_device(view, weights, now)?;
        self.was_in_rotation = view.devices.iter().map(|device| device.state == DeviceState::InRotation).collect();
        self.judge_stranded(view, weights, now)
    }

    /// A request refused for lack of a device must have had none, or no memory on it.
    fn judge_without_device(&mut self, view: &View, weights: &Weights, now: Moment) -> Verdict {
        for (request, fallback) in std::mem::take(&mut self.without_device) {
            let entry = &self.entries[&request];
            let waited = now.since(entry.arrived);
            let mut mine = view.devices.iter().enumerate().filter(|(at, device)| entry.may_use(*at, device.kind));
            let model = entry.request.group.model;
            let is_hopeless = mine.all(|(at, device)| {
                let id = DeviceId(at as u16);
                let is_late = match device.state {
                    // One that came back at this very step may have come too late.
                    DeviceState::InRotation => {
                        let was_in = self.was_in_rotation.get(at).is_some_and(|was_in| *was_in);
                        !was_in || !weights.is_near(id, model, now)
                    }
                    DeviceState::Out(_) => return true,
                    DeviceState::Starting | DeviceState::Recovering(_) | DeviceState::Resting => true,
                };
                is_late && waited >= self.start_max || weights.is_hopeless(id, model, now)
            });
            // Where its memory did not do, a device does not count any more.
            let had_no_memory = entry.out_of_memory;
            // What failed too often goes to the CPU alone, and that may not have room for the model any more.
            let mut cpus = view.devices.iter().enumerate().filter(|(_, device)| device.location == Location::InProcess);
            let has_no_cpu = cpus.all(|(at, _)| {
                let id = DeviceId(at as u16);
                weights.is_hopeless(id, model, now) || waited >= self.start_max && !weights.is_near(id, model, now)
            });
            let is_left_alone = has_no_cpu && !entry.is_untouched();
            holds(is_hopeless || had_no_memory || is_left_alone, Rule::HonestRefusal, || {
                format!("request {} is refused for want of a device ({fallback:?}), and there is one", request.0)
            })?;
        }
        Ok(())
    }

    /// A request waits for a device that is out for a bounded time.
    fn judge_stranded(&mut self, view: &View, weights: &Weights, now: Moment) -> Verdict {
        // Where all devices are in rotation with all weights no request is stranded, and long queues need not be searched.
        let is_any_out =
            !weights.are_all_there() || view.devices.iter().any(|device| device.state != DeviceState::InRotation);
        if !is_any_out && !std::mem::replace(&mut self.was_any_out, is_any_out) {
            return Ok(());
        }
        self.was_any_out = is_any_out;
        for id in &self.choosy {
            let entry = self.entries.get_mut(id).expect("choosy requests are in the book");
            let states: Vec<DeviceState> = entry.states(view).collect();
            let model = entry.request.group.model;
            let mut mine = view.devices.iter().enumerate().filter(|(at, device)| entry.may_use(*at, device.kind));
            let is_served = mine.any(|(at, device)| {
                device.state == DeviceState::InRotation && weights.is_served(DeviceId(at as u16), model)
            });
            if is_served || entry.running > 0 {
                entry.stranded_since = None;
                continue;
            }
            let is_hopeless = states.iter().all(|state| matches!(state, DeviceState::Out(_)));
            holds(!is_hopeless, Rule::AllAnswered, || {
                format!("request {} waits for devices that were all given up", id.0)
            })?;
            let since = *entry.stranded_since.get_or_insert(now);
            let is_bounded = entry.request.deadline.is_some() || now.since(since) <= self.start_max + SLACK;
            holds(is_bounded, Rule::AllAnswered, || {
                format!("request {} waits for a device that is out, since {since:?}", id.0)
            })?;
        }
        Ok(())
    }

    fn answerable(&self, request: RequestId, how: &str) -> Result<&Entry, Broken> {
        let entry = self.entry(request)?;
        holds(entry.fate == Fate::Live, Rule::AnsweredOnce, || {
            format!("request {} is {how}, and it was {:?} before", request.0, entry.fate)
        })?;
        Ok(entry)
    }

    fn end(&mut self, request: RequestId, fate: Fate, now: Moment) {
        let entry = self.entries.get_mut(&request).expect("it was live");
        entry.fate = fate;
        if entry.request.priority == Priority::High {
            self.urgent.insert(entry.request.group.model, now);
        }
        self.room.free(entry.tokens);
        self.live.remove(&request);
        self.choosy.remove(&request);
        if let Some(deadline) = entry.request.deadline {
            self.deadlines.remove(&(deadline, request));
        }
        if entry.running > 0 {
            self.lingering.insert(request);
            self.lingering_room.take(entry.tokens);
        }
    }

    /// A step of the request does not run any more.
    pub(crate) fn step_ended(&mut self, request: RequestId) {
        let entry = self.entries.get_mut(&request).expect("steps are of known requests");
        entry.running -= 1;
        if entry.running == 0 && self.lingering.remove(&request) {
            self.lingering_room.free(entry.tokens);
        }
    }
}

/// The shortest wake interval of the machine.
const WAKE_LEAST: Duration = Duration::from_micros(20);

/// How late the wake may be, and a little more.
pub(crate) const SLACK: Duration = Duration::from_millis(5);
