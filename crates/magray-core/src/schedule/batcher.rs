//! Fills a batch from the queue, in order, up to what the device, the options and the expected time allow.
//! Never mixes groups, never leaves an old request behind a younger one, and looks at few texts more than it takes.

use super::DeviceId;
use super::cost::Cost;
use super::jobs::Jobs;
use super::queue::{Aging, LaneKey, Load, Queue, Run, Side, Ticket};
use std::ops::Range;

/// Runs that do not fit and may be passed over while a batch is filled. More would hardly fill it better.
const MISFITS_MAX: u32 = 16;

/// How much a batch may hold. Its first text is taken whatever its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) tokens_max: u64,
    pub(super) texts_max: u64,
    pub(super) cost: Cost,
    pub(super) time_max_us: f64,
}

impl Room {
    fn fits(&self, load: Load) -> bool {
        let is_within = load.tokens <= self.tokens_max && load.texts <= self.texts_max;
        load.texts == 1 || is_within && self.cost.of(load) <= self.time_max_us
    }

    /// Whether so much work is enough for a batch that need not wait for more.
    pub(super) fn is_filled_by(&self, load: Load) -> bool {
        load.tokens >= self.tokens_max || load.texts >= self.texts_max || self.cost.of(load) >= self.time_max_us
    }
}

/// Where a batch is taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) lead: LaneKey,
    pub(super) device: DeviceId,
    pub(super) side: Side,
}

/// Texts chosen for a batch; they still wait in the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    pub(super) runs: Vec<(Ticket, Range<u32>)>,
    pub(super) load: Load,
}

/// Chooses the texts of a batch.
pub(super) fn choose(queue: &Queue, jobs: &Jobs, source: Source, room: Room, aging: Aging) -> Chosen {
    let mut chosen = Chosen::default();
    let mut misfits = 0;
    let mut owner = None;
    let lanes = queue.partners(source.lead, source.device);
    for (ticket, run) in queue.walk(lanes, source.side, aging) {
        if source.lead.is_alone && *owner.get_or_insert(run.request) != run.request {
            break;
        }
        let (texts, load) = part_of(jobs, &ticket, run, source.side, room, chosen.load);
        let is_whole = texts == (ticket.place.first..run.end);
        if !texts.is_empty() {
            chosen.runs.push((ticket, texts));
            chosen.load = load;
        }
        if is_whole {
            continue;
        }
        // What is left of an old request, or of any from the back, must not be overtaken by what stands behind it.
        misfits += 1;
        let is_full = chosen.load.texts >= room.texts_max || chosen.load.tokens >= room.tokens_max;
        if is_full || misfits > MISFITS_MAX || aging.is_aged(run) {
            break;
        }
    }
    chosen
}

/// The texts of a run that fit, and the load of the batch with them.
fn part_of(jobs: &Jobs, ticket: &Ticket, run: &Run, side: Side, room: Room, before: Load) -> (Range<u32>, Load) {
    let whole = ticket.place.first..run.end;
    let mut load = before;
    let mut taken = 0;
    let job = jobs.get(run.request);
    for step in 0..run.end - whole.start {
        let text = match side {
            Side::Front => whole.start + step,
            Side::Back => run.end - 1 - step,
        };
        let tokens = job.map_or(1, |job| job.text_tokens(text));
        let more = load.plus(Load { tokens, texts: 1 });
        if !room.fits(more) {
            break;
        }
        load = more;
        taken += 1;
    }
    let texts = match side {
        Side::Front => whole.start..whole.start + taken,
        Side::Back => run.end - taken..run.end,
    };
    (texts, load)
}
