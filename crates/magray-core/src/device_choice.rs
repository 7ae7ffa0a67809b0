//! Chooses between GPU and CPU: present, then measured speed, then memory; else the CPU, always with a reason.
//! Probes nothing and measures nothing: it is told.

use crate::{Backend, DeviceChoice, DeviceName};
use std::fmt;

/// What the settings say of GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Whether a GPU may be used at all.
    pub prefer_gpu: bool,
    /// Backends, the most wanted first. One that this build does not have is passed over.
    pub preference: Vec<Backend>,
    /// The GPU must be at least this many times as fast as the CPU.
    pub performance_threshold: f64,
    /// Memory of the GPU that may be used at most.
    pub memory_limit_bytes: Option<u64>,
    /// Whether the CPU answers where the GPU cannot. Without it a GPU that is missing or full is an error.
    pub fallback: bool,
    /// Whether the user expects a GPU to be there: where there is none, every answer says so.
    pub expects_gpu: bool,
    /// Whether all the work there is takes the CPU less time than a GPU takes to start.
    pub is_little_work: bool,
}

impl Rules {
    /// The speed-up that is asked of a GPU by default: below it the start-up of a GPU is not worth it.
    pub const PERFORMANCE_THRESHOLD: f64 = 1.2;
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            prefer_gpu: true,
            preference: vec![Backend::Cuda, Backend::Mps, Backend::Cpu],
            performance_threshold: Self::PERFORMANCE_THRESHOLD,
            memory_limit_bytes: None,
            fallback: true,
            expects_gpu: false,
            is_little_work: false,
        }
    }
}

/// A GPU that could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its number.
    pub index: usize,
    /// Memory that nobody uses; `None` where the driver does not tell.
    pub free_bytes: Option<u64>,
}

/// Texts a second on either device, measured on the same texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    cpu_texts_per_s: f64,
    gpu_texts_per_s: f64,
}

impl Scores {
    /// Two measured speeds; `None` unless both are real ones.
    pub fn new(cpu_texts_per_s: f64, gpu_texts_per_s: f64) -> Option<Self> {
        let is_speed = |speed: f64| speed.is_finite() && speed > 0.0;
        let are_speeds = is_speed(cpu_texts_per_s) && is_speed(gpu_texts_per_s);
        are_speeds.then_some(Self { cpu_texts_per_s, gpu_texts_per_s })
    }

    /// The CPU's.
    pub fn cpu_texts_per_s(&self) -> f64 {
        self.cpu_texts_per_s
    }

    /// The GPU's.
    pub fn gpu_texts_per_s(&self) -> f64 {
        self.gpu_texts_per_s
    }

    /// How many times as fast as the CPU the GPU is.
    pub fn speedup(&self) -> f64 {
        self.gpu_texts_per_s / self.cpu_texts_per_s
    }
}

/// All that the choice depends on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What was asked for.
    pub choice: &'a DeviceChoice,
    /// What the settings say.
    pub rules: &'a Rules,
    /// The GPU that was found, or why there is none.
    pub gpu: Result<Candidate, &'a Reason>,
    /// The speeds, once they are measured.
    pub scores: Option<Scores>,
    /// Memory that the model needs on the GPU.
    pub need_bytes: u64,
}

/// Why a device was chosen, refused or left. The code is for programs, the text for people.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The user named the device.
    Asked,
    /// The settings forbid GPUs.
    Disabled,
    /// The list of preference has the CPU before the GPU, or no GPU.
    NotPreferred,
    /// The CPU is done before a GPU has started.
    LittleWork,
    /// There is no usable GPU; the code and text are the probe's.
    Absent {
        /// Such as `no_driver`.
        code: &'static str,
        /// What is missing and what to do.
        message: String,
        /// Whether a GPU is there that should work, so that somebody had better look into it.
        is_fault: bool,
    },
    /// The GPU is there and nothing has measured it yet.
    Unmeasured,
    /// The GPU is fast enough.
    Faster {
        /// Times the CPU's speed.
        speedup: f64,
        /// What was asked for.
        threshold: f64,
    },
    /// The GPU is not fast enough.
    TooSlow {
        /// Times the CPU's speed.
        speedup: f64,
        /// What was asked for.
        threshold: f64,
    },
    /// The model does not fit.
    NotEnoughMemory {
        /// What the model needs.
        need_bytes: u64,
        /// What it may use: the smaller of free memory and limit.
        available_bytes: u64,
        /// Whether the limit of the settings is what is too small.
        is_limit: bool,
    },
    /// Its form is for ONNX Runtime.
    OnnxModel,
    /// The GPU was used and failed; the code and text are the failure's.
    Failed {
        /// Such as `out_of_memory` or `lost`.
        code: &'static str,
        /// What happened.
        message: String,
    },
}

impl Reason {
    /// One word for programs; it never changes its meaning.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Disabled => "disabled",
            Self::NotPreferred => "not_preferred",
            Self::LittleWork => "little_work",
            Self::Absent { code, .. } | Self::Failed { code, .. } => code,
            Self::Unmeasured => "unmeasured",
            Self::OnnxModel => "onnx",
            Self::Faster { .. } => "faster",
            Self::TooSlow { .. } => "too_slow",
            Self::NotEnoughMemory { .. } => "not_enough_memory",
        }
    }

    /// Whether a GPU that should work does not: an answer from the CPU then says so.
    pub fn is_fallback(&self) -> bool {
        match self {
            Self::Absent { is_fault, .. } => *is_fault,
            Self::NotEnoughMemory { .. } | Self::Failed { .. } => true,
            _ => false,
        }
    }

    /// Whether the GPU could not do what it was wanted for, as against not being wanted.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Absent { .. } | Self::NotEnoughMemory { .. } | Self::Failed { .. })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What a model needs is rounded up and what there is down, so that the two never read as equal.
        const MIB: u64 = 1 << 20;
        match self {
            Self::Asked => f.write_str("it was asked for"),
            Self::Disabled => f.write_str("gpu.enabled is false"),
            Self::NotPreferred => f.write_str("gpu.device_preference puts the CPU first, or names no GPU backend"),
            Self::LittleWork => f.write_str("the CPU is done before a GPU has started"),
            Self::Absent { message, .. } | Self::Failed { message, .. } => f.write_str(message),
            Self::OnnxModel => f.write_str("the model is in ONNX form"),
            Self::Unmeasured => f.write_str("the GPU is there and its speed is not measured yet"),
            Self::Faster { speedup, threshold } => {
                write!(f, "the GPU is {speedup:.2} times as fast as the CPU, and {threshold} is asked for")
            }
            Self::TooSlow { speedup, threshold } => write!(
                f,
                "the GPU is {speedup:.2} times as fast as the CPU, and gpu.performance_threshold asks for {threshold}"
            ),
            Self::NotEnoughMemory { need_bytes, available_bytes, is_limit } => {
                let (need, available) = (need_bytes.div_ceil(MIB), available_bytes / MIB);
                match is_limit {
                    true => {
                        write!(f, "the model needs {need} MiB of GPU memory, and gpu.memory_limit_mb is {available}")
                    }
                    false => write!(f, "the model needs {need} MiB of GPU memory, and {available} MiB are free"),
                }
            }
        }
    }
}

/// The device to use, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The device.
    pub device: DeviceName,
    /// Why it and no other.
    pub reason: Reason,
}

/// The device that was asked for, or a GPU where the CPU may not stand in, cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// What was asked for.
    pub asked: DeviceChoice,
    /// Why it cannot be.
    pub reason: Reason,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, reason } = self;
        match asked {
            DeviceChoice::Cuda(_) => {
                write!(f, "device {asked} cannot be used: {reason}; --device auto or cpu works without it")
            }
            _ => write!(
                f,
                "no GPU can be used and gpu.fallback_enabled is false: {reason}; set it to true, or use --device cpu"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// What rules a GPU out before anybody looks for one, so that a CPU-only user pays for no search.
pub fn rule_out_gpu(choice: &DeviceChoice, rules: &Rules) -> Option<Reason> {
    let is_preferred = || {
        let wanted = rules.preference.iter().find(|backend| matches!(backend, Backend::Cuda | Backend::Cpu));
        wanted == Some(&Backend::Cuda)
    };
    match choice {
        DeviceChoice::Cpu => Some(Reason::Asked),
        _ if !rules.prefer_gpu => Some(Reason::Disabled),
        DeviceChoice::Auto if !is_preferred() => Some(Reason::NotPreferred),
        // Who expects a GPU, or forbids the CPU, gets one whatever it costs.
        DeviceChoice::Auto if rules.is_little_work && rules.fallback && !rules.expects_gpu => Some(Reason::LittleWork),
        _ => None,
    }
}

/// Chooses. A verdict for a GPU whose reason is [`Reason::Unmeasured`] asks for a measurement and another choice.
pub fn choose_device(facts: &Facts<'_>) -> Result<Verdict, Refusal> {
    let must_be_gpu = matches!(facts.choice, DeviceChoice::Cuda(_));
    let against = rule_out_gpu(facts.choice, facts.rules).or_else(|| facts.gpu.err().cloned());
    let weighed = match (against, facts.gpu) {
        (None, Ok(gpu)) => weigh(facts, gpu, must_be_gpu).map(|reason| (gpu.index, reason)),
        (Some(reason), _) => Err(reason),
        (None, Err(reason)) => Err(reason.clone()),
    };
    match weighed {
        Ok((index, reason)) => Ok(Verdict { device: DeviceName::Cuda(index), reason }),
        Err(reason) if must_be_gpu || (reason.is_failure() && !facts.rules.fallback) => {
            Err(Refusal { asked: facts.choice.clone(), reason })
        }
        Err(reason) => Ok(Verdict { device: DeviceName::Cpu, reason }),
    }
}

/// Speed, then memory. A GPU that was named need not be fast.
fn weigh(facts: &Facts<'_>, gpu: Candidate, is_named: bool) -> Result<Reason, Reason> {
    let threshold = facts.rules.performance_threshold;
    let for_it = match facts.scores.map(|scores| scores.speedup()) {
        _ if is_named => Reason::Asked,
        None => Reason::Unmeasured,
        Some(speedup) if speedup >= threshold => Reason::Faster { speedup, threshold },
        Some(speedup) => return Err(Reason::TooSlow { speedup, threshold }),
    };
    let (free, limit) = (gpu.free_bytes.unwrap_or(u64::MAX), facts.rules.memory_limit_bytes.unwrap_or(u64::MAX));
    match facts.need_bytes <= free.min(limit) {
        true => Ok(for_it),
        false => Err(Reason::NotEnoughMemory {
            need_bytes: facts.need_bytes,
            available_bytes: free.min(limit),
            is_limit: limit < free,
        }),
    }
}

#[cfg(test)]
mod tests;
