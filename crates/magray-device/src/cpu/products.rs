//! The number formats of attention: how keys and values of a head are laid out like weights, and which kernels multiply
//! them. Knows nothing of texts.

use super::activation::Stored;
use super::acts::{Grid, PANEL};
use super::aligned::Plain;
use super::gemm::{Ahead, Bf16Tiles, Keep, Layout, TileBlock, VectorBlock, element_index};
use super::head_columns::HeadColumns;
use super::simd::{Kernel, Simd};
use half::bf16;
use magray_core::CpuPath;
use std::marker::PhantomData;
use std::ops::Range;

/// A product of attention: rows by one panel.
pub(super) struct Product<E> {
    pub(super) a: Grid<E>,
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) panel: *const E,
    pub(super) c: *mut f32,
}

/// A number format of activations, with the kernels that multiply it.
pub(super) trait Products: Plain + Stored {
    const LAYOUT: Layout;

    /// `c[rows][PANEL] = a[rows][k] * panel`.
    ///
    /// # Safety
    /// As the block kernels: valid pointers, whole tiles of rows, what lies beyond `k` up to a whole step is zero in
    /// the panel and finite in `a`; where these numbers are multiplied by tiles, they are configured.
    unsafe fn multiply<S: Simd>(product: Product<Self>);

    /// Lays 32 keys out as a panel: `panel[dimension][key]`. Keys beyond the text become zero.
    ///
    /// # Safety
    /// `keys` is valid for the tokens and the panel for `head_size` rounded up to whole steps.
    unsafe fn pack_keys(path: CpuPath, head: &HeadColumns<Self>, keys: Range<usize>, panel: *mut Self) {
        let _ = path;
        // SAFETY: as the caller's.
        unsafe { pack_keys_plainly(head, keys, panel) };
    }

    /// Lays 32 dimensions of the values out as a panel: `panel[token][dimension]`, zero beyond.
    ///
    /// # Safety
    /// As above, with `tokens` rounded up to whole panels.
    unsafe fn pack_values(path: CpuPath, head: &HeadColumns<Self>, tokens: usize, first: usize, panel: *mut Self) {
        let _ = path;
        // SAFETY: as the caller's.
        unsafe { pack_values_plainly(head, tokens, first, panel) };
    }
}

/// # Safety
/// As [`Products::pack_keys`].
unsafe fn pack_keys_plainly<E: Products>(head: &HeadColumns<E>, keys: Range<usize>, panel: *mut E) {
    for k in 0..E::LAYOUT.depth(head.size) {
        for column in 0..PANEL {
            let token = keys.start + column;
            let inside = token < keys.end && k < head.size;
            // SAFETY: inside the head's columns of the text, and inside the panel.
            unsafe {
                *panel.add(element_index(E::LAYOUT, k, column)) =
                    if inside { *head.at(token, k) } else { E::from_f32(0.0) };
            }
        }
    }
}

/// # Safety
/// As [`Products::pack_values`].
unsafe fn pack_values_plainly<E: Products>(head: &HeadColumns<E>, tokens: usize, first: usize, panel: *mut E) {
    for token in 0..tokens.next_multiple_of(PANEL) {
        for column in 0..PANEL {
            let inside = token < tokens && first + column < head.size;
            // SAFETY: as above.
            unsafe {
                *panel.add(element_index(E::LAYOUT, token, column)) =
                    if inside { *head.at(token, first + column) } else { E::from_f32(0.0) };
            }
        }
    }
}

impl Products for f32 {
    const LAYOUT: Layout = Layout::F32;

    #[inline(always)]
    unsafe fn multiply<S: Simd>(product: Product<Self>) {
        let Product { a, rows, k, panel, c } = product;
        // SAFETY: the caller's promise.
        unsafe { VectorBlock { a, rows, k, panel, next: (std::ptr::null(), 0), c, done: &|_| {} }.run::<S>() };
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_keys(path: CpuPath, head: &HeadColumns<Self>, keys: Range<usize>, panel: *mut Self) {
        let has_avx512 = matches!(path, CpuPath::Amx | CpuPath::Avx512);
        // SAFETY: the path is available; the caller's promise for the rest.
        unsafe {
            if has_avx512 && head.is_aligned() {
                super::pack_tiles::keys_f32(head, keys, panel);
            } else {
                pack_keys_plainly(head, keys, panel);
            }
        }
    }

    unsafe fn pack_values(_: CpuPath, head: &HeadColumns<Self>, tokens: usize, first: usize, panel: *mut Self) {
        if !head.is_aligned() {
            // SAFETY: the caller's promise.
            return unsafe { pack_values_plainly(head, tokens, first, panel) };
        }
        // Rows of a panel of values are those of a panel of weights; products read no more of them than there are tokens.
        // SAFETY: the text's rows of one panel, end to end; the caller's promise for the other side.
        unsafe { panel.copy_from_nonoverlapping(head.at(0, first), tokens * PANEL) };
    }
}

impl Products for bf16 {
    const LAYOUT: Layout = Layout::Bf16Tiles;

    #[inline(always)]
    unsafe fn multiply<S: Simd>(product: Product<Self>) {
        let Product { a, rows, k, panel, c } = product;
        let block = TileBlock::<Bf16Tiles> {
            kind: PhantomData,
            a: a.row(0, 0).cast_const().cast(),
            a_stride: a.stride * 2,
            keep_rows: Keep::Near,
            rows,
            steps: Self::LAYOUT.depth(k) / PANEL,
            panel: panel.cast(),
            ahead: Ahead::nothing(),
            fetches: 0,
            c: c.cast(),
        };
        // SAFETY: the caller's promise.
        unsafe { block.run::<S>() };
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_keys(_: CpuPath, head: &HeadColumns<Self>, keys: Range<usize>, panel: *mut Self) {
        // SAFETY: bf16 activations live on the AMX path, which has AVX-512; the caller's promise for the rest.
        unsafe { super::pack_tiles::keys(head, keys, panel) };
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_values(_: CpuPath, head: &HeadColumns<Self>, tokens: usize, first: usize, panel: *mut Self) {
        // SAFETY: as above.
        unsafe { super::pack_tiles::values(head, tokens, first, panel) };
    }
}
