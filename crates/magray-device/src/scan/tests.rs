//! Every search against a plain one in 64-bit floats, on every path.

use super::*;
use crate::cpu::{Cpu, available_paths};
use proptest::prelude::*;

const METRICS: [Metric; 4] = [Metric::Cosine, Metric::Dot, Metric::Euclid, Metric::Manhattan];
const STORAGES: [Storage; 3] = [Storage::F32, Storage::F16, Storage::Int8];

/// Numbers from a seed, about normal.
pub(super) struct Made(u64);

impl Made {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn number(&mut self) -> f32 {
        (0..4).map(|_| (self.bits() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum::<f32>()
    }

    pub(super) fn vector(&mut self, dims: usize) -> Vec<f32> {
        (0..dims).map(|_| self.number()).collect()
    }
}

fn cpus() -> Vec<Cpu> {
    available_paths().into_iter().map(|path| Cpu::new(Some(path), Some(2)).unwrap()).collect()
}

/// All slots that may be returned, best first, by plain arithmetic on the vectors as kept.
fn reference(rows: &Rows, slots: u32, query: &[f32], wanted: &Wanted<'_>) -> Vec<(u32, f64)> {
    let mut query = query.to_vec();
    if rows.metric() == Metric::Cosine {
        let length = query.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        if length > 0.0 {
            query.iter_mut().for_each(|x| *x = (f64::from(*x) * (1.0 / length)) as f32);
        }
    }
    let allows = |slot: u32| {
        wanted.allowed.is_none_or(|bits| bits.get(slot as usize / 64).is_some_and(|w| w >> (slot % 64) & 1 == 1))
    };
    let mut all: Vec<(u32, f64)> = (0..slots)
        .filter(|&slot| allows(slot))
        .filter_map(|slot| {
            let row = rows.get(slot)?;
            let pairs = query.iter().zip(&row).map(|(&q, &x)| (f64::from(q), f64::from(x)));
            let score: f64 = match rows.metric() {
                Metric::Cosine | Metric::Dot => pairs.map(|(q, x)| q * x).sum(),
                Metric::Euclid => -pairs.map(|(q, x)| (q - x).powi(2)).sum::<f64>(),
                Metric::Manhattan => -pairs.map(|(q, x)| (q - x).abs()).sum::<f64>(),
            };
            Some((slot, score))
        })
        .filter(|&(_, score)| wanted.threshold.is_none_or(|threshold| score as f32 >= threshold))
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(wanted.k);
    all
}

fn check_top(rows: &Rows, slots: u32, cpu: &Cpu, queries: &[f32], wanted: &Wanted<'_>) {
    let got = rows.top(cpu, queries, wanted).unwrap();
    assert_eq!(got.len() * rows.dims(), queries.len());
    for (query, got) in queries.chunks_exact(rows.dims()).zip(&got) {
        let want = reference(rows, slots, query, wanted);
        let what = format!("{} {:?} {:?} {wanted:?}", cpu.path(), rows.metric(), rows.storage());
        let slots = |found: &[Found]| found.iter().map(|f| f.slot).collect::<Vec<_>>();
        assert_eq!(got.len(), want.len(), "{what}");
        // Sums in another order differ in their last bits: there the order of two slots says nothing.
        let is_same = got.iter().zip(&want).all(|(got, want)| {
            let exact = want.1;
            (f64::from(got.score) - exact).abs() <= 1e-6 * exact.abs().max(1e-30)
                && (got.slot == want.0 || want_score(rows, query, got.slot, wanted) - exact == 0.0)
        });
        let want_slots: Vec<u32> = want.iter().map(|w| w.0).collect();
        assert!(is_same || slots(got) == want_slots, "{what}: {:?} is not {want_slots:?}", slots(got));
    }
}

fn want_score(rows: &Rows, query: &[f32], slot: u32, wanted: &Wanted<'_>) -> f64 {
    let mut bits = vec![0; slot as usize / 64 + 1];
    bits[slot as usize / 64] = 1u64 << (slot % 64);
    let one = Wanted { k: 1, allowed: Some(&bits), ..*wanted };
    reference(rows, slot + 1, query, &one).first().map_or(f64::NAN, |&(_, score)| score)
}

fn bitmap(slots: u32, allows: impl Fn(u32) -> bool) -> Vec<u64> {
    let mut bits = vec![0u64; slots.div_ceil(64) as usize];
    (0..slots).filter(|&slot| allows(slot)).for_each(|slot| bits[slot as usize / 64] |= 1 << (slot % 64));
    bits
}

fn filled(dims: usize, storage: Storage, metric: Metric, vectors: impl IntoIterator<Item = Vec<f32>>) -> Rows {
    let mut rows = Rows::new(dims, storage, metric);
    for (slot, vector) in vectors.into_iter().enumerate() {
        rows.set(slot as u32, &vector).unwrap();
    }
    rows
}

#[test]
fn random_rows_are_found_as_in_64_bits() {
    for (dims, slots) in [(1, 70), (7, 1300), (64, 500), (100, 300), (384, 3000)] {
        let mut made = Made::new(dims as u64);
        let vectors: Vec<_> = (0..slots).map(|_| made.vector(dims)).collect();
        let queries: Vec<f32> = (0..5).flat_map(|_| made.vector(dims)).collect();
        for metric in METRICS {
            for storage in STORAGES {
                let rows = filled(dims, storage, metric, vectors.clone());
                for cpu in cpus() {
                    check_top(&rows, slots, &cpu, &queries, &Wanted::best(10));
                    check_top(&rows, slots, &cpu, &queries[..dims], &Wanted::best(slots as usize + 3));
                }
            }
        }
    }
}

#[test]
fn filters_are_applied_inside_the_search() {
    let (dims, slots) = (48, 2000);
    let mut made = Made::new(5);
    let vectors: Vec<_> = (0..slots).map(|_| made.vector(dims)).collect();
    let queries: Vec<f32> = (0..3).flat_map(|_| made.vector(dims)).collect();
    let filters: [&dyn Fn(u32) -> bool; 7] = [
        &|_| false,
        &|slot| slot == 777,
        &|_| true,
        &|slot| slot % 2 == 0,
        &|slot| slot % 100 == 3,
        &|slot| slot >= 1990,
        &|slot| (64..128).contains(&slot),
    ];
    for metric in METRICS {
        let rows = filled(dims, Storage::F32, metric, vectors.clone());
        for cpu in cpus() {
            for filter in filters {
                let allowed = bitmap(slots, filter);
                let wanted = Wanted { allowed: Some(&allowed), ..Wanted::best(10) };
                check_top(&rows, slots, &cpu, &queries, &wanted);
                let matching = (0..slots).filter(|&slot| filter(slot)).count();
                for found in rows.top(&cpu, &queries, &wanted).unwrap() {
                    assert_eq!(found.len(), matching.min(10));
                }
            }
            let short = [u64::MAX; 3];
            check_top(&rows, slots, &cpu, &queries, &Wanted { allowed: Some(&short), ..Wanted::best(500) });
        }
    }
}

#[test]
fn ties_come_by_the_lower_slot() {
    let mut made = Made::new(9);
    let one = made.vector(32);
    for metric in METRICS {
        for storage in STORAGES {
            let rows = filled(32, storage, metric, vec![one.clone(); 1500]);
            for cpu in cpus() {
                for query in [one.clone(), made.vector(32), vec![0.0; 32]] {
                    let found = rows.top(&cpu, &query, &Wanted::best(20)).unwrap();
                    let slots: Vec<u32> = found[0].iter().map(|found| found.slot).collect();
                    assert!(slots.iter().copied().eq(0..20), "{metric:?} {storage:?} {}: {slots:?}", cpu.path());
                }
            }
        }
    }
}

#[test]
fn zero_vectors_are_rows_like_others() {
    for metric in METRICS {
        let vectors = (0..200).map(|i| if i % 3 == 0 { vec![0.0; 5] } else { Made::new(i).vector(5) });
        let rows = filled(5, Storage::F32, metric, vectors);
        for cpu in cpus() {
            check_top(&rows, 200, &cpu, &[0.0; 5], &Wanted::best(100));
            check_top(&rows, 200, &cpu, &[-1.0, 2.0, 0.0, 0.0, 0.5], &Wanted::best(200));
        }
    }
}

#[test]
fn cleared_slots_are_not_found_and_can_be_set_again() {
    let cpu = Cpu::new(None, Some(2)).unwrap();
    let mut made = Made::new(3);
    let mut rows = filled(20, Storage::F32, Metric::Dot, (0..300).map(|_| made.vector(20)));
    let query = made.vector(20);
    for left in (0..300).rev() {
        let best = rows.top(&cpu, &query, &Wanted::best(1)).unwrap()[0][0].slot;
        rows.clear(best);
        rows.clear(best);
        assert_eq!((rows.len(), rows.get(best)), (left, None));
    }
    assert_eq!(rows.top(&cpu, &query, &Wanted::best(1)).unwrap(), [vec![]]);
    rows.set(17, &query).unwrap();
    assert_eq!(rows.top(&cpu, &query, &Wanted::best(3)).unwrap()[0].len(), 1);
}

#[test]
fn a_slot_that_is_set_again_has_the_new_vector() {
    let cpu = Cpu::new(None, Some(1)).unwrap();
    for storage in STORAGES {
        let mut rows = filled(4, storage, Metric::Dot, [vec![1.0, 0.0, 0.0, 0.0]]);
        rows.set(0, &[0.0, 0.0, 2.0, 0.0]).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows.top(&cpu, &[1.0, 0.0, 1.0, 0.0], &Wanted::best(1)).unwrap()[0][0].score, 2.0);
    }
}

#[test]
fn many_vectors_are_set_as_one_by_one() {
    let cpu = Cpu::new(None, Some(3)).unwrap();
    let mut made = Made::new(5);
    let [mut one_by_one, mut at_once] = [(); 2].map(|()| Rows::new(128, Storage::F16, Metric::Cosine));
    // Far apart, over borders of chunks, and enough that signs are kept.
    let slots: Vec<u32> = (0..66_000).map(|slot| slot * 2).chain([400_000]).collect();
    let mut vectors: Vec<f32> = slots.iter().flat_map(|_| made.vector(128)).collect();
    vectors[128 * 7] = f32::NAN;
    for (slot, vector) in slots.iter().zip(vectors.chunks_exact(128)) {
        assert_eq!(one_by_one.set(*slot, vector).is_err(), *slot == 14);
    }
    assert_eq!(at_once.set_all(&cpu, &slots[..9], &vectors[..9 * 128]), [14]);
    assert_eq!(at_once.set_all(&cpu, &slots, &vectors), [14]);
    assert_eq!((at_once.len(), at_once.bytes()), (one_by_one.len(), one_by_one.bytes()));
    let query = made.vector(128);
    let found = |rows: &Rows| rows.top(&cpu, &query, &Wanted::best(50)).unwrap();
    assert_eq!(found(&at_once), found(&one_by_one));
}

#[test]
fn thresholds_leave_out_lower_scores() {
    for metric in METRICS {
        let mut made = Made::new(11);
        let rows = filled(24, Storage::F32, metric, (0..800).map(|_| made.vector(24)));
        let query = made.vector(24);
        for cpu in cpus() {
            let all = rows.top(&cpu, &query, &Wanted::best(800)).unwrap();
            for at in [0, 4, 100, 799] {
                let threshold = Some(all[0][at].score);
                let wanted = Wanted { threshold, ..Wanted::best(50) };
                check_top(&rows, 800, &cpu, &query, &wanted);
            }
            let beyond = Wanted { threshold: Some(all[0][0].score + 1.0), ..Wanted::best(50) };
            assert_eq!(rows.top(&cpu, &query, &beyond).unwrap(), [vec![]]);
        }
    }
}

#[test]
fn vectors_that_cannot_be_compared_are_refused() {
    let cpu = Cpu::new(None, Some(1)).unwrap();
    let mut rows = Rows::new(2, Storage::F32, Metric::Dot);
    assert_eq!(rows.set(0, &[1.0]), Err(ScanError::Dims { got: 1, dims: 2 }));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(matches!(rows.set(0, &[0.0, bad]), Err(ScanError::NotFinite { at: 1, .. })));
        assert!(matches!(rows.top(&cpu, &[bad, 0.0], &Wanted::best(1)), Err(ScanError::NotFinite { at: 0, .. })));
    }
    assert!(matches!(rows.set(0, &[3e38, 3e38]), Err(ScanError::TooLong { .. })));
    assert!(rows.is_empty());
    assert!(rows.top(&cpu, &[1.0, 2.0, 3.0], &Wanted::best(1)).is_err());
    let mut short = Rows::new(1, Storage::F16, Metric::Dot);
    assert!(matches!(short.set(0, &[-70_000.0]), Err(ScanError::BeyondF16 { at: 0, .. })));
    short.set(0, &[65_504.0]).unwrap();
    assert_eq!(short.get(0), Some(vec![65_504.0]));
}

#[test]
fn nothing_wanted_or_nothing_there_is_an_empty_answer() {
    let cpu = Cpu::new(None, Some(2)).unwrap();
    let rows = Rows::new(3, Storage::F32, Metric::Cosine);
    assert_eq!(rows.top(&cpu, &[1.0, 2.0, 3.0], &Wanted::best(5)).unwrap(), [vec![]]);
    let rows = filled(3, Storage::F32, Metric::Cosine, [vec![1.0, 0.0, 0.0]]);
    assert_eq!(rows.top(&cpu, &[1.0, 2.0, 3.0], &Wanted::best(0)).unwrap(), [vec![]]);
    assert!(rows.top(&cpu, &[], &Wanted::best(5)).unwrap().is_empty());
}

#[test]
fn rows_far_apart_in_slots_and_in_length_are_found() {
    let (dims, slots) = (17, 40_000);
    for metric in METRICS {
        let mut made = Made::new(21);
        let mut rows = Rows::new(dims, Storage::F32, metric);
        for slot in (0..slots).step_by(37).chain([slots - 1]) {
            let size = [1e-30, 1e-6, 1.0, 1e6, 1e15][made.bits() as usize % 5];
            let vector: Vec<f32> = made.vector(dims).iter().map(|x| x * size).collect();
            rows.set(slot, &vector).unwrap();
        }
        for cpu in cpus() {
            for size in [1e-20, 1.0, 1e12] {
                let query: Vec<f32> = Made::new(22).vector(dims).iter().map(|x| x * size).collect();
                check_top(&rows, slots, &cpu, &query, &Wanted::best(30));
            }
        }
    }
}

/// Small enough for a test; a real search takes this way from a million rows on.
#[test]
fn signs_miss_few_of_the_best() {
    let (dims, slots) = (160, 20_000);
    let mut made = Made::new(31);
    let centres: Vec<Vec<f32>> = (0..50).map(|_| made.vector(dims)).collect();
    for metric in [Metric::Cosine, Metric::Dot, Metric::Euclid] {
        let near = |made: &mut Made| {
            let centre = &centres[made.bits() as usize % centres.len()];
            centre.iter().map(|x| x + 0.7 * made.number()).collect::<Vec<f32>>()
        };
        let mut rows = filled(dims, Storage::F32, metric, (0..slots).map(|_| near(&mut made)));
        rows.keep_signs(None);
        (0..slots).step_by(3).for_each(|slot| rows.set(slot, &near(&mut made)).unwrap());
        (0..slots).step_by(7).for_each(|slot| rows.clear(slot));
        let allowed = bitmap(slots, |slot| slot % 5 != 2);
        let queries: Vec<f32> = (0..20).flat_map(|_| near(&mut made)).collect();
        for cpu in cpus() {
            let wanted = Wanted { allowed: Some(&allowed), exact: false, ..Wanted::best(10) };
            let exact = rows.top(&cpu, &queries, &wanted).unwrap();
            let likely = rows.top_by_signs(&cpu, &queries, &wanted).unwrap();
            let both = exact.iter().zip(&likely).map(|(exact, likely)| {
                assert_eq!(likely.len(), 10);
                likely.iter().filter(|found| exact.contains(found)).count()
            });
            let both: usize = both.sum();
            assert!(both >= 194, "{metric:?} {}: {both} of 200", cpu.path());
        }
    }
}

#[test]
fn rows_that_bounds_cannot_tell_apart_are_all_scored() {
    let cpu = Cpu::new(None, Some(2)).unwrap();
    let (dims, slots) = (3, 40_000u32);
    // Far from zero and close to each other: bytes say nothing of the order.
    let vector = |slot: u32| vec![1e4, 1e4 + (slot * 7919 % slots) as f32 * 1e-2, -1e4];
    let rows = filled(dims, Storage::F32, Metric::Euclid, (0..slots).map(vector));
    check_top(&rows, slots, &cpu, &[1e4, 1e4 + 37.0, -1e4], &Wanted::best(10));
    let rows = filled(dims, Storage::F32, Metric::Dot, (0..slots).map(|_| vec![1.0, 2.0, 3.0]));
    check_top(&rows, slots, &cpu, &[1.0, 0.5, -2.0], &Wanted::best(10));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_rows_are_found_as_in_64_bits(
        seed: u64, dims in 1usize..150, slots in 1u32..900, k in 1usize..40, metric in 0usize..4, storage in 0usize..3,
        allowed_in in 1u32..200, copies in 1u32..9, queries in 1usize..40, coarse: bool,
    ) {
        let mut made = Made::new(seed);
        let mut rows = Rows::new(dims, STORAGES[storage], METRICS[metric]);
        let mut vector = made.vector(dims);
        for slot in 0..slots {
            // Whole numbers and copies make ties.
            if made.bits().is_multiple_of(u64::from(copies)) {
                vector = made.vector(dims);
            }
            if coarse {
                vector.iter_mut().for_each(|x| *x = x.round());
            }
            if !made.bits().is_multiple_of(10) {
                rows.set(slot, &vector).unwrap();
            }
        }
        let queries: Vec<f32> = (0..queries * dims).map(|_| made.number()).collect();
        let allowed = bitmap(slots, |slot| slot % allowed_in == 0);
        let wanted = Wanted { allowed: (allowed_in > 1).then_some(&*allowed), ..Wanted::best(k) };
        for cpu in cpus() {
            check_top(&rows, slots, &cpu, &queries, &wanted);
        }
    }
}
