//! Turns queries and keys by their positions, and puts keys and values into pages.
//! Sines are computed once a batch, not once a layer.

use super::kv::{PageView, TokenPlace};
use super::rows::normalise;
use crate::cpu::decoder::RmsNorm;
use crate::cpu::simd::{Kernel, Simd};
use crate::{PAGE_TOKENS, RopeSource};

/// Cosines and sines of the positions of a batch, for the frequencies they were last asked for.
#[derive(Default)]
pub(super) struct Angles {
    kept: Vec<Kept>,
}

struct Kept {
    rope: RopeSource,
    positions: Vec<usize>,
    /// Cosines and then sines of each position.
    values: Vec<f32>,
}

/// Ropes of a model: Gemma has two.
const ROPES: usize = 4;

impl Angles {
    /// Cosines and then sines of all pairs, a position after the other.
    pub(super) fn of(&mut self, rope: &RopeSource, positions: &[usize]) -> &[f32] {
        let same = |kept: &Kept| {
            kept.positions == positions
                && kept.rope.radians == rope.radians
                && kept.rope.scale.to_bits() == rope.scale.to_bits()
        };
        let at = match self.kept.iter().position(same) {
            Some(at) => at,
            None => {
                let mut values = Vec::with_capacity(positions.len() * rope.radians.len() * 2);
                for position in positions {
                    let angle = |radians: &f32| (*position as f32 * radians).sin_cos();
                    values.extend(rope.radians.iter().map(|radians| angle(radians).1 * rope.scale));
                    values.extend(rope.radians.iter().map(|radians| angle(radians).0 * rope.scale));
                }
                self.kept.truncate(ROPES - 1);
                self.kept.insert(0, Kept { rope: rope.clone(), positions: positions.to_vec(), values });
                0
            }
        };
        &self.kept[at].values
    }
}

/// One row of queries, keys and values.
pub(super) struct TurnRow<'a> {
    pub(super) row: &'a mut [f32],
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) norms: [Option<&'a RmsNorm>; 2],
    /// Cosines, then sines.
    pub(super) angles: &'a [f32],
    pub(super) neighbours: bool,
    pub(super) pages: PageView,
    pub(super) page: u32,
    pub(super) layer: usize,
    pub(super) position: usize,
}

impl Kernel for TurnRow<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let size = self.row.len() / (self.heads + 2 * self.kv_heads);
        let (cosines, sines) = self.angles.split_at(self.angles.len() / 2);
        let token = self.position % PAGE_TOKENS;
        for head in 0..self.kv_heads {
            self.pages.fetch::<S>(TokenPlace { page: self.page, layer: self.layer, head, token });
        }
        for (head, numbers) in self.row.chunks_exact_mut(size).take(self.heads + self.kv_heads).enumerate() {
            let norm = self.norms[usize::from(head >= self.heads)];
            if let Some(norm) = norm {
                let before = numbers.to_vec();
                // SAFETY: as the caller's.
                unsafe { normalise::<S>(&before, Some(norm), numbers) };
            }
            turn(numbers, cosines, sines, self.neighbours);
        }
        let (keys, values) = self.row[self.heads * size..].split_at(self.kv_heads * size);
        for head in 0..self.kv_heads {
            let numbers = head * size..(head + 1) * size;
            let at = TokenPlace { page: self.page, layer: self.layer, head, token };
            // SAFETY: the caller's promise.
            unsafe { self.pages.write(at, &keys[numbers.clone()], &values[numbers]) };
        }
    }
}

/// Turns the pairs of a head.
#[inline(always)]
fn turn(head: &mut [f32], cosines: &[f32], sines: &[f32], neighbours: bool) {
    let pairs = cosines.len();
    let angles = cosines.iter().zip(sines);
    if neighbours {
        for ([a, b], (cosine, sine)) in head.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
            (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
        }
        return;
    }
    let (first, second) = head.split_at_mut(pairs);
    for ((a, b), (cosine, sine)) in first.iter_mut().zip(second).zip(angles) {
        (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
    }
}
