//! Matrices in the GPU's memory: activations, and the weights that multiply them.
//! Rows are padded with zeros to a stride that every kernel can load whole.

use super::batch::{allocated_rows, padded_rows};
use super::context::Context;
use super::error::CudaError;
use super::memory::{DeviceBuffer, Number};
use super::stream::Stream;
use super::sys;
use crate::Rows;
use std::sync::{Arc, Mutex, PoisonError};

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
    /// How the copy engine sees it; none for 32-bit numbers, and where there is no such engine.
    pub(super) map: Option<TensorMap>,
    memory: Arc<Memory>,
    /// Its address in the memory's present location.
    address: u64,
    location: u64,
    columns: usize,
    rows: usize,
}

/// Memory of one matrix, or of two that are used in turn.
#[derive(Debug)]
struct Memory {
    context: Arc<Context>,
    /// Bytes of the longest row.
    row_bytes: usize,
    has_copy_engine: bool,
    room: Mutex<Room>,
}

#[derive(Debug)]
struct Room {
    buffer: DeviceBuffer,
    rows: usize,
    /// Counts the locations that the memory had.
    location: u64,
}

impl Acts {
    pub(super) fn new(context: &Arc<Context>, number: Number, columns: usize, has_copy_engine: bool) -> Self {
        Self::in_memory(&Memory::new(context, number, columns, has_copy_engine), number, columns)
    }

    /// Two matrices of which one is used at a time, in the same memory.
    pub(super) fn pair(
        context: &Arc<Context>,
        number: Number,
        columns: [usize; 2],
        has_copy_engine: bool,
    ) -> (Self, Self) {
        // What one writes would stand in the padding of the other's rows, which must be zero.
        if columns.iter().any(|&columns| stride_of(columns) != columns) {
            let [first, second] = columns.map(|columns| Self::new(context, number, columns, has_copy_engine));
            return (first, second);
        }
        let memory = Memory::new(context, number, columns[0].max(columns[1]), has_copy_engine);
        let [first, second] = columns.map(|columns| Self::in_memory(&memory, number, columns));
        (first, second)
    }

    fn in_memory(memory: &Arc<Memory>, number: Number, columns: usize) -> Self {
        Self { number, map: None, memory: Arc::clone(memory), address: 0, location: 0, columns, rows: 0 }
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Called before a stream uses it: usually the one that allocated it.
    pub(super) fn used_by(&self, stream: &Stream) {
        self.memory.room.lock().unwrap_or_else(PoisonError::into_inner).buffer.share_with(stream);
    }

    /// Bytes of the memory that it lies in, which two may share.
    pub(super) fn room_bytes(&self) -> usize {
        self.memory.room.lock().unwrap_or_else(PoisonError::into_inner).buffer.bytes()
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
        self.address != 0
    }

    /// Sets the rows in use without allocating: for plans, which touch no row.
    pub(super) fn pretend(&mut self, rows: usize) {
        self.rows = rows;
    }

    /// Sets the rows in use; two matrices that share memory are resized together. Where it allocates, it does so for `expected`
    /// rows. Returns whether the matrix moved: recordings that use it are void then.
    pub(super) fn resize(&mut self, rows: usize, expected: usize, stream: &Stream) -> Result<bool, CudaError> {
        self.rows = rows;
        let memory = &self.memory;
        let mut room = memory.room.lock().unwrap_or_else(PoisonError::into_inner);
        if self.padded_rows() > room.rows {
            // The old memory goes first: there may not be room for both. Some more is taken, so that a later batch a
            // little larger fits without asking the driver again.
            room.buffer = DeviceBuffer::empty(&memory.context);
            room.rows = 0;
            let grown = |rows: usize| {
                let rows = allocated_rows(rows);
                DeviceBuffer::private(stream, rows * memory.row_bytes).map(|buffer| (buffer, rows))
            };
            // What is only expected is no reason to fail.
            (room.buffer, room.rows) = match grown(expected.max(rows)) {
                Err(CudaError::OutOfMemory) if expected > rows => grown(rows),
                result => result,
            }?;
            room.location += 1;
        }
        if self.location == room.location {
            return Ok(false);
        }
        self.address = room.buffer.address();
        self.map = match self.number {
            Number::F16 | Number::Bf16 if memory.has_copy_engine => {
                Some(TensorMap::encode(self.address, self.number, room.rows, self.columns)?)
            }
            _ => None,
        };
        self.location = room.location;
        Ok(true)
    }
}

impl Memory {
    fn new(context: &Arc<Context>, number: Number, columns: usize, has_copy_engine: bool) -> Arc<Self> {
        let room = Room { buffer: DeviceBuffer::empty(context), rows: 0, location: 0 };
        let row_bytes = stride_of(columns) * number.size();
        Arc::new(Self { context: Arc::clone(context), row_bytes, has_copy_engine, room: Mutex::new(room) })
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

    /// Rows of bf16 numbers in boxes of 64 columns by `at_once` rows, swizzled; `stride` numbers lie from one row to the next.
    pub(super) fn of_numbers(
        address: u64,
        [columns, rows]: [usize; 2],
        stride: usize,
        at_once: usize,
    ) -> Result<Self, CudaError> {
        let tiled = Tiled {
            kind: sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            swizzle: sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sizes: [columns as u64, rows as u64, 1],
            strides: [stride as u64 * 2, stride as u64 * 2 * rows as u64],
            boxes: [BOX, at_once as u32, 1],
            dimensions: 2,
        };
        tiled.encode(address)
    }

    /// Rows of floats in boxes of 32 columns by `at_once` rows, swizzled; `stride` floats lie from one row to the next.
    pub(super) fn of_floats(
        address: u64,
        [columns, rows]: [usize; 2],
        stride: usize,
        at_once: usize,
    ) -> Result<Self, CudaError> {
        let tiled = Tiled {
            kind: sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            swizzle: sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sizes: [columns as u64, rows as u64, 1],
            strides: [stride as u64 * 4, stride as u64 * 4 * rows as u64],
            boxes: [BOX / 2, at_once as u32, 1],
            dimensions: 2,
        };
        tiled.encode(address)
    }

    /// Blocks of words, `units` of them side by side in each of `eights` rows of blocks, `at_once` rows at a time.
    pub(super) fn of_blocks(
        address: u64,
        [words, units, eights]: [usize; 3],
        at_once: usize,
    ) -> Result<Self, CudaError> {
        let bytes = words as u64 * 4;
        let tiled = Tiled {
            kind: sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            swizzle: sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            sizes: [words as u64, units as u64, eights as u64],
            strides: [bytes, bytes * units as u64],
            boxes: [words as u32, 1, at_once as u32],
            dimensions: 3,
        };
        tiled.encode(address)
    }
}

/// How the copy engine shall see memory.
struct Tiled {
    kind: sys::CUtensorMapDataType,
    swizzle: sys::CUtensorMapSwizzle,
    sizes: [u64; 3],
    /// Bytes from one row to the next, and so on.
    strides: [u64; 2],
    boxes: [u32; 3],
    dimensions: u32,
}

impl Tiled {
    fn encode(&self, address: u64) -> Result<TensorMap, CudaError> {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: all arrays have at least the lengths that the dimensions need and outlive the call; the address is not read.
        let encoded = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                self.kind,
                self.dimensions,
                address as *mut _,
                self.sizes.as_ptr(),
                self.strides.as_ptr(),
                self.boxes.as_ptr(),
                [1u32, 1, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                self.swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        CudaError::check(encoded)?;
        Ok(TensorMap(map))
    }
}
