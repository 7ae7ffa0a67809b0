//! Finds the devices of an engine: the CPU, and the GPUs that the settings allow.
//! Starts none of them.

use super::{EngineOptions, Gpus};
use crate::encoder::{EncoderOptions, LoadError};
use crate::executor_device::ExecutorDevice;
use crate::executors::onnx::provider_order;
use crate::executors::{CudaDevice, ModelSource, OnnxDevice};
use crate::gpu::{CONTEXT_BYTES, Declined, GpuInfo, GpuOptions};
#[cfg(feature = "testing")]
use crate::testing::SimulatedGpu;
use crate::worker;
use magray_core::ledger::Budget;
use magray_core::schedule::{Allowed, DeviceId};
use magray_core::{
    DeviceChoice, DeviceName, GpuSelector, Precision, PrecisionChoice, Reason, Refusal, Rules, rule_out_gpu,
};
use magray_device::KvFormat;
use magray_device::cuda::{may_have_gpu, resolve};
use std::collections::HashSet;

/// The part of a GPU's memory that keys and values of sequences may have.
const KV_PART: u64 = 8;

/// The GPUs to use, in the order of the devices.
pub(super) struct Devices {
    pub(super) gpus: Vec<Gpu>,
    /// Why there is none.
    pub(super) reason: Option<Reason>,
    /// Where work goes that does not say.
    pub(super) allowed: Allowed,
    /// GPUs that no group has.
    pub(super) left: Vec<(DeviceName, LeftOver)>,
}

/// Why no group has a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOver {
    /// There were not enough for another group.
    TooFew,
    /// It was given up before: a group with it would be out too.
    GivenUp,
}

/// A GPU, real or simulated.
#[derive(Clone)]
pub(super) struct Gpu {
    pub(super) name: DeviceName,
    /// Names it in every process alike; of a group those of all its GPUs.
    pub(super) uuids: Vec<String>,
    /// What the driver says of it; `None`: it is simulated.
    pub(super) info: Option<GpuInfo>,
    /// What its worker opens.
    pub(super) device: ExecutorDevice,
    /// Where it is a group of GPUs: their names, and what the driver says of each.
    pub(super) members: Vec<(DeviceName, Option<GpuInfo>)>,
    memory: Budget,
}

impl Gpu {
    /// A part of its memory is for the state of sequences where a model `generates` them.
    pub(super) fn cuda(info: GpuInfo, options: &GpuOptions, generates: bool) -> Self {
        let memory_max = info.memory_bytes.min(options.rules.memory_limit_bytes.unwrap_or(u64::MAX));
        let kv_max = if generates { memory_max / KV_PART } else { 0 };
        Self {
            name: DeviceName::Cuda(info.index),
            uuids: vec![info.uuid.clone()],
            device: ExecutorDevice::Cuda(CudaDevice::new(&info, options).with_kv_bytes(kv_max)),
            memory: Budget { memory_max: info.memory_bytes, context: CONTEXT_BYTES, kv_max },
            members: Vec::new(),
            info: Some(info),
        }
    }

    /// Several of them as one device. Parts of models are equal, so each has as much memory as the one that has least.
    pub(super) fn group(gpus: &[Self]) -> Self {
        let count = gpus.len() as u64;
        let least = |of: fn(&Budget) -> u64| gpus.iter().map(|gpu| of(&gpu.memory)).min().unwrap_or(0);
        let cuda = |gpu: &Self| match &gpu.device {
            ExecutorDevice::Cuda(device) => Some(device.clone()),
            _ => None,
        };
        let simulated = |gpu: &Self| match &gpu.device {
            ExecutorDevice::Simulated(gpu) => Some(*gpu),
            _ => None,
        };
        let device = match gpus.iter().map(cuda).collect::<Option<Vec<_>>>() {
            Some(devices) => ExecutorDevice::CudaGroup(devices),
            None => ExecutorDevice::SimulatedGroup(gpus.iter().filter_map(simulated).collect()),
        };
        Self {
            name: gpus[0].name,
            uuids: gpus.iter().flat_map(|gpu| gpu.uuids.clone()).collect(),
            info: gpus[0].info.clone(),
            device,
            members: gpus.iter().map(|gpu| (gpu.name, gpu.info.clone())).collect(),
            memory: Budget {
                memory_max: least(|memory| memory.memory_max).saturating_mul(count),
                context: least(|memory| memory.context).saturating_mul(count),
                kv_max: least(|memory| memory.kv_max).saturating_mul(count),
            },
        }
    }

    /// What the driver says of its GPUs; none are told of where it is simulated.
    pub(super) fn infos(&self) -> Vec<GpuInfo> {
        match self.members.is_empty() {
            true => self.info.iter().cloned().collect(),
            false => self.members.iter().filter_map(|(_, info)| info.clone()).collect(),
        }
    }

    /// How many GPUs it is.
    pub(super) fn count(&self) -> usize {
        self.members.len().max(1)
    }

    /// Its name; of a group those of all its GPUs.
    pub(super) fn names(&self) -> Vec<DeviceName> {
        match self.members.is_empty() {
            true => vec![self.name],
            false => self.members.iter().map(|(member, _)| *member).collect(),
        }
    }

    /// Whether this is its name, or that of a GPU of the group that it is.
    pub(super) fn is_named(&self, name: DeviceName) -> bool {
        self.name == name || self.members.iter().any(|(member, _)| *member == name)
    }

    /// The state of a sequence takes a byte a token there.
    #[cfg(feature = "testing")]
    fn simulated(gpu: SimulatedGpu) -> Self {
        Self {
            name: DeviceName::Simulated(gpu.index),
            uuids: vec![format!("SIM-{}", gpu.index)],
            device: ExecutorDevice::Simulated(gpu),
            members: Vec::new(),
            memory: Budget { memory_max: gpu.memory_bytes, context: 0, kv_max: gpu.kv_bytes },
            info: None,
        }
    }

    /// ONNX Runtime, as the settings want it to be used.
    pub(super) fn onnx(options: &EncoderOptions, threads: usize) -> Self {
        Self {
            name: DeviceName::Onnx(None),
            uuids: vec!["ONNX".to_owned()],
            device: ExecutorDevice::Onnx(onnx_device(options, threads)),
            members: Vec::new(),
            memory: Budget::UNBOUNDED,
            info: None,
        }
    }

    /// Whether it has memory for the state of a language model's sequences.
    pub(super) fn generates(&self) -> bool {
        self.memory.kv_max > 0
    }

    /// Whether it has a form for keys and values that are kept like this.
    pub(super) fn keeps(&self, kv: KvFormat) -> bool {
        kv == KvFormat::Halves || self.info.is_none()
    }

    /// Whether it computes only models that are in ONNX form.
    pub(super) fn is_onnx(&self) -> bool {
        matches!(self.device, ExecutorDevice::Onnx(_))
    }

    /// Its memory as far as it may be used.
    pub(super) fn memory(&self, limit: Option<u64>) -> Budget {
        let (total, count) = (self.memory.memory_max, self.count() as u64);
        Budget { memory_max: limit.map_or(total, |limit| limit.saturating_mul(count).min(total)), ..self.memory }
    }
}

/// ONNX Runtime as the settings want it to be used.
pub(crate) fn onnx_device(options: &EncoderOptions, threads: usize) -> OnnxDevice {
    let (rules, gpu) = (&options.gpu.rules, &options.gpu);
    let providers = provider_order(&options.device, rules, options.onnx.use_tensorrt);
    let index = match options.device {
        DeviceChoice::Cuda(GpuSelector::Index(index)) => index,
        _ => gpu.device_id,
    };
    let has_fp16 = options.precision.or(gpu.precision) != PrecisionChoice::Exactly(Precision::F32);
    let device = OnnxDevice::new(&options.onnx, &gpu.search, threads).with_providers(providers);
    device.on_gpu(index, rules.memory_limit_bytes, has_fp16)
}

pub(super) fn find(options: &EngineOptions) -> Result<Devices, LoadError> {
    if !options.models.is_empty() && options.models.iter().all(|model| model.source.is_onnx()) {
        // ONNX Runtime looks for its own.
        return Ok(Devices { gpus: Vec::new(), reason: None, allowed: Allowed::Any, left: Vec::new() });
    }
    let (choice, rules) = (&options.encoder.device, &options.encoder.gpu.rules);
    let must_be_gpu = matches!(choice, DeviceChoice::Cuda(_));
    let allowed = match choice {
        DeviceChoice::Cpu => Allowed::Cpu,
        DeviceChoice::Cuda(_) => Allowed::Gpu,
        DeviceChoice::Auto if rules.fallback => Allowed::Any,
        DeviceChoice::Auto => Allowed::Gpu,
    };
    #[cfg(feature = "testing")]
    let simulated: Vec<Gpu> = options.simulated_gpus.iter().copied().map(Gpu::simulated).collect();
    #[cfg(not(feature = "testing"))]
    let simulated = Vec::new();
    let (found, reason) = match rule_out_gpu(choice, rules) {
        Some(reason) => (Vec::new(), Some(reason)),
        None if !simulated.is_empty() => (simulated, None),
        None if rules.memory_limit_bytes.is_some_and(|limit| limit <= CONTEXT_BYTES) => {
            (Vec::new(), Some(no_room(rules)))
        }
        None => match chosen(options) {
            Ok(gpus) => (gpus, None),
            Err(declined) => (Vec::new(), Some(absent(declined, rules.expects_gpu))),
        },
    };
    match reason {
        Some(reason) if must_be_gpu || (reason.is_failure() && !rules.fallback) => {
            Err(Refusal { asked: choice.clone(), reason }.into())
        }
        // Without a GPU nothing else is left.
        Some(reason) => Ok(Devices { gpus: found, reason: Some(reason), allowed: Allowed::Cpu, left: Vec::new() }),
        None => Ok(Devices { gpus: found, reason: None, allowed, left: Vec::new() }),
    }
}

impl Devices {
    /// Where a model may be computed that is assigned to this device, or to none.
    pub(super) fn allowed_for(&self, assigned: Option<DeviceName>) -> Result<Allowed, LoadError> {
        match assigned {
            None => Ok(self.allowed),
            Some(DeviceName::Cpu) => Ok(Allowed::Cpu),
            Some(name) => {
                let at = self.gpus.iter().position(|gpu| gpu.is_named(name));
                let device = device_of_gpu(at.ok_or_else(|| self.not_there(name))?);
                // As where no model is assigned: a GPU that was named, or must be used, has no other to stand in for it.
                Ok(if self.allowed == Allowed::Any { Allowed::Rather(device) } else { Allowed::Only(device) })
            }
        }
    }

    fn not_there(&self, name: DeviceName) -> LoadError {
        let asked = match name {
            DeviceName::Cuda(index) => DeviceChoice::Cuda(GpuSelector::Index(index)),
            DeviceName::Cpu | DeviceName::Simulated(_) | DeviceName::Onnx(_) => DeviceChoice::Auto,
        };
        let known: Vec<String> = self.gpus.iter().flat_map(Gpu::names).map(|name| name.to_string()).collect();
        let left = self.left.iter().find(|(left, _)| *left == name);
        let why = match (left, &*known) {
            (Some((_, LeftOver::TooFew)), _) => {
                "which is left over: the GPUs are in groups (gpu.multi_gpu.strategy), and it is not enough for one"
            }
            (Some((_, LeftOver::GivenUp)), _) => {
                "which was given up and is in no group: return it (magray gpu reset) and start magray again"
            }
            (None, []) => "which is not there or not used: no GPU is",
            _ => "which is not there or not used",
        };
        let known = if known.is_empty() { String::new() } else { format!("; there are {}", known.join(", ")) };
        let message = format!("a model is assigned to {name}, {why}{known}");
        Refusal { asked, reason: Reason::Absent { code: "unknown_device", message, is_fault: true } }.into()
    }
}

/// Why there is no GPU, and whether there should be one.
pub(super) fn absent(declined: Declined, expects_gpu: bool) -> Reason {
    let is_normal = matches!(
        declined,
        Declined::NoDriver | Declined::NoDevice | Declined::Hidden { .. } | Declined::DeviceTooOld { .. }
    );
    Reason::Absent { code: declined.code(), message: declined.to_string(), is_fault: expects_gpu || !is_normal }
}

/// A GPU may be used, and by so little that not even a context fits.
fn no_room(rules: &Rules) -> Reason {
    let available_bytes = rules.memory_limit_bytes.unwrap_or(0);
    Reason::NotEnoughMemory { need_bytes: CONTEXT_BYTES, available_bytes, is_limit: true }
}

/// The device whose executor runs in this process; those of GPUs follow it.
pub(super) const IN_PROCESS: DeviceId = DeviceId(0);

/// The device of a GPU, by its place among the GPUs.
pub(super) fn device_of_gpu(gpu: usize) -> DeviceId {
    DeviceId(IN_PROCESS.0 + 1 + gpu as u16)
}

/// The place among the GPUs of a device; `None` where it is none of them.
pub(super) fn gpu_of_device(device: DeviceId) -> Option<usize> {
    device.0.checked_sub(IN_PROCESS.0 + 1).map(usize::from)
}

/// The only device that computes a model of this kind.
pub(super) fn home(source: &ModelSource, onnx_home: Option<DeviceId>, gpus_generate: bool) -> Option<DeviceId> {
    match source {
        ModelSource::Onnx { .. } => onnx_home,
        ModelSource::Decoder(_) if !gpus_generate => Some(IN_PROCESS),
        ModelSource::Decoder(_) | ModelSource::Folder(_) | ModelSource::Synthetic(_) => None,
    }
}

/// The GPUs of the machine that the settings mean.
fn chosen(options: &EngineOptions) -> Result<Vec<Gpu>, Declined> {
    if !may_have_gpu() {
        return Err(Declined::NoDriver);
    }
    let gpus = worker::survey(&options.worker_exe, &options.encoder.gpu)?;
    let by_index = |index: &usize| resolve(&gpus, &format!("cuda:{index}")).cloned();
    let mut chosen = match (&options.encoder.device, &options.gpus) {
        (DeviceChoice::Cuda(GpuSelector::Index(_) | GpuSelector::Uuid(_)), _) => {
            vec![resolve(&gpus, &options.encoder.device.to_string())?.clone()]
        }
        (_, Gpus::All) => gpus,
        (_, Gpus::These(indices)) => indices.iter().map(by_index).collect::<Result<_, _>>()?,
        (_, Gpus::One) => vec![by_index(&options.encoder.gpu.device_id)?],
    };
    // A GPU that is named twice is one GPU.
    let mut seen = HashSet::new();
    chosen.retain(|gpu| seen.insert(gpu.uuid.clone()));
    let generates = options.models.iter().any(|model| model.source.is_decoder());
    Ok(chosen.into_iter().map(|gpu| Gpu::cuda(gpu, &options.encoder.gpu, generates)).collect())
}
