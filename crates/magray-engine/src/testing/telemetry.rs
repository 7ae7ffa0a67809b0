//! Telemetry of simulated GPUs, and what a fault plan adds to that of real ones.
//! Breaks nothing: it only says that something is broken.

use super::faults::{FaultKind, FaultPlan, Place, Script};
use crate::health::{HealthSample, HealthSource, ThrottleReasons};
use std::time::{Duration, Instant};

struct ScriptedTelemetry {
    real: Box<dyn HealthSource>,
    started: Instant,
    gpus: Vec<Part>,
}

struct Part {
    is_simulated: bool,
    script: Script,
    /// Numbers that were told already: the driver reports each once.
    told: Vec<u32>,
}

/// The telemetry of GPUs, each with its names (a group has several) and whether it is simulated. Real ones without a plan are left as they are.
pub(crate) fn scripted_telemetry(
    real: Box<dyn HealthSource>,
    gpus: &[(Vec<String>, bool)],
    plan: Option<&FaultPlan>,
    started: Instant,
) -> Box<dyn HealthSource> {
    if plan.is_none() && !gpus.iter().any(|(_, is_simulated)| *is_simulated) {
        return real;
    }
    let part = |(names, is_simulated): &(Vec<String>, bool)| {
        let plan = plan.map(|plan| plan.of_device(names)).unwrap_or_default();
        let script = Script::new(&plan, Place::Telemetry, Duration::ZERO);
        Part { is_simulated: *is_simulated, script, told: Vec::new() }
    };
    Box::new(ScriptedTelemetry { real, started, gpus: gpus.iter().map(part).collect() })
}

impl HealthSource for ScriptedTelemetry {
    fn sample(&mut self, gpu: usize) -> HealthSample {
        let Some(Part { is_simulated, script, told }) = self.gpus.get_mut(gpu) else { return HealthSample::default() };
        let mut sample = if *is_simulated { healthy() } else { self.real.sample(gpu) };
        let going_on = script.going_on(self.started.elapsed());
        told.retain(|xid| going_on.contains(&FaultKind::Xid(*xid)));
        for kind in going_on {
            match kind {
                FaultKind::Hot => {
                    let reasons = sample.throttle.unwrap_or_default().0 | ThrottleReasons::THERMAL.0;
                    sample.throttle = Some(ThrottleReasons(reasons));
                }
                FaultKind::Full => {
                    // All but a thousandth.
                    sample.memory_used_bytes = sample.memory_total_bytes.map(|total| total - total / 1000);
                }
                FaultKind::Xid(xid) if !told.contains(&xid) => {
                    sample.xids.push(xid);
                    told.push(xid);
                }
                _ => {}
            }
        }
        sample
    }
}

fn healthy() -> HealthSample {
    HealthSample {
        temperature_celsius: Some(40),
        slowdown_celsius: Some(90),
        shutdown_celsius: Some(95),
        throttle: Some(ThrottleReasons::default()),
        thermal_violation_ns: Some(0),
        slowdown_ns: Some(0),
        power_violation_ns: Some(0),
        ecc_uncorrected: Some(0),
        recovery_action: Some(0),
        memory_used_bytes: Some(1 << 30),
        memory_total_bytes: Some(8 << 30),
        power_milliwatts: Some(75_000),
        power_limit_milliwatts: Some(300_000),
        utilisation_percent: Some(0),
        ..HealthSample::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn telemetry(plan: Option<&FaultPlan>, is_simulated: bool) -> Box<dyn HealthSource> {
        let real = Box::new(|_: usize| HealthSample { temperature_celsius: Some(7), ..HealthSample::default() });
        scripted_telemetry(
            real,
            &[(vec!["sim:0".to_owned()], is_simulated), (vec!["sim:1".to_owned()], true)],
            plan,
            Instant::now(),
        )
    }

    #[test]
    fn faults_are_told_of_the_gpu_that_is_named_and_each_xid_once() {
        let plan: FaultPlan = "sim:0/hot@0s+60m, sim:0/xid79@0s+60m".parse().unwrap();
        let mut telemetry = telemetry(Some(&plan), false);
        let first = telemetry.sample(0);
        assert_eq!((first.temperature_celsius, first.xids), (Some(7), vec![79]));
        assert!(first.throttle.unwrap().is_trouble());
        assert!(telemetry.sample(0).xids.is_empty());
        let other = telemetry.sample(1);
        assert_eq!(
            (other.temperature_celsius, other.xids.len(), other.throttle.unwrap().is_trouble()),
            (Some(40), 0, false)
        );
    }

    #[test]
    fn without_a_plan_simulated_gpus_are_healthy() {
        assert_eq!(telemetry(None, true).sample(0), healthy());
    }
}
