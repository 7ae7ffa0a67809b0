//! Keys and values as bf16 in pages of 32 tokens, in the order that tiles and vectors read them.
//! A page has all layers: `[page][layer][head][key or value]`; a head of keys is `[16 tokens][pair of numbers][token][2]`, one of
//! values `[16 numbers][pair of tokens][number][2]`.

use super::{TILE, TokenPlace, padded};
use crate::cpu::Aligned;
use crate::{KvShape, PAGE_TOKENS};
use half::bf16;

/// Pages of keys and values of one model.
pub(in crate::cpu::decoder) struct HalfPages {
    values: Aligned<bf16>,
    shape: KvShape,
    pages: usize,
}

/// What threads read and write of the pages: each token and head by one thread.
#[derive(Clone, Copy)]
pub(in crate::cpu::decoder::fast) struct HalfView {
    start: *mut bf16,
    shape: KvShape,
    pages: usize,
}

// SAFETY: an address; who writes through it promises that no other uses the same token and head.
unsafe impl Send for HalfView {}
// SAFETY: as above.
unsafe impl Sync for HalfView {}

impl HalfPages {
    pub(in crate::cpu::decoder::fast) fn new(shape: KvShape, pages: usize) -> Self {
        let head = PAGE_TOKENS * padded(shape.head_size);
        Self { values: Aligned::zeroed(pages * shape.layers * 2 * shape.kv_heads * head), shape, pages }
    }

    pub(in crate::cpu::decoder::fast) fn count(&self) -> usize {
        self.pages
    }

    pub(in crate::cpu::decoder::fast) fn view(&self) -> HalfView {
        HalfView { start: self.values.as_ptr().cast_mut(), shape: self.shape, pages: self.pages }
    }

    pub(in crate::cpu::decoder::fast) fn view_mut(&mut self) -> HalfView {
        HalfView { start: self.values.as_mut_ptr(), shape: self.shape, pages: self.pages }
    }
}

impl HalfView {
    pub(in crate::cpu::decoder::fast) fn shape(&self) -> KvShape {
        self.shape
    }

    fn head(&self, page: u32, layer: usize, kind: usize, head: usize) -> *mut bf16 {
        let KvShape { layers, kv_heads, head_size } = self.shape;
        assert!((page as usize) < self.pages && layer < layers && head < kv_heads, "a page, a layer and a head");
        let index = ((page as usize * layers + layer) * kv_heads + head) * 2 + kind;
        self.start.wrapping_add(index * PAGE_TOKENS * padded(head_size))
    }

    /// A head's keys of a page.
    pub(in crate::cpu::decoder::fast) fn keys(&self, page: u32, layer: usize, head: usize) -> *mut bf16 {
        self.head(page, layer, 0, head)
    }

    /// A head's values of a page.
    pub(in crate::cpu::decoder::fast) fn values(&self, page: u32, layer: usize, head: usize) -> *mut bf16 {
        self.head(page, layer, 1, head)
    }

    /// Bytes of a page's head: keys and values.
    pub(in crate::cpu::decoder::fast) fn head_bytes(&self) -> usize {
        2 * PAGE_TOKENS * padded(self.shape.head_size) * size_of::<bf16>()
    }

    /// Clears a page's values of a layer. All tokens of a page are read together, those that are not there yet with a weight of zero:
    /// another sequence may have left there what no weight makes zero.
    ///
    /// # Safety
    /// No other thread uses the page; the view is of pages that were borrowed mutably.
    pub(in crate::cpu::decoder::fast) unsafe fn clear_values(&self, page: u32, layer: usize) {
        for head in 0..self.shape.kv_heads {
            let length = PAGE_TOKENS * padded(self.shape.head_size);
            // SAFETY: inside the head's values.
            unsafe { std::ptr::write_bytes(self.values(page, layer, head), 0, length) };
        }
    }

    /// Writes key and value of a token.
    ///
    /// # Safety
    /// No other thread uses the token's head; the view is of pages that were borrowed mutably.
    #[inline(always)]
    pub(in crate::cpu::decoder::fast) unsafe fn write(&self, at: TokenPlace, key: &[f32], value: &[f32]) {
        let TokenPlace { page, layer, head, token } = at;
        let keys = self.keys(page, layer, head);
        let to = keys.wrapping_add(token / TILE * TILE * padded(self.shape.head_size) + token % TILE * 2);
        for (pair, numbers) in key.chunks(2).enumerate() {
            for (i, number) in numbers.iter().enumerate() {
                // SAFETY: inside the head's keys.
                unsafe { *to.add(pair * 2 * TILE + i) = bf16::from_f32(*number) };
            }
        }
        let to = self.values(page, layer, head).wrapping_add(token / 2 * 2 * TILE + token % 2);
        for (i, number) in value.iter().enumerate() {
            let at = i / TILE * TILE * PAGE_TOKENS + i % TILE * 2;
            // SAFETY: inside the head's values.
            unsafe { *to.add(at) = bf16::from_f32(*number) };
        }
    }
}
