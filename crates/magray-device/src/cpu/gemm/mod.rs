//! Linear layers on the CPU: packed weights, and the product of a block of rows with one panel of them.
//! Knows nothing of threads: callers give each its own blocks.

mod ahead;
mod beside;
mod blocks;
mod finish;
mod pack;
mod quantise;
mod tile_product;
pub(crate) mod tile_registers;
mod tiles;
mod vector;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub(super) use ahead::Ahead;
pub(super) use blocks::{Blocks, Division};
pub(super) use finish::Target;
pub(super) use pack::{Layout, element_index};
pub(super) use quantise::{QuantiseRows, QuantisedRows};
pub(super) use tile_registers::{Bf16Tiles, Keep, Tiles};
pub(super) use tiles::TileBlock;
pub(super) use vector::VectorBlock;

use super::activation::Stored;
use super::acts::{Acts, PANEL};
use super::aligned::{Aligned, Plain, Region};
use super::pool::ThreadPool;
use super::sched_slice::yield_core;
use super::simd::{Element, Kernel, vectorize, vectorize_on_amx};
use crate::LinearSource;
use blocks::BlockIndex;
use finish::{Ending, FinishBlock, Sums};
use magray_core::CpuPath;
use pack::{PanelPart, Panels, pack_bf16, pack_f32, pack_i8};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Mutex;
use tile_product::TileProduct;
use tile_registers::U8I8Tiles;
use tiles::TileSums;

/// Rows of the largest block, as many as a thread of its own multiplies at once: each panel then comes to the first
/// cache once.
pub(super) const BLOCK_ROWS: usize = 256;

/// The weights and bias of a linear layer, packed for one path and precision.
pub struct Linear {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) layout: Layout,
    panels: Panels,
    bias: Aligned<f32>,
    scales: Aligned<f32>,
    totals: Aligned<f32>,
}

impl Linear {
    pub(super) fn pack(source: LinearSource<'_>, layout: Layout, pool: &ThreadPool, region: &Region) -> Self {
        let LinearSource { weights, inputs, bias } = source;
        assert!(inputs > 0 && weights.len().is_multiple_of(inputs), "whole rows of weights");
        let outputs = weights.len() / inputs;
        assert!(bias.is_empty() || bias.len() == outputs, "a bias for each output, or none");
        let columns = outputs.next_multiple_of(PANEL);
        let panel_len = layout.depth(inputs) * PANEL;
        let total = columns / PANEL * panel_len;

        let mut padded_bias = Aligned::zeroed(columns);
        padded_bias[..bias.len()].copy_from_slice(bias);
        let quantised = if layout.is_quantised() { columns } else { 0 };
        let (mut scales, mut totals) = (Aligned::zeroed(quantised), Aligned::zeroed(quantised));

        let rows: Vec<&[f32]> = weights.chunks_exact(inputs).collect();
        let panels = match layout {
            Layout::F32 => Panels::F32(pack_panels(region.zeroed(total), panel_len, pool, &|i, packed| {
                pack_f32(panel_rows(&rows, i), packed);
            })),
            Layout::Bf16 | Layout::Bf16Tiles => {
                let packed = pack_panels(region.zeroed(total), panel_len, pool, &|i, packed| {
                    pack_bf16(layout, panel_rows(&rows, i), packed);
                });
                if layout == Layout::Bf16 { Panels::Bf16(packed) } else { Panels::Bf16Tiles(packed) }
            }
            Layout::I8 | Layout::I8Tiles => {
                let parts: Vec<_> = scales.chunks_mut(PANEL).zip(totals.chunks_mut(PANEL)).collect();
                let parts: Vec<_> = parts.into_iter().map(Mutex::new).collect();
                let packed = pack_panels(region.zeroed(total), panel_len, pool, &|i, packed| {
                    let mut part = parts[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let (scales, totals) = &mut *part;
                    pack_i8(layout, panel_rows(&rows, i), PanelPart { packed, scales, totals });
                });
                if layout == Layout::I8 { Panels::I8(packed) } else { Panels::I8Tiles(packed) }
            }
        };
        Self { outputs, inputs, layout, panels, bias: padded_bias, scales, totals }
    }

    /// How a team multiplies this many rows with it.
    pub(super) fn divide(&self, rows: usize, team: usize) -> Division {
        let block_rows = match self.panels {
            Panels::Bf16Tiles(_) | Panels::I8Tiles(_) => tiles::BLOCK_ROWS,
            _ => BLOCK_ROWS,
        };
        Division::new(self.bias.len() / PANEL, rows, block_rows, team)
    }

    /// Multiplies blocks of rows with their panels, and finishes them.
    ///
    /// # Safety
    /// The path is available; `tiles` is there where it is AMX; each of `sums` has room for `BLOCK_ROWS` rows of
    /// `PANEL`; the blocks were divided from the rows of `x`, and no other thread has them; `quantised` holds the same
    /// rows where the layout asks for bytes; the target has room for all rows and panels.
    pub(super) unsafe fn multiply<R: Element, E: Stored, I: Iterator<Item = usize>>(
        &self,
        part: Part<'_, I>,
        target: Target<R, E>,
    ) {
        let depth = self.layout.depth(self.inputs);
        let scales = self.scales.as_ptr();
        let sums = match self.layout {
            Layout::F32 | Layout::Bf16 | Layout::Bf16Tiles => Sums::Ready,
            Layout::I8 => Sums::ByColumn { scales },
            Layout::I8Tiles => {
                let (row_scales, row_shifts) = (part.quantised.scales(), part.quantised.shifts());
                Sums::Integer { scales, totals: self.totals.as_ptr(), row_scales, row_shifts }
            }
        };
        let ending = Ending { sums, bias: self.bias.as_ptr(), target };
        // SAFETY: the caller's promise.
        unsafe {
            match &self.panels {
                Panels::F32(w) => part.with_vectors(self.inputs, w, ending),
                Panels::Bf16(w) => part.with_vectors(self.inputs, w, ending),
                Panels::I8(w) => part.with_vectors(self.inputs, w, ending),
                Panels::Bf16Tiles(w) => {
                    let x = part.x.bf16();
                    let rows = (x.row(0, 0).cast_const().cast(), x.stride * size_of_val(&w[0]));
                    part.with_tiles::<Bf16Tiles, R, E>(rows, depth / 32, w.as_ptr().cast(), ending);
                }
                Panels::I8Tiles(w) if part.path == CpuPath::Amx => {
                    let rows = part.quantised.row(0);
                    part.with_tiles::<U8I8Tiles, R, E>(rows, depth / 64, w.as_ptr().cast(), ending);
                }
                Panels::I8Tiles(w) => part.with_bytes(depth / 64, w, ending),
            }
        }
    }
}

fn panel_rows<'a, 'b>(rows: &'a [&'b [f32]], panel: usize) -> &'a [&'b [f32]] {
    &rows[panel * PANEL..rows.len().min((panel + 1) * PANEL)]
}

/// Packs every panel, the threads taking them in turn.
fn pack_panels<T: Plain>(
    mut packed: Aligned<T>,
    panel_len: usize,
    pool: &ThreadPool,
    pack: &(dyn Fn(usize, &mut [T]) + Sync),
) -> Aligned<T> {
    let queue = Mutex::new(packed.chunks_exact_mut(panel_len).enumerate());
    pool.run(&|_| {
        let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
        while let Some((i, panel)) = next() {
            pack(i, panel);
            yield_core();
        }
    });
    packed
}

/// What one thread multiplies.
pub(super) struct Part<'a, I> {
    pub(super) path: CpuPath,
    pub(super) tiles: Option<&'a Tiles>,
    pub(super) x: &'a Acts,
    pub(super) quantised: &'a QuantisedRows,
    pub(super) blocks: Blocks<I>,
    /// Buffers for the sums of a block.
    pub(super) sums: [*mut f32; 2],
}

impl<I: Iterator<Item = usize>> Part<'_, I> {
    unsafe fn with_vectors<W: vector::Weight, R: Element, E: Stored>(
        mut self,
        k: usize,
        panels: &[W],
        ending: Ending<R, E>,
    ) {
        let c = self.sums[0];
        while let Some(at) = self.blocks.next() {
            let a = self.x.f32().starting_at(at.from);
            let panel = panels[at.panel * k * PANEL..].as_ptr();
            // The first block that meets a panel fetches the one that follows.
            let bytes = if at.from == 0 { k * PANEL * size_of::<W>() } else { 0 };
            let next = (panel.wrapping_add(k * PANEL).cast(), bytes);
            // SAFETY: `Linear::multiply`'s promise.
            let done = |rows| unsafe { self.finish(&ending, at, rows) };
            // SAFETY: as above.
            unsafe { vectorize(self.path, VectorBlock { a, rows: at.rows, k, panel, next, c, done: &done }) };
        }
    }

    /// Finishes rows of a block whose sums are in the first buffer.
    unsafe fn finish<R: Element, E: Stored>(&self, ending: &Ending<R, E>, block: BlockIndex, rows: Range<usize>) {
        let at = BlockIndex { from: block.from + rows.start, rows: rows.len(), ..block };
        let block = ending.block(at, self.sums[0].wrapping_add(rows.start * PANEL));
        // SAFETY: `Linear::multiply`'s promise.
        unsafe { vectorize(self.path, FinishBlock { block, activation: ending.target.activation }) };
    }

    /// `rows` are the first row's bytes and the distance of steps.
    unsafe fn with_tiles<T: TileSums, R: Element, E: Stored>(
        self,
        rows: (*const u8, usize),
        steps: usize,
        panels: *const u8,
        ending: Ending<R, E>,
    ) {
        let tiles = self.tiles.expect("the AMX path configures its tiles first");
        let ((a, a_stride), blocks, sums) = (rows, self.blocks, self.sums);
        let kind = PhantomData::<T>;
        // SAFETY: `Linear::multiply`'s promise; activations hold whole tiles beyond their last row.
        unsafe {
            vectorize_beside_tiles(tiles, TileProduct { kind, a, a_stride, steps, panels, blocks, ending, sums });
        }
    }

    unsafe fn with_bytes<R: Element, E: Stored>(mut self, steps: usize, panels: &[i8], ending: Ending<R, E>) {
        #[cfg(target_arch = "x86_64")]
        while let Some(at) = self.blocks.next() {
            let (a, a_stride) = self.quantised.row(at.from);
            let panel = panels[at.panel * steps * tiles::PANEL_STEP_BYTES..].as_ptr();
            let c = self.sums[0].cast();
            // SAFETY: this layout is chosen on AVX-512 with VNNI alone.
            unsafe {
                vnni::VnniBlock { a, a_stride, rows: at.rows, steps, panel, c }.run();
                self.finish(&ending, at, 0..at.rows);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (steps, panels, ending);
    }
}

/// Runs a kernel that multiplies tiles.
///
/// # Safety
/// What the kernel points at is valid.
unsafe fn vectorize_beside_tiles<K: Kernel>(_: &Tiles, kernel: K) {
    // SAFETY: the tiles were configured, so the machine has the AMX path; the rest is the caller's promise.
    unsafe { vectorize_on_amx(kernel) }
}
