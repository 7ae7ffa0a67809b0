//! A model's layers in the GPU's memory, in the forms that the kernels read.
//! Launches nothing.

use super::arithmetic::Arithmetic;
use super::error::CudaError;
use super::matrix::{TensorMap, stride_of};
use super::memory::Number;
use super::weights::{Form, Matrix, Site, WeightSlice};
use crate::{DistanceBias, Embedding, LinearNumbers, Norm, Table};
use magray_core::Precision;
use std::sync::Arc;

/// Columns that biases, gains and shifts are padded to a multiple of, with zeros: the widest tile of a kernel.
const TILE_COLUMNS: usize = 384;

/// A linear layer.
#[derive(Debug)]
pub struct Linear {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) arithmetic: Arithmetic,
    /// A row for each output, padded as activations are.
    pub(super) weights: WeightSlice,
    /// How Hopper's copy engine sees 16-bit weights.
    pub(super) map: Option<TensorMap>,
    /// What each row of bytes was scaled by.
    pub(super) scales: Option<WeightSlice>,
    /// The last to arrive.
    pub(super) bias: WeightSlice,
}

impl Linear {
    pub(super) fn put(site: &Site<'_>, source: LinearNumbers, precision: Precision) -> Result<Self, CudaError> {
        let (inputs, outputs) = (source.inputs, source.outputs());
        let (arithmetic, sixteen) = (Arithmetic::of(precision), site.cuda().number(precision));
        let rows = Arc::new(Matrix { numbers: source.weights, columns: inputs, stride: stride_of(inputs) });
        let form = match arithmetic {
            Arithmetic::Int8 => Form::Quantised,
            Arithmetic::Sixteen => Form::Numbers(sixteen),
            Arithmetic::F32 | Arithmetic::Tf32 => Form::Numbers(Number::F32),
        };
        let weights = site.put(&rows, form);
        let map = match arithmetic {
            Arithmetic::Sixteen if site.cuda().has_wgmma() && !site.measures() => {
                Some(TensorMap::encode(weights.address(), sixteen, outputs, inputs)?)
            }
            _ => None,
        };
        let scales = (form == Form::Quantised).then(|| site.put(&rows, Form::Scales));
        let bias = put_vector(site, source.bias, outputs.next_multiple_of(TILE_COLUMNS));
        Ok(Self { inputs, outputs, arithmetic, weights, map, scales, bias })
    }
}

/// Floats with zeros behind them.
pub(super) fn put_vector(site: &Site<'_>, values: Vec<f32>, padded: usize) -> WeightSlice {
    site.put(&Arc::new(Matrix::vector(values, padded)), Form::Numbers(Number::F32))
}

/// A layer norm.
#[derive(Debug)]
pub struct DeviceNorm {
    pub(super) gain: WeightSlice,
    /// The last to arrive.
    pub(super) shift: WeightSlice,
    pub(super) columns: usize,
    pub(super) epsilon: f32,
}

impl DeviceNorm {
    pub(super) fn put(site: &Site<'_>, norm: &Norm) -> Self {
        let put = |values: &[f32]| {
            put_vector(site, values[..norm.columns].to_vec(), norm.columns.next_multiple_of(TILE_COLUMNS))
        };
        Self { gain: put(&norm.gain), shift: put(&norm.shift), columns: norm.columns, epsilon: norm.epsilon }
    }
}

/// The tables of the first layer.
#[derive(Debug)]
pub struct DeviceEmbedding {
    pub(super) words: WeightSlice,
    pub(super) positions: WeightSlice,
    pub(super) types: Option<WeightSlice>,
    /// The last to arrive.
    pub(super) norm: DeviceNorm,
    /// Bytes from the table of positions to that of a text's first token.
    pub(super) first_position_bytes: u64,
}

impl DeviceEmbedding {
    pub(super) fn put(site: &Site<'_>, tables: &Embedding, precision: Precision) -> Self {
        let number = site.cuda().number(precision);
        let put = |table: &Table| {
            let (numbers, columns) = (vec![table.numbers().clone()], table.columns());
            site.put(&Arc::new(Matrix { numbers, columns, stride: stride_of(columns) }), Form::Numbers(number))
        };
        let row_bytes = stride_of(tables.positions.columns()) * number.size();
        Self {
            words: put(&tables.words),
            positions: put(&tables.positions),
            types: tables.types.as_ref().map(put),
            norm: DeviceNorm::put(site, &tables.norm),
            first_position_bytes: (tables.first_position * row_bytes) as u64,
        }
    }
}

/// Biases of attention scores.
#[derive(Debug)]
pub struct DeviceBias {
    pub(super) values: WeightSlice,
    pub(super) reach: usize,
    pub(super) stride: usize,
}

impl DeviceBias {
    pub(super) fn put(site: &Site<'_>, bias: &DistanceBias) -> Self {
        let values = put_vector(site, bias.values.clone(), bias.values.len());
        Self { values, reach: bias.reach, stride: bias.stride }
    }
}
