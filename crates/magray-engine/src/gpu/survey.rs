//! What GPUs there are and how they are, for people who ask.
//! Starts the driver but makes no context: it takes no memory of a GPU.

use super::hardware::visible;
use super::{Declined, GpuInfo, GpuOptions, Sample};
use crate::health::{Ledger, Outage};
use magray_device::cuda::{Links, Telemetry};

/// All that is known of the GPUs of this machine.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The version of the driver, such as `580.65.06`.
    pub driver_version: Option<String>,
    /// The newest CUDA version that the driver supports.
    pub cuda_version: Option<(u32, u32)>,
    /// The GPUs that may be used, or why there is none.
    pub gpus: Result<Vec<GpuStatus>, Declined>,
}

/// One GPU.
#[derive(Clone, Debug)]
pub struct GpuStatus {
    /// What it is.
    pub info: GpuInfo,
    /// How it is now; what the machine does not tell is left out.
    pub sample: Sample,
    /// How it is connected.
    pub links: Links,
    /// Since when and why it is out of service, where it is.
    pub outage: Option<Outage>,
}

impl Survey {
    /// Looks at the machine.
    pub fn take(options: &GpuOptions) -> Self {
        let found = visible(options);
        // Without a driver there is no one to ask, and looking for its telemetry would only take time.
        let telemetry = match &found {
            Err(Declined::NoDriver) => None,
            _ => Telemetry::open(&options.search),
        };
        let ledger = Ledger::open(options.state_file.clone());
        let status = |all: &[GpuInfo], info: &GpuInfo| {
            let sample = telemetry.as_ref().map(|telemetry| telemetry.sample(info)).unwrap_or_default();
            let links = telemetry.as_ref().map(|telemetry| telemetry.links(info, all)).unwrap_or_default();
            GpuStatus { outage: ledger.is_out(&info.uuid), info: info.clone(), sample, links }
        };
        Self {
            driver_version: telemetry.as_ref().and_then(Telemetry::driver_version),
            cuda_version: telemetry.as_ref().and_then(Telemetry::cuda_version),
            gpus: found.map(|gpus| gpus.iter().map(|gpu| status(&gpus, gpu)).collect()),
        }
    }
}
