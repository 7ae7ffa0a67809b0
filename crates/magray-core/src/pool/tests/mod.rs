//! Tests of the pool over simulated memory that checks every call.

mod books;
mod memory_flow;
mod parking;
mod patterns;
mod properties;
mod streams;

use std::{cell::RefCell, rc::Rc};

use super::{allocate::Kind, part::State, *};

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId(0);

/// What a GPU's pool is like.
const LIKE_A_GPU: PoolOptions = PoolOptions {
    range_bytes: 64 << 30,
    limit_bytes: 8 << 30,
    grain_bytes: 2 * MIB,
    handle_bytes: 64 * MIB,
    large_bytes: 8 * MIB,
    align_bytes: 256,
};

fn gpu_pool() -> Pool<SimulatedMemory> {
    Pool::new(LIKE_A_GPU, SimulatedMemory::new())
}

fn gpu_pool_of(limit_bytes: u64) -> Pool<SimulatedMemory> {
    Pool::new(PoolOptions { limit_bytes, ..LIKE_A_GPU }, SimulatedMemory::new())
}

impl<U: Upstream> Pool<U> {
    fn take(&mut self, bytes: u64) -> Block {
        self.allocate(bytes, MAIN).unwrap_or_else(|_| panic!("no block of {bytes} bytes"))
    }
}

/// Memory that a test can look at when the pool is gone.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<SimulatedMemory>>);

impl Upstream for Shared {
    type Handle = SimulatedHandle;
    type Error = SimulatedFailure;

    fn create(&mut self, bytes: u64) -> Result<SimulatedHandle, SimulatedFailure> {
        self.0.borrow_mut().create(bytes)
    }
    fn map(&mut self, at: u64, bytes: u64, handle: &SimulatedHandle) -> Result<(), SimulatedFailure> {
        self.0.borrow_mut().map(at, bytes, handle)
    }
    fn unmap(&mut self, at: u64, bytes: u64) {
        self.0.borrow_mut().unmap(at, bytes);
    }
    fn release(&mut self, handle: SimulatedHandle) {
        self.0.borrow_mut().release(handle);
    }
}

/// Checks everything that must always hold of a pool, against the memory that it uses.
fn check<U: Upstream>(pool: &Pool<U>, memory: &SimulatedMemory) {
    let stats = pool.stats();
    assert_eq!(stats.reserved, memory.created_bytes(), "every handle is counted");
    assert!(stats.reserved <= pool.options.limit_bytes, "the limit holds");
    assert!(stats.reserved <= stats.peak_reserved && stats.used - stats.parked <= stats.peak_used);
    let mut end = 0;
    for kind in [Kind::Small, Kind::Large] {
        let part = pool.part(kind);
        let mut last = None;
        let mut listed = (0, 0);
        for (at, bytes, state) in part.walk() {
            assert_eq!(at, end, "blocks lie side by side");
            end = at + bytes;
            assert!(matches!(state, State::Used | State::Parked | State::Resting) || last != Some(state), "not joined");
            last = Some(state);
            match state {
                State::Used | State::Resting => assert!(memory.is_mapped(at, bytes), "memory lies under {at}"),
                State::Free => {
                    listed.0 += 1;
                    assert!(memory.is_mapped(at, bytes), "memory lies under free {at}");
                }
                State::Hole => {
                    listed.1 += 1;
                    assert!(!memory.is_touched(at, bytes), "nothing lies under hole {at}");
                }
                State::Parked => {
                    let (start, end) = pool.handles.own_stretch(at, at + bytes);
                    assert!(start == end || !memory.is_touched(start, end - start), "nothing lies under parked {at}");
                }
                State::Vacant => panic!("a vacant record in the chain"),
            }
        }
        assert_eq!((part.free_from(1).len(), part.holes_from(1).len()), listed, "all that is free can be found");
    }
    assert_eq!(end, pool.options.range_bytes, "the blocks are the whole range");
}
