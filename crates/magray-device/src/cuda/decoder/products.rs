//! The products of a decoder: chooses the kernel by rows and by the form of the weights.
//! Waits for nothing.

use super::arguments::{Argument, Boxes, FINISH_ADD, FINISH_FLOATS, FINISH_GATED, Finish, int, int_of};
use super::plans::{Stream, TILE_OUTPUTS, Tile, Wide};
use super::weights::DecoderLinear;
use super::{CudaDecoderOps, Operand};
use crate::cuda::decoder_kernels::{DecoderKernel, Form};
use crate::cuda::function::LaunchShape;
use crate::cuda::matrix::stride_of;

/// Rows up to which weights are streamed: each block has all of them.
const STREAMED_ROWS: usize = 16;
/// Rows up to which weights of few bits are read as they are, those of 8 again and again: still less to read than their numbers.
const PACKED_ROWS: usize = 64;
/// Outputs and rows that a block of the plain product has.
const PLAIN_OUTPUTS: usize = 16;
const PLAIN_ROWS: usize = 8;

impl CudaDecoderOps {
    /// Multiplies rows with weights. Returns in how many parts a row's sum of squares would be left.
    pub(super) fn product(&mut self, x: Operand, weights: &DecoderLinear, mut finish: Finish) -> usize {
        assert_eq!(x.columns, weights.inputs, "the layer takes rows of another length");
        finish.bias = weights.bias();
        (finish.tokens, finish.outputs) = (int_of(x.rows), int_of(weights.rows));
        if !self.cuda.has_wgmma() {
            self.plain_product(x, weights, finish)
        } else if weights.form.is_4_bits() && x.rows <= PACKED_ROWS {
            self.nibbles_product(x, weights, finish)
        } else if x.rows <= STREAMED_ROWS {
            self.stream_product(x, weights, finish)
        } else if weights.form == Form::Bytes && x.rows <= PACKED_ROWS {
            self.repeated_product(x, weights, finish)
        } else {
            self.tile_product(x, weights, finish)
        }
    }

    fn plain_product(&mut self, x: Operand, weights: &DecoderLinear, finish: Finish) -> usize {
        let blocks = weights.rows.div_ceil(PLAIN_OUTPUTS);
        let grid = [blocks as u32, x.rows.div_ceil(PLAIN_ROWS).clamp(1, 1024) as u32, 1];
        let arguments = vec![
            Argument::Address(x.address),
            int(x.stride),
            Argument::Address(weights.address()),
            int(weights.form.number()),
            int(weights.stride()),
            int(weights.units()),
            int(weights.inputs),
            Argument::Finish(finish),
        ];
        self.launch(DecoderKernel::Plain, LaunchShape::new(grid, [256, 1, 1]), arguments);
        blocks
    }

    fn stream_product(&mut self, x: Operand, weights: &DecoderLinear, finish: Finish) -> usize {
        let is_gated = finish.kind == FINISH_GATED;
        let plan = Stream::of(x.rows, weights.rows, weights.form, is_gated, self.cuda.multiprocessors());
        let boxes = match weights.form {
            Form::Numbers => numbers(weights.address(), weights.rows, weights.inputs, plan.eights * 8),
            _ => blocks(weights, plan.eights),
        };
        let arguments = vec![
            Argument::Address(x.address),
            int(x.stride),
            Argument::Boxes(boxes),
            Argument::Finish(finish),
            int(plan.passes),
            int(weights.units()),
            int(plan.stages),
        ];
        let shape = LaunchShape::new([plan.blocks as u32, 1, 1], [plan.threads as u32, 1, 1])
            .with_shared_bytes(plan.shared_bytes as u32);
        self.launch(
            DecoderKernel::Stream { tokens: plan.tokens, eights: plan.eights, form: weights.form },
            shape,
            arguments,
        );
        plan.blocks * plan.passes
    }

    fn nibbles_product(&mut self, x: Operand, weights: &DecoderLinear, finish: Finish) -> usize {
        let (is_gated, multiprocessors) = (finish.kind == FINISH_GATED, self.cuda.multiprocessors());
        let (sizes, form) = ([weights.rows, weights.inputs], weights.form);
        if let Some(plan) = Stream::of_nibbles(x.rows, sizes, form, is_gated, multiprocessors) {
            let arguments = vec![
                Argument::Address(x.address),
                int(x.stride),
                Argument::Boxes(blocks(weights, plan.eights)),
                Argument::Finish(finish),
                int(plan.passes),
                int(weights.units()),
                int(weights.inputs),
                int(plan.stages),
                int(plan.parts),
                int(plan.held),
                int(plan.rooms),
            ];
            let shape = LaunchShape::new([plan.blocks as u32, 1, 1], [plan.threads as u32, 1, 1])
                .with_shared_bytes(plan.shared_bytes as u32);
            self.launch(DecoderKernel::Nibbles { eights: plan.eights, form }, shape, arguments);
            return plan.blocks * plan.passes;
        }
        let tile = Tile::of_nibbles(x.rows, sizes, form, multiprocessors);
        let kernel = DecoderKernel::TileNibbles { tokens: tile.tokens, stages: tile.stages, form };
        self.launch_tiles(kernel, &tile, x, blocks(weights, TILE_OUTPUTS / 8), weights.units(), finish);
        tile.output_tiles
    }

    /// As many rows at a time as can be streamed.
    fn repeated_product(&mut self, x: Operand, weights: &DecoderLinear, finish: Finish) -> usize {
        let out_size = if matches!(finish.kind, FINISH_ADD | FINISH_FLOATS) { 4 } else { 2 };
        let mut parts = 1;
        for first in (0..x.rows).step_by(STREAMED_ROWS) {
            let rows = STREAMED_ROWS.min(x.rows - first);
            let further =
                |address: u64, bytes: i32| if address == 0 { 0 } else { address + (first as u64) * bytes as u64 };
            let mut own = finish;
            own.tokens = int_of(rows);
            own.out = further(finish.out, finish.out_stride * out_size);
            own.parts = further(finish.parts, finish.part_count * 4);
            own.first_row = int_of(first);
            let address = further(x.address, int_of(x.stride * 2));
            parts = self.stream_product(Operand { address, rows, room: x.room - first, ..x }, weights, own);
        }
        parts
    }

    fn tile_product(&mut self, x: Operand, weights: &DecoderLinear, finish: Finish) -> usize {
        let address = match weights.form {
            Form::Numbers => weights.address(),
            _ => self.unpack(weights),
        };
        let tile = Tile::of(x.rows, weights.rows, weights.inputs, self.cuda.multiprocessors());
        let wide = Wide::of(x.rows, weights.rows, weights.inputs, self.cuda.multiprocessors(), &tile);
        let parts = match wide {
            Some(wide) => self.wide_product(&wide, x, address, weights, finish),
            None => {
                let boxes = numbers(address, weights.rows, weights.inputs, TILE_OUTPUTS);
                let kernel = DecoderKernel::Tile { tokens: tile.tokens, stages: tile.stages };
                self.launch_tiles(kernel, &tile, x, boxes, weights.inputs.div_ceil(64), finish);
                tile.output_tiles
            }
        };
        if let Some(launch) = self.launches.last_mut() {
            // Weights are fetched before the wait.
            launch.is_strict = weights.form != Form::Numbers;
        }
        parts
    }

    fn wide_product(
        &mut self,
        plan: &Wide,
        x: Operand,
        address: u64,
        weights: &DecoderLinear,
        finish: Finish,
    ) -> usize {
        let rows = x.boxes(plan.tokens / Wide::PEERS);
        // What is added to comes the same way.
        let hidden = match finish.kind {
            FINISH_ADD => Boxes::Floats {
                address: finish.out,
                rows: x.rows,
                columns: weights.rows,
                stride: finish.out_stride as usize,
                at_once: plan.tokens,
            },
            _ => rows,
        };
        let arguments = vec![
            Argument::Boxes(rows),
            Argument::Boxes(numbers(address, weights.rows, weights.inputs, 64 * plan.groups)),
            Argument::Boxes(hidden),
            Argument::Finish(finish),
            int(plan.output_tiles),
            int(plan.token_tiles),
            int(weights.inputs.div_ceil(64)),
        ];
        let shape = LaunchShape::new([plan.blocks as u32, 1, 1], [plan.threads() as u32, 1, 1])
            .with_shared_bytes(plan.shared_bytes as u32)
            .with_cluster(Wide::PEERS as u32);
        let &Wide { groups, tokens, stages, .. } = plan;
        self.launch(DecoderKernel::Wide { groups, tokens, stages }, shape, arguments);
        weights.rows.div_ceil(64)
    }

    /// Launches a kernel that multiplies tiles, whose inputs come in `pieces`.
    fn launch_tiles(
        &mut self,
        kernel: DecoderKernel,
        tile: &Tile,
        x: Operand,
        boxes: Boxes,
        pieces: usize,
        finish: Finish,
    ) {
        let arguments = vec![
            Argument::Boxes(x.boxes(tile.tokens)),
            Argument::Boxes(boxes),
            Argument::Finish(finish),
            int(tile.token_tiles),
            int(pieces),
        ];
        let blocks = tile.output_tiles * tile.token_tiles * tile.splits;
        let shape = LaunchShape::new([blocks as u32, 1, 1], [Tile::THREADS as u32, 1, 1])
            .with_shared_bytes(tile.shared_bytes as u32)
            .with_cluster(tile.splits as u32);
        self.launch(kernel, shape, arguments);
    }

    /// Makes rows of numbers of weights in blocks; returns where they lie, until the next are made.
    fn unpack(&mut self, weights: &DecoderLinear) -> u64 {
        let stride = stride_of(weights.inputs);
        let to = self.room(|ops| &mut ops.unpacked, weights.rows * stride * 2);
        let arguments = vec![
            Argument::Address(weights.address()),
            int(weights.form.number()),
            int(weights.units()),
            int(weights.rows),
            int(weights.inputs),
            Argument::Address(to),
            int(stride),
        ];
        let grid = [weights.units().div_ceil(8) as u32, weights.rows.div_ceil(8) as u32, 1];
        self.launch(DecoderKernel::Unpack, LaunchShape::new(grid, [256, 1, 1]), arguments);
        to
    }
}

impl Operand {
    fn boxes(&self, at_once: usize) -> Boxes {
        Boxes::Numbers { address: self.address, rows: self.room, columns: self.columns, stride: self.stride, at_once }
    }
}

fn numbers(address: u64, rows: usize, columns: usize, at_once: usize) -> Boxes {
    Boxes::Numbers { address, rows, columns, stride: stride_of(columns), at_once }
}

/// Weights in blocks, several eights of rows at once.
fn blocks(weights: &DecoderLinear, at_once: usize) -> Boxes {
    Boxes::Blocks {
        address: weights.address(),
        words: weights.form.block_bytes() / 4,
        units: weights.units(),
        eights: weights.rows.div_ceil(8),
        at_once,
    }
}
