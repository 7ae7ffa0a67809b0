//! The plain ways.
use super::super::*;
#[test]
fn works() {
    let mib = 1 << 20;
    let o = PoolOptions {
        range_bytes: 4096 * mib,
        limit_bytes: 1024 * mib,
        grain_bytes: 2 * mib,
        handle_bytes: 64 * mib,
        large_bytes: 8 * mib,
        align_bytes: 256,
    };
    let mut p = Pool::new(o, SimulatedMemory::new());
    let a = p.allocate(100, StreamId(0)).unwrap();
    let b = p.allocate(91 * mib, StreamId(0)).unwrap();
    println!("{:?}", p.stats());
    p.free_after(b, StreamId(0), 1);
    let b = p.allocate(91 * mib, StreamId(0)).unwrap();
    p.park(&b);
    p.restore(&b).unwrap();
    p.free(b);
    p.free(a);
    println!("{:?}", p.stats());
    p.trim_all();
    println!("{:?}", p.stats());
    assert_eq!(p.stats().reserved, 0);
}
