//! Samples of real GPUs, through NVIDIA's management library.
//! Makes no context and takes no memory of a GPU; what the machine does not tell is left out.

use super::{HealthSample, HealthSource, ThrottleReasons};
use magray_device::cuda::{GpuInfo, Sample, SearchPath, Telemetry, Throttle, XidWatch};
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

impl Known {
    /// A GPU that was listed and is not any more has gone, whatever the library says of it.
    fn is_lost(&mut self, sample: &Sample) -> bool {
        self.was_seen |= sample.memory_total_bytes.is_some();
        sample.lost || (sample.missing && self.was_seen)
    }
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
        let lost = known.is_lost(&sample);
        HealthSample { lost, xids: self.xids.take(gpu), ..health_of(&sample) }
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
        power_milliwatts: sample.power_milliwatts,
        power_limit_milliwatts: sample.power_limit_milliwatts,
        utilisation_percent: sample.utilisation_percent,
        lost: sample.lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_lost_when_it_is_not_listed_any_more_and_not_for_a_moments_silence() {
        let info = GpuInfo {
            index: 0,
            ordinal: 0,
            uuid: "GPU-1234".to_owned(),
            name: "Test".to_owned(),
            capability: (9, 0),
            multiprocessors: 1,
            memory_bytes: 1,
            pci_bus_id: "0000:00:00.0".to_owned(),
        };
        let mut known = Known { info, was_seen: false };
        let missing = Sample { missing: true, ..Sample::default() };
        assert!(!known.is_lost(&missing), "the library may know it by no name that we have");
        assert!(!known.is_lost(&Sample { memory_total_bytes: Some(1), ..Sample::default() }));
        assert!(!known.is_lost(&Sample::default()));
        assert!(known.is_lost(&missing));
        assert!(known.is_lost(&Sample { lost: true, ..Sample::default() }));
    }

    #[test]
    fn what_is_told_arrives_and_what_is_not_stays_unknown() {
        let told = Sample {
            temperature_celsius: Some(61),
            throttle: Some(vec![Throttle::PowerCap, Throttle::HardwareThermal]),
            recovery_action: Some(1),
            power_milliwatts: Some(350_500),
            utilisation_percent: Some(97),
            ..Sample::default()
        };
        let health = health_of(&told);
        assert_eq!(health.throttle, Some(ThrottleReasons(0x44)));
        assert!(health.throttle.unwrap().is_trouble());
        assert_eq!((health.temperature_celsius, health.recovery_action), (Some(61), Some(1)));
        assert_eq!((health.power_milliwatts, health.utilisation_percent), (Some(350_500), Some(97)));
        assert_eq!(health_of(&Sample::default()), HealthSample::default());
        let normal = health_of(&Sample { throttle: Some(vec![Throttle::PowerCap]), ..Sample::default() });
        assert!(!normal.throttle.unwrap().is_trouble());
    }
}
