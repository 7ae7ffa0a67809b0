//! Matrices in the GPU's memory: activations, and the weights that multiply them.
//! Rows are padded with zeros to a stride that every kernel can load whole.

use super::batch::{padded_rows, roomy_rows};
use super::context::Context;
use super::error::CudaError;
use super::memory::{DeviceBuffer, Number};
use super::sys;
use crate::Rows;
use std::sync::Arc;

/// Numbers that a row is padded to a multiple of.
const STRIDE_UNIT: usize = 16;
/// Rows and columns of a box, in which Hopper's copy engine moves matrices.
const BOX: u32 = 64;

/// Numbers from one row to the next.
pub(super) fn stride_of(columns: usize) -> usize {
    columns.next_multiple_of(STRIDE_UNIT)
}

/// A matrix of activations: a row for each token or text.
#[derive(Debug)]
pub struct Acts {
    pub(super) number: Number,
    pub(super) buffer: DeviceBuffer,
    /// How the copy engine sees it; none for 32-bit numbers, and where there is no such engine.
    pub(super) map: Option<TensorMap>,
    columns: usize,
    rows: usize,
    capacity: usize,
    has_copy_engine: bool,
}

impl Acts {
    pub(super) fn new(context: &Arc<Context>, number: Number, columns: usize, has_copy_engine: bool) -> Self {
        let buffer = DeviceBuffer::empty(context);
        Self { number, buffer, map: None, columns, rows: 0, capacity: 0, has_copy_engine }
    }

    pub(super) fn stride(&self) -> usize {
        stride_of(self.columns)
    }

    /// Rows that kernels work on: those in use and some more, so that few different sizes occur.
    pub(super) fn padded_rows(&self) -> usize {
        padded_rows(self.rows)
    }

    /// Whether it has memory at all.
    pub(super) fn has_room(&self) -> bool {
        self.capacity > 0
    }

    /// Sets the rows in use without making room for them: for plans alone, which touch no row.
    pub(super) fn pretend(&mut self, rows: usize) {
        self.rows = rows;
    }

    /// Sets the rows in use. Says whether the matrix had to move: recordings that use it are void then.
    pub(super) fn resize(&mut self, context: &Arc<Context>, rows: usize) -> Result<bool, CudaError> {
        self.rows = rows;
        if self.padded_rows() <= self.capacity {
            return Ok(false);
        }
        // Some more: a later batch a little larger fits without asking the driver again.
        let capacity = roomy_rows(rows);
        // The old memory goes first: there may not be room for both.
        self.buffer = DeviceBuffer::empty(context);
        self.capacity = 0;
        self.buffer = DeviceBuffer::zeroed(context, capacity * self.stride() * self.number.size())?;
        self.map = match self.number {
            Number::F16 | Number::Bf16 if self.has_copy_engine => {
                Some(TensorMap::encode(self.buffer.address(), self.number, capacity, self.columns)?)
            }
            _ => None,
        };
        self.capacity = capacity;
        Ok(true)
    }
}

impl Rows for Acts {
    fn rows(&self) -> usize {
        self.rows
    }

    fn columns(&self) -> usize {
        self.columns
    }
}

/// How the copy engine sees a matrix of 16-bit numbers: boxes of 64 by 64, swizzled.
#[derive(Clone, Copy)]
pub(super) struct TensorMap(pub(super) sys::CUtensorMap);

impl std::fmt::Debug for TensorMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TensorMap")
    }
}

impl TensorMap {
    pub(super) fn encode(address: u64, number: Number, rows: usize, columns: usize) -> Result<Self, CudaError> {
        let kind = match number {
            Number::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Number::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Number::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        };
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (sizes, strides) = ([columns as u64, rows as u64], [(stride_of(columns) * number.size()) as u64]);
        // SAFETY: all arrays have the lengths that a matrix needs and outlive the call; the address is not read.
        let encoded = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                kind,
                2,
                address as *mut _,
                sizes.as_ptr(),
                strides.as_ptr(),
                [BOX, BOX].as_ptr(),
                [1u32, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        CudaError::check(encoded)?;
        Ok(Self(map))
    }
}
