//! The models of an engine: what they say of themselves, their weights on the CPU, and the texts whose answers are known.
//! Loads everything that is needed to answer from the CPU; knows no GPU.

use super::canary::Canary;
use crate::encoder::{EncoderOptions, LoadError, pack_cpu, synthetic_spec};
use crate::executor::OnCpu;
use crate::model::{Synthetic, TensorSource};
use crate::reading::Reader;
use crate::spec::ModelSpec;
use crate::weights::Weights;
use crate::worker::ModelSource;
use magray_device::cpu::Cpu;
use std::sync::Arc;

/// All models, ready on the CPU.
pub(super) struct Models {
    pub(super) readers: Vec<Reader>,
    pub(super) on_cpu: Vec<OnCpu>,
    pub(super) canaries: Arc<[Canary]>,
    pub(super) threads: usize,
}

impl Models {
    pub(super) fn load(sources: &[ModelSource], options: &EncoderOptions) -> Result<Self, LoadError> {
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        let mut models =
            Self { readers: Vec::new(), on_cpu: Vec::new(), canaries: Arc::new([]), threads: cpu.pool().threads() };
        let mut canaries = Vec::new();
        for source in sources {
            let (reader, mut on_cpu) = load(source, options, &cpu)?;
            let skips = reader.skips()?;
            let mut canary = Canary::new(&reader.spec, skips.iter().copied().max().unwrap_or(0));
            let mut row = vec![0.0; on_cpu.executor.outputs()];
            for skip in skips {
                on_cpu.executor.run(&[canary.tokens()], skip, &mut row);
                canary.learn(skip, &row);
            }
            canaries.push(canary);
            models.readers.push(reader);
            models.on_cpu.push(on_cpu);
        }
        models.canaries = canaries.into();
        Ok(models)
    }

    /// Tokens of the longest known text.
    pub(super) fn known_tokens(&self) -> usize {
        self.canaries.iter().map(|canary| canary.tokens().ids.len()).max().unwrap_or(0)
    }
}

fn load(source: &ModelSource, options: &EncoderOptions, cpu: &Arc<Cpu>) -> Result<(Reader, OnCpu), LoadError> {
    let precision = options.precision.settle_cpu(cpu.has_fast_bf16());
    let pack = |spec: &ModelSpec, weights: &dyn TensorSource| pack_cpu(cpu, spec, weights, precision);
    match source {
        ModelSource::Synthetic(shape) => {
            let spec = synthetic_spec(*shape);
            let on_cpu = pack(&spec, &Synthetic)?;
            Ok((Reader::without_tokenizer(spec), on_cpu))
        }
        ModelSource::Folder(folder) => {
            let spec = ModelSpec::read(folder)?;
            let weights = Weights::open(&spec.encoder_folder)?;
            // The tokenizer is read on one core while the others pack weights.
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| Reader::open(spec.clone()));
                let on_cpu = pack(&spec, &weights)?;
                let reader = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                Ok((reader?, on_cpu))
            })
        }
    }
}
