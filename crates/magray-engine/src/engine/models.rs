//! The models of an engine: what they say of themselves, the executor of this process, and the texts whose answers are
//! known. Reads no weights before it is asked to; knows no GPU.

use super::EngineModel;
use super::canary::Canary;
use super::host_memory::HostMemory;
use super::status::CpuStatus;
use crate::encoder::{EncoderOptions, LoadError};
use crate::executors::cpu::CpuDevice;
use crate::executors::native::Native;
use crate::executors::{
    Arrival, Executor, ExecutorModel, Failure, FailureKind, ModelSource, OpenExecutor, Outcomes, Steps,
};
use crate::reading::Reader;
use crate::roster::{Roster, RosterFull};
use crate::spec::ModelSpec;
use magray_core::{DeviceChoice, DeviceName, Precision, PrecisionChoice};
use magray_device::KvFormat;
use magray_device::cpu::Cpu;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// All models.
pub(super) struct Models {
    pub(super) readers: Roster<Reader>,
    pub(super) packer: Arc<CpuPacker>,
}

/// Brings models to the executor of this process.
pub(super) struct CpuPacker {
    cpu: Arc<Cpu>,
    pub(super) executor: Arc<dyn Executor>,
    precision: Precision,
    /// What it was asked for.
    asked: PrecisionChoice,
    /// How keys and values are kept.
    kv: KvFormat,
    models: Roster<Packable>,
    pub(super) canaries: Arc<Roster<Canary>>,
    /// Whether the executor of this process is the CPU's own: then it can tell the answers of known texts.
    is_native: bool,
}

/// A model as the executor of this process needs it.
struct Packable {
    name: String,
    source: ModelSource,
    spec: ModelSpec,
    /// The arithmetic that it has in this process, once it was there.
    precision: OnceLock<Precision>,
    /// The host has no memory for it beside what workers have.
    is_off: AtomicBool,
}

impl Packable {
    fn new(model: &EngineModel, spec: ModelSpec) -> Self {
        let (name, source) = (model.name.clone(), model.source.clone());
        Self { name, source, spec, precision: OnceLock::new(), is_off: AtomicBool::new(false) }
    }
}

/// A model with larger weights is checked by its known text only once the CPU has it anyway: packing it takes too long and
/// too much memory.
const REFERENCE_BYTES_MAX: u64 = 4 << 30;

impl Models {
    /// Reads what the models say of themselves and their tokenizers, and the weights of those that are preloaded, as far as there is plenty of
    /// memory for them.
    pub(super) fn open(
        models: &[EngineModel],
        options: &EncoderOptions,
        in_process: Option<&dyn OpenExecutor>,
        mut host: HostMemory,
    ) -> Result<Self, LoadError> {
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        let specs = models.iter().map(|model| model.source.spec()).collect::<Result<Vec<_>, _>>()?;
        let (precision, kv) = (options.precision, options.kv);
        let known = |model: &EngineModel| ExecutorModel { kv, ..ExecutorModel::new(model.source.clone(), precision) };
        let known = models.iter().map(known);
        let executor = match in_process {
            Some(other) => other.open(&known.collect::<Vec<_>>())?,
            None => {
                let device = Box::new(CpuDevice::new(Arc::clone(&cpu)));
                Arc::new(Native::new(device, known.zip(specs.iter().cloned().map(Some))))
            }
        };
        let mut packer = CpuPacker {
            executor,
            precision: options.precision.settle_cpu(cpu.has_fast_bf16()),
            asked: precision,
            kv,
            models: models.iter().zip(specs).map(|(model, spec)| Packable::new(model, spec)).collect(),
            canaries: Arc::default(),
            is_native: in_process.is_none(),
            cpu,
        };
        // The tokenizers are read on one core while the others pack weights.
        let (readers, loaded) = std::thread::scope(|scope| {
            let readers = scope.spawn(|| packer.models.iter().map(Packable::reader).collect::<Result<Vec<_>, _>>());
            let bring = |model: usize| -> Result<(), LoadError> {
                // A worker may need as much: with less room, beside the models before it, it is waited for until that is known.
                if host.take_copies(packer.spec(model), 2)? {
                    packer.bring(model)?;
                }
                Ok(())
            };
            let loaded = preloaded(models, &options.device).try_for_each(bring);
            (readers.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), loaded)
        });
        let readers = readers?;
        let canaries = readers.iter().map(canary).collect::<Result<Roster<_>, LoadError>>()?;
        packer.canaries = Arc::new(canaries);
        loaded?;
        Ok(Self { readers: readers.into_iter().collect(), packer: Arc::new(packer) })
    }

    /// It is known now what workers have: lets go of the models that the host has no memory for beside that, and brings those that
    /// were put off.
    pub(super) fn settle(
        &self,
        models: &[EngineModel],
        device: &DeviceChoice,
        is_off: impl Fn(usize) -> bool,
    ) -> Result<(), Failure> {
        (0..models.len()).filter(|model| is_off(*model)).for_each(|model| self.packer.keep_off(model));
        let mut left = preloaded(models, device).filter(|model| !is_off(*model) && !self.packer.has(*model));
        left.try_for_each(|model| self.packer.bring(model).map(drop))
    }

    /// Computes the known texts of the models that are loaded already, for workers to be checked by.
    pub(super) fn teach(&self) -> Result<(), Failure> {
        let models = 0..self.readers.len();
        models
            .filter(|model| self.packer.models[*model].precision.get().is_some())
            .try_for_each(|model| self.packer.teach(model))
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
    /// Reads what a model says of itself, and its tokenizer.
    pub(super) fn read(model: &EngineModel) -> Result<Reader, LoadError> {
        Packable::new(model, model.source.spec()?).reader()
    }

    /// One model more, which is not loaded; it is what its reader says.
    pub(super) fn add(&self, model: &EngineModel, reader: &Reader) -> Result<(), LoadError> {
        let known = canary(reader)?;
        self.executor.add(ExecutorModel { kv: self.kv, ..ExecutorModel::new(model.source.clone(), self.asked) })?;
        self.models.push(Packable::new(model, reader.spec.clone()))?;
        self.canaries.push(known)?;
        Ok(())
    }

    /// Whether one more model fits.
    pub(super) fn has_room(&self) -> Result<(), RosterFull> {
        self.models.has_room()
    }

    /// Where a model comes from.
    pub(super) fn source(&self, model: usize) -> &ModelSource {
        &self.models[model].source
    }

    /// What people call a model.
    pub(super) fn name(&self, model: usize) -> &str {
        &self.models[model].name
    }

    /// What a model says of itself.
    pub(super) fn spec(&self, model: usize) -> &ModelSpec {
        &self.models[model].spec
    }

    pub(super) fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    pub(super) fn status(&self) -> CpuStatus {
        CpuStatus { path: self.cpu.path(), threads: self.cpu.pool().threads(), precision: self.precision }
    }

    /// The arithmetic of all models on the CPU.
    pub(super) fn precision(&self) -> Precision {
        self.precision
    }

    /// The arithmetic of a model in this process.
    pub(super) fn precision_of(&self, model: usize) -> Precision {
        self.models[model].precision.get().copied().unwrap_or(self.precision)
    }

    /// Whether this process has got a model, and may keep it.
    pub(super) fn has(&self, model: usize) -> bool {
        let known = &self.models[model];
        known.precision.get().is_some() && !known.is_off.load(Ordering::Relaxed)
    }

    /// The host has no memory for a model: it leaves this process, and is not loaded here any more.
    pub(super) fn keep_off(&self, model: usize) {
        self.models[model].is_off.store(true, Ordering::Relaxed);
        self.executor.release(model);
    }

    /// Loads a model in this process. The first time, the known text's answer is learned too.
    pub(super) fn load(&self, model: usize) -> Result<Arrival, Failure> {
        if self.models[model].is_off.load(Ordering::Relaxed) {
            let message = "the host has no memory for it beside what the workers of GPUs have";
            return Err(Failure::new(FailureKind::OutOfMemory, "no_host_memory", message));
        }
        let arrival = self.bring(model)?;
        self.teach(model)?;
        Ok(arrival)
    }

    fn bring(&self, model: usize) -> Result<Arrival, Failure> {
        let mut arrival = self.executor.load(model, None)?;
        let expected = self.spec(model).outputs();
        if arrival.outputs != expected {
            self.executor.release(model);
            let message = format!("the model answers with {} numbers, not with {expected}", arrival.outputs);
            return Err(Failure::new(FailureKind::Transient, "model_changed", message));
        }
        self.models[model].precision.get_or_init(|| arrival.precision);
        if let Some(arriving) = arrival.arriving.take() {
            arriving()?;
        }
        Ok(arrival)
    }

    fn teach(&self, model: usize) -> Result<(), Failure> {
        self.teach_by(&*self.executor, model, model)
    }

    /// Takes the answers of a model's known text from an executor that has the model as its `at`-th.
    fn teach_by(&self, executor: &dyn Executor, at: usize, model: usize) -> Result<(), Failure> {
        let mut outcomes = Outcomes::default();
        let canary = &self.canaries[model];
        if !canary.rides_along() {
            return Ok(());
        }
        canary.learn(|text, skip| {
            executor.run(at, Steps::Texts { texts: &[text], skip }, &mut outcomes)?;
            Ok::<_, Failure>(outcomes.rows.clone())
        })?;
        let tokens = canary.learn_tokens(|text| {
            executor.run(at, Steps::EachToken(&[text]), &mut outcomes)?;
            Ok::<_, Failure>(outcomes.rows.clone())
        });
        // An executor of another kind may have no rows of tokens.
        if self.is_native { tokens } else { Ok(()) }
    }

    /// Computes the answer of a model's known text on the CPU, so that a device can be checked by it before the CPU has the
    /// model. Packs the weights for this alone. Where that cannot be, the reason is logged and the device is trusted.
    pub(super) fn make_reference(&self, model: usize) {
        let bytes = self.bytes(model, self.precision);
        let made = match self.is_native && bytes <= REFERENCE_BYTES_MAX {
            true => self.compute_reference(model),
            false => {
                let message = "it is too large, or this process has no CPU executor of its own, to compute the answer for this alone";
                Err(Failure::new(FailureKind::Transient, "no_reference", message))
            }
        };
        if let Err(failure) = made {
            let error = failure.message;
            tracing::warn!(target: "magray::engine", model = self.name(model), bytes, error, "a model is not checked for wrong answers before the CPU has it");
        }
        self.canaries[model].settle();
    }

    fn compute_reference(&self, model: usize) -> Result<(), Failure> {
        let cpu = Cpu::new(Some(self.cpu.path()), Some(self.cpu.pool().threads())).map_err(Failure::of_model)?;
        let Packable { source, spec, .. } = &self.models[model];
        let known = ExecutorModel::new(source.clone(), PrecisionChoice::Exactly(self.precision));
        let alone = Native::new(Box::new(CpuDevice::new(Arc::new(cpu))), [(known, Some(spec.clone()))].into_iter());
        if let Some(arriving) = alone.load(0, None)?.arriving {
            arriving()?;
        }
        self.teach_by(&alone, 0, model)
    }

    /// What a model's weights take of a device's memory in this precision, about.
    pub(super) fn bytes(&self, model: usize, precision: Precision) -> u64 {
        self.spec(model).weight_bytes(precision)
    }
}

/// The models that this process has from the start. Where a GPU is required, a language model comes to the CPU only if it is assigned to it.
fn preloaded(models: &[EngineModel], device: &DeviceChoice) -> impl Iterator<Item = usize> {
    let only_gpu = matches!(device, DeviceChoice::Cuda(_));
    let is_kept_off = move |model: &EngineModel| only_gpu && model.assigned != Some(DeviceName::Cpu);
    let is_ours =
        move |model: &EngineModel| !(model.source.is_onnx() || model.source.is_decoder() && is_kept_off(model));
    let is_loaded = move |model: &EngineModel| model.plan.is_preloaded && is_ours(model);
    models.iter().enumerate().filter(move |(_, model)| is_loaded(model)).map(|(at, _)| at)
}

fn canary(reader: &Reader) -> Result<Canary, LoadError> {
    Ok(Canary::new(&reader.spec, reader.skips()?))
}

impl Packable {
    fn reader(&self) -> Result<Reader, LoadError> {
        match self.source {
            ModelSource::Synthetic(_) => Ok(Reader::without_tokenizer(self.spec.clone())),
            ModelSource::Folder(_) | ModelSource::Onnx { .. } | ModelSource::Decoder(_) => {
                Reader::open(self.spec.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::decoder::DecoderSource;
    use crate::testing::tiny_decoder;
    use magray_core::CpuPath;
    use std::path::Path;

    /// A language model that has 107 kB, on a host with so many bytes.
    fn open(folder: &Path, available: u64) -> (Vec<EngineModel>, Models) {
        tiny_decoder::write(folder, 4).unwrap();
        let models: Vec<EngineModel> = vec![ModelSource::Decoder(DecoderSource::Path(folder.to_owned())).into()];
        let options = EncoderOptions {
            device: DeviceChoice::Cpu,
            threads: Some(1),
            cpu_path: Some(CpuPath::Portable),
            ..EncoderOptions::default()
        };
        let opened = Models::open(&models, &options, None, HostMemory::with(available)).unwrap();
        (models, opened)
    }

    #[test]
    fn a_model_that_was_put_off_comes_when_it_is_known_that_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (models, opened) = open(folder.path(), 120_000);
        assert!(!opened.packer.has(0));
        opened.settle(&models, &DeviceChoice::Cpu, |_| false).unwrap();
        assert!(opened.packer.has(0) && opened.packer.executor.memory().allocated > 0);
    }

    #[test]
    fn a_model_that_there_is_no_memory_for_beside_workers_leaves_and_is_not_loaded_again() {
        let folder = tempfile::tempdir().unwrap();
        let (models, opened) = open(folder.path(), 0);
        assert!(opened.packer.has(0));
        opened.settle(&models, &DeviceChoice::Cpu, |_| true).unwrap();
        assert!(!opened.packer.has(0) && opened.packer.executor.memory().allocated == 0);
        let refused = opened.packer.load(0).map(drop).unwrap_err();
        assert!(refused.kind == FailureKind::OutOfMemory && refused.code == "no_host_memory", "{refused:?}");
    }
}
