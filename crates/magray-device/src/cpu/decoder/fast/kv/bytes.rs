//! Keys and values as bytes in pages of 32 tokens, with a scale for each token's head.
//! A page has all layers: `[page][layer][head]`, and a head keys, their 32 scales, values, their 32 scales. Keys are
//! `[16 tokens][4 numbers][token][4]`, each plus 128; values `[16 numbers][4 tokens][number][4]`, signed.

use super::{HalfView, TILE, TokenPlace, padded};
use crate::cpu::Aligned;
use crate::cpu::decoder::byte_head::ByteHead;
use crate::{KvShape, PAGE_TOKENS};
use half::bf16;

/// Bytes of the scales of a page's keys, or of its values: a line.
const SCALE_BYTES: usize = 2 * PAGE_TOKENS;
/// What is added to a key's integers.
pub(in crate::cpu::decoder::fast) const KEY_OFFSET: i32 = 128;

/// Pages of keys and values of one model.
pub(in crate::cpu::decoder) struct BytePages {
    bytes: Aligned<u8>,
    shape: KvShape,
    pages: usize,
}

/// What threads read and write of the pages: each token and head by one thread.
#[derive(Clone, Copy)]
pub(in crate::cpu::decoder::fast) struct ByteView {
    start: *mut u8,
    shape: KvShape,
    pages: usize,
}

// SAFETY: an address; who writes through it promises that no other uses the same token and head.
unsafe impl Send for ByteView {}
// SAFETY: as above.
unsafe impl Sync for ByteView {}

/// Bytes of a page's keys of one head with their scales; as many are values.
fn half_bytes(head_size: usize) -> usize {
    PAGE_TOKENS * padded(head_size) + SCALE_BYTES
}

impl BytePages {
    pub(in crate::cpu::decoder::fast) fn new(shape: KvShape, pages: usize) -> Self {
        let head = 2 * half_bytes(shape.head_size);
        Self { bytes: Aligned::zeroed(pages * shape.layers * shape.kv_heads * head), shape, pages }
    }

    pub(in crate::cpu::decoder::fast) fn count(&self) -> usize {
        self.pages
    }

    pub(in crate::cpu::decoder::fast) fn view(&self) -> ByteView {
        ByteView { start: self.bytes.as_ptr().cast_mut(), shape: self.shape, pages: self.pages }
    }

    pub(in crate::cpu::decoder::fast) fn view_mut(&mut self) -> ByteView {
        ByteView { start: self.bytes.as_mut_ptr(), shape: self.shape, pages: self.pages }
    }
}

impl ByteView {
    pub(in crate::cpu::decoder::fast) fn shape(&self) -> KvShape {
        self.shape
    }

    /// A head's keys of a page; their scales follow.
    #[inline(always)]
    pub(in crate::cpu::decoder::fast) fn keys(&self, page: u32, layer: usize, head: usize) -> *mut u8 {
        let KvShape { layers, kv_heads, head_size } = self.shape;
        assert!((page as usize) < self.pages && layer < layers && head < kv_heads, "a page, a layer and a head");
        let index = (page as usize * layers + layer) * kv_heads + head;
        self.start.wrapping_add(index * 2 * half_bytes(head_size))
    }

    /// Bytes of a page's head: keys, values and their scales.
    pub(in crate::cpu::decoder::fast) fn head_bytes(&self) -> usize {
        2 * half_bytes(self.shape.head_size)
    }

    /// A head's values of a page; their scales follow.
    #[inline(always)]
    pub(in crate::cpu::decoder::fast) fn values(&self, page: u32, layer: usize, head: usize) -> *mut u8 {
        self.keys(page, layer, head).wrapping_add(half_bytes(self.shape.head_size))
    }

    /// The scales behind keys or values.
    #[inline(always)]
    pub(in crate::cpu::decoder::fast) fn scales(&self, numbers: *mut u8) -> *mut bf16 {
        numbers.wrapping_add(PAGE_TOKENS * padded(self.shape.head_size)).cast()
    }

    /// Writes key and value of a token.
    ///
    /// # Safety
    /// No other thread uses the token's head; the view is of pages that were borrowed mutably.
    #[inline(always)]
    pub(in crate::cpu::decoder::fast) unsafe fn write(&self, at: TokenPlace, key: &[f32], value: &[f32]) {
        let TokenPlace { page, layer, head, token } = at;
        let (keys, values) = (self.keys(page, layer, head), self.values(page, layer, head));
        let (of_key, of_value) = (ByteHead::of(key), ByteHead::of(value));
        // SAFETY: inside the head's bytes.
        unsafe {
            *self.scales(keys).add(token) = of_key.scale;
            *self.scales(values).add(token) = of_value.scale;
            let to = keys.add(token / TILE * TILE * padded(self.shape.head_size) + token % TILE * 4);
            let integers = key.iter().map(|number| i32::from(of_key.round(*number)));
            let fill = std::iter::repeat_n(0, padded(key.len()) - key.len());
            for (i, integer) in integers.chain(fill).enumerate() {
                *to.add(i / 4 * 4 * TILE + i % 4) = (integer + KEY_OFFSET) as u8;
            }
            let to = values.add(token / 4 * 4 * TILE + token % 4);
            for (i, number) in value.iter().enumerate() {
                *to.add(i / TILE * TILE * PAGE_TOKENS + i % TILE * 4) = of_value.round(*number) as u8;
            }
        }
    }

    /// Writes a page's keys and values of a head into a page of floats, with zeros for tokens from `tokens` on.
    ///
    /// # Safety
    /// No other thread writes either; `to` is of pages that were borrowed mutably, of the same heads.
    #[inline(always)]
    pub(in crate::cpu::decoder::fast) unsafe fn unpack(
        &self,
        (page, layer, head): (u32, usize, usize),
        tokens: usize,
        (to, to_page): (HalfView, u32),
    ) {
        let width = padded(self.shape.head_size);
        let (keys, values) = (self.keys(page, layer, head), self.values(page, layer, head));
        let (to_keys, to_values) = (to.keys(to_page, 0, head), to.values(to_page, 0, head));
        let scales = |numbers: *mut u8| {
            let mut scales = [0.0f32; PAGE_TOKENS];
            for (token, scale) in scales.iter_mut().enumerate().take(tokens) {
                // SAFETY: a head has 32 of them.
                *scale = unsafe { *self.scales(numbers).add(token) }.to_f32();
            }
            scales
        };
        let (key_scales, value_scales) = (scales(keys), scales(values));
        // SAFETY: both formats have as many tiles of as many numbers.
        unsafe {
            for tile in 0..2 {
                let scales: &[f32; TILE] = &key_scales.as_chunks().0[tile];
                for quad in 0..width / 4 {
                    let at = tile * width / 4 + quad;
                    let mut line = keys.add(at * 4 * TILE).cast::<[u32; TILE]>().read_unaligned();
                    line.iter_mut().for_each(|four| *four ^= 0x8080_8080);
                    let pairs = widen(line, [scales; 4]);
                    to_keys.add(at * 4 * TILE).cast::<[[u32; TILE]; 2]>().write_unaligned(pairs);
                }
            }
            for tile in 0..width / TILE {
                for quad in 0..PAGE_TOKENS / 4 {
                    let at = tile * PAGE_TOKENS / 4 + quad;
                    let four = &value_scales[quad * 4..quad * 4 + 4];
                    let scales = [[four[0]; TILE], [four[1]; TILE], [four[2]; TILE], [four[3]; TILE]];
                    let line = values.add(at * 4 * TILE).cast::<[u32; TILE]>().read_unaligned();
                    let pairs = widen(line, [&scales[0], &scales[1], &scales[2], &scales[3]]);
                    to_values.add(at * 4 * TILE).cast::<[[u32; TILE]; 2]>().write_unaligned(pairs);
                }
            }
        }
    }
}

/// Four signed bytes in each of 16, times their scales, as two lines of pairs of bf16.
#[inline(always)]
fn widen(line: [u32; TILE], scales: [&[f32; TILE]; 4]) -> [[u32; TILE]; 2] {
    let mut pairs = [[0; TILE]; 2];
    for byte in 0..4 {
        for (i, four) in line.iter().enumerate() {
            let number = f32::from((four >> (8 * byte)) as i8) * scales[byte][i];
            let bits = number.to_bits();
            let half = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            pairs[byte / 2][i] |= half << (byte % 2 * 16);
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::decoder::fast::kv::HalfPages;

    #[test]
    fn unpacked_pages_are_those_of_the_rounded_numbers() {
        for head_size in [20, 64] {
            let shape = KvShape { layers: 2, kv_heads: 2, head_size };
            let (mut bytes, mut halves) = (BytePages::new(shape, 2), HalfPages::new(shape, 3));
            let one_layer = KvShape { layers: 1, ..shape };
            let mut unpacked = HalfPages::new(one_layer, 1);
            let numbers = |seed: usize| -> Vec<f32> {
                (0..head_size).map(|i| ((i * 37 + seed * 101) % 255) as f32 / 64.0 - 2.0).collect()
            };
            let tokens = 27;
            for token in 0..PAGE_TOKENS {
                let (key, value) = (numbers(token), numbers(token + 50));
                let at = TokenPlace { page: 1, layer: 1, head: 1, token };
                let kept = |numbers: &[f32]| -> Vec<f32> {
                    numbers.iter().map(|x| if token < tokens { ByteHead::of(numbers).kept(*x) } else { 0.0 }).collect()
                };
                // SAFETY: no other thread.
                unsafe {
                    bytes.view_mut().write(at, &key, &value);
                    let at = TokenPlace { page: 0, layer: 0, ..at };
                    halves.view_mut().write(at, &kept(&key), &kept(&value));
                }
            }
            let (found, wanted) = (unpacked.view_mut(), halves.view());
            // SAFETY: no other thread; as many heads.
            unsafe {
                bytes.view().unpack((1, 1, 1), tokens, (found, 0));
                let head = |start: *mut bf16| -> Vec<f32> {
                    let numbers = std::slice::from_raw_parts(start, PAGE_TOKENS * padded(head_size));
                    numbers.iter().map(|x| x.to_f32() + 0.0).collect()
                };
                assert_eq!(head(found.keys(0, 0, 1)), head(wanted.keys(0, 0, 1)));
                assert_eq!(head(found.values(0, 0, 1)), head(wanted.values(0, 0, 1)));
            }
        }
    }
}
