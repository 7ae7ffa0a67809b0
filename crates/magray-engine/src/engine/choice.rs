//! Chooses between GPU and CPU for each model: present, fast enough, within memory; the same for commands and servers.
//! Decides only by `magray_core::choose_device`; loads nothing and measures nothing.

use super::devices::{Devices, absent};
use super::models::CpuPacker;
use super::work::EngineError;
use crate::calibration::{Key, ScoreCache, cpu_name};
use crate::encoder::{EncoderOptions, LoadError};
use crate::executors::cuda::tokens_a_pass;
use crate::executors::{GpuLayers, ModelSource};
use crate::gpu::{CONTEXT_BYTES, GpuInfo, find, free_bytes};
use crate::health::{Ledger, utc_of};
use crate::roster::Roster;
use crate::spec::ModelSpec;
use magray_core::schedule::Allowed;
use magray_core::{
    Candidate, DeviceName, Facts, Precision, Reason, Refusal, Scores, Verdict, choose_device, rule_out_gpu,
};
use magray_device::cpu::Cpu;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The choice of a device for a model and all that led to it.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The GPU that was considered; `None` where there is none or none was looked for.
    pub gpu: Option<GpuInfo>,
    /// The measured speeds, where they are known.
    pub scores: Option<Scores>,
    /// Memory of the GPU that the model needs, by estimate; `None` where no model was named, and in an engine, which sees
    /// the memory of its devices change.
    pub need_bytes: Option<u64>,
    /// Free memory of the GPU; `None` where it was not asked for or the driver does not tell.
    pub free_bytes: Option<u64>,
    /// The device, or why the one asked for cannot be used.
    pub verdict: Result<Verdict, Refusal>,
}

impl Outlook {
    /// The device that an engine would choose for this model (or for any, without one), and why. Loads the driver into this
    /// process, but no model.
    pub fn without_engine(model: Option<&ModelSource>, options: &EncoderOptions) -> Result<Self, LoadError> {
        let spec = model.map(ModelSource::spec).transpose()?;
        if model.is_some_and(ModelSource::is_onnx) {
            return Ok(Self::of_onnx());
        }
        let cpu = Cpu::new(options.cpu_path, options.threads)?;
        let subject = Subject { options, model: spec.as_ref(), cpu: &cpu };
        let expects_gpu = options.gpu.rules.expects_gpu;
        let found = match rule_out_gpu(&options.device, &options.gpu.rules) {
            Some(reason) => Err(reason),
            None => find(&options.device, &options.gpu).map_err(|declined| absent(declined, expects_gpu)),
        };
        let found = found.and_then(|gpu| match out_of_service(&gpu, options) {
            Some(reason) => Err(reason),
            None => Ok(gpu),
        });
        let mut outlook = subject.weigh(found.as_ref());
        let Ok(gpu) = &found else { return Ok(outlook) };
        outlook.need_bytes = subject.need_bytes(gpu);
        // PendingAnswer for free memory takes some milliseconds: only a GPU that would be used is asked.
        if matches!(outlook.verdict, Ok(Verdict { device: DeviceName::Cuda(_), .. })) {
            outlook.free_bytes = free_bytes(gpu, &options.gpu);
            outlook.verdict = subject.decide(&outlook, Ok(gpu));
        }
        Ok(outlook)
    }

    /// A model in ONNX form goes to ONNX Runtime.
    fn of_onnx() -> Self {
        let verdict = Ok(Verdict { device: DeviceName::Onnx(None), reason: Reason::OnnxModel });
        Self { gpu: None, scores: None, need_bytes: None, free_bytes: None, verdict }
    }

    /// Whether a GPU would be used whose speed was not measured with this model.
    pub fn is_unmeasured(&self) -> bool {
        matches!(&self.verdict, Ok(Verdict { reason: Reason::Unmeasured, .. }))
    }
}

/// What a choice is made for.
struct Subject<'a> {
    options: &'a EncoderOptions,
    /// Without it speed and memory are left out.
    model: Option<&'a ModelSpec>,
    cpu: &'a Cpu,
}

impl Subject<'_> {
    /// Chooses by what is known already.
    fn weigh(&self, found: Result<&GpuInfo, &Reason>) -> Outlook {
        let scores = found.ok().and_then(|gpu| self.scores().find(&self.key(gpu)?));
        let verdict = Ok(Verdict { device: DeviceName::Cpu, reason: Reason::Asked });
        let mut outlook = Outlook { gpu: found.ok().cloned(), scores, need_bytes: None, free_bytes: None, verdict };
        outlook.verdict = self.decide(&outlook, found);
        outlook
    }

    fn decide(&self, outlook: &Outlook, gpu: Result<&GpuInfo, &Reason>) -> Result<Verdict, Refusal> {
        choose_device(&Facts {
            choice: &self.options.device,
            rules: &self.options.gpu.rules,
            gpu: gpu.map(|gpu| Candidate { index: gpu.index, free_bytes: outlook.free_bytes }),
            scores: outlook.scores,
            need_bytes: outlook.need_bytes.unwrap_or(0),
        })
    }

    fn gpu_precision(&self, gpu: &GpuInfo) -> Precision {
        self.options.precision.or(self.options.gpu.precision).settle_gpu(gpu.capability)
    }

    fn need_bytes(&self, gpu: &GpuInfo) -> Option<u64> {
        let (shape, precision) = (self.model?.shape, self.gpu_precision(gpu));
        // Each stream has activations of its own.
        let tokens = tokens_a_pass(precision).saturating_mul(self.options.gpu.streams.max(1));
        Some(shape.weight_bytes(precision) + shape.activation_bytes(precision, tokens) + CONTEXT_BYTES)
    }

    fn key(&self, gpu: &GpuInfo) -> Option<Key> {
        let model = self.model?;
        let shape = model.shape;
        Some(Key {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            gpu: format!("{} {}", gpu.name, gpu.uuid),
            cpu: cpu_name(),
            cpu_path: self.cpu.path().to_string(),
            threads: self.cpu.pool().threads(),
            model: format!(
                "{:?} vocab {} hidden {} layers {} heads {} ffn {}",
                model.architecture, shape.vocab, shape.hidden, shape.layers, shape.heads, shape.ffn
            ),
            cpu_precision: self.options.precision.settle_cpu(self.cpu.has_fast_bf16()).to_string(),
            gpu_precision: self.gpu_precision(gpu).to_string(),
        })
    }

    fn scores(&self) -> ScoreCache<'_> {
        ScoreCache::new(self.options.gpu.score_cache.as_deref())
    }
}

/// The choices of an engine, one a model.
pub(super) struct Choices {
    options: EncoderOptions,
    packer: Arc<CpuPacker>,
    /// Those that were found at the start.
    devices: Devices,
    models: Roster<Choice>,
    /// Held while a model is measured.
    measuring: Mutex<()>,
    /// Whether a thread waits for models that can be measured.
    is_watched: AtomicBool,
}

struct Choice {
    /// Where work goes that does not say.
    allowed: Allowed,
    /// Whether the GPU turned out too slow for the model.
    is_too_slow: AtomicBool,
    /// Whether the host has no memory for what GPUs have: the CPU does not stand in for them.
    is_off_cpu: AtomicBool,
    outlook: Mutex<Outlook>,
}

impl Choices {
    /// Chooses for each model; `allowed` says by model where it may be computed at all.
    pub(super) fn new(
        options: &EncoderOptions,
        packer: &Arc<CpuPacker>,
        devices: Devices,
        allowed: Vec<Allowed>,
    ) -> Self {
        let all = Self {
            options: options.clone(),
            packer: Arc::clone(packer),
            devices,
            models: Roster::default(),
            measuring: Mutex::default(),
            is_watched: AtomicBool::new(false),
        };
        let models = allowed.into_iter().enumerate().map(|(model, allowed)| all.choose(model, allowed)).collect();
        Self { models, ..all }
    }

    /// Chooses for a model that came after the start, the last that the packer knows.
    pub(super) fn add(&self, assigned: Option<DeviceName>) -> Result<(), LoadError> {
        let allowed = self.devices.allowed_for(assigned)?;
        Ok(self.models.push(self.choose(self.models.len(), allowed)).map(drop)?)
    }

    /// Whether a model may be assigned to this device.
    pub(super) fn check_assigned(&self, assigned: Option<DeviceName>) -> Result<(), LoadError> {
        self.devices.allowed_for(assigned).map(drop)
    }

    fn choose(&self, model: usize, allowed: Allowed) -> Choice {
        if self.packer.spec(model).onnx.is_some() {
            // Its home decides.
            let (allowed, is_too_slow) = (Allowed::Any, AtomicBool::new(false));
            let (is_off_cpu, outlook) = (AtomicBool::new(false), Mutex::new(Outlook::of_onnx()));
            return Choice { allowed, is_too_slow, is_off_cpu, outlook };
        }
        let outlook = self.outlook_at_start(model);
        let is_too_slow = is_too_slow(&outlook, allowed);
        let [is_too_slow, is_off_cpu] = [is_too_slow, false].map(AtomicBool::new);
        Choice { allowed, is_too_slow, is_off_cpu, outlook: Mutex::new(outlook) }
    }

    /// Where work of a model goes that does not say.
    pub(super) fn allowed(&self, model: usize) -> Allowed {
        let choice = &self.models[model];
        let is_off_cpu = choice.is_off_cpu.load(Ordering::Relaxed);
        match choice.allowed {
            Allowed::Any if is_off_cpu => Allowed::Gpu,
            Allowed::Rather(device) if is_off_cpu => Allowed::Only(device),
            _ if choice.is_too_slow.load(Ordering::Relaxed) => Allowed::Cpu,
            allowed => allowed,
        }
    }

    /// The CPU does not stand in for the GPUs that have this model.
    pub(super) fn keep_off_cpu(&self, model: usize) {
        self.models[model].is_off_cpu.store(true, Ordering::Relaxed);
    }

    /// Where work goes that names a device.
    pub(super) fn allowed_on(&self, device: DeviceName) -> Result<Allowed, EngineError> {
        let message = || format!("{device} is not there or not used");
        let missing = |_| EngineError::NoDevice { code: "unknown_device", message: message() };
        self.devices.allowed_for(Some(device)).map_err(missing)
    }

    /// Where work goes that does not say, if that is the same for all models.
    pub(super) fn allowed_for_all(&self) -> Option<Allowed> {
        let is_native = |model: &usize| self.packer.spec(*model).onnx.is_none();
        let mut all = (0..self.models.len()).filter(is_native).map(|model| self.allowed(model));
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    pub(super) fn outlook(&self, model: usize) -> Option<Outlook> {
        self.models.get(model).map(|choice| lock(&choice.outlook).clone())
    }

    /// How many layers of language models are to be on a GPU.
    pub(super) fn gpu_layers(&self) -> GpuLayers {
        self.options.gpu_layers
    }

    pub(super) fn packer(&self) -> &CpuPacker {
        &self.packer
    }

    /// Whether a thread that waits for models to measure is wanted: there is one at most.
    pub(super) fn begin_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::AcqRel)
    }

    /// All models are measured.
    pub(super) fn end_watch(&self) {
        self.is_watched.store(false, Ordering::Release);
    }

    /// One model is measured at a time.
    pub(super) fn start_measuring(&self) -> MutexGuard<'_, ()> {
        lock(&self.measuring)
    }

    /// Takes measured speeds: keeps them for later processes and chooses anew.
    pub(super) fn measured(&self, model: usize, scores: Scores) {
        let choice = &self.models[model];
        let mut outlook = lock(&choice.outlook);
        let Some(gpu) = outlook.gpu.clone() else { return };
        let subject = self.subject(model);
        if let Some(key) = subject.key(&gpu) {
            subject.scores().keep(&key, scores);
        }
        outlook.scores = Some(scores);
        outlook.verdict = subject.decide(&outlook, Ok(&gpu));
        choice.is_too_slow.store(is_too_slow(&outlook, choice.allowed), Ordering::Relaxed);
    }

    fn subject(&self, model: usize) -> Subject<'_> {
        Subject { options: &self.options, model: Some(self.packer.spec(model)), cpu: self.packer.cpu() }
    }

    fn outlook_at_start(&self, model: usize) -> Outlook {
        let found = match (self.devices.gpus.first(), &self.devices.reason) {
            (Some(gpu), _) => match &gpu.info {
                Some(info) => out_of_service(info, &self.options).map_or(Ok(info), Err),
                None => {
                    let verdict = Ok(Verdict { device: gpu.name, reason: Reason::Asked });
                    return Outlook { gpu: None, scores: None, need_bytes: None, free_bytes: None, verdict };
                }
            },
            (None, Some(reason)) => Err(reason.clone()),
            (None, None) => Err(Reason::NotPreferred),
        };
        self.subject(model).weigh(found.as_ref().copied())
    }
}

fn is_too_slow(outlook: &Outlook, allowed: Allowed) -> bool {
    // A GPU that was named, and a model that is assigned to one, stay there.
    allowed == Allowed::Any && matches!(&outlook.verdict, Ok(Verdict { reason: Reason::TooSlow { .. }, .. }))
}

/// Why a GPU is not used that an earlier process gave up, if one did.
fn out_of_service(gpu: &GpuInfo, options: &EncoderOptions) -> Option<Reason> {
    let outage = Ledger::open(options.gpu.state_file.clone()).is_out(&gpu.uuid)?;
    Some(Reason::Absent {
        code: "out_of_service",
        message: format!(
            "it is out of service since {}: {}; `magray gpu reset cuda:{}` returns it",
            utc_of(outage.since_unix_s),
            outage.message,
            gpu.index
        ),
        is_fault: true,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::devices::Gpu;
    use crate::engine::host_memory::HostMemory;
    use crate::engine::models::Models;
    use magray_core::schedule::Fallback;
    use magray_core::{CpuPath, PrecisionChoice};

    fn gpu() -> GpuInfo {
        GpuInfo {
            index: 0,
            ordinal: 0,
            uuid: "GPU-1234".to_owned(),
            name: "a GPU".to_owned(),
            capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 8 << 30,
            pci_bus_id: "0000:00:00.0".to_owned(),
        }
    }

    fn options(device: &str) -> EncoderOptions {
        let device = device.parse().unwrap();
        EncoderOptions { threads: Some(1), cpu_path: Some(CpuPath::Portable), device, ..EncoderOptions::default() }
    }

    /// The choices of an engine with one model and one GPU.
    fn choices(options: &EncoderOptions, allowed: Allowed) -> Choices {
        let model = ModelSource::Synthetic("tiny".parse().unwrap()).into();
        let models = Models::open(&[model], options, None, HostMemory::with(0)).unwrap();
        let devices =
            Devices { gpus: vec![Gpu::cuda(gpu(), &options.gpu, false)], reason: None, allowed, left: Vec::new() };
        Choices::new(options, &models.packer, devices, vec![allowed])
    }

    fn code(choices: &Choices) -> &'static str {
        match choices.outlook(0).unwrap().verdict {
            Ok(verdict) => verdict.reason.code(),
            Err(refusal) => refusal.reason.code(),
        }
    }

    #[test]
    fn the_cpu_stands_in_for_no_gpu_whose_model_it_has_no_memory_for() {
        let gpu = magray_core::schedule::DeviceId(1);
        let cases = [
            (Allowed::Any, Allowed::Gpu),
            (Allowed::Rather(gpu), Allowed::Only(gpu)),
            (Allowed::Cpu, Allowed::Cpu),
            (Allowed::Only(gpu), Allowed::Only(gpu)),
        ];
        for (asked, kept) in cases {
            let choices = choices(&options("auto"), asked);
            assert_eq!(choices.allowed(0), asked);
            choices.keep_off_cpu(0);
            assert_eq!(choices.allowed(0), kept);
        }
    }

    #[test]
    fn a_gpu_is_measured_once_and_then_known() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options("auto");
        options.gpu.score_cache = Some(folder.path().join("scores.json"));
        let first = choices(&options, Allowed::Any);
        assert_eq!((code(&first), first.allowed(0)), ("unmeasured", Allowed::Any));
        first.measured(0, Scores::new(10.0, 100.0).unwrap());
        assert_eq!((code(&first), first.allowed(0)), ("faster", Allowed::Any));
        assert_eq!(code(&choices(&options, Allowed::Any)), "faster");
        // Another arithmetic has another speed.
        options.gpu.precision = PrecisionChoice::Exactly(Precision::Int8);
        assert_eq!(code(&choices(&options, Allowed::Any)), "unmeasured");
    }

    #[test]
    fn a_slow_gpu_is_not_used_unless_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut auto = options("auto");
        auto.gpu.score_cache = Some(folder.path().join("scores.json"));
        let first = choices(&auto, Allowed::Any);
        first.measured(0, Scores::new(100.0, 110.0).unwrap());
        for choices in [first, choices(&auto, Allowed::Any)] {
            assert_eq!((code(&choices), choices.allowed(0)), ("too_slow", Allowed::Cpu));
            assert_eq!(choices.allowed_for_all(), Some(Allowed::Cpu));
        }
        let named = EncoderOptions { device: "cuda:0".parse().unwrap(), ..auto };
        let named = choices(&named, Allowed::Gpu);
        assert_eq!((code(&named), named.allowed(0)), ("asked", Allowed::Gpu));
    }

    #[test]
    fn one_measurement_decides_by_the_threshold_after_presence_and_before_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options("auto");
        options.gpu.score_cache = Some(folder.path().join("scores.json"));
        choices(&options, Allowed::Any).measured(0, Scores::new(100.0, 200.0).unwrap());
        let absent = Reason::Absent { code: "no_driver", message: String::new(), is_fault: false };
        for (threshold, speed, allowed, memory) in
            [(1.9, "faster", Allowed::Any, "not_enough_memory"), (2.1, "too_slow", Allowed::Cpu, "too_slow")]
        {
            options.gpu.rules.performance_threshold = threshold;
            let choices = choices(&options, Allowed::Any);
            assert_eq!((code(&choices), choices.allowed(0)), (speed, allowed), "{threshold}");
            let outlook = Outlook { need_bytes: Some(2), free_bytes: Some(1), ..choices.outlook(0).unwrap() };
            let full = |gpu| choices.subject(0).decide(&outlook, gpu).unwrap().reason.code();
            assert_eq!((full(Err(&absent)), full(Ok(&gpu()))), ("no_driver", memory), "{threshold}");
        }
    }

    #[test]
    fn a_gpu_that_is_out_of_service_is_told_with_the_way_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpus.json");
        Ledger::open(Some(file.clone())).give_up("GPU-1234", Fallback::WrongAnswers).unwrap();
        for (device, allowed) in [("auto", Allowed::Any), ("cuda", Allowed::Gpu)] {
            let mut options = options(device);
            options.gpu.state_file = Some(file.clone());
            let choices = choices(&options, allowed);
            assert_eq!(code(&choices), "out_of_service");
            let told = match choices.outlook(0).unwrap().verdict {
                Ok(verdict) if device == "auto" => verdict.reason.to_string(),
                Err(refusal) if device == "cuda" => refusal.to_string(),
                verdict => panic!("{verdict:?}"),
            };
            assert!(told.contains("returned wrong answers; `magray gpu reset cuda:0` returns it"), "{told}");
        }
    }
}
