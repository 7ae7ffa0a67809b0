//! Memory of a decoder's steps: activations, pages of keys and values, and what kernels leave for each other.
//! Launches nothing.

use crate::KvShape;
use crate::cuda::batch::allocated_rows;
use crate::cuda::context::Context;
use crate::cuda::device::Cuda;
use crate::cuda::device_error::DeviceError;
use crate::cuda::error::CudaError;
use crate::cuda::matrix::stride_of;
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::stream::Stream;
use crate::cuda::sys;
use std::sync::{Arc, PoisonError};

/// Pages that get memory at once: this many, or this part of all that there may be.
const PAGES_LEAST: usize = 64;
const PAGES_LEAST_PART: usize = 32;

/// A matrix of activations: floats where it is the residual stream, else bf16 numbers.
#[derive(Debug)]
pub struct DecoderActs {
    buffer: DeviceBuffer,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl DecoderActs {
    pub(super) fn new(context: &Arc<Context>, columns: usize) -> Self {
        Self { buffer: DeviceBuffer::empty(context), rows: 0, columns }
    }

    pub(super) fn address(&self) -> u64 {
        self.buffer.address()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.buffer.bytes() as u64
    }

    /// Numbers from one row to the next.
    pub(super) fn stride(&self) -> usize {
        stride_of(self.columns)
    }

    /// Rows that there is room for.
    pub(super) fn room(&self) -> usize {
        self.buffer.bytes() / (self.stride() * 4)
    }

    /// Sets how many rows are in use; `readers` are other GPUs that read them.
    pub(super) fn resize(&mut self, rows: usize, stream: &Stream, readers: &[sys::CUdevice]) -> Result<(), CudaError> {
        self.rows = rows;
        if self.room() < allocated_rows(rows) {
            // The old memory goes first: there may not be room for both.
            self.buffer = DeviceBuffer::empty(stream.context());
            self.buffer = DeviceBuffer::private_but(stream, allocated_rows(rows) * self.stride() * 4, readers)?;
        }
        Ok(())
    }
}

/// Keys and values of all layers, in pages: see `kernels/decoder_pages.cuh`. Their memory grows with the pages that are used.
#[derive(Debug)]
pub struct DecoderPages {
    buffer: DeviceBuffer,
    pub(super) shape: KvShape,
    /// Pages that have memory.
    pub(super) count: usize,
    most: usize,
}

impl DecoderPages {
    pub(super) fn new(cuda: &Cuda, shape: KvShape, most: usize) -> Self {
        Self { buffer: DeviceBuffer::empty(cuda.context()), shape, count: 0, most }
    }

    /// Memory for this many pages: twice what there was at least, so that it seldom moves, and no more than there may be.
    pub(super) fn grow(&mut self, cuda: &Cuda, count: usize) -> Result<(), DeviceError> {
        if count <= self.count {
            return Ok(());
        }
        let least = PAGES_LEAST.max(self.most / PAGES_LEAST_PART);
        let generous = count.max(2 * self.count).max(least).min(self.most).max(count);
        self.move_to(cuda, generous).or_else(|_| self.move_to(cuda, count))
    }

    /// New pages are zeros: values of tokens that are not there yet are multiplied with nothing, and must be numbers.
    fn move_to(&mut self, cuda: &Cuda, count: usize) -> Result<(), DeviceError> {
        let stream = cuda.copies().lock().unwrap_or_else(PoisonError::into_inner);
        let larger = DeviceBuffer::zeroed(&stream, self.shape.page_numbers() * count * 2)?;
        if self.count > 0 {
            cuda.context().bind()?;
            // SAFETY: both hold the bytes of the old one; the wait follows before either goes.
            unsafe { stream.copy_within(larger.address(), self.buffer.address(), self.buffer.bytes()) }?;
            stream.wait()?;
        }
        (self.buffer, self.count) = (larger, count);
        Ok(())
    }

    pub(super) fn address(&self) -> u64 {
        self.buffer.address()
    }
}

/// Memory that grows to the largest need. What it had before stays for the kernels that were put together with it, until the step
/// has begun.
#[derive(Debug)]
pub(super) struct Scratch {
    buffer: DeviceBuffer,
    before: Vec<DeviceBuffer>,
}

impl Scratch {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self { buffer: DeviceBuffer::empty(context), before: Vec::new() }
    }

    /// Zeros at first.
    pub(super) fn room(&mut self, bytes: usize, stream: &Stream) -> Result<u64, CudaError> {
        if self.buffer.bytes() < bytes {
            let larger = DeviceBuffer::private(stream, bytes.next_power_of_two())?;
            self.before.push(std::mem::replace(&mut self.buffer, larger));
        }
        Ok(self.buffer.address())
    }

    pub(super) fn address(&self) -> u64 {
        self.buffer.address()
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    pub(super) fn forget_before(&mut self) {
        self.before.clear();
    }
}
