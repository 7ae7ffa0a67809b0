//! Space for the state of sequences on a device: what the next turn needs, and which sequence gives way for it.
//! Takes no state off a device itself.

use super::DeviceId;
use super::cost::as_f64;
use super::device_memory::State;
use super::outlook::Outlook;
use super::phase::Phase;
use super::queue::BucketKey;
use super::run::Side;
use super::sabotage::sabotaged;
use super::sequence::{SequenceId, StepBounds};
use crate::ledger::{Candidate, Rank, first};

/// Prompts that find no space and may be passed over when a device is looked for.
const MISFITS_MAX: usize = 16;

/// What the ready sequences of a group need beyond what they have, for one step each.
pub(super) fn growth(of: Outlook<'_>, id: DeviceId, bucket: BucketKey, bounds: StepBounds) -> u64 {
    let buckets = of.requests.queue().partners(bucket, id).filter(|key| key.phase == Phase::Next(id));
    let ready = of.requests.queue().walk(buckets, Side::Front, of.cx.aging());
    let growth = ready.filter_map(|(ticket, run)| {
        let sequence = SequenceId { request: run.request, number: ticket.position.first };
        Some(of.residency.memory(id).growth(sequence, bounds.kept(of.requests.progress(sequence)?)))
    });
    growth.sum()
}

/// What the first prompt needs that a device would have space for, if sequences that pause gave way.
pub(super) fn space_wanted(of: Outlook<'_>, id: DeviceId, bucket: BucketKey, bounds: StepBounds) -> Option<u64> {
    let memory = of.residency.memory(id);
    let paused = memory.sequences().filter(|(one, _)| of.requests.is_paused(*one)).map(|(_, state)| state);
    let paused = paused.fold((0, 0), |(bytes, headroom), one| (bytes + one.bytes, headroom + one.headroom()));
    let free = memory.ledger().kv_free().saturating_add(paused.0);
    let headroom = memory.headroom() - paused.1;
    let buckets = of.requests.queue().partners(bucket, id).filter(|key| key.phase == Phase::Fresh);
    let prompts = of.requests.queue().walk(buckets, Side::Front, of.cx.aging()).take(MISFITS_MAX);
    let mut needs = prompts.filter_map(|(ticket, run)| {
        let sequence = SequenceId { request: run.request, number: ticket.position.first };
        Some((bounds.kept(of.requests.progress(sequence)?), of.cx.aging().is_aged(run)))
    });
    // Nothing overtakes a prompt that has waited long.
    let first = needs.find(|(need, is_aged)| need + headroom <= free || *is_aged)?;
    Some(first.0).filter(|need| need + headroom <= free)
}

/// Whether a device has space for some prompt of a bucket.
pub(super) fn has_space(of: Outlook<'_>, id: DeviceId, bucket: BucketKey) -> bool {
    sabotaged!(of.cx, OverfillKv) || space_wanted(of, id, bucket, of.step_bounds(id, bucket.group.model)).is_some()
}

/// The sequence that gives way first: of those that are alike, the one that came last.
pub(super) fn last_in_order(of: Outlook<'_>, id: DeviceId, only_paused: bool) -> Option<SequenceId> {
    let candidate = |(who, state): (SequenceId, State)| {
        let rank = if of.requests.is_paused(who) { Rank::PausedSequence } else { Rank::WaitingSequence };
        let is_movable = !of.requests.is_running(who) && (!only_paused || rank == Rank::PausedSequence);
        let job = of.requests.jobs().get(who.request).filter(|_| is_movable)?;
        Some(Candidate { who, bytes: state.bytes, rank, priority: job.priority, score: as_f64(job.arrival) })
    };
    first(of.residency.memory(id).sequences().rev().filter_map(candidate))
}
