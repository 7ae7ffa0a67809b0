//! The choice of a device and what follows when a GPU fails, with GPUs that follow a script.

use super::*;
use crate::encoder::{EmbedError, pack_cpu, synthetic_spec};
use crate::executors::Accelerator;
use crate::model::Synthetic;
use crate::packed::Tokens;
use crate::runner::Ran;
use magray_core::schedule::Fallback;
use magray_core::{CpuPath, PrecisionChoice, Rules};
use magray_device::cuda::CudaError;
use std::cell::Cell;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What a scripted GPU fails with, call by call; when the script is over, all goes well.
type Script = Arc<Mutex<VecDeque<Option<CudaError>>>>;

/// A machine with one GPU, or none.
struct Fake {
    gpu: Result<GpuInfo, Declined>,
    free_bytes: Option<u64>,
    open: Option<CudaError>,
    script: Script,
    found: Cell<usize>,
    opened: Cell<usize>,
    alive: Arc<AtomicUsize>,
}

impl Fake {
    fn new() -> Self {
        Self {
            gpu: Ok(GpuInfo {
                index: 0,
                ordinal: 0,
                uuid: "GPU-1234".to_owned(),
                name: "Scripted".to_owned(),
                capability: (9, 0),
                multiprocessors: 132,
                memory_bytes: 8 << 30,
                pci_bus_id: "0000:00:00.0".to_owned(),
            }),
            free_bytes: Some(8 << 30),
            open: None,
            script: Script::default(),
            found: Cell::new(0),
            opened: Cell::new(0),
            alive: Arc::default(),
        }
    }

    fn absent() -> Self {
        Self { gpu: Err(Declined::NoDriver), ..Self::new() }
    }

    fn say(&self, failures: impl IntoIterator<Item = Option<CudaError>>) {
        self.script.lock().unwrap().extend(failures);
    }
}

impl Hardware for Fake {
    fn find(&self, _choice: &DeviceChoice) -> Result<GpuInfo, Declined> {
        self.found.set(self.found.get() + 1);
        self.gpu.clone()
    }

    fn free_bytes(&self, _gpu: &GpuInfo) -> Option<u64> {
        self.free_bytes
    }

    fn open(
        &self,
        _gpu: &GpuInfo,
        spec: &ModelSpec,
        _source: &dyn TensorSource,
        _precision: Precision,
    ) -> Result<Box<dyn Accelerator>, GpuError> {
        self.opened.set(self.opened.get() + 1);
        if let Some(error) = &self.open {
            return Err(error.clone().into());
        }
        self.alive.fetch_add(1, Ordering::Relaxed);
        let (script, alive) = (Arc::clone(&self.script), Arc::clone(&self.alive));
        Ok(Box::new(FakeModel { outputs: spec.shape.hidden, script, alive }))
    }
}

struct FakeModel {
    outputs: usize,
    script: Script,
    alive: Arc<AtomicUsize>,
}

/// What a scripted GPU answers; no CPU does.
const MARK: f32 = 4711.0;

impl Accelerator for FakeModel {
    fn outputs(&self) -> usize {
        self.outputs
    }

    fn run(&mut self, _texts: &[Tokens<'_>], _skip: usize, out: &mut [f32]) -> Result<(), GpuError> {
        // A failure may leave anything behind.
        out.fill(MARK);
        match self.script.lock().unwrap().pop_front().flatten() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    fn memory_used_bytes(&self) -> u64 {
        1
    }
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A tiny model and how often it was packed for the CPU.
struct Rig {
    spec: ModelSpec,
    cpu: Arc<Cpu>,
    options: EncoderOptions,
    packed: Cell<usize>,
}

impl Rig {
    fn new(device: &str) -> Self {
        let cpu_path = Some(CpuPath::Portable);
        let device = device.parse().unwrap();
        // Any GPU is fast enough, so that no test depends on a clock.
        let rules = Rules { performance_threshold: 0.0, ..Rules::default() };
        let mut options = EncoderOptions { threads: Some(1), cpu_path, device, ..EncoderOptions::default() };
        options.gpu.rules = rules;
        Self {
            spec: synthetic_spec("tiny".parse().unwrap()),
            cpu: Arc::new(Cpu::new(cpu_path, Some(1)).unwrap()),
            options,
            packed: Cell::new(0),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut EncoderOptions)) -> Self {
        change(&mut self.options);
        self
    }

    fn scores_in(self, folder: &Path) -> Self {
        self.with(|options| options.gpu.score_cache = Some(folder.join("scores.json")))
    }

    fn pack(&self) -> Result<OnCpu, LoadError> {
        self.packed.set(self.packed.get() + 1);
        pack_cpu(&self.cpu, &self.spec, &Synthetic, Precision::F32)
    }

    fn select(&self, hardware: &Fake) -> Result<Selected, LoadError> {
        let request = Request { options: &self.options, model: Some(&self.spec), cpu: &self.cpu };
        select(&request, &Parts { spec: &self.spec, source: &Synthetic, pack: &|| self.pack() }, hardware)
    }

    /// One answer: what computed it, and its first number.
    fn run(&self, runner: &mut Runner) -> Result<(Ran, f32), EmbedError> {
        let text = Tokens { ids: &[1, 2, 3], types: &[] };
        let mut out = vec![0.0; self.spec.shape.hidden];
        let ran = runner.run(&[text], 0, &mut out, || self.pack())?;
        Ok((ran, out[0]))
    }

    /// Runs and checks the device, the code of the fallback and that the vector is that device's.
    #[track_caller]
    fn check(&self, runner: &mut Runner, device: DeviceName, fallback: Option<&str>) {
        let (ran, first) = self.run(runner).unwrap();
        assert_eq!((ran.device, ran.fallback.as_ref().map(Reason::code)), (device, fallback));
        assert_eq!(first == MARK, device != DeviceName::Cpu, "{first}");
    }
}

const GPU: DeviceName = DeviceName::Cuda(0);
const CPU: DeviceName = DeviceName::Cpu;

fn fault() -> CudaError {
    CudaError::Sticky { code: 700, name: "illegal_address".to_owned() }
}

#[track_caller]
fn check_refused(result: Result<Selected, LoadError>, code: &str) {
    match result {
        Err(LoadError::Device(refusal)) => assert_eq!(refusal.reason.code(), code),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn without_a_gpu_auto_is_the_cpu_and_a_named_gpu_is_refused() {
    let (rig, fake) = (Rig::new("auto"), Fake::absent());
    let mut selected = rig.select(&fake).unwrap();
    assert_eq!(selected.outlook.verdict.unwrap().reason.code(), "no_driver");
    rig.check(&mut selected.runner, CPU, None);
    assert_eq!((fake.found.get(), fake.opened.get()), (1, 0));
    check_refused(Rig::new("cuda:0").select(&fake), "no_driver");
    check_refused(rig.with(|options| options.gpu.rules.fallback = false).select(&fake), "no_driver");
}

#[test]
fn a_broken_driver_is_told_with_every_answer() {
    let failed = Declined::DriverFailed { code: 803, name: "system_driver_mismatch".to_owned() };
    let (rig, fake) = (Rig::new("auto"), Fake { gpu: Err(failed), ..Fake::new() });
    let mut selected = rig.select(&fake).unwrap();
    rig.check(&mut selected.runner, CPU, Some("driver_failed"));
}

#[test]
fn where_a_gpu_is_expected_and_there_is_none_every_answer_says_so() {
    let rig = Rig::new("prefer-gpu").with(|options| options.gpu.rules.expects_gpu = true);
    let mut selected = rig.select(&Fake::absent()).unwrap();
    for _ in 0..2 {
        rig.check(&mut selected.runner, CPU, Some("no_driver"));
    }
    check_refused(Rig::new("require-gpu").select(&Fake::absent()), "no_driver");
}

#[test]
fn a_gpu_that_is_out_of_service_is_left_alone_until_it_is_reset() {
    let folder = tempfile::tempdir().unwrap();
    let file = Some(folder.path().join("gpus.json"));
    let mut ledger = Ledger::open(file.clone());
    ledger.give_up("GPU-1234", Fallback::WrongAnswers).unwrap();
    let fake = Fake::new();
    for device in ["auto", "cuda", "cuda:0"] {
        let rig = Rig::new(device).with(|options| options.gpu.state_file = file.clone());
        match rig.select(&fake) {
            Ok(mut selected) if device == "auto" => rig.check(&mut selected.runner, CPU, Some("out_of_service")),
            result => {
                let hint = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
                assert!(hint.contains("returned wrong answers; `magray gpu reset cuda:0` returns it"), "{hint}");
                check_refused(result, "out_of_service");
            }
        }
    }
    assert_eq!(fake.opened.get(), 0);
    ledger.give_up("GPU-other", Fallback::Lost).unwrap();
    ledger.reset(Some("GPU-1234")).unwrap();
    let rig = Rig::new("cuda").with(|options| options.gpu.state_file = file);
    rig.check(&mut rig.select(&fake).unwrap().runner, GPU, None);
}

#[test]
fn who_wants_the_cpu_pays_for_no_search() {
    let fake = Fake::new();
    let disabled = Rig::new("auto").with(|options| options.gpu.rules.prefer_gpu = false);
    let unwanted = Rig::new("auto").with(|options| options.gpu.rules.preference.clear());
    for (rig, code) in [(Rig::new("cpu"), "asked"), (disabled, "disabled"), (unwanted, "not_preferred")] {
        let mut selected = rig.select(&fake).unwrap();
        assert_eq!(selected.outlook.verdict.unwrap().reason.code(), code);
        rig.check(&mut selected.runner, CPU, None);
    }
    assert_eq!((fake.found.get(), fake.opened.get()), (0, 0));
}

#[test]
fn a_gpu_is_measured_once_and_then_known() {
    let folder = tempfile::tempdir().unwrap();
    let (rig, fake) = (Rig::new("auto").scores_in(folder.path()), Fake::new());
    let mut selected = rig.select(&fake).unwrap();
    assert_eq!(selected.outlook.verdict.unwrap().reason.code(), "faster");
    assert!(selected.outlook.scores.is_some());
    rig.check(&mut selected.runner, GPU, None);
    assert_eq!((fake.opened.get(), rig.packed.get()), (1, 1));
    let again = rig.select(&fake).unwrap();
    // What was read from a file may differ in its last bit.
    let (known, measured) = (again.outlook.scores.unwrap().speedup(), selected.outlook.scores.unwrap().speedup());
    assert!((known / measured - 1.0).abs() < 1e-9, "{known} is not {measured}");
    assert_eq!((fake.opened.get(), rig.packed.get()), (2, 1), "the CPU is not packed for nothing");
    // Other arithmetic has other speeds.
    let other = rig.with(|options| options.gpu.precision = PrecisionChoice::Exactly(Precision::Int8));
    other.select(&fake).unwrap();
    assert_eq!(other.packed.get(), 2);
}

#[test]
fn a_slow_gpu_is_left_and_not_even_loaded_the_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let slow = |options: &mut EncoderOptions| options.gpu.rules.performance_threshold = f64::MAX;
    let (rig, fake) = (Rig::new("auto").scores_in(folder.path()).with(slow), Fake::new());
    let mut selected = rig.select(&fake).unwrap();
    assert_eq!(selected.outlook.verdict.unwrap().reason.code(), "too_slow");
    rig.check(&mut selected.runner, CPU, None);
    assert_eq!(fake.alive.load(Ordering::Relaxed), 0, "its memory is freed");
    rig.select(&fake).unwrap();
    assert_eq!(fake.opened.get(), 1);
    // Who names it gets it, slow or not.
    let named = rig.with(|options| options.device = "cuda".parse().unwrap());
    named.check(&mut named.select(&fake).unwrap().runner, GPU, None);
}

#[test]
fn a_full_gpu_is_left_before_anything_is_loaded() {
    let (rig, fake) = (Rig::new("auto"), Fake { free_bytes: Some(1 << 20), ..Fake::new() });
    let mut selected = rig.select(&fake).unwrap();
    rig.check(&mut selected.runner, CPU, Some("not_enough_memory"));
    let limited = Rig::new("cuda").with(|options| options.gpu.rules.memory_limit_bytes = Some(1 << 20));
    check_refused(limited.select(&Fake::new()), "not_enough_memory");
    assert_eq!(fake.opened.get(), 0);
}

#[test]
fn a_gpu_that_cannot_load_the_model_is_told_or_refused() {
    let (rig, fake) = (Rig::new("auto"), Fake { open: Some(CudaError::OutOfMemory), ..Fake::new() });
    rig.check(&mut rig.select(&fake).unwrap().runner, CPU, Some("out_of_memory"));
    check_refused(Rig::new("cuda").select(&fake), "out_of_memory");
    check_refused(rig.with(|options| options.gpu.rules.fallback = false).select(&fake), "out_of_memory");
}

#[test]
fn a_gpu_that_fails_while_it_is_measured_is_left() {
    let (rig, fake) = (Rig::new("auto"), Fake::new());
    fake.say([Some(fault())]);
    let mut selected = rig.select(&fake).unwrap();
    rig.check(&mut selected.runner, CPU, Some("gpu_fault"));
    assert_eq!((rig.packed.get(), fake.alive.load(Ordering::Relaxed)), (1, 0));
}

#[test]
fn a_broken_model_is_broken_on_every_device() {
    struct Broken;
    impl Hardware for Broken {
        fn find(&self, _choice: &DeviceChoice) -> Result<GpuInfo, Declined> {
            Fake::new().gpu
        }
        fn free_bytes(&self, _gpu: &GpuInfo) -> Option<u64> {
            None
        }
        fn open(
            &self,
            _gpu: &GpuInfo,
            _spec: &ModelSpec,
            _source: &dyn TensorSource,
            _precision: Precision,
        ) -> Result<Box<dyn Accelerator>, GpuError> {
            let missing = crate::weights::Weights::open(Path::new("no such folder"));
            Err(GpuError::Weights(missing.err().unwrap()))
        }
    }
    let rig = Rig::new("auto");
    let request = Request { options: &rig.options, model: Some(&rig.spec), cpu: &rig.cpu };
    let parts = Parts { spec: &rig.spec, source: &Synthetic, pack: &|| rig.pack() };
    assert!(matches!(select(&request, &parts, &Broken), Err(LoadError::Weights(_))));
}

/// A runner on the GPU whose CPU side is not packed yet.
fn on_gpu(rig: &Rig, fake: &Fake) -> Runner {
    let mut runner = rig.select(fake).unwrap().runner;
    runner.spare = None;
    rig.packed.set(0);
    runner
}

#[test]
fn full_memory_moves_one_call_to_the_cpu_and_the_next_goes_back() {
    let (rig, fake) = (Rig::new("auto"), Fake::new());
    let mut runner = on_gpu(&rig, &fake);
    fake.say([None, Some(CudaError::OutOfMemory), None, Some(CudaError::OutOfMemory)]);
    rig.check(&mut runner, GPU, None);
    rig.check(&mut runner, CPU, Some("out_of_memory"));
    rig.check(&mut runner, GPU, None);
    rig.check(&mut runner, CPU, Some("out_of_memory"));
    assert_eq!(rig.packed.get(), 1, "the CPU is packed once, when it is first needed");
}

#[test]
fn after_a_fault_every_answer_comes_from_the_cpu_and_says_why() {
    let (rig, fake) = (Rig::new("auto"), Fake::new());
    let mut runner = on_gpu(&rig, &fake);
    fake.say([Some(fault())]);
    for _ in 0..3 {
        rig.check(&mut runner, CPU, Some("gpu_fault"));
    }
    assert_eq!((rig.packed.get(), fake.alive.load(Ordering::Relaxed)), (1, 0));
    let (ran, _) = rig.run(&mut runner).unwrap();
    assert_eq!(ran.precision, Precision::F32, "of the CPU, not of the GPU");
}

#[test]
fn where_the_cpu_may_not_stand_in_a_failure_is_an_error() {
    let strict = Rig::new("auto").with(|options| options.gpu.rules.fallback = false);
    for rig in [Rig::new("cuda:0"), strict] {
        let fake = Fake::new();
        let mut runner = on_gpu(&rig, &fake);
        fake.say([Some(CudaError::OutOfMemory)]);
        assert!(matches!(rig.run(&mut runner), Err(EmbedError::Gpu(_))));
        assert_eq!(rig.packed.get(), 0);
        rig.check(&mut runner, GPU, None);
    }
}

#[test]
fn an_outlook_loads_and_measures_nothing() {
    let (rig, fake) = (Rig::new("auto"), Fake::new());
    for model in [Some(&rig.spec), None] {
        let outlook = weigh(&Request { options: &rig.options, model, cpu: &rig.cpu }, &fake);
        assert_eq!(outlook.verdict.unwrap().reason, Reason::Unmeasured);
        assert_eq!((outlook.need_bytes.is_some(), outlook.free_bytes), (model.is_some(), Some(8 << 30)));
    }
    assert_eq!((fake.opened.get(), rig.packed.get()), (0, 0));
}
