//! Samples of real GPUs, through NVIDIA's management library.
//! Makes no context and takes no memory of a GPU; what the machine does not tell is left out.

use super::{HealthSample, HealthSource, ThrottleReasons};
use crate::gpu::{GpuInfo, Sample, SearchPath};
use magray_device::cuda::{Telemetry, Throttle, XidWatch};
use std::sync::Arc;

/// The GPUs of this machine.
#[derive(Debug)]
pub struct NvmlSource {
    telemetry: Arc<Telemetry>,
    xids: XidWatch,
    gpus: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    info: GpuInfo,
    /// Whether the library has ever told anything of it.
    was_seen: bool,
}

impl NvmlSource {
    /// Opens the library and starts to listen; `None` where it is missing or does not start.
    pub fn open(search: &SearchPath, gpus: &[GpuInfo]) -> Option<Self> {
        let telemetry = Arc::new(Telemetry::open(search)?);
        let xids = XidWatch::start(&telemetry, gpus);
        let gpus = gpus.iter().map(|info| Known { info: info.clone(), was_seen: false }).collect();
        Some(Self { telemetry, xids, gpus })
    }
}

impl HealthSource for NvmlSource {
    fn sample(&mut self, gpu: usize) -> HealthSample {
        let Some(known) = self.gpus.get_mut(gpu) else { return HealthSample::default() };
        let sample = self.telemetry.sample(&known.info);
        let is_silent = sample == Sample::default();
        let vanished = is_silent && known.was_seen;
        known.was_seen |= !is_silent;
        HealthSample { lost: sample.lost || vanished, xids: self.xids.take(gpu), ..health_of(&sample) }
    }
}

fn health_of(sample: &Sample) -> HealthSample {
    let bits = |reasons: &Vec<Throttle>| reasons.iter().fold(0, |bits, reason| bits | reason.bit());
    HealthSample {
        temperature_celsius: sample.temperature_celsius,
        slowdown_celsius: sample.slowdown_celsius,
        shutdown_celsius: sample.shutdown_celsius,
        throttle: sample.throttle.as_ref().map(bits).map(ThrottleReasons),
        thermal_violation_ns: sample.thermal_violation_ns,
        slowdown_ns: sample.slowdown_ns,
        power_violation_ns: sample.power_violation_ns,
        ecc_uncorrected: sample.ecc_uncorrected,
        xids: Vec::new(),
        recovery_action: sample.recovery_action,
        memory_used_bytes: sample.memory_used_bytes,
        memory_total_bytes: sample.memory_total_bytes,
        lost: sample.lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_arrives_and_what_is_not_stays_unknown() {
        let told = Sample {
            temperature_celsius: Some(61),
            throttle: Some(vec![Throttle::PowerCap, Throttle::HardwareThermal]),
            recovery_action: Some(1),
            ..Sample::default()
        };
        let health = health_of(&told);
        assert_eq!(health.throttle, Some(ThrottleReasons(0x44)));
        assert!(health.throttle.unwrap().is_trouble());
        assert_eq!((health.temperature_celsius, health.recovery_action), (Some(61), Some(1)));
        assert_eq!(health_of(&Sample::default()), HealthSample::default());
        let normal = health_of(&Sample { throttle: Some(vec![Throttle::PowerCap]), ..Sample::default() });
        assert!(!normal.throttle.unwrap().is_trouble());
    }
}
