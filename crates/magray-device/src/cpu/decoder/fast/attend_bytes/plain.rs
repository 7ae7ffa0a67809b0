//! Scores and values of bytes in plain code: what the kernels beside it are compared with.

use super::{KeyPage, QUERY_FINE, RUN_TOKENS, ValueRun, WEIGHT_FINE};
use crate::PAGE_TOKENS;

/// # Safety
/// As [`KeyPage::multiply`].
pub(super) unsafe fn score(block: &KeyPage, count: usize) {
    let width = block.width;
    // SAFETY: the caller's promise.
    unsafe {
        for query in 0..count {
            let facts = &*block.facts.add(query);
            for token in 0..PAGE_TOKENS {
                let mut sums = facts.offsets;
                for (row, sum) in sums.iter_mut().enumerate() {
                    for i in 0..width {
                        let at = token / 16 * 16 * width + i / 4 * 64 + token % 16 * 4 + i % 4;
                        let number = i32::from(*block.queries.add((query * 2 + row) * width + i));
                        *sum += i32::from(*block.keys.add(at)) * number;
                    }
                }
                let sum = sums[0] as f32 + sums[1] as f32 / QUERY_FINE;
                let scale = (*block.scales.add(token)).to_f32() * facts.scale;
                *block.scores.add(query * RUN_TOKENS + token) = sum * scale;
            }
        }
    }
}

/// # Safety
/// As [`ValueRun::multiply`].
pub(super) unsafe fn add(run: &ValueRun<'_>, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for query in 0..count {
            for number in 0..32 {
                let mut sums = [0i32; 2];
                for (row, sum) in sums.iter_mut().enumerate() {
                    for token in 0..run.pages.len() * PAGE_TOKENS {
                        let (page, token) = (token / PAGE_TOKENS, token % PAGE_TOKENS);
                        let at = number / 16 * 16 * PAGE_TOKENS + token / 4 * 64 + number % 16 * 4 + token % 4;
                        let weight = *run.weights.add((query * 2 + row) * RUN_TOKENS + page * PAGE_TOKENS + token);
                        *sum += i32::from(weight) * i32::from(*run.pages[page].add(at) as i8);
                    }
                }
                let sum = sums[0] as f32 + sums[1] as f32 / WEIGHT_FINE;
                *run.sums.add(query * run.width + number) += sum * *run.steps.add(query);
            }
        }
    }
}
