//! Chooses the device for a model and loads the model there: finds the GPU, weighs it, measures it the first time.
//! Decides by `magray_core::choose_device` alone; touches hardware through the trait [`Hardware`] alone.

use crate::calibration::{self, Key, ScoreCache};
use crate::encoder::{EncoderOptions, LoadError};
use crate::executors::cuda::tokens_a_pass;
use crate::gpu::{CONTEXT_BYTES, Declined, GpuError, GpuInfo, Hardware};
use crate::health::{Ledger, utc_of};
use crate::model::TensorSource;
use crate::runner::{Executor, OnCpu, OnGpu, Runner};
use crate::spec::ModelSpec;
use magray_core::{
    Candidate, DeviceChoice, DeviceName, Facts, Precision, Reason, Refusal, Scores, Verdict, choose_device,
    rule_out_gpu,
};
use magray_device::cpu::Cpu;

/// The choice of a device and all that led to it.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The GPU that was considered; `None` where there is none or none was looked for.
    pub gpu: Option<GpuInfo>,
    /// The measured speeds, where they are known.
    pub scores: Option<Scores>,
    /// Memory of the GPU that the model needs, by estimate; `None` where no model was named.
    pub need_bytes: Option<u64>,
    /// Memory of the GPU that nobody uses; `None` where it was not asked for or the driver does not tell.
    pub free_bytes: Option<u64>,
    /// The device, or why the one asked for cannot be used.
    pub verdict: Result<Verdict, Refusal>,
}

/// What a choice is made for.
pub(crate) struct Request<'a> {
    pub(crate) options: &'a EncoderOptions,
    /// Without it speed and memory are left out.
    pub(crate) model: Option<&'a ModelSpec>,
    pub(crate) cpu: &'a Cpu,
}

/// A model on the device that was chosen for it.
pub(crate) struct Selected {
    pub(crate) runner: Runner,
    pub(crate) outlook: Outlook,
}

/// How the parts of a model are had.
pub(crate) struct Parts<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) source: &'a dyn TensorSource,
    /// Packs the model for the CPU.
    pub(crate) pack: &'a dyn Fn() -> Result<OnCpu, LoadError>,
}

impl Request<'_> {
    fn gpu_precision(&self, gpu: &GpuInfo) -> Precision {
        self.options.precision.or(self.options.gpu.precision).settle_gpu(gpu.capability)
    }

    /// The GPU that may be used, or why there is none.
    fn find(&self, hardware: &dyn Hardware) -> Result<GpuInfo, Reason> {
        let options = &self.options.gpu;
        let found = hardware.find(&self.options.device).map_err(|declined| absent(declined, options.rules.expects_gpu));
        let gpu = found?;
        match Ledger::open(options.state_file.clone()).is_out(&gpu.uuid) {
            None => Ok(gpu),
            Some(outage) => Err(Reason::Absent {
                code: "out_of_service",
                message: format!(
                    "it is out of service since {}: {}; `magray gpu reset cuda:{}` returns it",
                    utc_of(outage.since_unix_s),
                    outage.message,
                    gpu.index
                ),
                is_fault: true,
            }),
        }
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
            cpu: calibration::cpu_name(),
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

    fn decide(&self, outlook: &Outlook, gpu: Result<&GpuInfo, &Reason>) -> Result<Verdict, Refusal> {
        choose_device(&Facts {
            choice: &self.options.device,
            rules: &self.options.gpu.rules,
            gpu: gpu.map(|gpu| Candidate { index: gpu.index, free_bytes: outlook.free_bytes }),
            scores: outlook.scores,
            need_bytes: outlook.need_bytes.unwrap_or(0),
        })
    }
}

/// Chooses by what is known already: loads nothing, measures nothing.
pub(crate) fn weigh(request: &Request<'_>, hardware: &dyn Hardware) -> Outlook {
    let choice = &request.options.device;
    let found = match rule_out_gpu(choice, &request.options.gpu.rules) {
        Some(reason) => Err(reason),
        None => request.find(hardware),
    };
    let gpu = found.as_ref().ok();
    let mut outlook = Outlook {
        gpu: gpu.cloned(),
        scores: gpu.and_then(|gpu| request.scores().find(&request.key(gpu)?)),
        need_bytes: gpu.and_then(|gpu| request.need_bytes(gpu)),
        free_bytes: None,
        verdict: Ok(Verdict { device: DeviceName::Cpu, reason: Reason::Asked }),
    };
    outlook.verdict = request.decide(&outlook, found.as_ref());
    // Asking for free memory takes some milliseconds: only a GPU that would be used is asked.
    if let (Ok(Verdict { device: DeviceName::Cuda(_), .. }), Ok(gpu)) = (&outlook.verdict, &found) {
        outlook.free_bytes = hardware.free_bytes(gpu);
        outlook.verdict = request.decide(&outlook, Ok(gpu));
    }
    outlook
}

/// Chooses and loads.
pub(crate) fn select(request: &Request<'_>, parts: &Parts<'_>, hardware: &dyn Hardware) -> Result<Selected, LoadError> {
    let mut outlook = weigh(request, hardware);
    let mut verdict = outlook.verdict.clone()?;
    let mut loaded = Loaded::default();
    if let (DeviceName::Cuda(_), Some(gpu)) = (verdict.device, outlook.gpu.clone()) {
        let attempt = Attempt { request, parts, hardware, gpu: &gpu };
        let tried = match verdict.reason {
            Reason::Unmeasured => attempt.load_and_measure(&mut loaded).map(|scores| outlook.scores = scores),
            _ => attempt.load().map(|on_gpu| loaded.gpu = Some(on_gpu)),
        };
        outlook.verdict = match tried {
            Ok(()) => request.decide(&outlook, Ok(&gpu)),
            Err(TryError::Gpu(error)) => request.decide(&outlook, Err(&error.reason())),
            Err(TryError::Load(error)) => return Err(error),
        };
        verdict = outlook.verdict.clone()?;
    }
    let (executor, spare) = match (verdict.device, loaded.gpu) {
        (DeviceName::Cuda(_), Some(on_gpu)) => (Executor::Cuda(on_gpu), loaded.cpu),
        (_, _) => (Executor::Cpu(loaded.cpu.map_or_else(parts.pack, Ok)?), None),
    };
    // Who names a GPU gets an answer from it or none.
    let may_fall_back = request.options.device == DeviceChoice::Auto && request.options.gpu.rules.fallback;
    let fallback = (verdict.device == DeviceName::Cpu && verdict.reason.is_fallback()).then_some(verdict.reason);
    Ok(Selected { runner: Runner { executor, spare, may_fall_back, fallback }, outlook })
}

/// What has been loaded on the way.
#[derive(Default)]
struct Loaded {
    gpu: Option<OnGpu>,
    cpu: Option<OnCpu>,
}

/// Whose fault it is that the GPU does not do.
enum TryError {
    /// The GPU's: another device may do.
    Gpu(GpuError),
    /// The model's or the CPU's: nothing else will do.
    Load(LoadError),
}

impl From<GpuError> for TryError {
    fn from(error: GpuError) -> Self {
        match error {
            GpuError::Weights(error) => Self::Load(error.into()),
            error => Self::Gpu(error),
        }
    }
}

/// One try of a GPU.
struct Attempt<'a> {
    request: &'a Request<'a>,
    parts: &'a Parts<'a>,
    hardware: &'a dyn Hardware,
    gpu: &'a GpuInfo,
}

impl Attempt<'_> {
    fn load(&self) -> Result<OnGpu, TryError> {
        let precision = self.request.gpu_precision(self.gpu);
        let accelerator = self.hardware.open(self.gpu, self.parts.spec, self.parts.source, precision)?;
        Ok(OnGpu { accelerator, gpu: self.gpu.clone(), precision })
    }

    /// Loads the model on both devices, measures them and keeps what was measured.
    fn load_and_measure(&self, loaded: &mut Loaded) -> Result<Option<Scores>, TryError> {
        let mut gpu = Executor::Cuda(self.load()?);
        let mut cpu = Executor::Cpu((self.parts.pack)().map_err(TryError::Load)?);
        let spec = self.parts.spec;
        let measured = calibration::measure(&mut cpu, &mut gpu, spec.shape, spec.max_tokens);
        // What was packed stays, also where the GPU failed meanwhile.
        if let (Executor::Cpu(cpu), Executor::Cuda(gpu)) = (cpu, gpu) {
            *loaded = Loaded { gpu: Some(gpu), cpu: Some(cpu) };
        }
        let scores = measured?;
        if let (Some(scores), Some(key)) = (scores, self.request.key(self.gpu)) {
            self.request.scores().keep(&key, scores);
        }
        Ok(scores)
    }
}

/// Why there is no GPU, and whether there should be one.
pub(crate) fn absent(declined: Declined, expects_gpu: bool) -> Reason {
    let is_normal = matches!(
        declined,
        Declined::NoDriver | Declined::NoDevice | Declined::Hidden { .. } | Declined::DeviceTooOld { .. }
    );
    Reason::Absent { code: declined.code(), message: declined.to_string(), is_fault: expects_gpu || !is_normal }
}

#[cfg(test)]
mod tests;
