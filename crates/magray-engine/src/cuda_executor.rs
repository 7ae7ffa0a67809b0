//! Runs a model on a GPU. This build has no kernels for it yet, so that it declines every GPU.
//! Never computes on another device in its place.

use crate::gpu::{Declined, GpuError, GpuInfo, GpuOptions};
use crate::model::TensorSource;
use crate::spec::ModelSpec;
use crate::tokenize::Encoded;
use magray_core::Precision;
use std::convert::Infallible;

/// A model on a GPU; none can be made yet.
pub(crate) struct CudaExecutor(Infallible);

impl CudaExecutor {
    /// Puts a model on a GPU.
    pub(crate) fn open(
        _gpu: &GpuInfo,
        _options: &GpuOptions,
        _spec: &ModelSpec,
        _source: &dyn TensorSource,
        _precision: Precision,
    ) -> Result<Self, GpuError> {
        Err(Declined::NoNvrtc.into())
    }

    pub(crate) fn outputs(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn run(&mut self, _texts: &[Encoded], _skip: usize, _out: &mut [f32]) -> Result<(), GpuError> {
        match self.0 {}
    }

    pub(crate) fn memory_used_bytes(&self) -> u64 {
        match self.0 {}
    }
}
