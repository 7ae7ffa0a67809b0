//! What the pool tells of itself, and what it refuses.

use super::*;

#[test]
fn the_books_are_right() {
    let mut pool = gpu_pool();
    let (small, large) = (pool.take(1000), pool.take(91 * MIB));
    let stats = pool.stats();
    assert_eq!((stats.used, stats.blocks, stats.misses, stats.hits), (91 * MIB + 1000, 2, 2, 0));
    assert_eq!((stats.reserved, stats.peak_reserved), (94 * MIB, 94 * MIB));
    assert_eq!(stats.driver_calls, 94, "46 handles under the large block, one under the small, made and mapped");
    pool.free(large);
    pool.free(small);
    let stats = pool.stats();
    assert_eq!((stats.used, stats.blocks, stats.peak_used), (0, 0, 91 * MIB + 1000));
    assert_eq!(stats.largest_free, 92 * MIB);
    assert_eq!(pool.trim_all(), 94 * MIB);
    assert_eq!((pool.stats().trims, pool.stats().largest_free, pool.stats().driver_calls), (47, 0, 188));
}

#[test]
fn parked_memory_is_not_in_the_peak_of_what_is_used() {
    let mut pool = gpu_pool();
    let first = pool.allocate_parkable(100 * MIB).unwrap();
    pool.park(&first);
    let _second = pool.allocate_parkable(100 * MIB).unwrap();
    assert_eq!((pool.stats().used, pool.stats().peak_used, pool.stats().fragmentation()), (200 * MIB, 100 * MIB, 0.0));
}

#[test]
fn a_block_too_large_for_anything_is_refused() {
    let mut pool = gpu_pool();
    for bytes in [LIKE_A_GPU.limit_bytes + 1, 1 << 40, u64::MAX - 1, u64::MAX] {
        for result in [pool.allocate(bytes, MAIN), pool.allocate_parkable(bytes)] {
            let error = result.unwrap_err();
            assert!(matches!(error, AllocateError::Limit { .. }), "{bytes}");
            assert!(error.to_string().contains("raise the limit"), "{error}");
        }
        assert!(pool.reserve(bytes).is_err());
    }
    assert_eq!(pool.stats(), PoolStats::default());
}

#[test]
fn a_block_of_no_bytes_is_a_block() {
    let mut pool = gpu_pool();
    let (one, other) = (pool.take(0), pool.take(0));
    assert_ne!(one.at(), other.at());
    pool.free(one);
    pool.free(other);
}

#[test]
#[should_panic(expected = "another pool")]
fn a_block_of_another_pool_is_a_bug() {
    let block = gpu_pool().take(100);
    gpu_pool().free(block);
}

#[test]
#[should_panic(expected = "grain, alignment")]
fn a_grain_that_is_no_power_of_two_is_a_bug() {
    let _ = Pool::new(PoolOptions { grain_bytes: 3 * MIB, ..LIKE_A_GPU }, SimulatedMemory::new());
}

#[test]
fn a_range_no_longer_than_the_memory_has_a_place_for_a_model_larger_than_half_of_it() {
    let options = PoolOptions { range_bytes: 1 << 30, limit_bytes: 1 << 30, ..LIKE_A_GPU };
    let mut pool = Pool::new(options, SimulatedMemory::new());
    let weights = pool.allocate_parkable(700 * MIB).unwrap();
    let small = pool.take(MIB);
    assert!(small.at() < weights.at());
    check(&pool, pool.upstream());
}

#[test]
fn the_driver_has_less_than_the_limit_allows() {
    let mut pool = Pool::new(LIKE_A_GPU, SimulatedMemory::with_capacity(100 * MIB));
    let kept = pool.take(80 * MIB);
    assert!(matches!(pool.allocate(80 * MIB, MAIN), Err(AllocateError::Upstream(SimulatedFailure))));
    assert_eq!((pool.stats().reserved, pool.stats().blocks), (80 * MIB, 1));
    pool.free(kept);
    let _now = pool.take(80 * MIB);
}
