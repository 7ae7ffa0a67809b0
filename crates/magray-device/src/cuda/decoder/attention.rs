//! A decoder's attention: single tokens in one kernel with all that comes before it, parts of prompts in two.
//! Chooses kernels; waits for nothing.

use super::CudaDecoderOps;
use super::arguments::{Argument, LayerShape, Places, int, int_of};
use super::batch::{PROMPT_WARPS, SHORT_PART, WARP_QUERIES};
use super::memory::{DecoderActs, DecoderPages, Scratch};
use super::plans::{SHARED_MOST, Singles};
use super::weights::{DecoderNorm, DecoderRope};
use crate::cuda::context::Context;
use crate::cuda::decoder_kernels::{DECODER_HEADS, DecoderKernel};
use crate::cuda::function::LaunchShape;
use crate::{AttentionLayer, PAGE_TOKENS};
use std::sync::Arc;

/// The first compute capability with products of bf16 numbers.
const AMPERE: (u32, u32) = (8, 0);
/// Warps of a block that appends.
const APPEND_WARPS: usize = 8;
/// The largest head of any kernel.
const HEAD_MOST: usize = 256;

/// What the blocks of a head leave for its last one.
#[derive(Debug)]
pub(super) struct Room {
    parts: Scratch,
    arrived: Scratch,
}

impl Room {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self { parts: Scratch::new(context), arrived: Scratch::new(context) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts.bytes() + self.arrived.bytes()
    }

    pub(super) fn forget_before(&mut self) {
        self.parts.forget_before();
        self.arrived.forget_before();
    }
}

type Layer<'a> = AttentionLayer<'a, DecoderNorm, DecoderRope>;

impl CudaDecoderOps {
    pub(super) fn append(&mut self, layer: &Layer<'_>, qkv: &DecoderActs, pages: &DecoderPages) {
        let shape = pages.shape;
        assert_eq!(qkv.columns, (layer.heads + 2 * shape.kv_heads) * shape.head_size, "queries, keys and values");
        assert!(shape.head_size <= HEAD_MOST, "heads of up to {HEAD_MOST} numbers");
        assert!(layer.heads.is_multiple_of(shape.kv_heads), "as many queries for each key");
        let heads = layer.heads + shape.kv_heads;
        // Single tokens are done with their attention, and queries of prompts too.
        let is_fused = self.has_tensor_attention(layer, pages);
        let (rows, count) = match is_fused {
            true => (self.layout.prompt_rows, self.shape.prompt_rows),
            false => (self.layout.all_rows, self.shape.rows),
        };
        if count == 0 {
            return;
        }
        let mut arguments = vec![Argument::Address(qkv.address()), int(qkv.stride())];
        let (kernel, grid) = match is_fused {
            true => (DecoderKernel::Keep, [count.div_ceil(PAGE_TOKENS) as u32, shape.kv_heads as u32, 1]),
            false => (DecoderKernel::Append, [count as u32, heads.div_ceil(APPEND_WARPS) as u32, 1]),
        };
        arguments.extend(is_fused.then(|| int(count)));
        arguments.extend([Argument::Places(self.places(rows)), Argument::Layer(layer_shape(layer, pages))]);
        self.launch(kernel, LaunchShape::new(grid, [32 * APPEND_WARPS as u32, 1, 1]), arguments);
    }

    pub(super) fn attend_all(&mut self, layer: &Layer<'_>, qkv: &DecoderActs, pages: &DecoderPages, out: &DecoderActs) {
        let head = pages.shape.head_size;
        assert_eq!(out.columns, layer.heads * head, "room for all heads");
        let arguments = |places| {
            vec![
                Argument::Address(qkv.address()),
                int(qkv.stride()),
                Argument::Address(out.address()),
                int(out.stride()),
                Argument::Places(places),
                Argument::Layer(layer_shape(layer, pages)),
            ]
        };
        if !self.has_tensor_attention(layer, pages) {
            let grid = [self.shape.rows as u32, layer.heads.div_ceil(4) as u32, 1];
            let arguments = arguments(self.places(self.layout.all_rows));
            return self.launch(DecoderKernel::AttendPlain, LaunchShape::new(grid, [128, 1, 1]), arguments);
        }
        if self.shape.prompt_warps > 0 {
            let grid = [layer.heads as u32, (self.shape.prompt_warps / PROMPT_WARPS) as u32, 1];
            let arguments = arguments(self.places(self.layout.prompt_warps));
            let shape = LaunchShape::new(grid, [32 * PROMPT_WARPS as u32, 1, 1]).with_shared_bytes(prompt_bytes(head));
            self.launch(DecoderKernel::AttendPrompt { head }, shape, arguments);
        }
        if self.shape.singles > 0 {
            let (singles, kv_heads) = (self.shape.singles, pages.shape.kv_heads);
            let shared = layer.heads / kv_heads;
            let multiprocessors = self.cuda.multiprocessors();
            let Singles { warps, splits } = Singles::of(singles, kv_heads, self.shape.longest, head, multiprocessors);
            let parts = self.room(|ops| &mut ops.attention.parts, singles * layer.heads * splits * (head + 2) * 4);
            let arrived = self.room(|ops| &mut ops.attention.arrived, singles * kv_heads * 4);
            let mut arguments = arguments(self.places(self.layout.singles));
            // The kernel ahead writes the keys of short parts.
            let ahead = if self.shape.has_short_parts { SHORT_PART } else { 0 };
            arguments.extend([Argument::Address(parts), Argument::Address(arrived), int(ahead)]);
            let grid = [splits as u32, kv_heads as u32, singles as u32];
            let shape =
                LaunchShape::new(grid, [32 * warps as u32, 1, 1]).with_shared_bytes((warps * shared * head * 4) as u32);
            self.launch(DecoderKernel::AttendOne { head, warps }, shape, arguments);
        }
    }

    fn has_tensor_attention(&self, layer: &Layer<'_>, pages: &DecoderPages) -> bool {
        let shared = layer.heads / pages.shape.kv_heads;
        self.cuda.gpu().capability >= AMPERE
            && !self.cuda.is_portable()
            && DECODER_HEADS.contains(&pages.shape.head_size)
            && shared <= SHARED_MOST
    }

    fn places(&self, rows: usize) -> Places {
        Places {
            positions: self.part(self.layout.positions),
            page_starts: self.part(self.layout.page_starts),
            pages: self.part(self.layout.pages),
            rows: self.part(rows),
        }
    }
}

/// Shared memory of the prompts' attention: a ring of pages, then the queries.
fn prompt_bytes(head: usize) -> u32 {
    let stages = if head > 128 { 2 } else { 3 };
    let queries = PROMPT_WARPS * WARP_QUERIES * (head + 8);
    ((stages * 2 * PAGE_TOKENS * head + queries) * 2) as u32
}

fn layer_shape(layer: &Layer<'_>, pages: &DecoderPages) -> LayerShape {
    let gain = |norm: Option<&DecoderNorm>| norm.map_or((0, 0.0), |norm| (norm.address(), norm.epsilon));
    let ((query_gain, query_epsilon), (key_gain, key_epsilon)) = (gain(layer.query_norm), gain(layer.key_norm));
    LayerShape {
        pages: pages.address(),
        radians: layer.rope.address(),
        query_gain,
        key_gain,
        query_epsilon,
        key_epsilon,
        rope_scale: layer.rope.scale,
        scale: layer.scale,
        cap: layer.cap.unwrap_or(0.0),
        window: int_of(layer.window.unwrap_or(0)),
        pairs: int_of(layer.rope.pairs),
        neighbours: i32::from(layer.rope.neighbours),
        heads: int_of(layer.heads),
        kv_heads: int_of(pages.shape.kv_heads),
        head_size: int_of(pages.shape.head_size),
        layer: int_of(layer.layer),
        layers: int_of(pages.shape.layers),
        unused: 0,
    }
}
