//! Packs a decoder's layers on a GPU: each for itself, or all of a model into one block.
//! Launches nothing.

use super::memory::{DecoderActs, DecoderPages};
use super::weights::{DecoderLinear, DecoderNorm, DecoderRope};
use super::{Cuda, CudaDecoderOps, DeviceError};
use crate::cuda::weights::Site;
use crate::{BlockLinear, DecoderDevice, KvShape, RopeSource};

impl DecoderDevice for Cuda {
    type Error = DeviceError;
    type Ops = CudaDecoderOps;

    fn block_linear(&self, source: BlockLinear) -> Result<DecoderLinear, DeviceError> {
        self.once(|site| site.block_linear(source.clone()))
    }

    fn block_gates(&self, source: BlockLinear) -> Result<DecoderLinear, DeviceError> {
        self.once(|site| site.block_gates(source.clone()))
    }

    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<DecoderNorm, DeviceError> {
        self.once(|site| site.rms_norm(gain.clone(), epsilon))
    }

    fn rope(&self, source: RopeSource) -> Result<DecoderRope, DeviceError> {
        self.once(|site| site.rope(source.clone()))
    }

    fn pages(&self, shape: KvShape, most: usize) -> Result<DecoderPages, DeviceError> {
        Ok(DecoderPages::new(self, shape, most))
    }

    fn grow_pages(&self, pages: &mut DecoderPages, count: usize) -> Result<(), DeviceError> {
        pages.grow(self, count)
    }

    fn has_pages(&self, pages: &DecoderPages, count: usize) -> bool {
        count <= pages.count
    }

    fn decoder_acts(&self, columns: usize) -> DecoderActs {
        DecoderActs::new(self.context(), columns)
    }
}

impl DecoderDevice for Site<'_> {
    type Error = DeviceError;
    type Ops = CudaDecoderOps;

    fn block_linear(&self, source: BlockLinear) -> Result<DecoderLinear, DeviceError> {
        Ok(DecoderLinear::put(self, source, false))
    }

    fn block_gates(&self, source: BlockLinear) -> Result<DecoderLinear, DeviceError> {
        Ok(DecoderLinear::put(self, source, true))
    }

    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<DecoderNorm, DeviceError> {
        Ok(DecoderNorm::put(self, gain, epsilon))
    }

    fn rope(&self, source: RopeSource) -> Result<DecoderRope, DeviceError> {
        Ok(DecoderRope::put(self, source))
    }

    fn pages(&self, shape: KvShape, most: usize) -> Result<DecoderPages, DeviceError> {
        self.cuda().pages(shape, most)
    }

    fn grow_pages(&self, pages: &mut DecoderPages, count: usize) -> Result<(), DeviceError> {
        self.cuda().grow_pages(pages, count)
    }

    fn has_pages(&self, pages: &DecoderPages, count: usize) -> bool {
        self.cuda().has_pages(pages, count)
    }

    fn decoder_acts(&self, columns: usize) -> DecoderActs {
        self.cuda().decoder_acts(columns)
    }
}
