//! Attention of many tokens to the pages of their sequences on AMX tiles.
//! A block is 32 queries of one head of keys: those of some neighbouring tokens that share it.

use super::Layer;
use super::finish::Columns;
use super::kv::{HalfView, padded};
use super::rows::{TILE_BYTES, TILE_ROWS};
use crate::cpu::activation::{Function, Tanh};
use crate::cpu::decoder::rows::RowActs;
use crate::cpu::gemm::{Bf16Tiles, Keep, Tiles};
use crate::cpu::simd::{Kernel, Simd, vectorize_on_amx};
use crate::cpu::tiles::{TileKind, load, store, zero};
use crate::cpu::{Aligned, Shares, ThreadPool};
use crate::{PAGE_TOKENS, Step};
use half::bf16;
use std::f32::consts::LOG2_E;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Queries of a block: two tiles.
pub(super) const BLOCK_ROWS: usize = 2 * TILE_ROWS;
/// Fewer new tokens are not worth a tile.
pub(super) const ROWS_LEAST: usize = 8;
/// Pages whose scores are kept at once.
const RUN_PAGES: usize = 16;
const RUN_TOKENS: usize = RUN_PAGES * PAGE_TOKENS;

/// Buffers of one thread.
pub(super) struct TileRoom {
    /// `[16 rows][32 numbers of a head]` tiles.
    queries: Aligned<bf16>,
    /// `[row][token]`.
    scores: Aligned<f32>,
    /// `[16 rows][page]` tiles.
    weights: Aligned<bf16>,
    /// `[row][number]`.
    values: Aligned<f32>,
    /// The values of a run.
    part: Aligned<f32>,
    largest: [f32; BLOCK_ROWS],
    total: [f32; BLOCK_ROWS],
}

impl Default for TileRoom {
    fn default() -> Self {
        Self {
            queries: Aligned::zeroed(0),
            scores: Aligned::zeroed(BLOCK_ROWS * RUN_TOKENS),
            weights: Aligned::zeroed(BLOCK_ROWS * RUN_TOKENS),
            values: Aligned::zeroed(0),
            part: Aligned::zeroed(BLOCK_ROWS * PAGE_TOKENS),
            largest: [0.0; BLOCK_ROWS],
            total: [0.0; BLOCK_ROWS],
        }
    }
}

/// Neighbouring tokens of one sequence.
struct Tokens<'a> {
    /// Their rows in the batch.
    rows: Range<usize>,
    /// The position of the first.
    position: usize,
    pages: &'a [u32],
}

/// Threads take blocks of tokens by heads of keys. The steps' pages are those of `pages`, which have the layer as `kept_layer`.
pub(super) fn attend(
    (pool, shares): (&ThreadPool, &Shares),
    rooms: &[Mutex<TileRoom>],
    (steps, layer): (&[Step<'_>], &Layer<'_>),
    (qkv, pages, kept_layer): (&RowActs, HalfView, usize),
    out: Columns,
) {
    let shape = pages.shape();
    let shared = layer.heads / shape.kv_heads;
    let at_once = (BLOCK_ROWS / shared).max(1);
    let blocks: Vec<Tokens<'_>> = steps.iter().flat_map(|step| blocks_of(step, at_once)).collect();
    shares.fill(blocks.len() * shape.kv_heads);
    pool.run(&|rank| {
        // SAFETY: the AMX path was found on this machine.
        let tiles = unsafe { Tiles::configure() };
        let mut room = rooms[rank].lock().unwrap_or_else(PoisonError::into_inner);
        for item in shares.of(rank) {
            // The longest first: the last ones are then short, and no thread waits long for another.
            let block = &blocks[blocks.len() - 1 - item / shape.kv_heads];
            let head = item % shape.kv_heads;
            let block = Block {
                tiles: &tiles,
                room: &mut room,
                tokens: block,
                layer,
                kept_layer,
                head,
                shared,
                qkv,
                pages,
                out,
            };
            // SAFETY: this path has the tiles; a head of a row is one thread's; the pages have all tokens.
            unsafe { vectorize_on_amx(block) };
        }
    });
}

fn blocks_of<'a>(step: &Step<'a>, at_once: usize) -> impl Iterator<Item = Tokens<'a>> + use<'a> {
    let (step, count) = (step.clone(), step.rows.len());
    (0..count).step_by(at_once).map(move |first| Tokens {
        rows: step.rows.start + first..step.rows.start + count.min(first + at_once),
        position: step.start + first,
        pages: step.pages,
    })
}

struct Block<'a> {
    tiles: &'a Tiles,
    room: &'a mut TileRoom,
    tokens: &'a Tokens<'a>,
    layer: &'a Layer<'a>,
    kept_layer: usize,
    /// The head of keys and values.
    head: usize,
    /// Heads of queries that share it.
    shared: usize,
    qkv: &'a RowActs,
    pages: HalfView,
    out: Columns,
}

impl Kernel for Block<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let size = self.pages.shape().head_size;
        let rows = self.tokens.rows.len() * self.shared;
        self.room.largest = [f32::NEG_INFINITY; BLOCK_ROWS];
        self.room.total = [0.0; BLOCK_ROWS];
        let first_seen = self.layer.window.map_or(0, |window| (self.tokens.position + 1).saturating_sub(window));
        let end = self.tokens.position + self.tokens.rows.len();
        // SAFETY: as the caller's.
        unsafe {
            self.take_queries::<S>(rows, size);
            let mut page = first_seen / PAGE_TOKENS;
            let last = end.div_ceil(PAGE_TOKENS);
            while page < last {
                let pages = page..last.min(page + RUN_PAGES);
                self.score(pages.clone(), rows);
                for row in 0..rows {
                    self.weigh::<S>(row, pages.clone());
                }
                self.add_values::<S>(pages.clone(), rows);
                page = pages.end;
            }
            for row in 0..rows {
                let (token, head) = (row / self.shared, row % self.shared);
                let share = 1.0 / self.room.total[row];
                let to = self.out.at(self.tokens.rows.start + token, (self.head * self.shared + head) * size);
                let to = std::slice::from_raw_parts_mut(to, size);
                let width = padded(size);
                for (to, value) in to.iter_mut().zip(&self.room.values[row * width..]) {
                    *to = value * share;
                }
            }
        }
    }
}

impl Block<'_> {
    /// Puts the queries, scaled, into tiles, and clears the values.
    #[inline(always)]
    unsafe fn take_queries<S: Simd>(&mut self, rows: usize, size: usize) {
        let width = padded(size);
        if self.room.queries.len() < BLOCK_ROWS * width {
            self.room.queries = Aligned::zeroed(BLOCK_ROWS * width);
            self.room.values = Aligned::zeroed(BLOCK_ROWS * width);
        }
        self.room.values[..BLOCK_ROWS * width].fill(0.0);
        // With a cap scores are turned into powers of two behind it.
        let factor = self.layer.scale * if self.layer.cap.is_some() { 1.0 } else { LOG2_E };
        let columns = self.qkv.columns;
        for row in 0..rows {
            let (token, head) = (row / self.shared, row % self.shared);
            let first = (self.tokens.rows.start + token) * columns + (self.head * self.shared + head) * size;
            let tile = row / TILE_ROWS * (width / PAGE_TOKENS);
            for (step, numbers) in self.qkv.values()[first..first + size].chunks(32).enumerate() {
                let mut whole = [0.0f32; 32];
                whole[..numbers.len()].copy_from_slice(numbers);
                let at = (tile + step) * TILE_BYTES / 2 + row % TILE_ROWS * 32;
                let to = self.room.queries[at..at + 32].as_mut_ptr();
                for i in (0..32).step_by(2 * S::LANES) {
                    // SAFETY: vectors lie inside the 32 numbers.
                    unsafe {
                        let from = whole.as_ptr().add(i);
                        let (one, two) = (S::load(from), S::load(from.add(S::LANES)));
                        let factor = S::splat(factor);
                        S::store_two_bf16(to.add(i), S::mul(one, factor), S::mul(two, factor));
                    }
                }
            }
        }
    }

    /// Scores of all tokens of these pages.
    #[inline(always)]
    unsafe fn score(&mut self, pages: Range<usize>, rows: usize) {
        let _: &Tiles = self.tiles;
        let steps = padded(self.pages.shape().head_size) / PAGE_TOKENS;
        let queries: *const u8 = self.room.queries.as_ptr().cast();
        const ROW_BYTES: usize = RUN_TOKENS * 4;
        for (at, page) in self.tokens.pages[pages].iter().enumerate() {
            let keys = self.pages.keys(*page, self.kept_layer, self.head).cast_const().cast::<u8>();
            let scores = self.room.scores.as_mut_ptr().cast::<u8>().wrapping_add(at * PAGE_TOKENS * 4);
            // SAFETY: a page's keys are two halves of `steps` tiles; queries are two blocks of as many.
            unsafe {
                zero::<0>();
                zero::<1>();
                zero::<2>();
                zero::<3>();
                for step in 0..steps {
                    load::<6>(keys.add(step * TILE_BYTES), Keep::Near);
                    load::<4>(queries.add(step * TILE_BYTES), Keep::Near);
                    Bf16Tiles::multiply_add::<0, 4, 6>();
                    load::<7>(keys.add((steps + step) * TILE_BYTES), Keep::Near);
                    Bf16Tiles::multiply_add::<1, 4, 7>();
                    if rows > TILE_ROWS {
                        load::<5>(queries.add((steps + step) * TILE_BYTES), Keep::Near);
                        Bf16Tiles::multiply_add::<2, 5, 6>();
                        Bf16Tiles::multiply_add::<3, 5, 7>();
                    }
                }
                store::<0>(scores, ROW_BYTES);
                store::<1>(scores.add(64), ROW_BYTES);
                if rows > TILE_ROWS {
                    store::<2>(scores.add(TILE_ROWS * ROW_BYTES), ROW_BYTES);
                    store::<3>(scores.add(TILE_ROWS * ROW_BYTES + 64), ROW_BYTES);
                }
            }
        }
    }

    /// Turns a row's scores into weights, those of tokens that it does not see into zeros.
    #[inline(always)]
    unsafe fn weigh<S: Simd>(&mut self, row: usize, pages: Range<usize>) {
        let width = padded(self.pages.shape().head_size);
        let position = self.tokens.position + row / self.shared;
        let (start, all) = (pages.start * PAGE_TOKENS, pages.len() * PAGE_TOKENS);
        let first = self.layer.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let (from, to) = (first.saturating_sub(start).min(all), (position + 1).saturating_sub(start).min(all));
        let TileRoom { scores, weights, values, largest, total, .. } = &mut *self.room;
        let scores = &mut scores[row * RUN_TOKENS..row * RUN_TOKENS + all];
        // SAFETY: scores are whole pages, and so whole vectors.
        unsafe {
            if let Some(cap) = self.layer.cap {
                for i in (0..all).step_by(S::LANES) {
                    let at = scores.as_mut_ptr().add(i);
                    let score = Tanh::of::<S, f32>(S::mul(S::load(at), S::splat(1.0 / cap)));
                    S::store(at, S::mul(score, S::splat(cap * LOG2_E)));
                }
            }
            scores[..from].fill(f32::NEG_INFINITY);
            scores[to.max(from)..].fill(f32::NEG_INFINITY);
            let mut most = S::splat(f32::NEG_INFINITY);
            for i in (0..all).step_by(S::LANES) {
                most = S::max(most, S::load(scores.as_ptr().add(i)));
            }
            let before = largest[row];
            let most = S::maximum(most).max(before);
            // Where nothing is seen so far any number does: all weights are zero.
            let most = if most == f32::NEG_INFINITY { 0.0 } else { most };
            let mut sum = S::splat(0.0);
            let tile = weights.as_mut_ptr().add(row / TILE_ROWS * RUN_PAGES * TILE_BYTES / 2 + row % TILE_ROWS * 32);
            for i in (0..all).step_by(2 * S::LANES) {
                let from = scores.as_ptr().add(i);
                let one = S::exp2_coarse(S::sub(S::load(from), S::splat(most)));
                let two = S::exp2_coarse(S::sub(S::load(from.add(S::LANES)), S::splat(most)));
                S::store_two_bf16(tile.add(i / PAGE_TOKENS * TILE_BYTES / 2 + i % PAGE_TOKENS), one, two);
                sum = S::add(sum, S::add(one, two));
            }
            let kept = (before - most).exp2();
            total[row] = total[row] * kept + S::sum(sum);
            largest[row] = if most == 0.0 && before == f32::NEG_INFINITY && from >= to { before } else { most };
            if kept != 1.0 {
                values[row * width..(row + 1) * width].iter_mut().for_each(|value| *value *= kept);
            }
        }
    }

    /// Adds the values of these pages, weighed.
    #[inline(always)]
    unsafe fn add_values<S: Simd>(&mut self, pages: Range<usize>, rows: usize) {
        let width = padded(self.pages.shape().head_size);
        let weights: *const u8 = self.room.weights.as_ptr().cast();
        let part: *mut u8 = self.room.part.as_mut_ptr().cast();
        const ROW_BYTES: usize = PAGE_TOKENS * 4;
        for number in (0..width).step_by(32) {
            // SAFETY: a page's values have a tile for each 16 numbers; weights are tiles of each page.
            unsafe {
                zero::<0>();
                zero::<1>();
                zero::<2>();
                zero::<3>();
                for (at, page) in self.tokens.pages[pages.clone()].iter().enumerate() {
                    let values = self.pages.values(*page, self.kept_layer, self.head).cast_const().cast::<u8>();
                    let values = values.add(number / 16 * TILE_BYTES);
                    load::<6>(values, Keep::Near);
                    load::<4>(weights.add(at * TILE_BYTES), Keep::Near);
                    Bf16Tiles::multiply_add::<0, 4, 6>();
                    load::<7>(values.add(TILE_BYTES), Keep::Near);
                    Bf16Tiles::multiply_add::<1, 4, 7>();
                    if rows > TILE_ROWS {
                        load::<5>(weights.add((RUN_PAGES + at) * TILE_BYTES), Keep::Near);
                        Bf16Tiles::multiply_add::<2, 5, 6>();
                        Bf16Tiles::multiply_add::<3, 5, 7>();
                    }
                }
                store::<0>(part, ROW_BYTES);
                store::<1>(part.add(64), ROW_BYTES);
                store::<2>(part.add(TILE_ROWS * ROW_BYTES), ROW_BYTES);
                store::<3>(part.add(TILE_ROWS * ROW_BYTES + 64), ROW_BYTES);
                for row in 0..rows {
                    let (from, to) = (row * PAGE_TOKENS, row * width + number);
                    for i in (0..32).step_by(S::LANES) {
                        let to = self.room.values.as_mut_ptr().add(to + i);
                        S::store(to, S::add(S::load(to), S::load(self.room.part.as_ptr().add(from + i))));
                    }
                }
            }
        }
    }
}
