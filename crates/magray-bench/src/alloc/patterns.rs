//! The patterns of taking and giving back, and the time of each pair of calls.
//! The same numbers in every run, so that other allocators can be given the same to do.

use std::time::Instant;

use magray_core::SplitMix64;

use super::{
    report::{Pairs, size_name},
    subject::Subject,
};
use crate::failure::Failure;

/// Other programs that draw the same numbers begin with this too.
const SEED: u64 = 5;

/// What reading the clock twice, with nothing between, takes; the median.
pub(super) fn clock_ns() -> u64 {
    let mut times: Vec<u64> = (0..100_000).map(|_| nanos(Instant::now())).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Takes and gives back one size, with nothing else alive.
pub(super) fn one_size(subject: &mut impl Subject, bytes: u64, pairs: usize) -> Result<Pairs, Failure> {
    // The first pair of all maps the memory.
    let warm = subject.allocate(bytes)?;
    subject.free(warm);
    let before = subject.stats().driver_calls;
    let mut times = Vec::with_capacity(pairs);
    for _ in 0..pairs {
        let started = Instant::now();
        let block = subject.allocate(bytes)?;
        subject.free(block);
        times.push(nanos(started));
    }
    let driver_calls = subject.stats().driver_calls - before;
    Ok(Pairs::of(size_name(bytes), times, driver_calls))
}

pub(super) struct Many {
    pub(super) live: usize,
    pub(super) bytes_max: u64,
    pub(super) pairs: usize,
}

/// Takes this many blocks, then replaces one by another of random size again and again: the old one is freed first or last, by
/// chance.
pub(super) fn many_alive(subject: &mut impl Subject, many: &Many) -> Result<Pairs, Failure> {
    let mut chance = SplitMix64::new(SEED);
    let mut live = Vec::with_capacity(many.live + 1);
    for _ in 0..many.live {
        live.push(subject.allocate(1 + chance.bits() % many.bytes_max)?);
    }
    let before = subject.stats().driver_calls;
    let mut times = Vec::with_capacity(many.pairs);
    for _ in 0..many.pairs {
        let bytes = 1 + chance.bits() % many.bytes_max;
        let which = chance.below(many.live);
        let goes_first = chance.bits().is_multiple_of(2);
        // Swapped out before the clock is read: the list is ours, not the allocator's.
        let old = live.swap_remove(which);
        let started = Instant::now();
        let new = if goes_first {
            subject.free(old);
            subject.allocate(bytes)?
        } else {
            let new = subject.allocate(bytes)?;
            subject.free(old);
            new
        };
        times.push(nanos(started));
        live.push(new);
    }
    let driver_calls = subject.stats().driver_calls - before;
    live.into_iter().for_each(|block| subject.free(block));
    let case = format!("{} alive, up to {}", many.live, size_name(many.bytes_max));
    Ok(Pairs::of(case, times, driver_calls))
}

/// What becomes of the small block that each round leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survivors {
    GoNextRound,
    Stay,
}

impl Survivors {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GoNextRound => "survivors that go a round later",
            Self::Stay => "survivors that stay",
        }
    }
}

/// Two large blocks and a small one in each of 1,000 rounds; the small one outlives the round.
pub(super) fn survivors(subject: &mut impl Subject, survivors: Survivors) -> Result<(), Failure> {
    const HALF_MIB: u64 = 1 << 19;
    let mut kept = Vec::new();
    for _ in 0..1000 {
        let large = [subject.allocate(182 * HALF_MIB)?, subject.allocate(91 * HALF_MIB)?];
        let survivor = subject.allocate(4 * HALF_MIB)?;
        large.into_iter().for_each(|block| subject.free(block));
        if survivors == Survivors::GoNextRound {
            kept.drain(..).for_each(|block| subject.free(block));
        }
        kept.push(survivor);
    }
    kept.into_iter().for_each(|block| subject.free(block));
    Ok(())
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
