//! Where a model's layers are put, one behind the other in the order of use: measured first, then placed in one block.
//! Reads no number before all have their place.

use super::parts::{Content, Form, Formed, Matrix, Part};
use super::upload::{self, Origin, Source};
use super::{Ground, WeightSlice, WeightsBlock};
use crate::SharedMemory;
use crate::cuda::device::Cuda;
use crate::cuda::device_error::DeviceError;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Where a part may begin: enough for every load of a kernel and for the copy engine.
const ALIGN_BYTES: usize = 256;

/// Memory for one model's layers.
pub struct Site<'a> {
    cuda: &'a Cuda,
    ground: Arc<Ground>,
    /// Where the next part begins.
    cursor: Cell<usize>,
    parts: RefCell<Vec<Part>>,
    measures: bool,
}

impl<'a> Site<'a> {
    /// Allocates nothing, and only counts what a model's layers need: they must not be computed with.
    pub fn measuring(cuda: &'a Cuda) -> Self {
        Self::on(cuda, Ground::nowhere(cuda.context()), true)
    }

    /// A block of this many bytes, which the same layers were measured to need.
    pub fn of_bytes(cuda: &'a Cuda, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self::on(cuda, Ground::take(cuda.context(), bytes)?, false))
    }

    /// A block for a few layers, which never leave.
    pub(in crate::cuda) fn small(cuda: &'a Cuda, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self::on(cuda, Ground::take_small(cuda.context(), cuda.copies(), bytes)?, false))
    }

    fn on(cuda: &'a Cuda, ground: Arc<Ground>, measures: bool) -> Self {
        Self { cuda, ground, cursor: Cell::new(0), parts: RefCell::default(), measures }
    }

    /// Bytes of what was put here so far.
    pub fn bytes(&self) -> usize {
        self.cursor.get()
    }

    /// Brings the numbers of all layers to the GPU; returns when they are there.
    pub fn fill(self) -> Result<WeightsBlock, DeviceError> {
        assert!(!self.measures, "a model that is only measured has no place");
        assert_eq!(self.bytes(), self.ground.bytes(), "the layers are those that were measured");
        let origin = Origin::Parts(self.parts.into_inner());
        upload::upload(&self.ground, &Source { origin: &origin, filling: None }, self.cuda.copies())?;
        origin.release_pages();
        Ok(WeightsBlock::there(self.ground, self.cuda.copies(), origin))
    }

    /// Copies all layers from an image that was filled from the same layers; returns when the copy has begun.
    pub fn fill_from(self, image: SharedMemory, bytes: u64) -> Result<WeightsBlock, DeviceError> {
        assert_eq!(self.bytes(), self.ground.bytes(), "the layers are those that were measured");
        if bytes != self.bytes() as u64 {
            return Err(DeviceError::WrongImage { expected: self.bytes() as u64, found: bytes });
        }
        WeightsBlock::arriving(self.ground, self.cuda.copies(), image)
    }

    pub(in crate::cuda) fn cuda(&self) -> &Cuda {
        self.cuda
    }

    /// Whether layers get no memory.
    pub(in crate::cuda) fn measures(&self) -> bool {
        self.measures
    }

    /// Assigns a matrix its place.
    pub(in crate::cuda) fn put(&self, matrix: &Arc<Matrix>, form: Form) -> WeightSlice {
        self.put_content(Formed { matrix: Arc::clone(matrix), form })
    }

    /// Assigns what will be made its place.
    pub(in crate::cuda) fn put_content(&self, content: impl Content + 'static) -> WeightSlice {
        let at = self.cursor.get().next_multiple_of(ALIGN_BYTES);
        let end = at + content.bytes();
        self.cursor.set(end);
        if !self.measures {
            assert!(end <= self.ground.bytes(), "the layers are those that were measured");
            self.parts.borrow_mut().push(Part { at, content: Arc::new(content) });
        }
        WeightSlice { ground: Arc::clone(&self.ground), at, end }
    }
}
