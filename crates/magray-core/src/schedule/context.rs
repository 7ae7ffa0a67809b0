//! What every decision may read: the time, the options, and what a test broke on purpose.
//! Changes only when a step of the machine begins.

use super::queue::Aging;
use super::sabotage::sabotaged;
use super::sequence::StepBounds;
use super::speed::SpeedMeter;
use super::{CallerId, Location, ModelPlan, Moment, Options, RequestId, SpeedWatch};
use std::time::Duration;

/// The time, the options and the sabotage.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) now: Moment,
    pub(super) options: Options,
    #[cfg(feature = "sabotage")]
    pub(super) sabotage: Option<super::Sabotage>,
}

impl Context {
    pub(super) fn new(options: Options) -> Self {
        Self {
            now: Moment::START,
            options,
            #[cfg(feature = "sabotage")]
            sabotage: None,
        }
    }

    pub(super) fn aging(&self) -> Aging {
        let age_max = if sabotaged!(self, IgnoreAge) { Duration::MAX } else { self.options.batching.age_max };
        Aging { now: self.now, age_max }
    }

    /// Who a request counts for.
    pub(super) fn caller(&self, caller: CallerId, request: RequestId) -> CallerId {
        match caller {
            _ if sabotaged!(self, IgnoreCallers) => CallerId(0),
            _ if sabotaged!(self, ShareByRequest) => CallerId(request.0),
            caller => caller,
        }
    }

    /// New tokens that a reader may have left unread while its sequence goes on.
    pub(super) fn unread_max(&self) -> u32 {
        if sabotaged!(self, IgnoreReader) { u32::MAX } else { self.options.generation.unread_max.max(1) }
    }

    /// When a device of this speed counts as slow, and as back.
    pub(super) fn speed_watch(&self, meter: &SpeedMeter) -> SpeedWatch {
        let watch = self.options.speed;
        let window =
            if meter.is_slow() && sabotaged!(self, NeverRegain) { Duration::from_secs(1 << 40) } else { watch.window };
        SpeedWatch { is_on: watch.is_on && !sabotaged!(self, IgnoreSlow), window, ..watch }
    }

    pub(super) fn step_bounds(&self, plan: &ModelPlan, location: Location) -> StepBounds {
        StepBounds {
            step_tokens_max: plan.step_tokens_max.max(1),
            unread_max: self.unread_max(),
            token_bytes: plan.kv_token_bytes_at(location),
        }
    }
}
