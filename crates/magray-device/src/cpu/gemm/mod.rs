//! Linear layers on the CPU: packed weights, and the product of a block of rows with one panel of them.
//! Knows nothing of threads: callers give each its own blocks.

mod ahead;
mod finish;
mod pack;
mod quantise;
mod tile_registers;
mod tiles;
mod vector;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub(super) use ahead::Ahead;
pub(super) use finish::{Finish, Sums};
pub(super) use pack::{Layout, place};
pub(super) use quantise::{QuantiseRows, QuantisedRows};
pub(super) use tile_registers::{Bf16Tiles, Keep, Tiles};
pub(super) use tiles::{ROWS_READ_BEYOND, TileBlock};
pub(super) use vector::VectorBlock;

use super::activation::Stored;
use super::acts::{Acts, PANEL};
use super::aligned::{Aligned, LINE_BYTES, Plain, Region};
use super::pool::ThreadPool;
use super::simd::{Element, vectorize, vectorize_beside_tiles};
use crate::{LinearSource, Rows};
use finish::{FinishBeside, TileSums};
use magray_core::CpuPath;
use pack::{PanelPart, Panels, pack_bf16, pack_f32, pack_i8};
use std::marker::PhantomData;
use std::sync::Mutex;
use tile_registers::U8I8Tiles;

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
    excess: Aligned<f32>,
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
        let (mut scales, mut excess) = (Aligned::zeroed(quantised), Aligned::zeroed(quantised));

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
                let parts: Vec<_> = scales.chunks_mut(PANEL).zip(excess.chunks_mut(PANEL)).collect();
                let parts: Vec<_> = parts.into_iter().map(Mutex::new).collect();
                let packed = pack_panels(region.zeroed(total), panel_len, pool, &|i, packed| {
                    let mut part = parts[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let (scales, excess) = &mut *part;
                    pack_i8(layout, panel_rows(&rows, i), PanelPart { packed, scales, excess });
                });
                if layout == Layout::I8 { Panels::I8(packed) } else { Panels::I8Tiles(packed) }
            }
        };
        Self { outputs, inputs, layout, panels, bias: padded_bias, scales, excess }
    }

    pub(super) fn panel_count(&self) -> usize {
        self.bias.len() / PANEL
    }

    /// Rows to multiply at a time.
    pub(super) fn block_rows(&self) -> usize {
        match self.panels {
            Panels::Bf16Tiles(_) | Panels::I8Tiles(_) => tiles::BLOCK_ROWS,
            _ => BLOCK_ROWS,
        }
    }

    pub(super) fn panel_bias(&self, panel: usize) -> *const f32 {
        self.bias[panel * PANEL..].as_ptr()
    }

    /// Multiplies rows `from..from + rows` of `x` with one panel into `sums`, and says what the sums are. Finishes
    /// another block of the same layer meanwhile.
    ///
    /// # Safety
    /// The path is available; `tiles` is there where it is AMX; `sums` has room for `rows`, rounded up to whole tiles,
    /// times `PANEL`; the rows lie inside `x`; `quantised` holds the same rows where the layout asks for bytes. The
    /// other block's pointers are valid, and its sums are not `sums`.
    pub(super) unsafe fn multiply<R: Element, E: Stored>(
        &self,
        block: &Block<'_>,
        panel: usize,
        sums: *mut f32,
        other: Option<Finish<R, E>>,
    ) -> Sums {
        let depth = self.layout.depth(self.inputs);
        let at = panel * depth * PANEL;
        // SAFETY: the panel lies inside the packed weights, the rows inside `x`, by the caller's promise.
        unsafe {
            match &self.panels {
                Panels::F32(w) => {
                    block.with_vectors(self.inputs, w[at..].as_ptr(), sums, other);
                    Sums::Ready
                }
                Panels::Bf16(w) => {
                    block.with_vectors(self.inputs, w[at..].as_ptr(), sums, other);
                    Sums::Ready
                }
                Panels::I8(w) => {
                    block.with_vectors(self.inputs, w[at..].as_ptr(), sums, other);
                    Sums::ByColumn { scales: self.scales[panel * PANEL..].as_ptr() }
                }
                Panels::Bf16Tiles(w) => {
                    let x = block.x.bf16();
                    let rows = (x.row(block.from, 0).cast_const().cast(), x.stride * 2);
                    let product = block.tile_block::<Bf16Tiles>(rows, depth / 32, w[at..].as_ptr().cast(), sums);
                    block.with_tiles(product, other);
                    Sums::Ready
                }
                Panels::I8Tiles(w) => {
                    block.with_bytes(depth / 64, w[at..].as_ptr(), sums, other);
                    Sums::Integer {
                        scales: self.scales[panel * PANEL..].as_ptr(),
                        excess: self.excess[panel * PANEL..].as_ptr(),
                        row_scales: block.quantised.scale(block.from),
                    }
                }
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
        }
    });
    packed
}

/// Rows of activations that one thread multiplies.
pub(super) struct Block<'a> {
    pub(super) path: CpuPath,
    pub(super) tiles: Option<&'a Tiles>,
    pub(super) x: &'a Acts,
    pub(super) quantised: &'a QuantisedRows,
    pub(super) from: usize,
    pub(super) rows: usize,
}

impl Block<'_> {
    unsafe fn with_vectors<W: vector::Weight, R: Element, E: Stored>(
        &self,
        k: usize,
        panel: *const W,
        c: *mut f32,
        other: Option<Finish<R, E>>,
    ) {
        let a = self.x.f32().starting_at(self.from);
        // The first block that meets a panel fetches the one that follows.
        let bytes = if self.from == 0 { k * PANEL * size_of::<W>() } else { 0 };
        let next = (panel.wrapping_add(k * PANEL).cast(), bytes);
        // SAFETY: `Linear::multiply`'s promise.
        unsafe {
            vectorize(self.path, VectorBlock { a, rows: self.rows, k, panel, next, c });
            self.finish(other);
        }
    }

    /// Finishes a block by itself.
    unsafe fn finish<R: Element, E: Stored>(&self, block: Option<Finish<R, E>>) {
        if let Some(block) = block {
            // SAFETY: `Linear::multiply`'s promise.
            unsafe { vectorize(self.path, block) };
        }
    }

    unsafe fn with_tiles<T: TileSums, R: Element, E: Stored>(
        &self,
        product: TileBlock<T>,
        other: Option<Finish<R, E>>,
    ) {
        let tiles = self.tiles.expect("the AMX path configures its tiles first");
        // SAFETY: `Linear::multiply`'s promise; activations hold whole tiles beyond their last row.
        unsafe {
            match other {
                Some(finish) => vectorize_beside_tiles(tiles, FinishBeside { finish, product }),
                None => product.run(tiles),
            }
        }
    }

    /// `rows` are the first row's bytes and the distance of panels.
    fn tile_block<T>(&self, rows: (*const u8, usize), steps: usize, panel: *const u8, c: *mut f32) -> TileBlock<T> {
        let (a, a_stride) = rows;
        // A single block meets every panel, and each panel it alone.
        let keep_rows = if self.is_single() { Keep::Near } else { Keep::Far };
        // The blocks that meet a panel fetch the panel that follows, an equal part each.
        let blocks = self.x.rows().div_ceil(tiles::BLOCK_ROWS);
        let fetches = tiles::PANEL_STEP_BYTES.div_ceil(LINE_BYTES * blocks);
        let bytes = steps * tiles::PANEL_STEP_BYTES;
        let ahead = Ahead::new(panel.wrapping_add(bytes), bytes, blocks * steps * fetches);
        let ahead = ahead.after(self.from / tiles::BLOCK_ROWS * steps * fetches);
        let (kind, rows, c) = (PhantomData, self.rows, c.cast());
        TileBlock { kind, a, a_stride, keep_rows, rows, steps, panel, ahead, fetches, c }
    }

    fn is_single(&self) -> bool {
        self.x.rows() <= tiles::BLOCK_ROWS
    }

    unsafe fn with_bytes<R: Element, E: Stored>(
        &self,
        steps: usize,
        panel: *const i8,
        c: *mut f32,
        other: Option<Finish<R, E>>,
    ) {
        let (a, a_stride) = self.quantised.row(self.from);
        if self.path == CpuPath::Amx {
            let product = self.tile_block::<U8I8Tiles>((a, a_stride), steps, panel.cast(), c);
            // SAFETY: as above.
            return unsafe { self.with_tiles(product, other) };
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this layout is chosen on AVX-512 with VNNI alone.
        unsafe {
            vnni::VnniBlock { a, a_stride, rows: self.rows, steps, panel, c: c.cast() }.run();
            self.finish(other);
        }
    }
}
