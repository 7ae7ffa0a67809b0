//! Random calls of every kind against a naive model, with a driver that fails now and then.

use proptest::prelude::*;

use super::*;

const SMALL_WORLD: PoolOptions = PoolOptions {
    range_bytes: 8 << 20,
    limit_bytes: 512 << 10,
    grain_bytes: 4 << 10,
    handle_bytes: 32 << 10,
    large_bytes: 16 << 10,
    align_bytes: 64,
};

/// One call, and a driver's failure that may come during it.
#[derive(Clone, Copy, Debug)]
struct Step {
    call: Call,
    fails_after: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Allocate { bytes: u64, stream: u32 },
    AllocateParkable { bytes: u64 },
    Free { which: usize },
    FreeAfter { which: usize, stream: u32 },
    Reached { stream: u32, share: u8 },
    Park { which: usize },
    Restore { which: usize },
    Reserve { bytes: u64 },
    Age,
    Trim { keep: u32 },
    TrimAll,
    Stitch { idle: u32 },
    Note { model: u32, bytes: u64 },
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..2048_u64, 3 => 2048..16_384_u64, 3 => 16_384..100_000_u64, 1 => 100_000..600_000_u64]
}

fn calls() -> impl Strategy<Value = Call> {
    let which = || any::<usize>();
    prop_oneof![
        10 => (sizes(), 0..3_u32).prop_map(|(bytes, stream)| Call::Allocate { bytes, stream }),
        2 => sizes().prop_map(|bytes| Call::AllocateParkable { bytes }),
        6 => which().prop_map(|which| Call::Free { which }),
        4 => (which(), 0..3_u32).prop_map(|(which, stream)| Call::FreeAfter { which, stream }),
        2 => (0..3_u32, any::<u8>()).prop_map(|(stream, share)| Call::Reached { stream, share }),
        2 => which().prop_map(|which| Call::Park { which }),
        2 => which().prop_map(|which| Call::Restore { which }),
        1 => sizes().prop_map(|bytes| Call::Reserve { bytes }),
        1 => Just(Call::Age),
        1 => (0..3_u32).prop_map(|keep| Call::Trim { keep }),
        1 => Just(Call::TrimAll),
        1 => (0..2_u32).prop_map(|idle| Call::Stitch { idle }),
        1 => (0..3_u32, sizes()).prop_map(|(model, bytes)| Call::Note { model, bytes }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fails_after = prop_oneof![4 => Just(None), 1 => (0..8_u64).prop_map(Some)];
    let step = (calls(), fails_after).prop_map(|(call, fails_after)| Step { call, fails_after });
    proptest::collection::vec(step, 1..300)
}

/// Memory that a stream may still use.
#[derive(Clone, Copy, Debug)]
struct Rest {
    from: u64,
    to: u64,
    stream: u32,
    point: u64,
}

/// The naive model: who has what.
struct World {
    memory: Shared,
    pool: Pool<Shared>,
    live: Vec<(Block, bool)>,
    resting: Vec<Rest>,
    /// The last point of each stream that was given out, and the last that was reached.
    points: [(u64, u64); 3],
}

impl World {
    fn new() -> Self {
        let memory = Shared::default();
        let pool = Pool::new(SMALL_WORLD, memory.clone());
        Self { memory, pool, live: Vec::new(), resting: Vec::new(), points: [(0, 0); 3] }
    }

    fn run(&mut self, step: Step) {
        self.memory.0.borrow_mut().fail_after(step.fails_after);
        let before = self.pool.stats();
        let failed = self.call(step.call);
        self.memory.0.borrow_mut().fail_after(None);
        let after = self.pool.stats();
        if let Some(error) = failed {
            assert_eq!((before.used, before.blocks, before.parked), (after.used, after.blocks, after.parked));
            assert!(after.reserved <= before.reserved, "a failure leaves no new memory behind");
            assert!(
                error != AllocateError::Upstream(SimulatedFailure) || step.fails_after.is_some(),
                "the driver fails only when it is told to"
            );
        }
        self.check();
    }

    /// Makes a call; tells how it failed.
    fn call(&mut self, call: Call) -> Option<AllocateError<SimulatedFailure>> {
        match call {
            Call::Allocate { bytes, stream } => match self.pool.allocate(bytes, StreamId(stream)) {
                Ok(block) => self.receive(block, Some(stream)),
                Err(error) => return Some(self.excused(error, bytes)),
            },
            Call::AllocateParkable { bytes } => match self.pool.allocate_parkable(bytes) {
                Ok(block) => self.receive(block, None),
                Err(error) => return Some(self.excused(error, bytes)),
            },
            Call::Free { which } => {
                if let Some((block, _)) = self.remove(which) {
                    self.pool.free(block);
                }
            }
            Call::FreeAfter { which, stream } => {
                if let Some((block, is_parked)) = self.remove(which) {
                    let (given, _) = &mut self.points[stream as usize];
                    *given += 1;
                    let rest = Rest { from: block.at(), to: block.at() + block.bytes(), stream, point: *given };
                    if !is_parked {
                        self.resting.push(rest);
                    }
                    self.pool.free_after(block, StreamId(stream), rest.point);
                }
            }
            Call::Reached { stream, share } => {
                let (given, reached) = &mut self.points[stream as usize];
                *reached += (*given - *reached) * u64::from(share) / 255;
                let reached = *reached;
                self.resting.retain(|rest| rest.stream != stream || rest.point > reached);
                self.pool.reached(StreamId(stream), reached);
            }
            Call::Park { which } => {
                if let Some((block, is_parked)) = pick(&mut self.live, which)
                    && !*is_parked
                    && block.at() >= self.pool.options.small_part_bytes()
                {
                    let given = self.pool.park(block);
                    assert!(!block.is_apart || given >= block.bytes(), "all of its memory is its own");
                    *is_parked = true;
                }
            }
            Call::Restore { which } => {
                if let Some((block, is_parked)) = pick(&mut self.live, which)
                    && *is_parked
                {
                    match self.pool.restore(block) {
                        Ok(()) => *is_parked = false,
                        Err(error) => return Some(error),
                    }
                }
            }
            Call::Reserve { bytes } => match self.pool.reserve(bytes) {
                Ok(()) => {
                    let before = self.pool.stats();
                    let block = self.pool.take(bytes);
                    assert_eq!(self.pool.stats().driver_calls, before.driver_calls, "it was reserved");
                    self.receive(block, Some(MAIN.0));
                }
                Err(error) => return Some(self.excused(error, bytes)),
            },
            Call::Age => self.pool.age(),
            Call::Trim { keep } => {
                let before = self.pool.stats();
                let given = self.pool.trim(keep);
                assert!(given == 0 || before.reserved - given >= before.predicted, "what is expected is kept");
            }
            Call::TrimAll => {
                self.pool.trim_all();
                assert!(self.pool.spares(|_| true).is_empty());
            }
            Call::Stitch { idle } => {
                // What could not be mapped again was free, and is given back.
                let _ = self.pool.stitch(idle);
            }
            Call::Note { model, bytes } => self.pool.note(model, 0, bytes),
        }
        None
    }

    /// The limit is an excuse only if there was truly no room.
    fn excused(&self, error: AllocateError<SimulatedFailure>, bytes: u64) -> AllocateError<SimulatedFailure> {
        if matches!(error, AllocateError::Limit { .. }) {
            let spare: u64 = self.pool.spares(|_| true).iter().map(|spare| spare.bytes).sum();
            let needed = bytes.next_multiple_of(SMALL_WORLD.grain_bytes);
            let has_place = self.pool.lowest_hole(Kind::Small, needed).is_some()
                && self.pool.lowest_hole(Kind::Large, needed).is_some();
            let room = spare + SMALL_WORLD.limit_bytes - self.pool.stats().reserved;
            assert!(needed > room || !has_place, "{needed} bytes would have fitted into {room}");
        }
        error
    }

    fn receive(&mut self, block: Block, stream: Option<u32>) {
        let (from, to) = (block.at(), block.at() + block.bytes());
        let align = if block.bytes() < SMALL_WORLD.large_bytes { SMALL_WORLD.align_bytes } else { 4096 };
        assert_eq!(from % align, 0);
        for (other, _) in &self.live {
            assert!(to <= other.at() || from >= other.at() + other.bytes(), "{block:?} overlaps {other:?}");
        }
        // Nobody else gets the rest of the last unit.
        let is_small = from < self.pool.options.small_part_bytes();
        let to = to.next_multiple_of(if is_small { SMALL_WORLD.align_bytes } else { SMALL_WORLD.grain_bytes });
        let mut left = Vec::new();
        for rest in self.resting.drain(..) {
            if to <= rest.from || from >= rest.to {
                left.push(rest);
                continue;
            }
            assert_eq!(Some(rest.stream), stream, "another stream still uses {rest:?}");
            left.extend([Rest { to: from.max(rest.from), ..rest }, Rest { from: to.min(rest.to), ..rest }]);
        }
        left.retain(|rest| rest.from < rest.to);
        self.resting = left;
        self.live.push((block, false));
    }

    fn remove(&mut self, which: usize) -> Option<(Block, bool)> {
        if self.live.is_empty() { None } else { Some(self.live.swap_remove(which % self.live.len())) }
    }

    fn check(&self) {
        let memory = self.memory.0.borrow();
        check(&self.pool, &memory);
        let stats = self.pool.stats();
        assert_eq!(stats.used, self.live.iter().map(|(block, _)| block.bytes()).sum::<u64>());
        assert_eq!(stats.blocks, self.live.len() as u64);
        for (block, is_parked) in &self.live {
            assert_eq!(self.pool.is_parked(block), *is_parked);
            assert!(*is_parked || memory.is_mapped(block.at(), block.bytes()));
        }
        for rest in &self.resting {
            assert!(memory.is_mapped(rest.from, rest.to - rest.from), "a stream still uses {rest:?}");
        }
    }
}

fn pick<T>(items: &mut [T], which: usize) -> Option<&mut T> {
    let length = items.len();
    if length == 0 { None } else { items.get_mut(which % length) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_call_keeps_the_pool_whole(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
        }
        // All streams end, all is given back: one hole is left of each part.
        for stream in 0..3 {
            world.pool.reached(StreamId(stream), u64::MAX);
        }
        world.resting.clear();
        while let Some((block, _)) = world.remove(0) {
            world.pool.free(block);
        }
        world.pool.trim_all();
        world.check();
        prop_assert_eq!(world.pool.stats().reserved, 0);
        prop_assert_eq!([Kind::Small, Kind::Large].map(|kind| world.pool.part(kind).walk().len()), [1, 1]);
    }

    #[test]
    fn a_pool_that_goes_releases_everything_once(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
        }
        let memory = world.memory.clone();
        drop(world);
        prop_assert_eq!((memory.0.borrow().handles(), memory.0.borrow().created_bytes()), (0, 0));
    }
}
