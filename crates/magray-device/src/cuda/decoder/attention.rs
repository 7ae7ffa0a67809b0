//! A decoder's attention: single tokens in one kernel with all that comes before it, parts of prompts in two.
//! Chooses kernels; waits for nothing.

use super::CudaDecoderOps;
use super::arguments::{Argument, LayerShape, Places, int, int_of};
use super::batch::PROMPT_WARPS;
use super::memory::{DecoderActs, DecoderPages, Scratch};
use super::plans::{SHARED_MOST, Singles};
use super::weights::{DecoderNorm, DecoderRope};
use crate::AttentionLayer;
use crate::cuda::context::Context;
use crate::cuda::decoder_kernels::{DECODER_HEADS, DecoderKernel};
use crate::cuda::function::LaunchShape;
use std::sync::Arc;

/// The first compute capability with products of bf16 numbers.
const AMPERE: (u32, u32) = (8, 0);
/// Warps of a block that appends, a head each.
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
        // Single tokens are done with their attention.
        let (rows, count) = match self.has_tensor_attention(layer, pages) {
            true => (self.layout.prompt_rows, self.shape.prompt_rows),
            false => (self.layout.all_rows, self.shape.rows),
        };
        if count == 0 {
            return;
        }
        let arguments = vec![
            Argument::Address(qkv.address()),
            int(qkv.stride()),
            Argument::Places(self.places(rows)),
            Argument::Layer(layer_shape(layer, pages)),
        ];
        let grid = [count as u32, (layer.heads + shape.kv_heads).div_ceil(APPEND_WARPS) as u32, 1];
        self.launch(DecoderKernel::Append, LaunchShape::new(grid, [32 * APPEND_WARPS as u32, 1, 1]), arguments);
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
            let grid = [(self.shape.prompt_warps / PROMPT_WARPS) as u32, layer.heads as u32, 1];
            let arguments = arguments(self.places(self.layout.prompt_warps));
            self.launch(DecoderKernel::AttendPrompt { head }, LaunchShape::new(grid, [128, 1, 1]), arguments);
        }
        if self.shape.singles > 0 {
            let (singles, kv_heads) = (self.shape.singles, pages.shape.kv_heads);
            let shared = layer.heads / kv_heads;
            let multiprocessors = self.cuda.multiprocessors();
            let Singles { warps, splits } = Singles::of(singles, kv_heads, self.shape.longest, head, multiprocessors);
            let parts = self.room(|ops| &mut ops.attention.parts, singles * layer.heads * splits * (head + 2) * 4);
            let arrived = self.room(|ops| &mut ops.attention.arrived, singles * kv_heads * 4);
            let mut arguments = arguments(self.places(self.layout.singles));
            arguments.extend([Argument::Address(parts), Argument::Address(arrived)]);
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
