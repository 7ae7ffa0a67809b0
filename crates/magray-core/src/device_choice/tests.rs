//! The choice of a device: its order, its reasons, and what must hold whatever the facts are.

use super::*;
use crate::GpuSelector;
use proptest::prelude::*;

const CUDA: DeviceChoice = DeviceChoice::Cuda(GpuSelector::Index(1));

/// A machine with a good GPU and default settings; each test spoils what it is about.
#[derive(Debug)]
struct Case {
    choice: DeviceChoice,
    rules: Rules,
    gpu: Result<Candidate, Reason>,
    scores: Option<Scores>,
    need_bytes: u64,
}

impl Case {
    fn good(choice: DeviceChoice) -> Self {
        Self {
            choice,
            rules: Rules::default(),
            gpu: Ok(Candidate { index: 1, free_bytes: Some(8 << 30) }),
            scores: Scores::new(100.0, 5000.0),
            need_bytes: 500 << 20,
        }
    }

    fn choose(&self) -> Result<Verdict, Refusal> {
        let gpu = self.gpu.as_ref().copied();
        let Self { choice, rules, scores, need_bytes, .. } = self;
        choose_device(&Facts { choice, rules, gpu, scores: *scores, need_bytes: *need_bytes })
    }

    /// The device and the code of the reason; a refusal has no device.
    #[track_caller]
    fn check(&self, device: Option<DeviceName>, code: &str) {
        let found = match self.choose() {
            Ok(verdict) => (Some(verdict.device), verdict.reason.code()),
            Err(refusal) => (None, refusal.reason.code()),
        };
        assert_eq!(found, (device, code));
    }
}

fn no_driver() -> Reason {
    Reason::Absent { code: "no_driver", message: "no NVIDIA driver is installed".to_owned(), is_fault: false }
}

const GPU: Option<DeviceName> = Some(DeviceName::Cuda(1));
const CPU: Option<DeviceName> = Some(DeviceName::Cpu);

#[test]
fn one_text_waited_for_a_gpu_to_start() {
    let little = |rules: Rules| Rules { is_little_work: true, ..rules };
    let case = |choice, rules| Case { rules: little(rules), ..Case::good(choice) };
    case(DeviceChoice::Auto, Rules::default()).check(CPU, "little_work");
    case(CUDA, Rules::default()).check(GPU, "asked");
    case(DeviceChoice::Auto, Rules { expects_gpu: true, ..Rules::default() }).check(GPU, "faster");
    case(DeviceChoice::Auto, Rules { fallback: false, ..Rules::default() }).check(GPU, "faster");
}

#[test]
fn a_gpu_that_is_present_fast_and_empty_is_taken() {
    Case::good(DeviceChoice::Auto).check(GPU, "faster");
    Case::good(CUDA).check(GPU, "asked");
    Case::good(DeviceChoice::Cpu).check(CPU, "asked");
    Case { scores: None, ..Case::good(DeviceChoice::Auto) }.check(GPU, "unmeasured");
    Case { scores: None, ..Case::good(CUDA) }.check(GPU, "asked");
}

#[test]
fn checks_come_in_their_order_presence_speed_memory() {
    let slow = Scores::new(100.0, 110.0);
    let mut case = Case { gpu: Err(no_driver()), scores: slow, need_bytes: u64::MAX, ..Case::good(DeviceChoice::Auto) };
    case.check(CPU, "no_driver");
    case.gpu = Case::good(DeviceChoice::Auto).gpu;
    case.check(CPU, "too_slow");
    case.scores = None;
    case.check(CPU, "not_enough_memory");
    case.rules.prefer_gpu = false;
    case.check(CPU, "disabled");
}

#[test]
fn the_threshold_itself_is_fast_enough() {
    let scores = Scores::new(100.0, 120.0);
    Case { scores, ..Case::good(DeviceChoice::Auto) }.check(GPU, "faster");
    let scores = Scores::new(100.0, 119.9);
    Case { scores, ..Case::good(DeviceChoice::Auto) }.check(CPU, "too_slow");
    // A GPU that was named is used however slow it is.
    Case { scores, ..Case::good(CUDA) }.check(GPU, "asked");
}

#[test]
fn what_is_no_speed_is_no_score() {
    for (cpu, gpu) in [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 1.0)] {
        assert_eq!(Scores::new(cpu, gpu), None, "{cpu} {gpu}");
    }
}

#[test]
fn a_gpu_that_was_named_is_an_error_without_it() {
    let case = Case { gpu: Err(no_driver()), ..Case::good(CUDA) };
    case.check(None, "no_driver");
    assert_eq!(
        case.choose().unwrap_err().to_string(),
        "device cuda:1 cannot be used: no NVIDIA driver is installed; --device auto or cpu works without it"
    );
    Case { need_bytes: 9 << 30, ..Case::good(CUDA) }.check(None, "not_enough_memory");
    let rules = Rules { prefer_gpu: false, ..Rules::default() };
    Case { rules, ..Case::good(CUDA) }.check(None, "disabled");
    // Who names a GPU has said more than the list of preference does.
    let rules = Rules { preference: vec![Backend::Cpu], ..Rules::default() };
    Case { rules, ..Case::good(CUDA) }.check(GPU, "asked");
}

#[test]
fn the_list_of_preference_is_obeyed() {
    use Backend::{Cpu, Cuda, Mps};
    let lists: [(&[Backend], Option<DeviceName>, &str); 6] = [
        (&[Cuda, Cpu], GPU, "faster"),
        (&[Mps, Cuda, Cpu], GPU, "faster"),
        (&[Cuda], GPU, "faster"),
        (&[Cpu, Cuda], CPU, "not_preferred"),
        (&[Mps], CPU, "not_preferred"),
        (&[], CPU, "not_preferred"),
    ];
    for (preference, device, code) in lists {
        let rules = Rules { preference: preference.to_vec(), ..Rules::default() };
        Case { rules, ..Case::good(DeviceChoice::Auto) }.check(device, code);
    }
}

#[test]
fn without_fallback_a_missing_or_full_gpu_is_an_error_but_a_slow_one_is_a_choice() {
    let rules = Rules { fallback: false, ..Rules::default() };
    let case = |choice| Case { rules: rules.clone(), ..Case::good(choice) };
    let missing = Case { gpu: Err(no_driver()), ..case(DeviceChoice::Auto) };
    missing.check(None, "no_driver");
    assert_eq!(
        missing.choose().unwrap_err().to_string(),
        "no GPU can be used and gpu.fallback_enabled is false: no NVIDIA driver is installed; set it to true, or use --device cpu"
    );
    Case { need_bytes: u64::MAX, ..case(DeviceChoice::Auto) }.check(None, "not_enough_memory");
    Case { scores: Scores::new(1.0, 1.0), ..case(DeviceChoice::Auto) }.check(CPU, "too_slow");
    Case { gpu: Err(no_driver()), ..case(DeviceChoice::Cpu) }.check(CPU, "asked");
}

#[test]
fn the_smaller_of_free_memory_and_limit_counts() {
    let message = |free_bytes, memory_limit_bytes| {
        let rules = Rules { memory_limit_bytes, ..Rules::default() };
        let case = Case { rules, gpu: Ok(Candidate { index: 0, free_bytes }), ..Case::good(DeviceChoice::Auto) };
        case.choose().unwrap().reason.to_string()
    };
    assert_eq!(message(Some(100 << 20), None), "the model needs 500 MiB of GPU memory, and 100 MiB are free");
    assert_eq!(
        message(Some(8 << 30), Some(400 << 20)),
        "the model needs 500 MiB of GPU memory, and gpu.memory_limit_mb is 400"
    );
    let enough = "the GPU is 50.00 times as fast as the CPU, and 1.2 is asked for";
    // A driver that does not tell is no reason against it: the allocation will.
    assert_eq!(message(None, None), enough);
    assert_eq!(message(Some(500 << 20), Some(500 << 20)), enough);
}

#[test]
fn only_a_gpu_that_should_work_makes_a_fallback() {
    let failed = Reason::Failed { code: "lost", message: String::new() };
    let broken = Reason::Absent { code: "driver_failed", message: String::new(), is_fault: true };
    let full = Reason::NotEnoughMemory { need_bytes: 2, available_bytes: 1, is_limit: false };
    assert!([failed, broken, full].iter().all(Reason::is_fallback));
    let slow = Reason::TooSlow { speedup: 1.0, threshold: 2.0 };
    assert!(![no_driver(), slow, Reason::Disabled, Reason::Asked].iter().any(Reason::is_fallback));
}

fn choices() -> impl Strategy<Value = DeviceChoice> {
    prop_oneof![Just(DeviceChoice::Auto), Just(DeviceChoice::Cpu), Just(CUDA)]
}

fn backends() -> impl Strategy<Value = Vec<Backend>> {
    proptest::collection::vec(prop_oneof![Just(Backend::Cuda), Just(Backend::Mps), Just(Backend::Cpu)], 0..4)
}

prop_compose! {
    fn cases()(
        choice in choices(),
        preference in backends(),
        (prefer_gpu, fallback, is_present) in any::<(bool, bool, bool)>(),
        performance_threshold in 0.0..10.0f64,
        memory_limit_bytes in proptest::option::of(0..2000u64),
        free_bytes in proptest::option::of(0..2000u64),
        need_bytes in 0..2000u64,
        speeds in proptest::option::of((0.1..100.0f64, 0.1..1000.0f64)),
    ) -> Case {
        Case {
            choice,
            rules: Rules { prefer_gpu, preference, performance_threshold, memory_limit_bytes, fallback, expects_gpu: false, is_little_work: false },
            gpu: if is_present { Ok(Candidate { index: 3, free_bytes }) } else { Err(no_driver()) },
            scores: speeds.and_then(|(cpu, gpu)| Scores::new(cpu, gpu)),
            need_bytes,
        }
    }
}

proptest! {
    #[test]
    fn a_gpu_is_chosen_only_if_it_is_there_allowed_and_large_enough(case in cases()) {
        if let Ok(Verdict { device: DeviceName::Cuda(index), reason }) = case.choose() {
            prop_assert_eq!(index, 3);
            prop_assert!(case.gpu.is_ok() && case.rules.prefer_gpu && case.choice != DeviceChoice::Cpu);
            let limits = [case.gpu.unwrap().free_bytes, case.rules.memory_limit_bytes];
            prop_assert!(limits.into_iter().flatten().all(|limit| case.need_bytes <= limit));
            match case.scores {
                Some(scores) if case.choice == DeviceChoice::Auto => {
                    prop_assert!(scores.speedup() >= case.rules.performance_threshold)
                }
                None if case.choice == DeviceChoice::Auto => prop_assert_eq!(reason, Reason::Unmeasured),
                _ => prop_assert_eq!(reason, Reason::Asked),
            }
        }
    }

    #[test]
    fn the_cpu_is_never_refused_and_auto_only_without_fallback(case in cases()) {
        if let Err(refusal) = case.choose() {
            prop_assert!(case.choice != DeviceChoice::Cpu);
            prop_assert!(matches!(case.choice, DeviceChoice::Cuda(_)) || !case.rules.fallback);
            prop_assert!(!refusal.reason.code().is_empty() && !refusal.to_string().is_empty());
        }
    }

    #[test]
    fn a_named_gpu_never_becomes_another_device(case in cases()) {
        if let (DeviceChoice::Cuda(_), Ok(verdict)) = (&case.choice, case.choose()) {
            prop_assert_eq!(verdict.device, DeviceName::Cuda(3));
        }
    }

    #[test]
    fn a_faster_gpu_is_never_chosen_less(case in cases(), factor in 1.0..10.0f64) {
        let before = case.choose();
        let faster = case.scores.and_then(|s| Scores::new(s.cpu_texts_per_s(), s.gpu_texts_per_s() * factor));
        let after = Case { scores: faster, ..case }.choose();
        if let Ok(Verdict { device: DeviceName::Cuda(_), .. }) = before {
            let is_gpu = matches!(after, Ok(Verdict { device: DeviceName::Cuda(_), .. }));
            prop_assert!(is_gpu);
        }
    }

    #[test]
    fn what_is_ruled_out_early_is_never_chosen(case in cases()) {
        if let (Some(reason), Ok(verdict)) = (rule_out_gpu(&case.choice, &case.rules), case.choose()) {
            prop_assert_eq!(verdict, Verdict { device: DeviceName::Cpu, reason });
        }
    }
}
