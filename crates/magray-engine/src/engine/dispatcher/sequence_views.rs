//! What is generated at this moment, as the dispatcher knows it.
//! Changes nothing.

use std::sync::atomic::Ordering;

use super::{Dispatcher, Generated, Pending};
use crate::engine::{RequestId, SequenceView, Stage};
use magray_core::DeviceName;
use magray_core::schedule::{DeviceId, Moment};

impl Dispatcher {
    /// The oldest first. A reader that leaves this many tokens unread pauses its sequence.
    pub(in crate::engine) fn sequences(&self, unread_max: usize) -> Vec<SequenceView> {
        let name = |device: DeviceId| self.executors()[usize::from(device.0)].name();
        let state = self.lock();
        let now = self.now();
        let view = |(id, pending): (&RequestId, &Pending)| {
            let generated = pending.generated.as_ref()?;
            Some(Seen { now, unread_max, device: generated.device.map(name) }.view(*id, pending, generated))
        };
        let mut views: Vec<SequenceView> = state.requests.iter().filter_map(view).collect();
        drop(state);
        views.sort_by_key(|view| view.id.0);
        views
    }

    pub(in crate::engine) fn free_tokens(&self) -> u64 {
        self.free_tokens.load(Ordering::Relaxed)
    }
}

struct Seen {
    now: Moment,
    unread_max: usize,
    device: Option<DeviceName>,
}

impl Seen {
    fn view(self, id: RequestId, pending: &Pending, generated: &Generated) -> SequenceView {
        let Self { now, unread_max, device } = self;
        let prompt_tokens = generated.sampling.prompt_tokens as usize;
        let (new_tokens, times) = (generated.new_tokens(), generated.times);
        let took = times.last.zip(times.first).map(|(last, first)| last.since(first).as_secs_f64());
        let stage = match (device, new_tokens) {
            _ if new_tokens.saturating_sub(generated.read) >= unread_max.max(1) => Stage::Paused,
            (None, _) => Stage::Waits,
            (_, 0) => Stage::ReadsPrompt,
            _ => Stage::Generates,
        };
        SequenceView {
            id,
            model: generated.model,
            device,
            priority: pending.work.priority,
            stage,
            prompt_tokens,
            cached_tokens: generated.buffer.cached(),
            new_tokens,
            new_tokens_max: generated.tokens_max.saturating_sub(generated.sampling.prompt_tokens),
            sampling: generated.sampling.clone(),
            age: now.since(times.asked),
            first_token: times.first.map(|first| first.since(times.asked)),
            tokens_per_s: took.filter(|took| *took > 0.0).map(|took| new_tokens.saturating_sub(1) as f64 / took),
        }
    }
}
