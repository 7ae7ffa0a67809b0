//! Blocks whose memory goes and comes back under the same addresses.

use super::*;

#[test]
fn a_block_with_handles_of_its_own_gives_back_all_and_keeps_its_address() {
    let mut pool = gpu_pool();
    let _neighbours = [pool.take(30 * MIB), pool.take(100)];
    let before = pool.stats().reserved;
    let weights = pool.allocate_parkable(301 * MIB + 5).unwrap();
    let _behind = pool.take(30 * MIB);
    let at = weights.at();
    assert_eq!(pool.park(&weights), 302 * MIB);
    assert_eq!(pool.stats().reserved, before + 30 * MIB);
    assert_eq!((pool.stats().parked, pool.stats().blocks), (301 * MIB + 5, 4));
    assert!(pool.is_parked(&weights) && !pool.upstream().is_touched(at, 302 * MIB));
    pool.restore(&weights).unwrap();
    assert!(!pool.is_parked(&weights) && pool.upstream().is_mapped(at, 302 * MIB));
    assert_eq!((weights.at(), pool.stats().parked), (at, 0));
    check(&pool, pool.upstream());
}

#[test]
fn nobody_gets_the_addresses_of_a_parked_block() {
    let mut pool = gpu_pool_of(128 * MIB);
    let weights = pool.allocate_parkable(100 * MIB).unwrap();
    pool.park(&weights);
    let other = pool.take(100 * MIB);
    assert!(other.at() >= weights.at() + 100 * MIB || other.at() + 100 * MIB <= weights.at());
    assert!(matches!(pool.restore(&weights), Err(AllocateError::Limit { .. })));
    assert!(pool.is_parked(&weights));
    pool.free(other);
    let created = pool.upstream().handles();
    pool.restore(&weights).unwrap();
    assert_eq!(pool.upstream().handles(), created, "the free handles were taken, none was made");
    check(&pool, pool.upstream());
}

#[test]
fn a_driver_that_fails_while_memory_comes_back_leaves_the_block_parked() {
    for fails_after in 0..8 {
        let mut pool = gpu_pool();
        let weights = pool.allocate_parkable(256 * MIB).unwrap();
        pool.park(&weights);
        pool.upstream_mut().fail_after(Some(fails_after));
        assert_eq!(pool.restore(&weights), Err(AllocateError::Upstream(SimulatedFailure)), "{fails_after}");
        assert!(pool.is_parked(&weights));
        assert_eq!(pool.stats().reserved, 0, "{fails_after}");
        pool.restore(&weights).unwrap();
        check(&pool, pool.upstream());
    }
}

#[test]
fn a_block_that_shares_handles_gives_back_those_that_it_has_alone() {
    let mut pool = gpu_pool();
    let whole = pool.allocate_parkable(200 * MIB).unwrap();
    pool.free(whole);
    let (low, middle, high) = (pool.take(20 * MIB), pool.take(150 * MIB), pool.take(30 * MIB));
    // Handles of 64, 64, 64 and 8 MiB: of the middle block's 20 to 170 the second alone is its own.
    assert_eq!(pool.park(&middle), 64 * MIB);
    assert_eq!(pool.stats().parked, 64 * MIB);
    check(&pool, pool.upstream());
    pool.restore(&middle).unwrap();
    pool.park(&middle);
    pool.free(middle);
    check(&pool, pool.upstream());
    assert_eq!((pool.stats().parked, pool.stats().largest_free), (0, 44 * MIB));
    pool.free(low);
    pool.free(high);
    pool.trim_all();
    assert_eq!(pool.stats().reserved, 0);
}

#[test]
fn a_parked_block_can_be_freed_without_coming_back() {
    let mut pool = gpu_pool();
    for is_after in [false, true] {
        let weights = pool.allocate_parkable(100 * MIB).unwrap();
        pool.park(&weights);
        if is_after {
            pool.free_after(weights, MAIN, 3)
        } else {
            pool.free(weights)
        }
        assert_eq!((pool.stats().used, pool.stats().parked, pool.stats().reserved), (0, 0, 0));
        check(&pool, pool.upstream());
    }
}

#[test]
#[should_panic(expected = "parked already")]
fn parking_twice_is_a_bug() {
    let mut pool = gpu_pool();
    let weights = pool.allocate_parkable(100 * MIB).unwrap();
    pool.park(&weights);
    pool.park(&weights);
}

#[test]
#[should_panic(expected = "handles of its own")]
fn parking_a_small_block_is_a_bug() {
    let mut pool = gpu_pool();
    let small = pool.take(100);
    pool.park(&small);
}
