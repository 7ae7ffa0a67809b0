//! One suite over all executors that are built in: on the CPU, simulated, and on a GPU where there is one.

use magray_engine::engine::{Engine, EngineOptions, ModelSource, Work};
use magray_engine::executors::{CudaDevice, ExecutorModel, GroupLayout, LayerSplit, OpenExecutor};
use magray_engine::gpu::{GpuOptions, find};
use magray_engine::spec::decoder::DecoderSource;
use magray_engine::testing::conformance::{Suite, check_generating};
use magray_engine::testing::{SimulatedGpu, tiny_decoder};
use magray_engine::{DeviceChoice, EncoderShape, ExecutorDevice, GpuSelector, Precision, PrecisionChoice};
use magray_skip::Need;
use std::num::NonZeroUsize;
use std::sync::Arc;

fn tiny() -> EncoderShape {
    "tiny".parse().expect("the shape of tests is known")
}

fn suite(executor: &dyn OpenExecutor) -> Suite<'_> {
    let (shape, precision) = (tiny(), PrecisionChoice::Exactly(Precision::F32));
    Suite {
        executor,
        model: ExecutorModel::new(ModelSource::Synthetic(shape), precision),
        vocab: shape.vocab as u32,
        tokens_max: shape.positions.min(200),
        texts_max: 40,
        tolerance: 1e-4,
        too_many_texts: None,
    }
}

/// Room for keys and values.
const KV_BYTES: u64 = 1 << 20;

fn check_generator(executor: &dyn OpenExecutor, is_exact: bool) {
    let folder = tempfile::tempdir().expect("a folder for a model");
    tiny_decoder::write(folder.path(), 11).expect("a model is written");
    let source = ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned()));
    check_generating(executor, ExecutorModel::new(source, PrecisionChoice::Auto), is_exact);
}

/// The same of a model of which the executor has the last layer and the CPU the first.
fn check_part(executor: &dyn OpenExecutor, is_exact: bool) {
    let folder = tempfile::tempdir().expect("a folder for a model");
    tiny_decoder::write(folder.path(), 11).expect("a model is written");
    let source = ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned()));
    let split = LayerSplit {
        cpu_layers: NonZeroUsize::MIN,
        kv_token_bytes: tiny_decoder::KV_TOKEN_BYTES / 2,
        threads: NonZeroUsize::MIN,
        path: None,
    };
    let model = ExecutorModel { split: Some(split), ..ExecutorModel::new(source, PrecisionChoice::Auto) };
    check_generating(executor, model, is_exact);
}

/// The same of a model that two GPUs share, by ranks and by stages.
fn check_group(executor: &dyn OpenExecutor, is_exact: bool) {
    let folder = tempfile::tempdir().expect("a folder for a model");
    tiny_decoder::write(folder.path(), 11).expect("a model is written");
    let two = NonZeroUsize::MIN.saturating_add(1);
    for (ranks, stages) in [(two, vec![two]), (NonZeroUsize::MIN, vec![NonZeroUsize::MIN; 2])] {
        let source = ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned()));
        let group = GroupLayout { ranks, stages, kv_token_bytes: 2 * tiny_decoder::KV_TOKEN_BYTES };
        let model = ExecutorModel { group: Some(group), ..ExecutorModel::new(source, PrecisionChoice::Auto) };
        check_generating(executor, model, is_exact);
    }
}

#[test]
fn the_cpu_conforms() {
    suite(&ExecutorDevice::Cpu { threads: Some(2) }).check();
    suite(&ExecutorDevice::Cpu { threads: Some(1) }).check();
    check_generator(&ExecutorDevice::Cpu { threads: Some(2) }, true);
}

#[test]
fn a_simulated_gpu_conforms() {
    let activations = |tokens: usize| tiny().activation_bytes(Precision::F32, tokens);
    // Room for both models and the largest batch of each, and for no batch of a hundred of the longest texts.
    let memory_bytes = 2 * tiny().weight_bytes(Precision::F32) + activations(200 * 90);
    let gpu = SimulatedGpu { memory_bytes, ..SimulatedGpu::default() };
    Suite { too_many_texts: Some(100), ..suite(&ExecutorDevice::Simulated(gpu)) }.check();
    let generator = ExecutorDevice::Simulated(SimulatedGpu { kv_bytes: KV_BYTES, ..SimulatedGpu::default() });
    check_generator(&generator, true);
    check_part(&generator, true);
    let gpu = |index| SimulatedGpu { index, kv_bytes: KV_BYTES, ..SimulatedGpu::default() };
    check_group(&ExecutorDevice::SimulatedGroup(vec![gpu(0), gpu(1)]), true);
}

#[test]
fn a_gpu_conforms() {
    let options = GpuOptions::default();
    match find(&DeviceChoice::Cuda(GpuSelector::Any), &options) {
        Ok(gpu) => {
            let device = CudaDevice::new(&gpu, &options).with_kv_bytes(KV_BYTES);
            // The suite ends with a fault, after which this process cannot use the GPU any more.
            check_generator(&ExecutorDevice::Cuda(device.clone()), false);
            check_part(&ExecutorDevice::Cuda(device.clone()), false);
            // Both of its GPUs are this one.
            check_group(&ExecutorDevice::CudaGroup(vec![device.clone(), device.clone()]), false);
            suite(&ExecutorDevice::Cuda(device)).check();
        }
        Err(declined) => magray_skip::test(Need::Gpu, declined),
    }
}

#[test]
fn an_executor_that_mostly_runs_in_a_worker_runs_in_this_process_too() {
    let models = || vec![ModelSource::Synthetic(tiny()).into()];
    let work = || Work::from_ids(0, vec![vec![5, 6, 7], vec![8, 9]]);
    let simulated: Arc<dyn OpenExecutor> = Arc::new(ExecutorDevice::Simulated(SimulatedGpu::default()));
    let options = EngineOptions { in_process: Some(simulated), ..EngineOptions::on_cpu(models()) };
    let engine = Engine::start(options).unwrap();
    let answer = engine.process(work()).unwrap();
    let expected = Engine::start(EngineOptions::on_cpu(models())).unwrap().process(work()).unwrap();
    assert_eq!(answer.values.len(), expected.values.len());
    assert!(answer.values.iter().zip(&expected.values).all(|(a, b)| (a - b).abs() < 1e-2));
}
