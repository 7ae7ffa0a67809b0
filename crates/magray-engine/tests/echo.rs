//! A new executor, by the contract alone: an echo, whose rows are made of token ids. The engine knows nothing of it.

use magray_engine::engine::{Engine, EngineOptions, ModelSource, Output, Work};
use magray_engine::executors::{
    Arrival, Executor, ExecutorModel, Failure, FilledImage, Label, OpenExecutor, Origin, Outcomes, Steps,
};
use magray_engine::gpu::MemoryStats;
use magray_engine::testing::conformance::Suite;
use magray_engine::{EncoderShape, Precision, PrecisionChoice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

#[derive(Debug)]
struct OpenEcho;

struct Echo {
    models: Vec<EchoModel>,
    peak: AtomicU64,
}

struct EchoModel {
    outputs: usize,
    is_loaded: AtomicBool,
}

const WEIGHT_BYTES: u64 = 1000;

impl OpenExecutor for OpenEcho {
    fn open(&self, models: &[ExecutorModel]) -> Result<Arc<dyn Executor>, Failure> {
        let model = |model: &ExecutorModel| match &model.source {
            ModelSource::Synthetic(shape) => Ok(EchoModel { outputs: shape.hidden, is_loaded: AtomicBool::new(false) }),
            _ => Err(Failure::unsupported("models of folders")),
        };
        let models = models.iter().map(model).collect::<Result<_, _>>()?;
        Ok(Arc::new(Echo { models, peak: AtomicU64::new(0) }))
    }
}

/// Numbers that follow from the ids and from nothing else.
fn echo(ids: &[u32], outputs: usize) -> impl Iterator<Item = f32> + use<> {
    let digest = ids.iter().fold(17u32, |digest, id| digest.wrapping_mul(31).wrapping_add(*id));
    (0..outputs as u32).map(move |at| (digest.wrapping_mul(at * 2 + 1) >> 8) as f32 / 16_777_216.0)
}

impl Executor for Echo {
    fn label(&self) -> Label {
        Label { name: "Echo".to_owned(), uuid: "ECHO-0".to_owned() }
    }

    fn load(&self, model: usize, _: Option<FilledImage>) -> Result<Arrival, Failure> {
        let EchoModel { outputs, is_loaded } = &self.models[model];
        let origin = if is_loaded.swap(true, SeqCst) { Origin::Device } else { Origin::Files };
        self.peak.fetch_max(self.memory().allocated, SeqCst);
        Ok(Arrival::new(Precision::F32, *outputs, WEIGHT_BYTES, origin))
    }

    fn offload(&self, model: usize) {
        self.models[model].is_loaded.store(false, SeqCst);
    }

    fn release(&self, model: usize) {
        self.offload(model);
    }

    fn run(&self, model: usize, steps: Steps<'_>, outcomes: &mut Outcomes) -> Result<(), Failure> {
        let EchoModel { outputs, is_loaded } = &self.models[model];
        if !is_loaded.load(SeqCst) {
            return Err(Failure::not_loaded());
        }
        outcomes.rows.clear();
        match steps {
            Steps::Texts { texts, skip } | Steps::Unscaled { texts, skip } => {
                let kept = texts.iter().map(|text| &text.ids[skip.min(text.ids.len())..]);
                outcomes.rows.extend(kept.flat_map(|ids| echo(ids, *outputs)));
            }
            Steps::EachToken(texts) => {
                let ids = texts.iter().flat_map(|text| text.ids.chunks(1));
                outcomes.rows.extend(ids.flat_map(|id| echo(id, *outputs)));
            }
            Steps::Parts(_) => return Err(Failure::unsupported("new tokens")),
        }
        Ok(())
    }

    fn memory(&self) -> MemoryStats {
        let loaded = self.models.iter().filter(|model| model.is_loaded.load(SeqCst)).count() as u64;
        let (allocated, total) = (loaded * WEIGHT_BYTES, 1 << 20);
        let peak_allocated = self.peak.load(SeqCst).max(allocated);
        MemoryStats { allocated, peak_allocated, free: total - allocated, total, ..MemoryStats::default() }
    }
}

fn tiny() -> EncoderShape {
    "tiny".parse().expect("the shape of tests is known")
}

#[test]
fn an_executor_that_the_engine_does_not_know_passes_the_suite() {
    let shape = tiny();
    let model = ExecutorModel::new(ModelSource::Synthetic(shape), PrecisionChoice::Auto);
    Suite {
        executor: &OpenEcho,
        model,
        vocab: shape.vocab as u32,
        tokens_max: shape.positions,
        texts_max: 40,
        tolerance: 0.0,
        too_many_texts: None,
    }
    .check();
}

#[test]
fn an_executor_that_the_engine_does_not_know_serves_requests() {
    let models = vec![ModelSource::Synthetic(tiny()).into()];
    let engine =
        Engine::start(EngineOptions { in_process: Some(Arc::new(OpenEcho)), ..EngineOptions::on_cpu(models) }).unwrap();
    let texts = vec![vec![5, 6, 7], vec![8, 9], vec![5, 6, 7]];
    let answer = engine.process(Work::from_ids(0, texts.clone())).unwrap();
    let expected: Vec<f32> = texts.iter().flat_map(|ids| echo(ids, tiny().hidden)).collect();
    assert_eq!((answer.values, answer.tokens, answer.precision), (expected, 8, Precision::F32));
    let tokens = Work { output: Output::Tokens, ..Work::from_ids(0, vec![vec![5, 6]]) };
    let expected: Vec<f32> = [5, 6].iter().flat_map(|id| echo(&[*id], tiny().hidden)).collect();
    assert_eq!(engine.process(tokens).unwrap().values, expected);
    // It leaves and comes back when somebody asks.
    engine.release(0, std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(engine.process(Work::from_ids(0, vec![vec![1]])).unwrap().tokens, 1);
    engine.shut_down();
}
