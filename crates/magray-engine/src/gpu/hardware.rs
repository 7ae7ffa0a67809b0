//! The GPUs of this machine behind a trait, so that the choice between devices can be tested without one.
//! Decides nothing.

use super::{GpuError, GpuOptions};
use crate::executors::Accelerator;
use crate::executors::cuda::CudaExecutor;
use crate::model::TensorSource;
use crate::spec::ModelSpec;
use magray_core::{DeviceChoice, GpuSelector, Precision};
use magray_device::cuda::{Declined, GpuInfo, Telemetry, probe, resolve};

/// What a choice between devices asks of a machine.
pub(crate) trait Hardware {
    /// The GPU that the choice means.
    fn find(&self, choice: &DeviceChoice) -> Result<GpuInfo, Declined>;

    /// Memory of it that nobody uses; `None` where the driver does not tell.
    fn free_bytes(&self, gpu: &GpuInfo) -> Option<u64>;

    /// Puts a model on it.
    fn open(
        &self,
        gpu: &GpuInfo,
        spec: &ModelSpec,
        source: &dyn TensorSource,
        precision: Precision,
    ) -> Result<Box<dyn Accelerator>, GpuError>;
}

/// This machine.
pub(crate) struct Machine<'a>(pub(crate) &'a GpuOptions);

impl Machine<'_> {
    /// Every GPU that may be used.
    pub(crate) fn gpus(&self) -> Result<Vec<GpuInfo>, Declined> {
        probe(&self.0.search, &self.0.visible).map_err(|declined| match (declined, self.0.visible_by) {
            (Declined::Hidden { value, .. }, Some(by)) => Declined::Hidden { by, value },
            (declined, _) => declined,
        })
    }
}

impl Hardware for Machine<'_> {
    fn find(&self, choice: &DeviceChoice) -> Result<GpuInfo, Declined> {
        let named = match choice {
            DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Cuda(GpuSelector::Any) => {
                DeviceChoice::Cuda(GpuSelector::Index(self.0.device_id))
            }
            named => named.clone(),
        };
        let gpus = self.gpus()?;
        resolve(&gpus, &named.to_string()).cloned()
    }

    fn free_bytes(&self, gpu: &GpuInfo) -> Option<u64> {
        let sample = Telemetry::open(&self.0.search)?.sample(gpu);
        Some(sample.memory_total_bytes?.saturating_sub(sample.memory_used_bytes?))
    }

    fn open(
        &self,
        gpu: &GpuInfo,
        spec: &ModelSpec,
        source: &dyn TensorSource,
        precision: Precision,
    ) -> Result<Box<dyn Accelerator>, GpuError> {
        Ok(Box::new(CudaExecutor::open(gpu, self.0, spec, source, precision)?))
    }
}
