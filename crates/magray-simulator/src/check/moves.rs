//! The book of moves: weights that requests wait for do not leave and come back again and again for nothing.
//! Takes a few such rounds for chance: a request may be cancelled while weights leave for it.

use super::requests::Ledger;
use super::rule::{Rule, Verdict, holds};
use magray_core::schedule::{DeviceId, DeviceKind, DeviceSpec, ModelId};
use std::collections::{BTreeMap, BTreeSet};

/// Rounds in a row in which no model came to a device but those that had left it for another.
const RETURNS_MAX: u32 = 8;
/// How often in a row a model leaves a device for another before anything of it was computed there.
const UNUSED_MAX: u32 = 16;

#[derive(Debug)]
pub(crate) struct Moves {
    kinds: Vec<DeviceKind>,
    rounds: Vec<Round>,
    unused: BTreeMap<(DeviceId, ModelId), u32>,
}

/// Models that left a device for others, and what came after that.
#[derive(Clone, Debug, Default)]
struct Round {
    gone: BTreeSet<ModelId>,
    has_any_come: bool,
    has_other_come: bool,
    /// Such rounds in a row that changed nothing.
    returns: u32,
}

/// A model that is to leave a device for others, though requests wait for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eviction {
    pub(crate) device: DeviceId,
    pub(crate) model: ModelId,
    /// Whether nothing of it was computed there, and nothing counts more than it.
    pub(crate) is_unused: bool,
}

impl Moves {
    pub(crate) fn new(specs: &[DeviceSpec]) -> Self {
        Self {
            kinds: specs.iter().map(|spec| spec.kind).collect(),
            rounds: vec![Round::default(); specs.len()],
            unused: BTreeMap::new(),
        }
    }

    /// The worker of a device is gone: what comes with the next one begins anew.
    pub(crate) fn ended(&mut self, device: DeviceId) {
        self.rounds[usize::from(device.0)] = Round::default();
    }

    /// A batch of a model was computed on a device.
    pub(crate) fn computed(&mut self, device: DeviceId, model: ModelId) {
        self.unused.remove(&(device, model));
    }

    pub(crate) fn ordered(&mut self, device: DeviceId, model: ModelId) {
        let round = &mut self.rounds[usize::from(device.0)];
        round.has_any_come = true;
        round.has_other_come |= !round.gone.contains(&model);
    }

    pub(crate) fn evicted(&mut self, eviction: Eviction, ledger: &Ledger) -> Verdict {
        let Eviction { device, model, is_unused } = eviction;
        let at = usize::from(device.0);
        let is_awaited =
            ledger.live().any(|entry| entry.request.group.model == model && entry.may_use(at, self.kinds[at]));
        if !is_awaited {
            return Ok(());
        }
        let round = &mut self.rounds[at];
        if round.has_any_come {
            let returns = if round.has_other_come { 0 } else { round.returns + 1 };
            *round = Round { returns, ..Round::default() };
        }
        round.gone.insert(model);
        holds(round.returns <= RETURNS_MAX, Rule::GivesWay, || {
            format!("model {} leaves device {at} again, to which only those came that had left it for others", model.0)
        })?;
        if !is_unused {
            return Ok(());
        }
        let unused = self.unused.entry((device, model)).or_default();
        *unused += 1;
        let unused = *unused;
        holds(unused <= UNUSED_MAX, Rule::MovesForUse, || {
            format!(
                "model {} leaves device {at} for others before it computed anything, {unused} times in a row",
                model.0
            )
        })
    }
}
