//! When models came to devices and left them, how long that took, and why, for people.
//! Keeps the last ones only, and decides nothing.

use magray_core::schedule::{DeviceId, ModelId, Moment, MoveReason};
use std::collections::VecDeque;
use std::time::Duration;

/// A model's weights came to a device, left it, or left the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelMove {
    /// The device's place; `None`: the host's memory.
    pub device: Option<DeviceId>,
    /// The model's place.
    pub model: ModelId,
    /// What was ordered.
    pub kind: MoveKind,
    /// Why; `None`: it is not known any more.
    pub reason: Option<MoveReason>,
    /// When it was ordered.
    pub began: Moment,
    /// What came of it; `None` while it is under way.
    pub ended: Option<MoveEnd>,
}

/// What is done with weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveKind {
    /// They come to a device.
    Load,
    /// They leave a device; the host's memory keeps them.
    Offload,
    /// They leave the host's memory.
    Forget,
}

impl MoveKind {
    /// A stable code for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Offload => "offload",
            Self::Forget => "forget",
        }
    }
}

/// The end of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveEnd {
    /// From the order on.
    pub took: Duration,
    /// Whether the weights are where they were to be.
    pub is_done: bool,
}

#[derive(Default)]
pub(super) struct ModelMoves {
    last: VecDeque<ModelMove>,
}

impl ModelMoves {
    const KEPT: usize = 256;

    pub(super) fn began(&mut self, begun: ModelMove) {
        if self.last.len() == Self::KEPT {
            self.last.pop_front();
        }
        self.last.push_back(begun);
    }

    pub(super) fn ended(&mut self, device: Option<DeviceId>, model: ModelId, is_done: bool, now: Moment) {
        let is_meant = |of: &&mut ModelMove| of.device == device && of.model == model && of.ended.is_none();
        if let Some(of) = self.last.iter_mut().rev().find(is_meant) {
            of.ended = Some(MoveEnd { took: now.since(of.began), is_done });
        }
    }

    /// A device's worker has gone: what came did not, and what left has.
    pub(super) fn lost_worker(&mut self, device: DeviceId, now: Moment) {
        for of in self.last.iter_mut().filter(|of| of.device == Some(device) && of.ended.is_none()) {
            let is_done = of.kind == MoveKind::Offload;
            of.ended = Some(MoveEnd { took: now.since(of.began), is_done });
        }
    }

    pub(super) fn list(&self) -> Vec<ModelMove> {
        self.last.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Option<DeviceId> = Some(DeviceId(1));

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn begun(kind: MoveKind, began: Moment) -> ModelMove {
        ModelMove { device: DEVICE, model: ModelId(0), kind, reason: Some(MoveReason::Needed), began, ended: None }
    }

    #[test]
    fn a_move_ends_when_its_weights_are_there_or_its_worker_is_gone() {
        let mut moves = ModelMoves::default();
        moves.began(begun(MoveKind::Load, at(1)));
        moves.ended(DEVICE, ModelId(1), true, at(2));
        moves.ended(Some(DeviceId(0)), ModelId(0), true, at(2));
        assert_eq!(moves.list()[0].ended, None);
        moves.ended(DEVICE, ModelId(0), true, at(5));
        moves.began(begun(MoveKind::Offload, at(6)));
        moves.lost_worker(DeviceId(1), at(9));
        moves.began(begun(MoveKind::Load, at(10)));
        moves.lost_worker(DeviceId(1), at(11));
        let ends: Vec<_> = moves.list().iter().filter_map(|of| of.ended).map(|end| (end.took, end.is_done)).collect();
        let ms = Duration::from_millis;
        assert_eq!(ends, [(ms(4), true), (ms(3), true), (ms(1), false)]);
    }

    #[test]
    fn the_list_is_bounded() {
        let mut moves = ModelMoves::default();
        (0..1000).for_each(|ms| moves.began(begun(MoveKind::Load, at(ms))));
        assert_eq!((moves.list().len(), moves.list()[0].began), (ModelMoves::KEPT, at(1000 - 256)));
    }
}
