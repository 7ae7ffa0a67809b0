//! The scan for vectors with the best scores: against all scores in 64-bit floats, sorted.
//! A GPU alone has it in this form. Figures are printed and never asserted.

use crate::cuda::{first_gpu, open};
use crate::rows::Random;
use crate::variables;
use magray_device::cuda::{Cuda, CudaOptions, Near, Scan, Vectors};
use magray_device::scan::is_set;
use std::sync::Arc;
use std::time::Instant;

/// Runs a test with the GPU's own kernels and with those of every GPU, or says that there is none.
fn with_gpus(test: impl Fn(&Arc<Cuda>, &str)) {
    let Some(gpu) = first_gpu() else { return };
    for (kernels, portable_kernels) in [("own", false), ("portable", true)] {
        test(&open(&gpu, CudaOptions { portable_kernels, ..CudaOptions::default() }), kernels);
    }
}

fn random(random: &mut Random, count: usize) -> Vec<f32> {
    // Cheap, and exact in 16 bits.
    (0..count).map(|_| (random.below(2049) as f32 - 1024.0) / 4096.0).collect()
}

struct Case {
    dims: usize,
    vectors: Vec<f32>,
    offsets: Vec<f32>,
    queries: Vec<f32>,
    most: usize,
    allowed: Option<Vec<u64>>,
    least: Option<f32>,
}

impl Case {
    fn rows(&self) -> usize {
        self.vectors.len() / self.dims
    }

    fn vectors(&self, cuda: &Arc<Cuda>) -> Vectors {
        let mut vectors = Vectors::new(cuda, self.dims, self.rows() + 3, !self.offsets.is_empty()).expect("room");
        vectors.put(0, &self.vectors, &self.offsets).expect("they are brought");
        vectors
    }

    fn scan(&self) -> Scan<'_> {
        let Self { queries, most, allowed, least, .. } = self;
        Scan { queries, rows: self.rows(), most: *most, allowed: allowed.as_deref(), least: *least, is_exact: true }
    }

    /// All scores of a query that may be found, best first.
    fn expected(&self, query: &[f32]) -> Vec<(f64, u32)> {
        let is_allowed = |slot: usize| self.allowed.as_ref().is_none_or(|bits| is_set(bits, slot as u32));
        let score = |(slot, vector): (usize, &[f32])| {
            let product: f64 = vector.iter().zip(query).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            (product + self.offsets.get(slot).map_or(0.0, |offset| f64::from(*offset)), slot as u32)
        };
        let rows = self.vectors.chunks(self.dims).enumerate();
        let mut all: Vec<_> = rows.filter(|(slot, _)| is_allowed(*slot)).map(score).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        all
    }

    fn check(&self, cuda: &Arc<Cuda>, what: &str) {
        let found = self.vectors(cuda).best(&self.scan()).expect("an answer");
        let queries = self.queries.len() / self.dims;
        assert_eq!(found.len(), queries, "{what}: queries");
        let tolerance = 1e-5 * (self.dims as f64).sqrt();
        // Some of them are enough; the first and the last are among those.
        let step = (queries / 8).max(1);
        let looked_at = |query: &usize| query.is_multiple_of(step) || *query + 1 == queries;
        for at in (0..queries).filter(looked_at) {
            let (query, found) = (&self.queries[at * self.dims..][..self.dims], &found[at]);
            let all = self.expected(query);
            let least = self.least.map_or(f64::NEG_INFINITY, f64::from);
            let [sure, possible] = [tolerance, -tolerance]
                .map(|by| all.iter().filter(|(score, _)| *score >= least + by).count().min(self.most));
            assert!((sure..=possible).contains(&found.len()), "{what}: {} found of {sure} to {possible}", found.len());
            for (near, (score, _)) in found.iter().zip(&all) {
                let own = all.iter().find(|one| one.1 == near.slot).expect("it may be found").0;
                assert!((own - f64::from(near.score)).abs() <= tolerance, "{what}: {near:?} scores {own}");
                assert!((own - score).abs() <= tolerance, "{what}: {near:?} where {score} is expected");
            }
            let mut slots: Vec<u32> = found.iter().map(|near| near.slot).collect();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), found.len(), "{what}: none is found twice");
        }
    }
}

#[test]
fn the_best_of_random_vectors_are_found() {
    let seed = variables::seed();
    with_gpus(|cuda, kernels| {
        let mut numbers = Random(seed);
        let sizes =
            [(384, 30_000), (384, 100), (100, 9_000), (7, 20_000), (520, 9_000), (1024, 9_000), (1500, 3_000), (64, 1)];
        for (dims, rows) in sizes {
            let vectors = random(&mut numbers, rows * dims);
            for (queries, most) in [(1, 10), (3, 1), (9, 100), (70, 10), (130, 32), (260, 512)] {
                let offsets = if most == 32 { random(&mut numbers, rows) } else { Vec::new() };
                let queries = random(&mut numbers, queries * dims);
                let vectors = vectors.clone();
                let case = Case { dims, vectors, offsets, queries, most, allowed: None, least: None };
                case.check(cuda, &format!("{kernels}: {rows} of {dims}, most {most}"));
            }
        }
    });
}

#[test]
fn only_what_is_allowed_and_good_enough_is_found() {
    let seed = variables::seed();
    with_gpus(|cuda, kernels| {
        let mut numbers = Random(seed);
        let (dims, rows) = (96, 20_000_usize);
        for one_in in [1, 2, 50, 2_000, usize::MAX] {
            for (queries, least) in [(1, None), (40, None), (2, Some(0.5)), (2, Some(1e9))] {
                let mut allowed = vec![0_u64; rows.div_ceil(64)];
                for slot in (0..rows).step_by(one_in) {
                    allowed[slot / 64] |= 1 << (slot % 64);
                }
                if one_in == usize::MAX {
                    allowed.fill(0);
                }
                let vectors = random(&mut numbers, rows * dims);
                let queries = random(&mut numbers, queries * dims);
                let (offsets, allowed) = (Vec::new(), Some(allowed));
                let case = Case { dims, vectors, offsets, queries, most: 10, allowed, least };
                case.check(cuda, &format!("{kernels}: one in {one_in}, least {least:?}"));
            }
        }
    });
}

#[test]
fn of_equal_vectors_the_first_are_found() {
    with_gpus(|cuda, kernels| {
        for queries in [1, 20, 130] {
            let (dims, rows) = (128, 50_000);
            let (vectors, queries) = (vec![0.25; rows * dims], vec![0.5; queries * dims]);
            let case = Case { dims, vectors, offsets: Vec::new(), queries, most: 20, allowed: None, least: None };
            let want: Vec<Near> = (0..20).map(|slot| Near { slot, score: 16.0 }).collect();
            for found in case.vectors(cuda).best(&case.scan()).expect("an answer") {
                assert_eq!(found, want, "{kernels}");
            }
        }
    });
}

#[test]
fn vectors_that_become_ever_better_are_found_too() {
    with_gpus(|cuda, kernels| {
        for queries in [1, 20] {
            let (dims, rows) = (16, 60_000);
            // Steps of the score that 16 bits can hold.
            let mut vectors = vec![0.0; rows * dims];
            for (slot, vector) in vectors.chunks_mut(dims).enumerate() {
                (vector[0], vector[1]) = ((slot / 1024) as f32, (slot % 1024) as f32 / 1024.0);
            }
            let mut query = vec![0.0; dims];
            query[..2].fill(1.0);
            let queries = query.repeat(queries);
            let case = Case { dims, vectors, offsets: Vec::new(), queries, most: 50, allowed: None, least: None };
            for found in case.vectors(cuda).best(&case.scan()).expect("an answer") {
                let slots: Vec<u32> = found.iter().map(|near| near.slot).collect();
                assert_eq!(slots, (0..50).map(|back| rows as u32 - 1 - back).collect::<Vec<_>>(), "{kernels}");
            }
        }
    });
}

/// The mean of vectors.
fn mean(vectors: &[f32], dims: usize) -> Vec<f32> {
    let mut sums = vec![0.0; dims];
    for row in vectors.chunks(dims) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x / (vectors.len() / dims) as f32);
    }
    sums
}

#[test]
fn signs_let_nearly_all_of_the_best_through() {
    let seed = variables::seed();
    with_gpus(|cuda, kernels| {
        let mut numbers = Random(seed);
        for (dims, has_offsets, one_in) in [(384, false, 1), (384, true, 3), (200, false, 1), (128, true, 100)] {
            let rows = 60_000_usize;
            // About a common direction, as vectors of texts are.
            let common = random(&mut numbers, dims);
            let near = |values: Vec<f32>| {
                values.chunks(dims).flat_map(|row| row.iter().zip(&common).map(|(x, c)| (x + c) / 2.0)).collect()
            };
            let vectors: Vec<f32> = near(random(&mut numbers, rows * dims));
            let queries: Vec<f32> = near(random(&mut numbers, 4 * dims));
            let offsets = if has_offsets { random(&mut numbers, rows) } else { Vec::new() };
            let mut allowed = vec![0_u64; rows.div_ceil(64)];
            (0..rows).step_by(one_in).for_each(|slot| allowed[slot / 64] |= 1 << (slot % 64));
            let allowed = (one_in > 1).then_some(allowed);
            let case = Case { dims, vectors, offsets, queries, most: 10, allowed, least: None };
            let mut kept = case.vectors(cuda);
            // Made of vectors that are there, and of some that come later.
            kept.keep_signs(mean(&case.vectors, dims)).expect("room for signs");
            kept.put(100, &case.vectors[100 * dims..900 * dims], case.offsets.get(100..900).unwrap_or_default())
                .expect("put");
            let exact = kept.best(&case.scan()).expect("an answer");
            let likely = kept.best(&Scan { is_exact: false, ..case.scan() }).expect("an answer");
            let common: usize = exact
                .iter()
                .zip(&likely)
                .map(|(exact, likely)| {
                    likely.iter().filter(|near| exact.iter().any(|one| one.slot == near.slot)).count()
                })
                .sum();
            assert!(common >= 39, "{kernels}, {dims}: {common} of 40 are found");
            for (exact, likely) in exact.iter().zip(&likely) {
                assert!(exact.iter().zip(likely).all(|(a, b)| a.score >= b.score - 1e-4), "scores are of the numbers");
            }
        }
    });
}

/// A block of random vectors, repeated with its columns rotated, so that no two are equal.
fn fill(vectors: &mut Vectors, dims: usize, rows: usize, numbers: &mut Random) {
    let block = random(numbers, 50_000 * dims);
    let mut rotated = block.clone();
    for (turn, first) in (0..rows).step_by(50_000).enumerate() {
        for (row, to) in block.chunks(dims).zip(rotated.chunks_mut(dims)) {
            let by = turn % dims;
            to[..dims - by].copy_from_slice(&row[by..]);
            to[dims - by..].copy_from_slice(&row[..by]);
        }
        vectors.put(first, &rotated[..(rows - first).min(50_000) * dims], &[]).expect("they are brought");
    }
}

#[test]
fn a_scan_is_timed() {
    let Some(gpu) = first_gpu() else { return };
    let cuda = open(&gpu, CudaOptions::default());
    let mut numbers = Random(variables::seed());
    let dims = 384;
    for rows in [100_000, 1_000_000, 10_000_000] {
        if cuda.context().memory_bytes().expect("the driver tells").0 < 2 * (rows * dims * 2) as u64 {
            continue;
        }
        let mut vectors = Vectors::new(&cuda, dims, rows, false).expect("room");
        let began = Instant::now();
        fill(&mut vectors, dims, rows, &mut numbers);
        println!("{rows} vectors brought in {:.1} s", began.elapsed().as_secs_f64());
        let half: Vec<u64> = vec![0x5555_5555_5555_5555; rows.div_ceil(64)];
        vectors.keep_signs(vec![0.0; dims]).expect("room for signs");
        let mut time = |queries: usize, most, allowed: Option<&[u64]>, is_exact| {
            let (count, queries) = (queries, random(&mut numbers, queries * dims));
            let scan = Scan { queries: &queries, rows, most, allowed, least: None, is_exact };
            let timed = |_| {
                let began = Instant::now();
                vectors.best(&scan).expect("an answer");
                began.elapsed().as_secs_f64() * 1e3
            };
            let mut times: Vec<f64> = (0..41).map(timed).collect();
            times.sort_by(f64::total_cmp);
            let how = if is_exact { "exact" } else { "signs" };
            let filtered = if allowed.is_some() { "half of " } else { "" };
            println!(
                "{count:3} queries, best {most:2} of {filtered}{rows}, {how}: {:.3} ms, least {:.3}",
                times[20], times[0]
            );
        };
        for (queries, most) in [(1, 10), (1, 32), (32, 10), (256, 10), (256, 32)] {
            time(queries, most, None, true);
        }
        time(1, 10, Some(&half), true);
        time(256, 10, Some(&half), true);
        time(1, 10, None, false);
        time(1, 10, Some(&half), false);
    }
}
