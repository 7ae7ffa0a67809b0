//! How memory comes, moves and goes: growth, stitching, trimming, history.

use super::*;

#[test]
fn a_large_miss_takes_free_handles_from_elsewhere_before_it_makes_new_ones() {
    let mut pool = gpu_pool();
    let mut blocks: Vec<Block> = (0..6).map(|_| pool.take(32 * MIB)).collect();
    let reserved = pool.stats().reserved;
    for place in [4, 2, 0] {
        pool.free(blocks.remove(place));
    }
    let _ = pool.take(96 * MIB);
    assert_eq!((pool.stats().reserved, pool.stats().stitches), (reserved, 48), "48 handles of 2 MiB");
    check(&pool, pool.upstream());
}

#[test]
fn a_large_miss_grows_a_free_block_before_a_hole() {
    let mut pool = gpu_pool();
    let first = pool.take(100 * MIB);
    let at = first.at();
    pool.free(first);
    let second = pool.take(150 * MIB);
    assert_eq!((second.at(), pool.stats().reserved, pool.stats().stitches), (at, 150 * MIB, 0));
}

#[test]
fn handles_are_large_where_they_go_as_a_whole_and_a_small_part_of_the_pool_where_they_are_shared() {
    let mut pool = gpu_pool();
    let _weights = pool.allocate_parkable(300 * MIB).unwrap();
    assert_eq!(pool.upstream().handles(), 5, "four of 64 MiB, one of 44");
    let _workspace = pool.take(300 * MIB);
    assert_eq!(pool.upstream().handles(), 5 + 75, "600 MiB / 256 in whole grains: 4 MiB each");
    let _small = pool.take(100);
    assert_eq!(pool.stats().reserved, 610 * MIB, "a 64th for small blocks");
}

#[test]
fn at_the_limit_free_handles_of_the_other_part_and_of_other_sizes_are_given_up() {
    let mut pool = gpu_pool_of(128 * MIB);
    let large = pool.allocate_parkable(128 * MIB).unwrap();
    pool.free(large);
    let small = pool.take(MIB);
    assert_eq!(pool.stats().reserved, 68 * MIB, "one handle of 64 MiB went, 4 MiB came");
    let rest = pool.take(124 * MIB);
    let _fits = pool.take(2 * MIB);
    assert!(matches!(pool.allocate(4 * MIB, MAIN), Err(AllocateError::Limit { .. })));
    pool.free(rest);
    pool.free(small);
    check(&pool, pool.upstream());
}

#[test]
fn a_small_block_leaves_what_was_mapped_ahead_for_a_large_one() {
    let mut pool = gpu_pool();
    pool.reserve(500 * MIB).unwrap();
    let _small = pool.take(3 * MIB);
    assert_eq!((pool.stats().largest_free, pool.stats().stitches), (500 * MIB, 0));
}

#[test]
fn a_failing_driver_costs_nothing_at_any_call() {
    let mut fails_after = 0;
    loop {
        let mut pool = gpu_pool();
        let mut blocks: Vec<Block> = (0..6).map(|_| pool.allocate_parkable(32 * MIB).unwrap()).collect();
        for place in [4, 2, 0] {
            pool.free(blocks.remove(place));
        }
        let before = pool.stats();
        pool.upstream_mut().fail_after(Some(fails_after));
        let result = pool.allocate(110 * MIB, MAIN).map(|block| block.bytes());
        pool.upstream_mut().fail_after(None);
        check(&pool, pool.upstream());
        if result.is_ok() {
            break;
        }
        let after = pool.stats();
        assert_eq!((after.used, after.blocks), (before.used, before.blocks));
        assert!(after.reserved <= before.reserved, "{fails_after}: what was new is given back");
        fails_after += 1;
    }
    assert_eq!(fails_after, 7 + 3 + 7, "7 handles of 2 MiB are made, 3 of 32 MiB are moved, all are mapped");
}

#[test]
fn what_is_unused_for_long_is_given_back_and_what_is_used_is_not() {
    let mut pool = gpu_pool();
    let burst = pool.take(1024 * MIB);
    pool.free(burst);
    for _ in 0..3 {
        pool.age();
        let steady = pool.take(100 * MIB);
        pool.free(steady);
        assert_eq!(pool.trim(4), 0);
    }
    pool.age();
    assert_eq!(pool.trim(4), 924 * MIB, "all but what is used all the time");
    let calls = pool.stats().driver_calls;
    let _steady = pool.take(100 * MIB);
    assert_eq!(pool.stats().driver_calls, calls);
}

#[test]
fn trimming_by_age_keeps_what_history_expects_and_pressure_does_not() {
    let mut pool = gpu_pool();
    let weights = pool.allocate_parkable(512 * MIB).unwrap();
    let workspace = pool.take(640 * MIB);
    pool.note(1, 128, 200 * MIB);
    pool.free(workspace);
    pool.age();
    pool.trim(1);
    let kept = pool.stats().reserved - 512 * MIB;
    assert!((200 * MIB..206 * MIB).contains(&kept), "whole handles that hold 200 MiB: {kept}");
    pool.trim_all();
    assert_eq!(pool.stats().reserved, 512 * MIB);
    pool.free(weights);
}

#[test]
fn what_is_reserved_ahead_is_had_without_the_driver() {
    let mut pool = gpu_pool();
    pool.reserve(500 * MIB).unwrap();
    pool.reserve(1000).unwrap();
    let calls = pool.stats().driver_calls;
    let _blocks = [pool.take(300 * MIB), pool.take(200 * MIB), pool.take(1000)];
    assert_eq!(pool.stats().driver_calls, calls);
    assert_eq!((pool.stats().hits, pool.stats().misses), (3, 0));
}

#[test]
fn stitching_joins_what_is_scattered_and_then_has_nothing_to_do() {
    let mut pool = gpu_pool();
    let blocks: Vec<Block> = (0..8).map(|_| pool.take(32 * MIB)).collect();
    for (place, block) in blocks.into_iter().enumerate() {
        if place % 2 == 0 {
            pool.free(block);
        }
    }
    assert_eq!(pool.stats().largest_free, 32 * MIB);
    assert_eq!(pool.stitch(1), Ok(0), "they were used a moment ago");
    pool.age();
    assert_eq!(pool.stitch(1), Ok(64), "of 2 MiB each");
    assert_eq!(pool.stats().largest_free, 128 * MIB);
    let calls = pool.stats().driver_calls;
    assert_eq!(pool.stitch(0), Ok(0));
    let _joined = pool.take(128 * MIB);
    assert_eq!(pool.stats().driver_calls, calls);
    check(&pool, pool.upstream());
}

#[test]
fn stitching_that_fails_loses_nobodys_memory() {
    for fails_after in 0..4 {
        let mut pool = gpu_pool();
        let mut blocks: Vec<Block> = (0..8).map(|_| pool.take(32 * MIB)).collect();
        for place in [6, 4, 2, 0] {
            pool.free(blocks.remove(place));
        }
        pool.upstream_mut().fail_after(Some(fails_after));
        assert_eq!(pool.stitch(0), Err(SimulatedFailure));
        check(&pool, pool.upstream());
        assert_eq!(pool.stats().reserved, 4 * 32 * MIB + fails_after * 2 * MIB);
    }
}
