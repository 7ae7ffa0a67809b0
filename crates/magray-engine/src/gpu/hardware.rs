//! The GPUs of this machine, as the driver in this process tells them.
//! Decides nothing.

use super::GpuOptions;
use magray_core::{DeviceChoice, GpuSelector};
use magray_device::cuda::{Declined, GpuInfo, Telemetry, probe, resolve};

/// The GPU that a choice means, or why there is none. Starts the driver but makes no context.
pub fn find(choice: &DeviceChoice, options: &GpuOptions) -> Result<GpuInfo, Declined> {
    let named = match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Cuda(GpuSelector::Any) => {
            DeviceChoice::Cuda(GpuSelector::Index(options.device_id))
        }
        named => named.clone(),
    };
    resolve(&visible(options)?, &named.to_string()).cloned()
}

/// Every GPU that may be used.
pub(super) fn visible(options: &GpuOptions) -> Result<Vec<GpuInfo>, Declined> {
    probe(&options.search, &options.visible).map_err(|declined| match (declined, options.visible_by) {
        (Declined::Hidden { value, .. }, Some(by)) => Declined::Hidden { by, value },
        (declined, _) => declined,
    })
}

/// Free memory of a GPU; `None` where the driver does not tell.
pub(crate) fn free_bytes(gpu: &GpuInfo, options: &GpuOptions) -> Option<u64> {
    let sample = Telemetry::open(&options.search)?.sample(gpu);
    Some(sample.memory_total_bytes?.saturating_sub(sample.memory_used_bytes?))
}
