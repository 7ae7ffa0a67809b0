//! Graphs that are computed without ONNX Runtime: by the engine in the program. A process of its own, which loads no library.

use magray_engine::engine::ModelSource;
use magray_engine::executors::{ExecutorModel, OnnxDevice, OnnxOptions, OpenExecutor, Outcomes, Steps};
use magray_engine::gpu::SearchPath;
use magray_engine::internals::Tokens;
use magray_engine::testing::conformance::Suite;
use magray_engine::{ExecutorDevice, OnnxProvider, Precision, PrecisionChoice};
use std::path::{Path, PathBuf};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert")
}

fn onnx_model(graph: PathBuf) -> ExecutorModel {
    ExecutorModel::new(ModelSource::Onnx { folder: fixture(), graph }, PrecisionChoice::Auto)
}

fn graph() -> PathBuf {
    fixture().join("onnx/model.onnx")
}

/// A library that is not there.
fn device() -> OnnxDevice {
    let options = OnnxOptions { library: Some(fixture().join("no-such-library.so")), ..OnnxOptions::default() };
    OnnxDevice::new(&options, &SearchPath::loader_only(), 1)
}

#[test]
fn the_engine_in_the_program_conforms() {
    let suite = Suite {
        executor: &ExecutorDevice::Onnx(device()),
        model: onnx_model(graph()),
        vocab: 123,
        tokens_max: 40,
        texts_max: 40,
        tolerance: 1e-4,
        too_many_texts: None,
    };
    suite.check();
}

#[test]
fn without_a_library_the_rows_are_those_of_the_native_model() {
    let onnx = ExecutorDevice::Onnx(device()).open(&[onnx_model(graph())]).unwrap();
    assert_eq!(onnx.load(0, None).unwrap().provider, Some(OnnxProvider::Rust));
    let exact = PrecisionChoice::Exactly(Precision::F32);
    let native = ExecutorModel::new(ModelSource::Folder(fixture()), exact);
    let native = ExecutorDevice::Cpu { threads: Some(1) }.open(&[native]).unwrap();
    native.load(0, None).unwrap();
    let texts: Vec<Vec<u32>> = (1..=40).map(|length| (0..length).map(|at| (at * 7 + length) % 123).collect()).collect();
    let texts: Vec<Tokens<'_>> = texts.iter().map(|ids| Tokens { ids, types: &[] }).collect();
    let [ours, theirs] = [onnx, native].map(|executor| {
        let mut outcomes = Outcomes::default();
        executor.run(0, Steps::Texts { texts: &texts, skip: 0 }, &mut outcomes).unwrap();
        outcomes.rows
    });
    let worst = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(ours.len() == theirs.len() && worst < 1e-4, "{} and {} numbers, {worst}", ours.len(), theirs.len());
}

#[test]
fn a_gpu_is_not_stood_in_for() {
    let failure =
        ExecutorDevice::Onnx(device().with_providers(vec![OnnxProvider::Cuda])).open(&[]).map(drop).unwrap_err();
    assert!(failure.message.contains("no-such-library.so"), "{failure}");
}

#[test]
fn a_graph_that_neither_can_compute_is_an_error_with_both_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let mut unknown = std::fs::read(graph()).unwrap();
    let at = unknown.windows(9).position(|window| window == b"Transpose").unwrap();
    unknown[at..at + 9].copy_from_slice(b"Transpoze");
    let file = dir.path().join("model.onnx");
    std::fs::write(&file, unknown).unwrap();
    let executor = ExecutorDevice::Onnx(device()).open(&[onnx_model(file), onnx_model(graph())]).unwrap();
    let failure = executor.load(0, None).map(drop).unwrap_err();
    assert!(
        failure.message.contains("no-such-library.so") && failure.message.contains("nor does the engine"),
        "{failure}"
    );
    assert!(executor.load(1, None).is_ok());
}
