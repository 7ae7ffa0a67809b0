//! Keys and values in pages of 32 tokens. A page has all layers, so that pages can be added one by one.
//! Leaves to others which page belongs to which sequence. Saves no memory with 8 bits: it keeps the rounded numbers as floats.

use crate::cpu::decoder::byte_head::ByteHead;
use crate::{KvFormat, KvShape, PAGE_TOKENS};

/// Pages of keys and values of one model.
pub(in crate::cpu::decoder) struct FloatPages {
    values: Vec<f32>,
    format: KvFormat,
    shape: KvShape,
    pages: usize,
}

/// The two things that are kept of a token.
#[derive(Clone, Copy)]
pub(super) enum Kept {
    Key = 0,
    Value = 1,
}

impl FloatPages {
    pub(in crate::cpu::decoder) fn new(format: KvFormat, shape: KvShape, pages: usize) -> Self {
        Self { values: vec![0.0; shape.page_numbers() * pages], format, shape, pages }
    }

    /// How many pages there are.
    pub(in crate::cpu::decoder) fn count(&self) -> usize {
        self.pages
    }

    pub(in crate::cpu::decoder) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Where the heads of a layer's token begin: in a page, by layer, by kind, by head, by token.
    fn start(&self, page: u32, layer: usize, kept: Kept, head: usize) -> usize {
        let KvShape { layers, kv_heads, head_size } = self.shape;
        assert!(layer < layers && head < kv_heads, "a layer and a head of the model");
        (((page as usize * layers + layer) * 2 + kept as usize) * kv_heads + head) * PAGE_TOKENS * head_size
    }

    pub(super) fn write(&mut self, page: u32, token: usize, layer: usize, kept: Kept, head: usize, numbers: &[f32]) {
        let start = self.start(page, layer, kept, head) + token * self.shape.head_size;
        let to = &mut self.values[start..start + numbers.len()];
        to.copy_from_slice(numbers);
        if self.format == KvFormat::Bytes {
            let head = ByteHead::of(numbers);
            to.iter_mut().for_each(|number| *number = head.kept(*number));
        }
    }

    /// The tokens of a page, one after the other.
    pub(super) fn tokens(&self, page: u32, layer: usize, kept: Kept, head: usize) -> &[f32] {
        let start = self.start(page, layer, kept, head);
        &self.values[start..start + PAGE_TOKENS * self.shape.head_size]
    }
}
