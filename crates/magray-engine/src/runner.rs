//! A model on its device, and the CPU that stands in when a GPU fails.
//! Chooses no device: that is done when a model is loaded.

use crate::encoder::{EmbedError, LoadError};
use crate::executors::Accelerator;
use crate::executors::cpu::CpuExecutor;
use crate::gpu::{GpuError, GpuInfo};
use crate::packed::Tokens;
use magray_core::{DeviceName, Precision, Reason};

/// A model that is packed for a device.
pub(crate) enum Executor {
    Cpu(OnCpu),
    Cuda(OnGpu),
}

/// A model on the CPU.
pub(crate) struct OnCpu {
    pub(crate) executor: Box<CpuExecutor>,
    pub(crate) precision: Precision,
}

/// A model on a GPU.
pub(crate) struct OnGpu {
    pub(crate) accelerator: Box<dyn Accelerator>,
    pub(crate) gpu: GpuInfo,
    pub(crate) precision: Precision,
}

impl Executor {
    pub(crate) fn device(&self) -> DeviceName {
        match self {
            Self::Cpu(_) => DeviceName::Cpu,
            Self::Cuda(on) => DeviceName::Cuda(on.gpu.index),
        }
    }

    pub(crate) fn precision(&self) -> Precision {
        match self {
            Self::Cpu(on) => on.precision,
            Self::Cuda(on) => on.precision,
        }
    }

    pub(crate) fn outputs(&self) -> usize {
        match self {
            Self::Cpu(on) => on.executor.outputs(),
            Self::Cuda(on) => on.accelerator.outputs(),
        }
    }

    pub(crate) fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError> {
        match self {
            Self::Cpu(on) => {
                on.executor.run(texts, skip, out);
                Ok(())
            }
            Self::Cuda(on) => on.accelerator.run(texts, skip, out),
        }
    }
}

/// Runs a model and keeps answering when its GPU fails.
pub(crate) struct Runner {
    pub(crate) executor: Executor,
    /// The CPU's, packed when it is first needed.
    pub(crate) spare: Option<OnCpu>,
    /// Whether the CPU may stand in.
    pub(crate) may_fall_back: bool,
    /// Why the GPU that was wanted is not used any more, or never was.
    pub(crate) fallback: Option<Reason>,
}

/// What computed an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ran {
    pub(crate) device: DeviceName,
    pub(crate) precision: Precision,
    pub(crate) fallback: Option<Reason>,
}

impl Runner {
    /// The device that the next answer is to come from.
    pub(crate) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Computes; where the GPU fails, the CPU does, packed by `pack` if it is not yet.
    pub(crate) fn run(
        &mut self,
        texts: &[Tokens<'_>],
        skip: usize,
        out: &mut [f32],
        pack: impl FnOnce() -> Result<OnCpu, LoadError>,
    ) -> Result<Ran, EmbedError> {
        let Err(error) = self.executor.run(texts, skip, out) else {
            return Ok(self.ran(self.fallback.clone()));
        };
        if !self.may_fall_back {
            return Err(EmbedError::Gpu(error));
        }
        let reason = error.reason();
        let spare = match self.spare.take() {
            Some(spare) => spare,
            None => pack().map_err(|cpu| EmbedError::NoSpare { gpu: error.to_string(), cpu: Box::new(cpu) })?,
        };
        if error.is_lasting() {
            // The next call would only fail again, and this one's memory on the GPU is freed.
            self.executor = Executor::Cpu(spare);
            self.fallback = Some(reason.clone());
            // On the CPU nothing fails.
            self.executor.run(texts, skip, out).map_err(EmbedError::Gpu)?;
            return Ok(self.ran(Some(reason)));
        }
        let spare = self.spare.insert(spare);
        spare.executor.run(texts, skip, out);
        Ok(Ran { device: DeviceName::Cpu, precision: spare.precision, fallback: Some(reason) })
    }

    fn ran(&self, fallback: Option<Reason>) -> Ran {
        Ran { device: self.executor.device(), precision: self.executor.precision(), fallback }
    }
}
