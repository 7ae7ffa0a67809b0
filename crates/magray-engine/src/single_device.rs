//! One model on one device in this process, without queue and worker: the plain pass, for measurements and for tests.
//! Never chooses a device and never falls back to another one: programs use [`crate::engine::Engine`].

use crate::encoder::{EmbedError, EncoderOptions, LoadError};
use crate::engine::{ModelSource, Work, onnx_device};
use crate::executor_device::ExecutorDevice;
use crate::executors::cpu::CpuExecutor;
use crate::executors::cuda::CudaExecutor;
use crate::executors::native::NativeModel;
use crate::executors::{Arrival, Executor, ExecutorModel, Failure, OpenExecutor, Outcomes, Steps};
use crate::gpu::{GpuError, GpuInfo, find};
use crate::model::{Model, Synthetic, TensorSource};
use crate::packed::Tokens;
use crate::reading::Reader;
use crate::spec::ModelSpec;
use crate::weights::Weights;
use magray_core::{CpuPath, DeviceChoice, DeviceName, GpuSelector, OnnxProvider, Precision, Refusal};
use magray_device::cpu::Cpu;
use std::sync::Arc;

/// A model on its device.
pub struct SingleDevice {
    reader: Reader,
    cpu: Arc<Cpu>,
    on: On,
    precision: Precision,
}

enum On {
    Cpu(Box<CpuExecutor>),
    Cuda(Box<CudaExecutor>, GpuInfo),
    Onnx(Arc<dyn Executor>, OnnxProvider),
}

impl SingleDevice {
    /// Loads a model on this device; what the options say of the device is not looked at.
    pub fn open(source: &ModelSource, device: DeviceName, options: &EncoderOptions) -> Result<Self, LoadError> {
        if source.is_onnx() {
            return Self::open_onnx(source, options);
        }
        let (spec, tensors): (ModelSpec, Box<dyn TensorSource + Send + Sync>) = match source {
            ModelSource::Synthetic(shape) => (ModelSpec::synthetic(*shape), Box::new(Synthetic)),
            ModelSource::Decoder(_) => {
                return Err(Failure::unsupported("tokens: it is for measurements of encoders").into());
            }
            ModelSource::Folder(folder) | ModelSource::Onnx { folder, .. } => {
                let spec = ModelSpec::read(folder)?;
                let weights = Weights::open(&spec.encoder_folder)?;
                (spec, Box::new(weights))
            }
        };
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        let (on, precision) = match device {
            DeviceName::Cuda(index) => {
                let asked = DeviceChoice::Cuda(GpuSelector::Index(index));
                let refused = |reason| LoadError::from(Refusal { asked: asked.clone(), reason });
                let gpu = find(&asked, &options.gpu).map_err(|declined| refused(GpuError::from(declined).reason()))?;
                let precision = options.precision.or(options.gpu.precision).settle_gpu(gpu.capability);
                let opened = CudaExecutor::open(&gpu, &options.gpu, &spec, &*tensors, precision);
                let executor = opened.map_err(|error| match error {
                    GpuError::Weights(error) => error.into(),
                    error => refused(error.reason()),
                })?;
                (On::Cuda(Box::new(executor), gpu), precision)
            }
            DeviceName::Cpu | DeviceName::Simulated(_) | DeviceName::Onnx(_) => {
                let precision = options.precision.settle_cpu(cpu.has_fast_bf16());
                let model = Model::pack(&*cpu, &spec, &*tensors, precision)?;
                (On::Cpu(Box::new(CpuExecutor::new(Arc::clone(&cpu), model))), precision)
            }
        };
        Ok(Self { reader: Reader::without_tokenizer(spec), cpu, on, precision })
    }

    fn open_onnx(source: &ModelSource, options: &EncoderOptions) -> Result<Self, LoadError> {
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        let device = onnx_device(options, cpu.pool().threads());
        let model = ExecutorModel::new(source.clone(), options.precision);
        let executor = ExecutorDevice::Onnx(device).open(&[model])?;
        let Arrival { precision, provider, .. } = executor.load(0, None)?;
        let on = On::Onnx(executor, provider.unwrap_or(OnnxProvider::Cpu));
        Ok(Self { reader: Reader::without_tokenizer(source.spec()?), cpu, on, precision })
    }

    /// Computes all texts of the work in one call of the device: one row a text, in their order. Of the work, texts and
    /// skipped tokens count and nothing else.
    pub fn run(&mut self, work: &Work) -> Result<Vec<f32>, EmbedError> {
        self.reader.check(work.texts.iter().map(|text| text.ids.as_slice()))?;
        let texts: Vec<Tokens<'_>> = work.texts.iter().map(Tokens::from).collect();
        let mut rows = vec![0.0; texts.len() * self.spec().outputs()];
        match &mut self.on {
            On::Cpu(executor) => executor.run(&texts, work.skip, &mut rows),
            On::Cuda(executor, _) => executor.run(&texts, work.skip, &mut rows).map_err(EmbedError::Gpu)?,
            On::Onnx(executor, _) => {
                let mut outcomes = Outcomes { rows, ..Outcomes::default() };
                executor.run(0, Steps::Texts { texts: &texts, skip: work.skip }, &mut outcomes)?;
                rows = outcomes.rows;
            }
        }
        Ok(rows)
    }

    /// What the model's files say of it.
    pub fn spec(&self) -> &ModelSpec {
        &self.reader.spec
    }

    /// The device.
    pub fn device(&self) -> DeviceName {
        match &self.on {
            On::Cpu(_) => DeviceName::Cpu,
            On::Cuda(_, gpu) => DeviceName::Cuda(gpu.index),
            On::Onnx(_, provider) => DeviceName::Onnx(Some(*provider)),
        }
    }

    /// The GPU, where it is one.
    pub fn gpu(&self) -> Option<&GpuInfo> {
        match &self.on {
            On::Cuda(_, gpu) => Some(gpu),
            On::Cpu(_) | On::Onnx(..) => None,
        }
    }

    /// The arithmetic of the device.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The instructions that the CPU uses.
    pub fn cpu_path(&self) -> CpuPath {
        self.cpu.path()
    }

    /// Threads of the CPU.
    pub fn threads(&self) -> usize {
        self.cpu.pool().threads()
    }
}
