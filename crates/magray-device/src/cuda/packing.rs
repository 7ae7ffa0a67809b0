//! Packs layers on a GPU: each for itself, or all of a model into one block.
//! Launches nothing.

use super::device::Cuda;
use super::device_error::DeviceError;
use super::layers::{DeviceBias, DeviceEmbedding, DeviceNorm, Linear};
use super::matrix::Acts;
use super::ops::CudaOps;
use super::weights::Site;
use crate::{ActsPair, Device, DistanceBias, Embedding, LinearNumbers, LinearSource, Norm, Numbers};
use magray_core::Precision;
use std::sync::Arc;

impl Cuda {
    /// Operations with a stream of their own: those of two streams overlap.
    pub fn ops(self: &Arc<Self>) -> Result<CudaOps, DeviceError> {
        CudaOps::new(Arc::clone(self))
    }

    /// Puts a few layers into a block of their own.
    pub(super) fn once<T>(&self, put: impl Fn(&Site<'_>) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let measured = Site::measuring(self);
        put(&measured)?;
        let site = Site::small(self, measured.bytes())?;
        let layers = put(&site)?;
        site.fill()?;
        Ok(layers)
    }
}

impl Device for Cuda {
    type Error = DeviceError;
    type Ops = CudaOps;

    fn linear(&self, source: LinearSource<'_>, precision: Precision) -> Result<Linear, DeviceError> {
        let weights = Numbers::new(source.weights);
        self.once(|site| {
            let weights = vec![weights.clone()];
            let numbers = LinearNumbers { weights, inputs: source.inputs, bias: source.bias.to_vec() };
            site.linear_of(numbers, precision)
        })
    }

    fn norm(&self, norm: Norm) -> Result<DeviceNorm, DeviceError> {
        self.once(|site| Ok(DeviceNorm::put(site, &norm)))
    }

    fn embedding(&self, embedding: Embedding, precision: Precision) -> Result<DeviceEmbedding, DeviceError> {
        self.once(|site| Ok(DeviceEmbedding::put(site, &embedding, precision)))
    }

    fn bias(&self, bias: DistanceBias) -> Result<DeviceBias, DeviceError> {
        self.once(|site| Ok(DeviceBias::put(site, &bias)))
    }

    fn acts(&self, precision: Precision, columns: usize) -> Acts {
        Acts::new(self.context(), self.number(precision), columns, self.has_wgmma())
    }

    fn acts_in_turn(&self, precision: Precision, columns: [usize; 2]) -> (Acts, Acts) {
        Acts::pair(self.context(), self.number(precision), columns, self.has_wgmma())
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
        self.cuda().acts(precision, columns)
    }

    fn acts_in_turn(&self, precision: Precision, columns: [usize; 2]) -> ActsPair<CudaOps> {
        self.cuda().acts_in_turn(precision, columns)
    }
}
