//! The judge over samples that follow a script.

use super::*;
use proptest::prelude::*;

/// A judge, the time, and a device that is well unless a test says otherwise.
struct Rig {
    judge: Judge,
    now: Moment,
    sample: HealthSample,
}

impl Rig {
    fn new() -> Self {
        let sample = HealthSample {
            temperature_celsius: Some(40),
            slowdown_celsius: Some(90),
            shutdown_celsius: Some(95),
            throttle: Some(ThrottleReasons::default()),
            thermal_violation_ns: Some(7_000_000),
            slowdown_ns: Some(3_000_000),
            power_violation_ns: Some(0),
            ecc_uncorrected: Some(2),
            recovery_action: Some(0),
            memory_used_bytes: Some(1 << 30),
            memory_total_bytes: Some(8 << 30),
            ..HealthSample::default()
        };
        let mut rig = Self { judge: Judge::new(HealthRules::default()), now: Moment::START, sample };
        assert_eq!(rig.look(), Condition::Fine);
        rig
    }

    /// Half a second later.
    fn look(&mut self) -> Condition {
        self.now = self.now + Duration::from_millis(500);
        let condition = self.judge.judge(&self.sample, self.now);
        self.sample.xids.clear();
        condition
    }

    fn look_for(&mut self, seconds: u64) -> Condition {
        (0..seconds * 2).fold(Condition::Fine, |_, _| self.look())
    }

    fn slow_by(&mut self, reasons: ThrottleReasons) {
        self.sample.throttle = Some(reasons);
    }

    /// Checks that the device is hot, and gives the weight.
    #[track_caller]
    fn weight(condition: Condition) -> f64 {
        match condition {
            Condition::Hot { weight } => weight,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_machine_that_tells_nothing_is_fine() {
    let mut judge = Judge::new(HealthRules::default());
    for second in 0..100 {
        let now = Moment::START + Duration::from_secs(second);
        assert_eq!(judge.judge(&HealthSample::default(), now), Condition::Fine);
    }
}

#[test]
fn hardware_xids_rule_out_at_once_and_until_it_was_quiet() {
    for xid in [48, 64, 74, 79, 95, 119, 120, 140] {
        let mut rig = Rig::new();
        rig.sample.xids = vec![13, xid];
        assert_eq!(rig.look(), Condition::Bad(Fault::Xid(xid)));
        assert_eq!(rig.look_for(9), Condition::Bad(Fault::Xid(xid)), "quiet for 9 s alone");
        assert_eq!(rig.look_for(1), Condition::Fine);
    }
}

#[test]
fn the_quiet_time_starts_anew_with_each_error() {
    let mut rig = Rig::new();
    rig.sample.xids = vec![79];
    rig.look_for(9);
    rig.sample.xids = vec![48];
    assert_eq!(rig.look_for(9), Condition::Bad(Fault::Xid(48)));
    assert_eq!(rig.look_for(2), Condition::Fine);
}

#[test]
fn xids_of_programs_and_warnings_are_told_and_not_held_against_the_device() {
    for xid in [13, 31, 43, 45, 68, 109, 63, 94, 4711] {
        let mut rig = Rig::new();
        rig.sample.xids = vec![xid];
        assert_eq!(rig.sample.remarks().count(), 1, "{xid}");
        assert_eq!(rig.look(), Condition::Fine, "{xid}");
    }
    let sample = HealthSample { xids: vec![31, 79], ..HealthSample::default() };
    assert_eq!(sample.remarks().collect::<Vec<_>>(), ["the driver reported Xid 31: a program's fault, not the GPU's"]);
}

#[test]
fn memory_errors_rule_out_when_they_grow_and_not_for_having_been() {
    let mut rig = Rig::new();
    assert_eq!(rig.look_for(5), Condition::Fine);
    rig.sample.ecc_uncorrected = Some(3);
    assert_eq!(rig.look_for(9), Condition::Bad(Fault::Memory));
    assert_eq!(rig.look_for(2), Condition::Fine);
    // The driver was loaded anew, or does not tell for a moment.
    for told in [Some(0), None, Some(0)] {
        rig.sample.ecc_uncorrected = told;
        assert_eq!(rig.look(), Condition::Fine);
    }
    rig.sample.ecc_uncorrected = Some(1);
    assert_eq!(rig.look(), Condition::Bad(Fault::Memory));
}

#[test]
fn whatever_the_driver_asks_for_needs_a_reset() {
    for action in 1..=5 {
        let mut rig = Rig::new();
        rig.sample.recovery_action = Some(action);
        assert_eq!(rig.look_for(60), Condition::Bad(Fault::NeedsReset));
        rig.sample.recovery_action = Some(0);
        assert_eq!(rig.look_for(11), Condition::Fine);
    }
}

#[test]
fn the_worst_fault_is_the_one_that_is_told() {
    let mut rig = Rig::new();
    rig.sample.xids = vec![79];
    rig.sample.lost = true;
    assert_eq!(rig.look(), Condition::Bad(Fault::Lost));
    rig.sample.lost = false;
    rig.sample.ecc_uncorrected = Some(9);
    assert_eq!(rig.look_for(9), Condition::Bad(Fault::Lost), "a lesser one only starts the quiet time anew");
    assert_eq!(rig.look_for(2), Condition::Fine);
}

#[test]
fn a_device_at_its_limit_is_out_until_it_is_five_degrees_cooler() {
    let mut rig = Rig::new();
    let mut at = |celsius| {
        rig.sample.temperature_celsius = Some(celsius);
        rig.look()
    };
    assert_eq!(at(89), Condition::Fine);
    assert_eq!(at(90), Condition::Bad(Fault::Overheated));
    assert_eq!(at(86), Condition::Bad(Fault::Overheated));
    assert_eq!(at(85), Condition::Fine);
    assert_eq!(at(89), Condition::Fine);
}

#[test]
fn a_limit_that_is_not_known_is_none() {
    let mut rig = Rig::new();
    rig.sample.temperature_celsius = Some(94);
    rig.sample.slowdown_celsius = Some(0);
    assert_eq!(rig.look(), Condition::Fine);
    rig.sample.temperature_celsius = Some(95);
    assert_eq!(rig.look(), Condition::Bad(Fault::Overheated), "the other limit still counts");
    rig.sample.shutdown_celsius = None;
    assert_eq!(rig.look(), Condition::Fine);
}

#[test]
fn a_full_load_at_the_power_limit_is_not_hot() {
    let mut rig = Rig::new();
    for _ in 0..240 {
        rig.slow_by(ThrottleReasons::POWER_CAP);
        *rig.sample.power_violation_ns.as_mut().unwrap() += 500_000_000;
        assert_eq!(rig.look(), Condition::Fine);
    }
}

#[test]
fn a_hot_device_has_less_weight_the_longer_it_is_so() {
    for bit in [0x8, 0x20, 0x40, 0x80] {
        let mut rig = Rig::new();
        rig.look_for(60);
        rig.slow_by(ThrottleReasons(bit | 0x4));
        assert_eq!(rig.look(), Condition::Hot { weight: 0.75 }, "at once");
        let half = Rig::weight(rig.look_for(30));
        assert!((half - 0.5).abs() < 0.02, "{half}");
        assert_eq!(rig.look_for(60), Condition::Hot { weight: 0.1 }, "and never nothing");
        rig.slow_by(ThrottleReasons::default());
        let cooling = Rig::weight(rig.look_for(30));
        assert!((cooling - 0.5).abs() < 0.02, "{cooling}");
        assert_eq!(rig.look_for(31), Condition::Fine);
    }
}

#[test]
fn counters_tell_what_happened_between_two_looks() {
    type Counter = fn(&mut HealthSample) -> &mut Option<u64>;
    let counters: [Counter; 2] = [|sample| &mut sample.thermal_violation_ns, |sample| &mut sample.slowdown_ns];
    for counter in counters {
        let mut rig = Rig::new();
        rig.look_for(60);
        // A millisecond is noise.
        *counter(&mut rig.sample).as_mut().unwrap() += 1_000_000;
        assert_eq!(rig.look(), Condition::Fine);
        for _ in 0..120 {
            *counter(&mut rig.sample).as_mut().unwrap() += 100_000_000;
            rig.look();
        }
        let weight = Rig::weight(rig.look());
        assert!((weight - 0.8).abs() < 0.02, "a fifth of the time, seen by no look: {weight}");
        *counter(&mut rig.sample) = Some(0);
        assert_eq!(rig.look_for(60), Condition::Fine, "a counter that starts anew has not grown");
    }
}

#[test]
fn a_counter_that_jumps_counts_for_no_more_than_the_time_that_passed() {
    let mut rig = Rig::new();
    rig.look_for(60);
    rig.sample.thermal_violation_ns = Some(u64::MAX);
    assert_eq!(rig.look(), Condition::Fine, "half a second of sixty");
}

fn any_sample() -> impl Strategy<Value = HealthSample> {
    let number = || prop::option::of(any::<u64>());
    let heat = || prop::option::of(0_u32..120);
    let counters = (number(), number(), number(), prop::option::of(0_u64..4), prop::option::of(0_u64..256));
    let rest = (prop::collection::vec(0_u32..150, 0..3), prop::option::of(0_u32..3), prop::bool::weighted(0.1));
    (heat(), heat(), heat(), counters, rest).prop_map(
        |(temperature, slowdown, shutdown, counters, (xids, recovery_action, lost))| HealthSample {
            temperature_celsius: temperature,
            slowdown_celsius: slowdown,
            shutdown_celsius: shutdown,
            thermal_violation_ns: counters.0,
            slowdown_ns: counters.1,
            power_violation_ns: counters.2,
            ecc_uncorrected: counters.3,
            throttle: counters.4.map(ThrottleReasons),
            xids,
            recovery_action,
            memory_used_bytes: counters.0,
            memory_total_bytes: counters.1,
            lost,
            ..HealthSample::default()
        },
    )
}

proptest! {
    #[test]
    fn whatever_is_told_the_judgement_is_sound(
        steps in prop::collection::vec((any_sample(), 0_u64..100_000_000_000), 1..200),
    ) {
        let mut judge = Judge::new(HealthRules::default());
        let mut now = Moment::START;
        for (sample, passed_ns) in steps {
            now = now + Duration::from_nanos(passed_ns);
            let condition = judge.judge(&sample, now);
            if let Condition::Hot { weight } = condition {
                prop_assert!(weight > 0.0 && weight < 1.0, "{weight}");
            }
            let is_hardware = sample.xids.iter().any(|xid| XidKind::of(*xid) == XidKind::Hardware);
            if sample.lost || is_hardware {
                prop_assert!(matches!(condition, Condition::Bad(_)), "{condition:?}");
            }
            prop_assert!(judge.slow.stretches.len() <= SlowWindow::STRETCHES_MAX);
        }
        // Whatever was before, a device that has been well for two minutes is fine.
        let well = HealthSample { temperature_celsius: Some(30), ..HealthSample::default() };
        for _ in 0..120 {
            now = now + Duration::from_secs(1);
            judge.judge(&well, now);
        }
        prop_assert_eq!(judge.judge(&well, now), Condition::Fine);
    }
}

#[test]
fn gpus_of_a_group_are_as_well_as_the_one_that_is_worst() {
    let one = HealthSample { temperature_celsius: Some(50), xids: vec![1], ..HealthSample::default() };
    let other = HealthSample {
        temperature_celsius: Some(80),
        slowdown_celsius: Some(90),
        throttle: Some(ThrottleReasons(8)),
        memory_used_bytes: Some(7),
        xids: vec![2],
        lost: true,
        ..HealthSample::default()
    };
    for both in [one.clone().with(other.clone()), other.clone().with(one.clone())] {
        assert_eq!((both.temperature_celsius, both.slowdown_celsius), (Some(80), Some(90)));
        assert_eq!((both.throttle, both.memory_used_bytes, both.lost), (Some(ThrottleReasons(8)), Some(7), true));
        assert_eq!(both.xids.len(), 2);
    }
    assert_eq!(one.clone().with(HealthSample::default()), one);
}
