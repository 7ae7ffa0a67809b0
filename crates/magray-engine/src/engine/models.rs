//! The models of an engine: what they say of themselves, how the CPU gets their weights, and the texts whose answers are
//! known. Reads no weights before it is asked to; knows no GPU.

use super::EngineModel;
use super::canary::Canary;
use super::status::CpuStatus;
use crate::encoder::{EncoderOptions, LoadError, pack_cpu, synthetic_spec};
use crate::executors::cpu::CpuExecutor;
use crate::model::Synthetic;
use crate::reading::Reader;
use crate::spec::ModelSpec;
use crate::weights::Weights;
use crate::worker::ModelSource;
use magray_core::Precision;
use magray_device::cpu::Cpu;
use std::sync::Arc;

/// All models.
pub(super) struct Models {
    pub(super) readers: Vec<Reader>,
    pub(super) packer: Arc<CpuPacker>,
    /// Those that are on the CPU from the start.
    pub(super) on_cpu: Vec<Option<Box<CpuExecutor>>>,
}

/// Brings models to the CPU.
pub(super) struct CpuPacker {
    cpu: Arc<Cpu>,
    precision: Precision,
    models: Vec<(ModelSource, ModelSpec)>,
    names: Vec<String>,
    pub(super) canaries: Arc<[Canary]>,
}

impl Models {
    /// Reads what the models say of themselves and their tokenizers, and the weights of those that are preloaded.
    pub(super) fn open(models: &[EngineModel], options: &EncoderOptions) -> Result<Self, LoadError> {
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        let specs = models.iter().map(|model| read(&model.source)).collect::<Result<Vec<_>, _>>()?;
        let mut packer = CpuPacker {
            precision: options.precision.settle_cpu(cpu.has_fast_bf16()),
            models: models.iter().map(|model| model.source.clone()).zip(specs).collect(),
            names: models.iter().map(|model| model.name.clone()).collect(),
            canaries: Arc::new([]),
            cpu,
        };
        // The tokenizers are read on one core while the others pack weights.
        let (readers, on_cpu) = std::thread::scope(|scope| {
            let readers = scope.spawn(|| packer.models.iter().map(reader).collect::<Result<Vec<_>, _>>());
            let pack =
                |(at, model): (usize, &EngineModel)| model.plan.is_preloaded.then(|| packer.weights(at)).transpose();
            let on_cpu: Result<Vec<_>, LoadError> = models.iter().enumerate().map(pack).collect();
            (readers.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), on_cpu)
        });
        let readers = readers?;
        let canary = |reader: &Reader| Ok(Canary::new(&reader.spec, reader.skips()?));
        packer.canaries = readers.iter().map(canary).collect::<Result<Vec<_>, LoadError>>()?.into();
        Ok(Self { readers, on_cpu: on_cpu?, packer: Arc::new(packer) })
    }

    /// Computes the known texts of the models that are on the CPU already, for GPUs to be checked by.
    pub(super) fn teach(&mut self) {
        for (model, on_cpu) in self.on_cpu.iter_mut().enumerate() {
            on_cpu.iter_mut().for_each(|on_cpu| self.packer.teach(model, on_cpu));
        }
    }

    /// Tokens of the longest known text.
    pub(super) fn known_tokens(&self) -> usize {
        self.packer.canaries.iter().map(|canary| canary.tokens().ids.len()).max().unwrap_or(0)
    }

    /// Numbers of the longest answer of a text.
    pub(super) fn outputs_max(&self) -> usize {
        self.packer.canaries.iter().map(Canary::outputs).max().unwrap_or(0)
    }
}

impl CpuPacker {
    /// What people call a model.
    pub(super) fn name(&self, model: usize) -> &str {
        &self.names[model]
    }

    /// What a model says of itself.
    pub(super) fn spec(&self, model: usize) -> &ModelSpec {
        &self.models[model].1
    }

    pub(super) fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    pub(super) fn status(&self) -> CpuStatus {
        CpuStatus { path: self.cpu.path(), threads: self.cpu.pool().threads(), precision: self.precision }
    }

    /// Wakes the threads that compute, for a batch that is about to come.
    pub(super) fn rouse(&self) {
        self.cpu.pool().rouse();
    }

    /// The arithmetic of all models on the CPU.
    pub(super) fn precision(&self) -> Precision {
        self.precision
    }

    /// Packs a model's weights for the CPU. The first time, the known text's answer is learned too.
    pub(super) fn pack(&self, model: usize) -> Result<Box<CpuExecutor>, LoadError> {
        let mut on_cpu = self.weights(model)?;
        self.teach(model, &mut on_cpu);
        Ok(on_cpu)
    }

    fn weights(&self, model: usize) -> Result<Box<CpuExecutor>, LoadError> {
        let (source, spec) = &self.models[model];
        match source {
            ModelSource::Synthetic(_) => pack_cpu(&self.cpu, spec, &Synthetic, self.precision),
            ModelSource::Folder(_) => pack_cpu(&self.cpu, spec, &Weights::open(&spec.encoder_folder)?, self.precision),
        }
    }

    fn teach(&self, model: usize, on_cpu: &mut CpuExecutor) {
        self.canaries[model].learn(|text, skip, row| on_cpu.run(&[text], skip, row));
    }

    /// What a model's weights take of a device's memory in this precision, about.
    pub(super) fn bytes(&self, model: usize, precision: Precision) -> u64 {
        self.models[model].1.shape.weight_bytes(precision)
    }
}

fn read(source: &ModelSource) -> Result<ModelSpec, LoadError> {
    match source {
        ModelSource::Synthetic(shape) => Ok(synthetic_spec(*shape)),
        ModelSource::Folder(folder) => Ok(ModelSpec::read(folder)?),
    }
}

fn reader((source, spec): &(ModelSource, ModelSpec)) -> Result<Reader, LoadError> {
    match source {
        ModelSource::Synthetic(_) => Ok(Reader::without_tokenizer(spec.clone())),
        ModelSource::Folder(_) => Reader::open(spec.clone()),
    }
}
