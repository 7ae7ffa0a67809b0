//! A model, wherever its weights are.
//! Decides nothing.

use crate::schedule::context::Context;
use crate::schedule::device_set::DeviceSet;
use crate::schedule::load_time::Source;
use crate::schedule::sabotage::sabotaged;
use crate::schedule::{Location, ModelPlan, Moment, Priority, ResidencyRequest};

/// A model, wherever its weights are.
#[derive(Clone, Debug)]
pub(in crate::schedule) struct Model {
    pub(in crate::schedule) plan: ModelPlan,
    /// When something of it came or ended last.
    pub(in crate::schedule) used: Moment,
    /// The same of what may go to a GPU.
    pub(in crate::schedule) gpu_used: Moment,
    /// It is wanted on a GPU, and none has it yet.
    pub(in crate::schedule) want: Option<Want>,
    /// The request that sent it away, where nothing has asked for it since.
    pub(in crate::schedule) sent_away: Option<ResidencyRequest>,
    /// It is no more: nothing of it is loaded again.
    pub(in crate::schedule) is_removed: bool,
    /// It leaves all memory; nothing of it is loaded before that is done.
    pub(in crate::schedule) is_releasing: bool,
    /// It is being taken out of the host's memory, whatever was requested since.
    pub(in crate::schedule) is_forgetting: bool,
    /// Some form of its weights is in the host's memory ...
    pub(in crate::schedule) is_in_host: bool,
    /// ... namely the one that GPUs load.
    pub(in crate::schedule) has_image: bool,
    pub(in crate::schedule) loads: u64,
    pub(in crate::schedule) offloads: u64,
    /// How often it was in no memory after it was to be in none.
    pub(in crate::schedule) releases: u64,
    /// Devices in rotation that may start batches of it.
    pub(in crate::schedule) present: DeviceSet,
    /// Devices that it is on its way to, or that it waits for.
    pub(in crate::schedule) coming: DeviceSet,
}

/// That a GPU should have a model.
#[derive(Clone, Copy, Debug)]
pub(in crate::schedule) struct Want {
    pub(in crate::schedule) since: Moment,
    pub(in crate::schedule) is_preheat: bool,
    /// How urgent it is, beside the requests that wait.
    pub(in crate::schedule) priority: Priority,
}

impl Model {
    pub(in crate::schedule) fn new(plan: ModelPlan) -> Self {
        Self {
            plan,
            used: Moment::START,
            gpu_used: Moment::START,
            want: None,
            sent_away: None,
            is_removed: false,
            is_releasing: false,
            is_forgetting: false,
            is_in_host: plan.is_preloaded_at(Location::InProcess) && plan.home.is_none(),
            has_image: false,
            loads: 0,
            offloads: 0,
            releases: 0,
            present: DeviceSet::EMPTY,
            coming: DeviceSet::EMPTY,
        }
    }

    pub(super) fn note_release(&mut self, cx: &Context) {
        self.releases += u64::from(!sabotaged!(cx, HideRelease));
    }

    /// Whether nothing of it may be loaded now.
    pub(in crate::schedule) fn is_going(&self) -> bool {
        self.is_removed || self.is_releasing || self.is_forgetting
    }

    pub(in crate::schedule) fn source(&self) -> Source {
        if self.has_image { Source::Host } else { Source::Files }
    }

    /// When it leaves GPUs by itself, if nothing of it comes.
    pub(in crate::schedule) fn idle_at(&self) -> Option<Moment> {
        self.plan.idle_timeout.filter(|_| !self.plan.is_pinned).map(|timeout| self.gpu_used + timeout)
    }
}
