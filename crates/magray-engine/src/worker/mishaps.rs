//! What befalls the batches, loads and heartbeats of this worker by plan. Without a plan nothing does.
//! Says what; the worker does it.

use crate::faults::{Clock, FaultKind, FaultOrder, FaultPlan, FaultPlanError, Place, Script};
use std::time::{Duration, Instant};

/// A plan and the time that it counts from.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    plan: FaultPlan,
    order: FaultOrder,
    opened: Instant,
}

impl Planned {
    /// Reads the plan that the supervisor sent; its time is now.
    pub(super) fn read(order: &FaultOrder) -> Result<Self, FaultPlanError> {
        Ok(Self { plan: order.plan.parse()?, order: order.clone(), opened: Instant::now() })
    }
}

/// The faults of one place of the worker.
#[derive(Debug)]
pub(super) struct Mishaps(Option<Running>);

#[derive(Debug)]
struct Running {
    script: Script,
    /// The time since the engine's start, when this worker was opened.
    then: Duration,
    opened: Instant,
    batches: u64,
}

/// What befalls a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Befalls {
    /// What happens in the place of computing, or with it.
    pub(super) fault: Option<FaultKind>,
    pub(super) is_wrong: bool,
    pub(super) is_slow: bool,
}

impl Mishaps {
    pub(super) fn new(planned: Option<&Planned>, place: Place) -> Self {
        Self(planned.map(|Planned { plan, order, opened }| Running {
            script: Script::new(plan, place, order.from),
            then: order.now,
            opened: *opened,
            batches: order.batches,
        }))
    }

    /// Whether a fault of this kind goes on.
    pub(super) fn is_on(&mut self, kind: FaultKind) -> bool {
        self.0.as_mut().is_some_and(|running| running.script.is_on(kind, running.now()))
    }

    /// What befalls the next load. Asked once a load.
    pub(super) fn befall_load(&mut self) -> Option<FaultKind> {
        let running = self.0.as_mut()?;
        let now = running.now();
        running.script.next_due(Clock { now, batch: 0 })
    }

    /// What befalls the next batch, which holds these tokens. Asked once a batch.
    pub(super) fn befall(&mut self, ids: &[u32]) -> Befalls {
        let Some(running) = &mut self.0 else { return Befalls::default() };
        running.batches += 1;
        let clock = Clock { now: running.now(), batch: running.batches };
        let script = &mut running.script;
        let fault = if script.is_poison(ids) { Some(FaultKind::Crash) } else { script.next_due(clock) };
        Befalls {
            fault,
            is_wrong: fault == Some(FaultKind::Wrong) || script.is_on(FaultKind::Wrong, clock.now),
            is_slow: fault == Some(FaultKind::Slow) || script.is_on(FaultKind::Slow, clock.now),
        }
    }
}

impl Running {
    fn now(&self) -> Duration {
        self.then + self.opened.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_count_on_from_the_worker_before() {
        let order = FaultOrder {
            plan: "transient@batch=12, wrong@5s+60m, poison@id=7".to_owned(),
            from: Duration::from_secs(6),
            now: Duration::from_secs(7),
            batches: 10,
        };
        let mut mishaps = Mishaps::new(Some(&Planned::read(&order).unwrap()), Place::Batch);
        let wrong = Befalls { is_wrong: true, ..Befalls::default() };
        assert_eq!(mishaps.befall(&[1]), wrong);
        assert_eq!(mishaps.befall(&[1]), Befalls { fault: Some(FaultKind::Transient), ..wrong });
        assert_eq!(mishaps.befall(&[7]), Befalls { fault: Some(FaultKind::Crash), ..wrong });
        assert_eq!(Mishaps::new(None, Place::Batch).befall(&[7]), Befalls::default());
    }
}
