//! From ids to the first activations: word, position and type vectors, summed and normalised.
//! Ids and positions were checked at the door: one outside its table is a bug.

use super::acts::{Grid, PANEL};
use super::aligned::LINE_BYTES;
use super::layer_norm::NormRows;
use super::simd::{Element, Kernel, Simd, vectorize};
use crate::{Embedding, TokenBatch};
use magray_core::CpuPath;
use std::ops::Range;

/// Word vectors are spread over memory: they are prefetched this many tokens before they are read.
const TOKENS_AHEAD: usize = 4;

/// Prefetches memory.
struct Fetch(Range<*const u8>);

impl Kernel for Fetch {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Range { mut start, end } = self.0;
        while S::FETCHES && start < end {
            // SAFETY: a hint.
            unsafe { S::fetch_near(start) };
            start = start.wrapping_add(LINE_BYTES);
        }
    }
}

impl Embedding {
    /// Embeds these tokens of the batch into the rows of the same number.
    ///
    /// # Safety
    /// `out` is valid for the rows, which are this thread's alone; the path is available.
    pub(super) unsafe fn rows<E: Element>(
        &self,
        path: CpuPath,
        batch: &TokenBatch<'_>,
        tokens: Range<usize>,
        out: Grid<E>,
        room: &mut EmbedScratch,
    ) {
        let columns = self.words.columns();
        room.sum.resize(columns.next_multiple_of(PANEL), 0.0);
        room.spare.resize(columns, 0.0);
        // The last text that starts at or before the first token; empty texts share a start with their successor.
        let mut text = batch.offsets.partition_point(|&start| start <= tokens.start).saturating_sub(1);
        for token in tokens {
            while token >= batch.offsets[text + 1] {
                text += 1;
            }
            if let Some(&id) = batch.ids.get(token + TOKENS_AHEAD) {
                // SAFETY: the caller's promise; fetches are hints.
                unsafe { vectorize(path, Fetch(self.words.row_bytes(id as usize))) };
            }
            let position = self.first_position + token - batch.offsets[text];
            room.sum.fill(0.0);
            let sum = &mut room.sum[..columns];
            self.words.add_row(batch.ids[token] as usize, sum, &mut room.spare);
            self.positions.add_row(position, sum, &mut room.spare);
            if let Some(types) = &self.types {
                let of = batch.types.get(token).map_or(0, |&t| t as usize);
                types.add_row(of, sum, &mut room.spare);
            }
            // One row alone: its panels follow each other.
            let x = Grid::new(room.sum.as_mut_ptr(), PANEL);
            // SAFETY: the caller's promise.
            unsafe { vectorize(path, NormRows { x, rows: 1, norm: &self.norm, out: out.starting_at(token) }) };
        }
    }
}

#[derive(Default)]
pub(super) struct EmbedScratch {
    sum: Vec<f32>,
    spare: Vec<f32>,
}
