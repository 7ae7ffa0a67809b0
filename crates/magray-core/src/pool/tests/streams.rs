//! Blocks that rest until a stream is done with them.

use super::*;

const OTHER: StreamId = StreamId(7);

#[test]
fn the_same_stream_gets_a_resting_block_at_once_and_another_does_not() {
    let mut pool = gpu_pool();
    let block = pool.take(20 * MIB);
    let at = block.at();
    pool.free_after(block, MAIN, 1);
    let others = pool.allocate(20 * MIB, OTHER).unwrap();
    assert_ne!(others.at(), at);
    let again = pool.allocate(20 * MIB, MAIN).unwrap();
    assert_eq!(again.at(), at);
    assert_eq!((pool.stats().hits, pool.stats().misses), (1, 2));
}

#[test]
fn what_is_reached_is_everybodys() {
    let mut pool = gpu_pool();
    let (first, second) = (pool.take(20 * MIB), pool.take(20 * MIB));
    let at = first.at();
    pool.free_after(first, MAIN, 1);
    pool.free_after(second, MAIN, 2);
    pool.reached(MAIN, 1);
    let calls = pool.stats().driver_calls;
    assert_eq!(pool.allocate(20 * MIB, OTHER).unwrap().at(), at);
    pool.reached(MAIN, 2);
    let _ = pool.allocate(20 * MIB, OTHER).unwrap();
    assert_eq!(pool.stats().driver_calls, calls);
}

#[test]
fn a_point_that_was_reached_before_the_block_was_freed_is_not_waited_for() {
    let mut pool = gpu_pool();
    let block = pool.take(MIB);
    let parting = pool.take(MIB);
    pool.free_after(parting, MAIN, 1);
    pool.reached(MAIN, 5);
    pool.free_after(block, MAIN, 5);
    assert_eq!(pool.part(Kind::Small).walk().len(), 2, "all is one free block, and the hole behind it");
}

#[test]
fn a_part_of_a_resting_block_goes_on_resting() {
    let mut pool = gpu_pool();
    let block = pool.take(40 * MIB);
    let at = block.at();
    pool.free_after(block, MAIN, 1);
    let part = pool.take(10 * MIB);
    assert_eq!(part.at(), at);
    let others = pool.allocate(30 * MIB, OTHER).unwrap();
    assert!(others.at() >= at + 40 * MIB, "the rest is the stream's");
    pool.reached(MAIN, 1);
    assert_eq!(pool.allocate(30 * MIB, OTHER).unwrap().at(), at + 10 * MIB);
    check(&pool, pool.upstream());
}

#[test]
fn the_tighter_of_a_free_and_a_resting_block_is_taken() {
    let mut pool = gpu_pool();
    let (free, _wall, resting, _end) =
        (pool.take(12 * MIB), pool.take(8 * MIB), pool.take(30 * MIB), pool.take(8 * MIB));
    let (free_at, resting_at) = (free.at(), resting.at());
    pool.free(free);
    pool.free_after(resting, MAIN, 1);
    assert_eq!(pool.take(12 * MIB).at(), free_at);
    assert_eq!(pool.take(28 * MIB).at(), resting_at);
}

#[test]
fn what_rests_is_neither_trimmed_nor_stitched_nor_moved() {
    let mut pool = gpu_pool_of(64 * MIB);
    let block = pool.take(40 * MIB);
    let at = block.at();
    pool.free_after(block, MAIN, 1);
    assert_eq!((pool.trim_all(), pool.stitch(0)), (0, Ok(0)));
    assert!(matches!(pool.allocate(40 * MIB, OTHER), Err(AllocateError::Limit { .. })));
    assert!(pool.upstream().is_mapped(at, 40 * MIB));
    pool.reached(MAIN, 1);
    assert_eq!(pool.trim_all(), 40 * MIB);
}

#[test]
fn streams_that_come_and_go_leave_nothing_behind() {
    let mut pool = gpu_pool();
    for stream in 0..10_000 {
        let block = pool.take(MIB);
        pool.free_after(block, StreamId(stream), 1);
        pool.reached(StreamId(stream), 1);
    }
    assert_eq!((pool.stats().reserved, pool.stats().blocks), (2 * MIB, 0));
}
