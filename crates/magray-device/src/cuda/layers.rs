//! A model's layers in the GPU's memory, in the forms that the kernels read.
//! Launches nothing.

use super::context::Context;
use super::error::CudaError;
use super::matrix::{TensorMap, stride_of};
use super::memory::{DeviceBuffer, Number};
use crate::{DistanceBias, Embedding, LinearSource, Norm, Table};
use magray_core::Precision;
use std::sync::Arc;

/// Columns that biases, gains and shifts are padded to a multiple of, with zeros: the widest tile of a kernel.
const TILE_COLUMNS: usize = 384;
/// Rows of a table converted and sent at a time.
const TABLE_ROWS: usize = 4096;

/// How a layer's products are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Arithmetic {
    /// Of 16-bit numbers, in 32 bits.
    Sixteen,
    /// Of 32-bit numbers whose lower bits are dropped.
    Tf32,
    /// Of 32-bit numbers.
    F32,
    /// Of bytes, scaled by row and column.
    Int8,
}

impl Arithmetic {
    fn of(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Tf32 => Self::Tf32,
            Precision::F16 | Precision::Bf16 => Self::Sixteen,
            Precision::Int8 => Self::Int8,
        }
    }
}

/// A linear layer.
#[derive(Debug)]
pub struct Linear {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) arithmetic: Arithmetic,
    /// A row for each output, padded as activations are.
    pub(super) weights: DeviceBuffer,
    /// How Hopper's copy engine sees 16-bit weights.
    pub(super) map: Option<TensorMap>,
    /// One for each output, of 8-bit weights.
    pub(super) scales: Option<DeviceBuffer>,
    pub(super) bias: DeviceBuffer,
}

impl Linear {
    /// Packs a layer for activations of 16-bit numbers of this form (or 32-bit ones).
    pub(super) fn pack(
        context: &Arc<Context>,
        source: LinearSource<'_>,
        precision: Precision,
        sixteen: Number,
        has_copy_engine: bool,
    ) -> Result<Self, CudaError> {
        let (inputs, outputs) = (source.inputs, source.weights.len() / source.inputs.max(1));
        let arithmetic = Arithmetic::of(precision);
        let rows = source.weights.chunks_exact(inputs);
        let (bytes, scales) = match arithmetic {
            Arithmetic::Int8 => quantised(rows, inputs),
            Arithmetic::Sixteen => (padded(rows, inputs, sixteen), Vec::new()),
            Arithmetic::F32 | Arithmetic::Tf32 => (padded(rows, inputs, Number::F32), Vec::new()),
        };
        let weights = DeviceBuffer::holding(context, &bytes)?;
        let map = match arithmetic {
            Arithmetic::Sixteen if has_copy_engine => {
                Some(TensorMap::encode(weights.address(), sixteen, outputs, inputs)?)
            }
            _ => None,
        };
        let scales = match scales.is_empty() {
            true => None,
            false => Some(DeviceBuffer::of_floats(context, &scales)?),
        };
        let mut bias = source.bias.to_vec();
        bias.resize(outputs.next_multiple_of(TILE_COLUMNS), 0.0);
        let bias = DeviceBuffer::of_floats(context, &bias)?;
        Ok(Self { inputs, outputs, arithmetic, weights, map, scales, bias })
    }
}

/// Rows with zeros up to their stride.
fn padded<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, columns: usize, number: Number) -> Vec<u8> {
    let padding = (stride_of(columns) - columns) * number.size();
    let mut bytes = Vec::with_capacity(rows.len() * stride_of(columns) * number.size());
    for row in rows {
        number.append(row, &mut bytes);
        bytes.resize(bytes.len() + padding, 0);
    }
    bytes
}

/// Each row as bytes, scaled by its largest number.
fn quantised<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, columns: usize) -> (Vec<u8>, Vec<f32>) {
    let padding = stride_of(columns) - columns;
    let (mut bytes, mut scales) = (Vec::with_capacity(rows.len() * stride_of(columns)), Vec::new());
    for row in rows {
        let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let scale = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        bytes.extend(row.iter().map(|x| (x * scale).round_ties_even() as i8 as u8));
        bytes.resize(bytes.len() + padding, 0);
        scales.push(largest / 127.0);
    }
    (bytes, scales)
}

/// A layer norm.
#[derive(Debug)]
pub struct DeviceNorm {
    pub(super) gain: DeviceBuffer,
    pub(super) shift: DeviceBuffer,
    pub(super) columns: usize,
    pub(super) epsilon: f32,
}

impl DeviceNorm {
    pub(super) fn pack(context: &Arc<Context>, norm: &Norm) -> Result<Self, CudaError> {
        let send = |values: &[f32]| {
            let mut values = values[..norm.columns].to_vec();
            values.resize(norm.columns.next_multiple_of(TILE_COLUMNS), 0.0);
            DeviceBuffer::of_floats(context, &values)
        };
        Ok(Self { gain: send(&norm.gain)?, shift: send(&norm.shift)?, columns: norm.columns, epsilon: norm.epsilon })
    }
}

/// The tables of the first layer.
#[derive(Debug)]
pub struct DeviceEmbedding {
    pub(super) words: DeviceBuffer,
    pub(super) positions: DeviceBuffer,
    pub(super) types: Option<DeviceBuffer>,
    pub(super) norm: DeviceNorm,
    /// Bytes from the table of positions to that of a text's first token.
    pub(super) first_position_bytes: u64,
}

impl DeviceEmbedding {
    pub(super) fn pack(context: &Arc<Context>, tables: &Embedding, number: Number) -> Result<Self, CudaError> {
        let row_bytes = stride_of(tables.positions.columns()) * number.size();
        Ok(Self {
            words: send_table(context, &tables.words, number)?,
            positions: send_table(context, &tables.positions, number)?,
            types: tables.types.as_ref().map(|types| send_table(context, types, number)).transpose()?,
            norm: DeviceNorm::pack(context, &tables.norm)?,
            first_position_bytes: (tables.first_position * row_bytes) as u64,
        })
    }
}

/// Sends a table some rows at a time: it may be large, and lie in a file.
fn send_table(context: &Arc<Context>, table: &Table, number: Number) -> Result<DeviceBuffer, CudaError> {
    let columns = table.columns();
    let row_bytes = stride_of(columns) * number.size();
    let buffer = DeviceBuffer::zeroed(context, table.rows() * row_bytes)?;
    let (mut spare, mut rows) = (vec![0.0; columns], vec![0.0; TABLE_ROWS * columns]);
    for start in (0..table.rows()).step_by(TABLE_ROWS) {
        let count = TABLE_ROWS.min(table.rows() - start);
        let rows = &mut rows[..count * columns];
        rows.fill(0.0);
        for (i, row) in rows.chunks_exact_mut(columns).enumerate() {
            table.add_row(start + i, row, &mut spare);
        }
        buffer.write(start * row_bytes, &padded(rows.chunks_exact(columns), columns, number))?;
    }
    Ok(buffer)
}

/// Biases of attention scores.
#[derive(Debug)]
pub struct DeviceBias {
    pub(super) values: DeviceBuffer,
    pub(super) reach: usize,
    pub(super) stride: usize,
}

impl DeviceBias {
    pub(super) fn pack(context: &Arc<Context>, bias: &DistanceBias) -> Result<Self, CudaError> {
        let values = DeviceBuffer::of_floats(context, &bias.values)?;
        Ok(Self { values, reach: bias.reach, stride: bias.stride })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantised_rows_are_scaled_by_their_largest_number() {
        let (bytes, scales) = quantised([[1.0f32, -2.0, 0.5].as_slice(), &[0.0; 3]].into_iter(), 3);
        assert_eq!(bytes.len(), 2 * 16);
        assert_eq!(bytes[..4].iter().map(|&b| b as i8).collect::<Vec<_>>(), [64, -127, 32, 0]);
        assert_eq!(scales, [2.0 / 127.0, 0.0]);
        assert!(bytes[16..].iter().all(|&b| b == 0));
    }

    #[test]
    fn rows_are_padded_with_zeros() {
        let bytes = padded([[1.0f32; 17].as_slice(), &[2.0; 17]].into_iter(), 17, Number::F32);
        assert_eq!(bytes.len(), 2 * 32 * 4);
        assert_eq!(bytes[17 * 4..32 * 4], [0; 15 * 4]);
    }
}
