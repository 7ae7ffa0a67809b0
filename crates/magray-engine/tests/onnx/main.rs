//! Real sessions of ONNX Runtime on a tiny graph: the suite of all executors, the native rows, providers that lie, broken libraries.
//! Looks for the library as the program does; without one every test here is skipped.

mod libraries;

use magray_engine::engine::ModelSource;
use magray_engine::executors::{
    Executor, ExecutorModel, Failure, OnnxDevice, OnnxOptions, OpenExecutor, Outcomes, Steps,
};
use magray_engine::gpu::SearchPath;
use magray_engine::internals::Tokens;
use magray_engine::testing::conformance::Suite;
use magray_engine::{ExecutorDevice, OnnxProvider, Precision, PrecisionChoice};
use magray_skip::Need;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert")
}

fn model(source: ModelSource) -> ExecutorModel {
    ExecutorModel::new(source, PrecisionChoice::Auto)
}

fn onnx_model() -> ExecutorModel {
    model(ModelSource::Onnx { folder: fixture(), graph: fixture().join("onnx/model.onnx") })
}

/// The CPU of a library that is there; `None`: the test is skipped.
fn device(cache: Option<&Path>) -> Option<OnnxDevice> {
    let prefix = std::env::var_os("VIRTUAL_ENV");
    let search = prefix.into_iter().fold(SearchPath::system(), |search, prefix| search.with_python(prefix));
    let library = std::env::var_os("ORT_DYLIB_PATH").map(PathBuf::from);
    let options = OnnxOptions { library, cache: cache.map(Path::to_owned), ..OnnxOptions::default() };
    let device = OnnxDevice::new(&options, &search, 1);
    match device.load_library() {
        Ok(_) => Some(device),
        Err(failure) => {
            magray_skip::test(Need::OnnxRuntime, failure);
            None
        }
    }
}

fn open(device: OnnxDevice, model: ExecutorModel) -> Result<Arc<dyn Executor>, Failure> {
    let executor = ExecutorDevice::Onnx(device).open(&[model])?;
    executor.load(0, None).map(|_| executor)
}

fn rows(executor: &dyn Executor, texts: &[Vec<u32>], skip: usize) -> Vec<f32> {
    let texts: Vec<Tokens<'_>> = texts.iter().map(|ids| Tokens { ids, types: &[] }).collect();
    let mut outcomes = Outcomes::default();
    let ran = executor.run(0, Steps::Texts { texts: &texts, skip }, &mut outcomes);
    ran.unwrap_or_else(|failure| panic!("it does not compute: {failure}"));
    outcomes.rows
}

#[test]
fn onnx_runtime_conforms() {
    let Some(device) = device(None) else { return };
    let suite = Suite {
        executor: &ExecutorDevice::Onnx(device),
        model: onnx_model(),
        vocab: 123,
        tokens_max: 40,
        texts_max: 40,
        tolerance: 1e-4,
        too_many_texts: None,
    };
    suite.check();
}

#[test]
fn a_graph_gives_the_rows_of_the_native_model() {
    let Some(device) = device(None) else { return };
    let onnx = open(device, onnx_model()).unwrap();
    let exact = PrecisionChoice::Exactly(Precision::F32);
    let native = ExecutorModel::new(ModelSource::Folder(fixture()), exact);
    let native = ExecutorDevice::Cpu { threads: Some(1) }.open(&[native]).unwrap();
    native.load(0, None).unwrap();
    let texts: Vec<Vec<u32>> = (1..=40).map(|length| (0..length).map(|at| (at * 7 + length) % 123).collect()).collect();
    for skip in [0, 3] {
        let (ours, theirs) = (rows(&*onnx, &texts, skip), rows(&*native, &texts, skip));
        let worst = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(ours.len() == theirs.len() && worst < 1e-4, "{} and {} numbers, {worst}", ours.len(), theirs.len());
    }
}

#[test]
fn a_provider_that_is_not_there_is_passed_over_with_the_reason() {
    let cache = tempfile::tempdir().unwrap();
    let Some(device) = device(Some(cache.path())) else { return };
    // On the systems that tests run on there is no such provider.
    let missing = if cfg!(windows) { OnnxProvider::CoreMl } else { OnnxProvider::DirectMl };
    let failure = open(device.clone().with_providers(vec![missing]), onnx_model()).map(drop).unwrap_err();
    assert!(failure.message.contains("was built without it"), "{failure}");
    assert!(open(device.with_providers(vec![missing, OnnxProvider::Cpu]), onnx_model()).is_ok());
}

#[test]
fn a_graph_that_no_session_can_be_made_of_is_an_error_and_the_next_model_loads() {
    let Some(device) = device(None) else { return };
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(fixture().join("onnx/model.onnx")).unwrap();
    let at = whole.windows(9).position(|window| window == b"Transpose").unwrap();
    let mut unknown = whole;
    unknown[at..at + 9].copy_from_slice(b"Transpoze");
    let graph = dir.path().join("model.onnx");
    std::fs::write(&graph, unknown).unwrap();
    let broken = model(ModelSource::Onnx { folder: fixture(), graph });
    let executor = ExecutorDevice::Onnx(device).open(&[broken, onnx_model()]).unwrap();
    let failure = executor.load(0, None).map(drop).unwrap_err();
    assert!(failure.code == "onnx_model" && failure.message.contains("cpu: "), "{failure}");
    assert!(executor.load(1, None).is_ok());
}
