//! The products of activations with weights: Hopper's kernels where they can do one, else those of every GPU.
//! Chooses kernels and tiles; waits for nothing.

use super::{Arg, CudaOps, int, row_shape};
use crate::Rows;
use crate::cuda::arithmetic::Arithmetic;
use crate::cuda::function::LaunchShape;
use crate::cuda::layers::{DeviceNorm, Linear};
use crate::cuda::matrix::{Acts, TensorMap, stride_of};
use crate::cuda::memory::Number;
use crate::cuda::tiles::Product;
use crate::cuda::variants::{self, Leaves};
use crate::cuda::weights::WeightSlice;
use magray_core::Activation;

impl CudaOps {
    /// Hopper's product with an activation; false where it cannot do this one.
    pub(super) fn hopper_product(&mut self, x: &Acts, weights: &Linear, activation: Activation, out: &Acts) -> bool {
        let Some((product, maps)) = self.hopper_operands(x, weights, out) else { return false };
        let multiprocessors = self.cuda.multiprocessors();
        let Some(tile) = product.hopper_tile(multiprocessors) else { return false };
        let (row_tiles, column_tiles) = (product.rows.div_ceil(tile.rows()), product.columns / tile.columns);
        // Each block takes tile after tile.
        let blocks = (row_tiles * column_tiles).min(multiprocessors);
        let shape = LaunchShape::new([blocks as u32, 1, 1], [tile.threads() as u32, 1, 1])
            .with_shared_bytes(tile.shared_bytes() as u32);
        let mut arguments = Vec::from(maps.map(Arg::Map));
        arguments.extend([
            Arg::Address(weights.bias.address()),
            int(row_tiles),
            int(column_tiles),
            int(weights.inputs.div_ceil(64)),
        ]);
        self.launch(variants::gemm_wgmma(x.number, tile, activation), shape, arguments);
        true
    }

    /// Hopper's product with a norm; false where it cannot do this one.
    pub(super) fn hopper_norm_product(&mut self, x: &Acts, weights: &Linear, norm: &DeviceNorm, hidden: &Acts) -> bool {
        let Some((product, maps)) = self.hopper_operands(x, weights, hidden) else { return false };
        let Some((tile, cluster)) = product.norm_tile(|blocks| self.cuda.clusters_at_once(blocks)) else {
            return false;
        };
        let row_tiles = product.rows.div_ceil(tile.rows());
        let clusters = row_tiles.min(self.cuda.clusters_at_once(cluster));
        let mut shape = LaunchShape::new([(clusters * cluster) as u32, 1, 1], [tile.threads() as u32, 1, 1])
            .with_shared_bytes(tile.shared_bytes() as u32);
        if cluster > 1 {
            shape = shape.with_cluster(cluster as u32);
        }
        let mut arguments = Vec::from(maps.map(Arg::Map));
        arguments.extend([
            Arg::Address(weights.bias.address()),
            Arg::Address(norm.gain.address()),
            Arg::Address(norm.shift.address()),
            Arg::Float(norm.epsilon),
            int(row_tiles),
            int(weights.inputs.div_ceil(64)),
        ]);
        self.launch(variants::gemm_norm_wgmma(x.number, tile, cluster), shape, arguments);
        true
    }

    /// What Hopper's kernels multiply; none where they cannot.
    fn hopper_operands(&self, x: &Acts, weights: &Linear, out: &Acts) -> Option<(Product, [TensorMap; 3])> {
        let maps = [x.map?, weights.map?, out.map?];
        let product = Product { rows: x.padded_rows(), inputs: weights.inputs, columns: weights.outputs };
        (self.cuda.has_wgmma() && x.number == out.number).then_some((product, maps))
    }

    /// The product of every GPU; `out` gets results, or sums in parts. Returns the parts.
    pub(super) fn portable_product(
        &mut self,
        x: &Acts,
        weights: &Linear,
        leaves: Leaves,
        number: Number,
        out: u64,
    ) -> usize {
        let rows = x.padded_rows();
        let product = Product { rows, inputs: weights.inputs, columns: weights.outputs };
        let (tile, parts) = product.mma_tile(self.cuda.multiprocessors(), leaves == Leaves::Sums);
        let (from, from_scales) = match weights.arithmetic {
            Arithmetic::Int8 => self.quantise(x),
            _ => (x.address(), 0),
        };
        let out_stride = stride_of(weights.outputs);
        let grid = [weights.outputs.div_ceil(tile.columns) as u32, rows.div_ceil(tile.rows) as u32, parts as u32];
        let arguments = vec![
            Arg::Address(from),
            int(x.stride()),
            Arg::Address(weights.weights.address()),
            int(stride_of(weights.inputs)),
            Arg::Address(from_scales),
            Arg::Address(weights.scales.as_ref().map_or(0, WeightSlice::address)),
            Arg::Address(weights.bias.address()),
            Arg::Address(out),
            int(out_stride),
            int(rows),
            int(weights.outputs),
            int(weights.inputs),
            int(parts),
            Arg::Long((rows * out_stride) as i64),
        ];
        let spec = variants::gemm_mma(weights.arithmetic, number, leaves, tile);
        self.launch(spec, LaunchShape::new(grid, [tile.threads() as u32, 1, 1]), arguments);
        parts
    }

    /// Rows as bytes, and what a step and byte 0 of each are worth; where they lie.
    fn quantise(&mut self, x: &Acts) -> (u64, u64) {
        let rows = x.padded_rows();
        let bytes = self.room(|ops| &mut ops.bytes, rows * x.stride());
        let scales = self.room(|ops| &mut ops.scales, rows * 8);
        let arguments = vec![
            Arg::Address(x.address()),
            int(x.stride()),
            int(rows),
            int(x.columns()),
            Arg::Address(bytes),
            int(x.stride()),
            Arg::Address(scales),
        ];
        self.launch(variants::quantise(x.number), row_shape(rows), arguments);
        (bytes, scales)
    }
}
