//! The kernels for bytes against plain code.

use super::*;
use crate::cpu::detect::{has_f16c, has_vnni};
use proptest::prelude::*;

fn kinds() -> Vec<Bytes> {
    let mut kinds = Vec::new();
    if has_f16c() {
        kinds.push(Bytes::Avx2);
    }
    if has_vnni() {
        kinds.push(Bytes::Vnni);
    }
    kinds
}

fn random(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as u32
    }
}

fn close(found: &[f32], wanted: &[f32]) -> Result<(), TestCaseError> {
    let size = wanted.iter().fold(1e-20f32, |most, x| most.max(x.abs()));
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        prop_assert!((found - wanted).abs() <= 1e-6 * size, "{at}: {found} for {wanted}");
    }
    Ok(())
}

/// Steps of some numbers on a path.
struct Steps<'a>(&'a [f32; 32], &'a mut [[i8; 32]; 2]);

impl Kernel for Steps<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: as the caller's.
        *self.1 = unsafe { two_bytes::<S>(self.0, STEPS) };
    }
}

#[test]
fn two_bytes_are_near_their_numbers_and_within_their_range() {
    let mut numbers: [f32; 32] = std::array::from_fn(|i| (i as f32 * 0.777).sin());
    (numbers[3], numbers[9], numbers[17]) = (1.0, -1.0, 63.5 / STEPS);
    for path in crate::cpu::available_paths() {
        let mut bytes = [[0; 32]; 2];
        // SAFETY: the path is available.
        unsafe { crate::cpu::simd::vectorize(path, Steps(&numbers, &mut bytes)) };
        for (i, number) in numbers.iter().enumerate() {
            let found = (f32::from(bytes[0][i]) + f32::from(bytes[1][i]) / QUERY_FINE) / STEPS;
            assert!((found - number).abs() <= 0.51 / STEPS / QUERY_FINE, "{path}: {found} for {number}");
            assert!(bytes.iter().all(|bytes| bytes[i] > -128), "{path}: AVX2 has no room for -128");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn scores_are_those_of_plain_code(count in 1usize..=AT_ONCE, groups in 1usize..9, seed in 0u64..10_000) {
        let width = groups * 32;
        let mut next = random(seed);
        // -127 to 127 and the offset: both ends are there.
        let keys: Vec<u8> = (0..PAGE_TOKENS * width).map(|_| (next() % 255 + 1) as u8).collect();
        let scales: Vec<bf16> = (0..PAGE_TOKENS).map(|_| bf16::from_f32((next() % 1000) as f32 / 500.0)).collect();
        let queries: Vec<i8> = (0..count * 2 * width).map(|_| (next() % 255) as i32 - 127).map(|x| x as i8).collect();
        let facts: Vec<QueryFacts> = queries.chunks(2 * width).map(|rows| {
            let total = |row: usize| rows[row * width..][..width].iter().map(|x| i32::from(*x)).sum::<i32>();
            QueryFacts { scale: (next() % 100) as f32 / 9.0, offsets: [0, 1].map(|row| -KEY_OFFSET * total(row)) }
        }).collect();
        let scores = |bytes: Option<Bytes>| {
            let mut scores = vec![0.0; count * RUN_TOKENS];
            let block = KeyPage {
                width,
                keys: keys.as_ptr(),
                scales: scales.as_ptr(),
                queries: queries.as_ptr(),
                facts: facts.as_ptr(),
                scores: scores.as_mut_ptr(),
                ahead: None,
            };
            // SAFETY: the instructions are there; all lengths are those of a page.
            unsafe {
                match bytes {
                    Some(bytes) => block.multiply(bytes, count),
                    None => plain::score(&block, count),
                }
            }
            scores
        };
        for kind in kinds() {
            close(&scores(Some(kind)), &scores(None))?;
        }
    }

    #[test]
    fn values_are_those_of_plain_code(count in 1usize..=AT_ONCE, pages in 1usize..=RUN_PAGES, seed in 0u64..10_000) {
        let width = 64;
        let mut next = random(seed);
        let values: Vec<u8> =
            (0..pages * 32 * PAGE_TOKENS).map(|_| ((next() % 255) as i32 - 127) as i8 as u8).collect();
        let places: Vec<*const u8> = values.chunks(32 * PAGE_TOKENS).map(<[u8]>::as_ptr).rev().collect();
        let weights: Vec<u8> = (0..count * 2 * RUN_TOKENS).map(|_| (next() % 128) as u8).collect();
        let steps: Vec<f32> = (0..count).map(|_| (next() % 100) as f32 / 9.0).collect();
        let sums = |bytes: Option<Bytes>| {
            let mut sums: Vec<f32> = (0..count * width).map(|i| i as f32).collect();
            let run = ValueRun {
                pages: &places,
                weights: weights.as_ptr(),
                steps: steps.as_ptr(),
                sums: sums.as_mut_ptr(),
                width,
                ahead: &[],
            };
            // SAFETY: as above, of a run.
            unsafe {
                match bytes {
                    Some(bytes) => run.multiply(bytes, count),
                    None => plain::add(&run, count),
                }
            }
            sums
        };
        for kind in kinds() {
            close(&sums(Some(kind)), &sums(None))?;
        }
    }
}
