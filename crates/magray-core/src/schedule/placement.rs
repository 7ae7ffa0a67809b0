//! Picks the device for what waits: the one that is expected to be done with it first, or one after the other.
//! Never lets a device idle that would help, and never gives it what would be done sooner by waiting for a faster one.

use super::batcher::{Batcher, Chosen, Room, Source, TurnBounds};
use super::cost::{Cost, as_count};
use super::device::{Device, NEAR_END_US};
use super::device_set::DeviceSet;
use super::devices::TRIAL;
use super::kv_space::has_space;
use super::outlook::Outlook;
use super::phase::{Phase, Reach};
use super::queue::{BucketKey, Load};
use super::run::Side;
use super::sabotage::sabotaged;
use super::sequence::SequenceId;
use super::{BatchId, DeviceId, DeviceKind, Moment, Placement, Sizing};
use crate::moment::{from_micros, micros};
use std::time::Duration;

/// After [`TRIAL`], a device tries a group with no more than this many times what it has computed before.
const TRIAL_GROWTH: u64 = 4;
/// The part of the longest turn that a GPU takes where sequences wait for their next tokens.
const BESIDE_PART: f64 = 0.5;
/// A sequence leaves a CPU for a GPU that is this many times faster for what is left of it.
const WORTH_LEAVING: f64 = 2.0;
/// A device that is late is looked at again after this time at least.
const RECHECK_LEAST: Duration = Duration::from_millis(1);
/// The part of a slice up to which a batch of short requests is filled with texts of one that is longer than a batch: all
/// of them are answered when the batch ends.
const MIXED_PART: f64 = 0.75;

/// A batch to be formed and started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) device: DeviceId,
    pub(super) side: Side,
    time_max_us: f64,
}

/// What a device could do for a bucket.
#[derive(Clone, Copy, Debug)]
struct Offer {
    device: DeviceId,
    cost: Cost,
    /// When it is done with what it has.
    ready_us: f64,
    /// How long the whole bucket would take it.
    all_us: f64,
    /// How long a batch may take, whatever waits.
    slice_us: f64,
    /// Whether it has the weights.
    is_loaded: bool,
    /// How long the steps after the first take, where a sequence has many: they stay where it begins.
    later_us: f64,
}

impl Offer {
    /// The time for a batch of a bucket that all devices together are done with at `level_us`: no longer than that, no
    /// longer than makes it more efficient, and not so short that it is mostly fixed cost.
    fn time_us(&self, level_us: f64) -> f64 {
        (level_us - self.ready_us).max(self.cost.worthwhile_us()).min(self.longest_us(level_us))
    }

    fn longest_us(&self, waiting_us: f64) -> f64 {
        self.cost.longest_us(waiting_us).min(self.slice_us)
    }

    /// When the first text of the bucket would be done here.
    fn finish_us(&self, load: Load, level_us: f64) -> f64 {
        let one = self.cost.of(Load { tokens: load.tokens / load.texts.max(1), texts: 1 });
        self.ready_us + self.cost.of(load).min(self.time_us(level_us)).max(one)
    }
}

/// Passes of a turn on a device. A GPU goes on with single tokens by itself, the longer the longer nothing else came: who comes
/// waits about as long as others lately did.
pub(super) fn passes(of: Outlook<'_>, bucket: BucketKey, id: DeviceId, pass_us: f64, load: Load) -> u32 {
    let device = of.devices.get(id);
    let is_next_tokens = bucket.phase.is_turn() && load.tokens == load.texts;
    if !is_next_tokens || device.spec().kind != DeviceKind::Gpu || !device.is_measured(bucket.group) {
        return 1;
    }
    let quiet_us = micros(device.undisturbed_for(bucket.group, of.cx.now));
    let most = of.step_bounds(id, bucket.group.model).step_tokens_max;
    let passes = quiet_us.min(beside_us(of)) / pass_us;
    u32::try_from(as_count(passes)).unwrap_or(u32::MAX).clamp(1, most)
}

/// How long a turn of a GPU takes at most where sequences wait for their next tokens.
fn beside_us(of: Outlook<'_>) -> f64 {
    micros(of.cx.options.generation.turn_max) * BESIDE_PART
}

/// How long a turn may take. A pass takes its time whatever is in it: in turns of less, prompts would be computed token by token, and
/// sequences one by one.
pub(super) fn turn_us(of: Outlook<'_>, cost: Cost, is_beside: bool) -> f64 {
    // Passes of one sequence do not tell what is fixed from what each sequence adds: a turn of three has room for a second one even
    // if all of it were added, and then it shows.
    let pass_us = cost.of(Load { tokens: 1, texts: 1 });
    micros(of.cx.options.generation.turn_max).max(if is_beside { 3.0 * pass_us } else { 4.0 * pass_us })
}

/// What was started, and when what waits is looked at again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placer {
    /// Batches ever started: the next one's name.
    batches: u64,
    /// The device that got the last one.
    last: DeviceId,
    /// When to look again although nothing happens.
    wake: Option<Moment>,
}

impl Placer {
    pub(super) fn new() -> Self {
        Self { batches: 0, last: DeviceId(u16::MAX), wake: None }
    }

    /// The next batch for a bucket. If there is none, the devices are reserved for it, and buckets behind it see them
    /// busy.
    pub(super) fn order_for(&self, of: Outlook<'_>, bucket: BucketKey, ready_us: &mut [f64]) -> Option<Order> {
        let load = of.requests.queue().load(bucket)?;
        let offers = offers(of, bucket, load, ready_us);
        let order = match of.cx.options.placement {
            Placement::Weighted => least_finish(of, bucket, load, &offers),
            Placement::RoundRobin => in_turn(of, self.last, bucket, &offers),
        };
        if order.is_none() {
            let level_us = level(offers.iter());
            for offer in &offers {
                let ready = &mut ready_us[usize::from(offer.device.0)];
                *ready = ready.max(level_us);
            }
        }
        order
    }

    /// A batch is started on a device; returns its name.
    pub(super) fn note_start(&mut self, device: DeviceId) -> BatchId {
        self.last = device;
        self.batches += 1;
        BatchId(self.batches - 1)
    }

    /// Plans when what waits must be looked at again although nothing happens.
    pub(super) fn plan_wake(&mut self, of: Outlook<'_>) {
        self.wake = wake_after(of);
    }

    pub(super) fn wake(&self) -> Option<Moment> {
        self.wake
    }
}

/// The devices that may compute a bucket now, and how long they would take.
fn offers(of: Outlook<'_>, bucket: BucketKey, load: Load, ready_us: &[f64]) -> Vec<Offer> {
    let present = of.model(bucket.group.model).present;
    let later = later_steps(of, bucket);
    let offer = |device: DeviceId| {
        let cost = of.devices.cost(device, bucket.group);
        let is_loaded = present.contains(device);
        let mut ready_us = ready_us[usize::from(device.0)];
        if !is_loaded {
            ready_us = ready_us.max(of.arrival_us(device, bucket.group.model));
        }
        let later_us = later * cost.of(Load { tokens: 1, texts: 1 });
        let slice_us = slice_us(of, device, cost);
        Offer { device, cost, ready_us, all_us: cost.of_all(load), slice_us, is_loaded, later_us }
    };
    candidates(of, bucket).iter().map(offer).collect()
}

/// Steps of the first sequence of a bucket that follow its first new token, where it has not begun.
fn later_steps(of: Outlook<'_>, bucket: BucketKey) -> f64 {
    if bucket.phase != Phase::Fresh {
        return 0.0;
    }
    let first = of.requests.queue().walk(std::iter::once(bucket), Side::Front, of.cx.aging()).next();
    let sequence = first.map(|(ticket, run)| SequenceId { request: run.request, number: ticket.position.first });
    let progress = sequence.and_then(|sequence| of.requests.progress(sequence));
    progress.map_or(0.0, |progress| f64::from(progress.new_max.saturating_sub(progress.new + 1)))
}

/// Whether a GPU with the weights and space would be done with a sequence much sooner than the CPU that goes on with it, though it computes
/// all known tokens again. So it leaves a CPU that took it when the GPU failed, once that is back.
pub(super) fn should_leave(of: Outlook<'_>, id: DeviceId, sequence: SequenceId, reach: Reach) -> bool {
    let (Some(job), Some(progress)) = (of.requests.jobs().get(sequence.request), of.requests.progress(sequence)) else {
        return false;
    };
    if of.devices.get(id).spec().kind != DeviceKind::Cpu || of.cx.options.placement != Placement::Weighted {
        return false;
    }
    let left = f64::from(progress.new_max.saturating_sub(progress.new));
    let next_us = |device: DeviceId| of.devices.cost(device, job.group).of(Load { tokens: 1, texts: 1 });
    let is_sooner = |other: DeviceId| {
        let (device, memory) = (of.devices.get(other), of.residency.memory(other));
        let known = Load { tokens: u64::from(progress.known), texts: 1 };
        let there_us = of.devices.cost(other, job.group).of(known) + left * next_us(other);
        device.spec().kind == DeviceKind::Gpu
            && device.health().is_in_rotation()
            && device.is_measured(job.group)
            && of.step_bounds(other, job.group.model).kept(progress).saturating_add(memory.headroom())
                <= memory.ledger().kv_free()
            && there_us * WORTH_LEAVING < left * next_us(id)
    };
    let others = reach.may.without(reach.rather_not).without(of.devices.full()).and(of.model(job.group.model).present);
    others.iter().any(is_sooner)
}

/// When the first text of a bucket is expected to be done by the devices that have or get its model.
pub(super) fn first_finish_us(of: Outlook<'_>, bucket: BucketKey, load: Load, ready_us: &[f64]) -> Option<f64> {
    let offers = offers(of, bucket, load, ready_us);
    let level_us = level(offers.iter());
    offers.iter().map(|offer| offer.finish_us(load, level_us)).min_by(f64::total_cmp)
}

/// Devices that have a bucket's model, or will have it, and that the bucket may go to. Those it should avoid count only
/// if there is no other.
fn candidates(of: Outlook<'_>, bucket: BucketKey) -> DeviceSet {
    let model = of.model(bucket.group.model);
    let near = model.present.union(model.coming);
    let may = match bucket.phase {
        Phase::OneStep => bucket.reach.may.and(near),
        Phase::Fresh => bucket.reach.may.and(near).iter().filter(|device| has_space(of, *device, bucket)).collect(),
        Phase::Prompt(device) | Phase::Next(device) => return DeviceSet::one(device).and(model.present),
    };
    let preferred = may.without(bucket.reach.rather_not);
    let devices = if preferred.is_empty() { may } else { preferred };
    let not_full = devices.without(of.devices.full());
    let devices = if not_full.and(model.present).is_empty() { devices } else { not_full };
    // A guess says nothing of when a batch ends: nothing waits for a device that is being tried. Sequences of many steps wait for a
    // GPU all the same: elsewhere they would stay.
    let is_aged = of.is_aged(bucket);
    let is_known = |&device: &DeviceId| {
        let device = of.devices.get(device);
        let waits_for_gpu = bucket.phase == Phase::Fresh && device.spec().kind == DeviceKind::Gpu;
        device.is_idle() || device.is_measured(bucket.group) || is_aged || waits_for_gpu
    };
    let known: DeviceSet = devices.iter().filter(is_known).collect();
    if of.cx.options.placement == Placement::Weighted { known } else { devices }
}

/// The batch by which the bucket is expected to be done first.
fn least_finish(of: Outlook<'_>, bucket: BucketKey, load: Load, offers: &[Offer]) -> Option<Order> {
    let level_us = level(offers.iter());
    let finish = |offer: &&Offer| offer.finish_us(load, level_us) + offer.later_us;
    let best = offers.iter().min_by(|a, b| finish(a).total_cmp(&finish(b)))?;
    if is_open(of, best, bucket) {
        let time_max_us = best.time_us(level_us);
        return Some(Order { device: best.device, side: Side::Front, time_max_us });
    }
    if bucket.phase.is_turn() {
        // Its state would stay where it begins.
        return None;
    }
    // The first text does best to wait for the best device. The last one would wait for all before it as well: an
    // idle device takes it if it is done sooner so, and no more than it does in the time that the others need.
    offers.iter().find_map(|idle| {
        let device = of.devices.get(idle.device);
        if idle.device == best.device || !device.is_idle() || !is_open(of, idle, bucket) {
            return None;
        }
        let last = last_text(of, bucket, idle.device)?;
        let finish_us = idle.ready_us + idle.cost.of(last);
        let others_us = level(offers.iter().filter(|other| other.device != idle.device));
        let time_max_us = (level_us - idle.ready_us).min(idle.longest_us(level_us));
        (finish_us < others_us).then_some(Order { device: idle.device, side: Side::Back, time_max_us })
    })
}

/// The next device after the last one, if it can take a batch; otherwise the bucket waits for it.
fn in_turn(of: Outlook<'_>, last: DeviceId, bucket: BucketKey, offers: &[Offer]) -> Option<Order> {
    // A device without the weights takes part as soon as it has them.
    let loaded = || offers.iter().filter(|offer| offer.is_loaded);
    let next = loaded().find(|offer| offer.device > last).or(loaded().next())?;
    let order = Order { device: next.device, side: Side::Front, time_max_us: next.longest_us(next.all_us) };
    is_open(of, next, bucket).then_some(order)
}

/// Whether a device takes a batch of a bucket now.
fn is_open(of: Outlook<'_>, offer: &Offer, bucket: BucketKey) -> bool {
    let device = of.devices.get(offer.device);
    let slots = device.spec().slots.max(1) + usize::from(sabotaged!(of.cx, ExceedSlots));
    let has_weights = offer.is_loaded || sabotaged!(of.cx, StartWithoutWeights);
    if device.batches() >= slots || !has_weights {
        return false;
    }
    if bucket.phase.is_turn() {
        // Those of the turn under way are in the next one, too: it is formed when it has ended.
        let are_texts_next = || device.is_for_texts() && is_waited_for(of, offer.device, false);
        let is_next = of.is_aged(bucket) || device.is_next_due(of.cx.now);
        return !device.has_turn(bucket.group) && (device.is_idle() || is_next && !are_texts_next());
    }
    // Texts that are always at hand when a batch ends would leave no room to turns.
    if !device.is_idle() && !device.is_for_texts() && is_waited_for(of, offer.device, true) {
        return false;
    }
    let room = room(of, offer.device, bucket, offer.cost, offer.cost.full_us().min(offer.slice_us));
    let waiting = of.requests.queue().partners(bucket, offer.device).filter_map(|key| of.requests.queue().load(key));
    let is_filled = room.is_filled_by(waiting.fold(Load::default(), Load::plus));
    match of.cx.options.batching.sizing {
        Sizing::Fixed { timeout, .. } => {
            is_filled
                || bucket.is_isolated
                || of.requests.queue().oldest(bucket).is_some_and(|first| first + timeout <= of.cx.now)
        }
        Sizing::Adaptive if device.is_idle() => true,
        // Who has waited long takes the next slot; otherwise full batches of others could always be before it.
        Sizing::Adaptive if of.is_aged(bucket) => true,
        // A second batch at hand saves the gap between two, but what it holds cannot grow any more. A CPU's batches are
        // long, and what is urgent waits for those that are at hand: it gets the next when it has use for it.
        Sizing::Adaptive => {
            let is_next_due = device.is_next_due(of.cx.now);
            device.is_measured(bucket.group) && (is_next_due || is_filled && device.spec().kind == DeviceKind::Gpu)
        }
    }
}

/// Whether turns could be next on a device, or else whole texts.
fn is_waited_for(of: Outlook<'_>, id: DeviceId, by_turns: bool) -> bool {
    let has_turn = |key: BucketKey| by_turns && of.devices.get(id).has_turn(key.group);
    let is_there = |key: BucketKey| of.model(key.group.model).present.contains(id);
    let could_be = |key: BucketKey| {
        key.phase.is_turn() == by_turns && !has_turn(key) && is_there(key) && candidates(of, key).contains(id)
    };
    of.requests.queue().keys().any(could_be)
}

/// How long a batch may take, so that those who come meanwhile do not wait long.
fn slice_us(of: Outlook<'_>, id: DeviceId, cost: Cost) -> f64 {
    let batching = of.cx.options.batching;
    let Some(slices) = batching.slices.filter(|_| !sabotaged!(of.cx, OverlongBatch)) else { return f64::INFINITY };
    let spec = of.devices.get(id).spec();
    match spec.kind {
        DeviceKind::Gpu => micros(slices.gpu).max(cost.efficient_us()),
        DeviceKind::Cpu => {
            let slice_us = micros(slices.cpu);
            let busy = Load { tokens: u64::from(spec.batch_tokens_least), texts: 1 };
            // On one that computes only its own models, few others wait.
            let most = if spec.is_reserved { 4.0 } else { 2.0 };
            slice_us.max(cost.of(busy).min(most * slice_us))
        }
    }
}

/// How much a batch may hold.
fn room(of: Outlook<'_>, id: DeviceId, bucket: BucketKey, cost: Cost, time_max_us: f64) -> Room {
    let device = of.devices.get(id);
    let texts_max = u64::from(of.cx.options.batching.texts_max.max(1));
    let mut room = match of.cx.options.batching.sizing {
        Sizing::Fixed { texts, .. } => Room {
            tokens_max: device.batch_tokens_max(),
            texts_max: texts_max.min(u64::from(texts.max(1))),
            cost,
            time_max_us: f64::INFINITY,
            mixed_us: f64::INFINITY,
        },
        Sizing::Adaptive => {
            let largest = device.largest(bucket.group);
            Room {
                tokens_max: device.batch_tokens_max().min(TRIAL.tokens.max(TRIAL_GROWTH * largest.tokens)),
                texts_max: texts_max.min(TRIAL.texts.max(TRIAL_GROWTH * largest.texts)),
                cost,
                time_max_us,
                mixed_us: time_max_us.min(slice_us(of, id, cost) * MIXED_PART),
            }
        }
    };
    if bucket.phase.is_turn() {
        let goes_on = |key: BucketKey| key.phase == Phase::Next(id);
        let is_beside = of.requests.queue().partners(bucket, id).any(goes_on);
        room.time_max_us = turn_us(of, cost, is_beside);
        // Where one token takes most of that time, nothing would be left for prompts.
        let leaves_room = 2.0 * cost.of(Load { tokens: 1, texts: 1 }) <= beside_us(of);
        let is_gpu = device.spec().kind == DeviceKind::Gpu;
        if is_gpu && leaves_room && is_beside {
            room.time_max_us = beside_us(of);
        }
        if sabotaged!(of.cx, OverlongTurn) {
            room.time_max_us *= 10.0;
        }
    }
    if sabotaged!(of.cx, OverfillBatch) {
        let endless = f64::INFINITY;
        room = Room { tokens_max: u64::MAX, texts_max: 2 * texts_max, time_max_us: endless, mixed_us: endless, ..room };
    }
    room
}

/// The text that would wait longest of those that a batch on this device could hold.
fn last_text(of: Outlook<'_>, bucket: BucketKey, device: DeviceId) -> Option<Load> {
    let mut runs = of.requests.queue().walk(of.requests.queue().partners(bucket, device), Side::Back, of.cx.aging());
    let (_, run) = runs.next()?;
    let tokens = of.requests.jobs().get(run.request)?.tokens(run.end - 1);
    Some(Load { tokens, texts: 1 })
}

pub(super) fn choose(of: Outlook<'_>, bucket: BucketKey, order: Order, cost: Cost) -> Chosen {
    let room = room(of, order.device, bucket, cost, order.time_max_us);
    let source = Source { lead: bucket, device: order.device, side: order.side };
    let batcher = Batcher { queue: of.requests.queue(), jobs: of.requests.jobs(), room, aging: of.cx.aging() };
    if !bucket.phase.is_turn() {
        return batcher.choose(source);
    }
    let memory = of.residency.memory(order.device);
    let kv_free = memory.ledger().kv_free();
    let takes_prompts = !sabotaged!(of.cx, StarvePrompts);
    let step = of.step_bounds(order.device, bucket.group.model);
    batcher.choose_turn(source, TurnBounds { memory, kv_free, step, takes_prompts })
}

fn wake_after(of: Outlook<'_>) -> Option<Moment> {
    let now = of.cx.now;
    let buckets = of.requests.queue().keys().filter_map(|bucket| {
        // Not only the candidates of now: age makes others of them.
        let model = of.model(bucket.group.model);
        let devices = || bucket.reach.may.and(model.present).iter().map(|device| of.devices.get(device));
        if !devices().any(Device::has_free_slot) {
            return None;
        }
        let oldest = of.requests.queue().oldest(bucket)?;
        let timeout = match of.cx.options.batching.sizing {
            Sizing::Fixed { timeout, .. } => Some(oldest + timeout),
            Sizing::Adaptive => None,
        };
        let aged = Some(oldest + of.cx.aging().age_max);
        let by_age = [timeout, aged].into_iter().flatten().filter(|&due| due > now);
        let ends = devices().filter_map(Device::expected_end).map(|end| end.before(from_micros(NEAR_END_US)));
        let coming = bucket.reach.may.and(model.coming).iter();
        let loads = coming.filter_map(|device| of.resident(device, bucket.group.model).ready_at);
        let recheck =
            ends.chain(loads).map(|end| if end > now { end } else { now + now.since(end).max(RECHECK_LEAST) });
        recheck.chain(by_age).chain(waits_until(of, bucket)).min()
    });
    buckets.min()
}

/// When it no longer pays to wait for a device that is late, because another is expected to be done before it: the
/// later it is, the longer it is expected to take.
fn waits_until(of: Outlook<'_>, bucket: BucketKey) -> Option<Moment> {
    let now = of.cx.now;
    let is_late = |device: &Device| device.expected_end().is_some_and(|end| end < now);
    if !of.devices.iter().any(is_late) {
        return None;
    }
    let load = of.requests.queue().load(bucket)?;
    let ready_us = of.devices.remaining_us(now);
    let offers = offers(of, bucket, load, &ready_us);
    let level_us = level(offers.iter());
    let finish_us = |offer: &Offer| offer.finish_us(load, level_us);
    let best = offers.iter().min_by(|a, b| finish_us(a).total_cmp(&finish_us(b)))?;
    let has_slot = |offer: &&Offer| offer.is_loaded && of.devices.get(offer.device).has_free_slot();
    let other_us = offers.iter().filter(has_slot).map(finish_us).min_by(f64::total_cmp)?;
    let is_waited_for = is_late(of.devices.get(best.device)) && !has_slot(&best);
    let pays_us = other_us - finish_us(best);
    is_waited_for.then(|| now + from_micros(pays_us).max(RECHECK_LEAST))
}

/// When devices are done with a bucket if each takes as much of it as it can: the level to which work rises that is
/// poured over devices which are ready at different times and work at different speeds.
fn level<'a>(offers: impl Iterator<Item = &'a Offer>) -> f64 {
    let mut offers: Vec<&Offer> = offers.collect();
    offers.sort_by(|a, b| a.ready_us.total_cmp(&b.ready_us));
    let (mut speed, mut head_start, mut level_us) = (0.0, 0.0, f64::INFINITY);
    for offer in offers {
        if offer.ready_us >= level_us {
            break;
        }
        speed += 1.0 / offer.all_us;
        head_start += offer.ready_us / offer.all_us;
        level_us = (1.0 + head_start) / speed;
    }
    level_us
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer(ready_us: f64, all_us: f64) -> Offer {
        Offer {
            device: DeviceId(0),
            cost: Cost::GPU,
            ready_us,
            all_us,
            slice_us: f64::INFINITY,
            is_loaded: true,
            later_us: 0.0,
        }
    }

    #[test]
    fn work_is_poured_over_devices_until_all_end_together() {
        assert!((level([offer(0.0, 100.0)].iter()) - 100.0).abs() < 1e-9);
        assert!((level([offer(0.0, 100.0), offer(0.0, 100.0)].iter()) - 50.0).abs() < 1e-9);
        assert!((level([offer(0.0, 100.0), offer(200.0, 1.0)].iter()) - 100.0).abs() < 1e-9);
        // The first does 30 % alone, then both share the rest.
        assert!((level([offer(0.0, 100.0), offer(30.0, 100.0)].iter()) - 65.0).abs() < 1e-9);
        assert!(level([].iter()).is_infinite());
    }

    proptest! {
        #[test]
        fn all_of_the_work_is_done_when_the_level_is_reached(
            devices in prop::collection::vec((0.0..1e6, 1.0..1e6), 1..8),
        ) {
            let offers: Vec<Offer> = devices.iter().map(|&(ready_us, all_us)| offer(ready_us, all_us)).collect();
            let level_us = level(offers.iter());
            let done: f64 = offers.iter().map(|offer| (level_us - offer.ready_us).max(0.0) / offer.all_us).sum();
            prop_assert!((done - 1.0).abs() < 1e-6, "{done}");
        }
    }
}
