//! One bit a dimension of the vectors in a GPU's memory, made there of their numbers.
//! Launches nothing itself: says what its kernels are given.

use super::error::CudaError;
use super::function::LaunchShape;
use super::memory::DeviceBuffer;
use super::ops::{Arg, int};
use super::scan_plan::SIGN_GROUP;
use super::stream::Stream;
use crate::scan::Sketcher;
use std::ops::Range;

const THREADS: u32 = 128;
/// Blocks of the kernel that makes signs, for each multiprocessor.
const BLOCKS: usize = 16;
const WORTH_BYTES: usize = 16;

/// Signs of vectors of one length.
#[derive(Debug)]
pub(super) struct VectorSigns {
    sketcher: Sketcher,
    dims: usize,
    words: DeviceBuffer,
    /// What a product with the signs of each vector is worth.
    worth: DeviceBuffer,
    /// The centre, then the signs by which vectors are turned.
    constants: DeviceBuffer,
}

impl VectorSigns {
    /// Room for the signs of this many vectors.
    pub(super) fn new(stream: &Stream, centre: Vec<f32>, room: usize) -> Result<Self, CudaError> {
        let dims = centre.len();
        let sketcher = Sketcher::new(centre);
        let words = room.next_multiple_of(SIGN_GROUP) * words_of(dims);
        Ok(Self {
            words: DeviceBuffer::private(stream, words * 4)?,
            worth: DeviceBuffer::private(stream, room * WORTH_BYTES)?,
            constants: DeviceBuffer::private(stream, sketcher.constants().len() * 4)?,
            sketcher,
            dims,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.bytes() + self.worth.bytes() + self.constants.bytes()
    }

    /// What must lie at [`VectorSigns::constants_at`] before signs are made.
    pub(super) fn constants(&self) -> Vec<f32> {
        self.sketcher.constants()
    }

    pub(super) fn constants_at(&self) -> u64 {
        self.constants.address()
    }

    /// What the kernel is given that makes the signs of these vectors.
    pub(super) fn making(&self, rows: u64, stride: usize, made: &Range<usize>) -> Vec<Arg> {
        let at = self.constants_at();
        vec![
            Arg::Address(rows),
            int(stride),
            int(self.dims),
            int(made.start),
            int(made.end),
            Arg::Address(at),
            Arg::Address(at + 4 * self.dims as u64),
            Arg::Float(self.sketcher.centre_square()),
            Arg::Address(self.words.address()),
            Arg::Address(self.worth.address()),
        ]
    }

    pub(super) fn making_shape(&self, made: &Range<usize>, multiprocessors: usize) -> LaunchShape {
        let blocks = made.len().min(BLOCKS * multiprocessors) as u32;
        LaunchShape::new([blocks, 1, 1], [THREADS, 1, 1]).with_shared_bytes((self.dims * 4) as u32)
    }

    /// What the kernel that reads signs is given beside what all scans are; `gauges` are the queries' words on the GPU.
    pub(super) fn reading(&self, gauges: u64) -> [Arg; 5] {
        [
            Arg::Address(self.words.address()),
            int(words_of(self.dims)),
            int(self.dims),
            Arg::Address(self.worth.address()),
            Arg::Address(gauges),
        ]
    }

    /// A query made ready, in bytes.
    pub(super) fn gauge(&self, query: &[f32]) -> impl Iterator<Item = u8> {
        self.sketcher.gauge_words(query).into_iter().flat_map(u32::to_le_bytes)
    }
}

/// Bytes of a query that was made ready.
pub(super) fn gauge_bytes(dims: usize) -> usize {
    16 * (1 + words_of(dims))
}

fn words_of(dims: usize) -> usize {
    dims.div_ceil(32)
}
