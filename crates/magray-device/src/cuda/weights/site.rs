//! Where a model's layers are put, one behind the other in the order of use: measured first, then placed in one block.
//! Reads no number before all have their place.

use super::parts::{Form, Matrix, Part};
use super::upload::{self, Origin};
use super::{Ground, Place, WeightsBlock};
#[cfg(unix)]
use crate::SharedMemory;
use crate::cuda::device::{Cuda, DeviceError};
use crate::cuda::layers::{DeviceBias, DeviceEmbedding, DeviceNorm, Linear};
use crate::cuda::matrix::Acts;
use crate::cuda::ops::CudaOps;
use crate::{ActsPair, Device, DistanceBias, Embedding, LinearNumbers, LinearSource, Norm, Numbers};
use magray_core::Precision;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Where a part may begin: enough for every load of a kernel and for the copy engine.
const ALIGN_BYTES: usize = 256;

/// A place for one model's layers.
pub struct Site<'a> {
    cuda: &'a Cuda,
    ground: Arc<Ground>,
    /// Where the next part begins.
    cursor: Cell<usize>,
    parts: RefCell<Vec<Part>>,
    measures: bool,
}

impl<'a> Site<'a> {
    /// Takes no memory, and only counts what a model's layers need: they must not be computed with.
    pub fn measuring(cuda: &'a Cuda) -> Self {
        Self::on(cuda, Ground::nowhere(cuda.context()), true)
    }

    /// A block of so many bytes, which the same layers were measured to need.
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
        let parts = self.parts.into_inner();
        upload::upload(&self.ground, &Origin::Parts(&parts), self.cuda.copies())?;
        for part in &parts {
            // The GPU has them; the files' pages would only take memory.
            part.matrix.numbers.iter().for_each(Numbers::release_pages);
        }
        Ok(WeightsBlock::there(self.ground, self.cuda.copies()))
    }

    /// Brings all layers from an image that was filled from the same layers; returns when they are on their way.
    #[cfg(unix)]
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

    /// Gives a matrix its place.
    pub(in crate::cuda) fn put(&self, matrix: &Arc<Matrix>, form: Form) -> Place {
        let at = self.cursor.get().next_multiple_of(ALIGN_BYTES);
        let end = at + matrix.bytes(form);
        self.cursor.set(end);
        if !self.measures {
            assert!(end <= self.ground.bytes(), "the layers are those that were measured");
            self.parts.borrow_mut().push(Part { at, matrix: Arc::clone(matrix), form });
        }
        Place { ground: Arc::clone(&self.ground), at, end }
    }
}

impl Device for Site<'_> {
    type Error = DeviceError;
    type Ops = CudaOps;

    fn linear(&self, source: LinearSource<'_>, precision: Precision) -> Result<Linear, DeviceError> {
        let weights = vec![Numbers::new(source.weights)];
        let numbers = LinearNumbers { weights, inputs: source.inputs, bias: source.bias.to_vec() };
        self.linear_of(numbers, precision)
    }

    fn linear_of(&self, source: LinearNumbers, precision: Precision) -> Result<Linear, DeviceError> {
        Ok(Linear::put(self, source, precision)?)
    }

    fn norm(&self, norm: Norm) -> Result<DeviceNorm, DeviceError> {
        Ok(DeviceNorm::put(self, &norm))
    }

    fn embedding(&self, embedding: Embedding, precision: Precision) -> Result<DeviceEmbedding, DeviceError> {
        Ok(DeviceEmbedding::put(self, &embedding, precision))
    }

    fn bias(&self, bias: DistanceBias) -> Result<DeviceBias, DeviceError> {
        Ok(DeviceBias::put(self, &bias))
    }

    fn acts(&self, precision: Precision, columns: usize) -> Acts {
        self.cuda.acts(precision, columns)
    }

    fn acts_in_turn(&self, precision: Precision, columns: [usize; 2]) -> ActsPair<CudaOps> {
        self.cuda.acts_in_turn(precision, columns)
    }
}
