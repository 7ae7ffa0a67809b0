//! Libraries that are not what they should be, each in a process of its own: a process loads one ONNX Runtime.
//! Compiles them by `cc`, which every build of this crate needs too.

use super::{device, fixture, model, onnx_model, open, rows};
use magray_engine::engine::ModelSource;
use magray_engine::executors::{Library, OnnxDevice, OnnxOptions, OpenExecutor};
use magray_engine::gpu::SearchPath;
use magray_engine::{ExecutorDevice, OnnxProvider};
use ort::sys::OrtApi;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "MAGRAY_TEST_LIBRARY";

/// Runs a test of this file again, in a process that is told of a library.
fn run_again(test: &str, library: &Path) {
    let own = std::env::current_exe().expect("a test is a program");
    let name = format!("libraries::{test}");
    let ran = Command::new(own).args([&name, "--exact", "--nocapture"]).env(LIBRARY, library).output();
    let ran = ran.expect("it starts once more");
    let said = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(ran.status.success() && said.contains("1 passed"), "{}: {said}", library.display());
}

fn compile(to: &Path, defines: &[(&str, String)]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/fake_runtime.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(to).arg(source).arg("-ldl");
    cc.args(defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    let ran = cc.output().expect("cc is there");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn a_library_that_cannot_be_used_is_told_with_what_to_do_and_native_models_answer() {
    let Some(role) = std::env::var_os(LIBRARY).map(PathBuf::from) else {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        compile(&file("too-old.so"), &[("VERSION", "\"1.10.0\"".to_owned())]);
        compile(&file("other-api.so"), &[("VERSION", "\"1.99.0\"".to_owned())]);
        let whole = std::fs::read(file("too-old.so")).unwrap();
        std::fs::write(file("truncated-early.so"), &whole[..70]).unwrap();
        std::fs::write(file("truncated-late.so"), &whole[..whole.len() / 2]).unwrap();
        std::fs::write(file("no-library.so"), "no library, whatever its name says\n".repeat(9)).unwrap();
        let names =
            ["too-old.so", "other-api.so", "truncated-early.so", "truncated-late.so", "no-library.so", "missing.so"];
        // The C library is a library, and no ONNX Runtime.
        for library in names.map(file).into_iter().chain([PathBuf::from("libc.so.6")]) {
            run_again("a_library_that_cannot_be_used_is_told_with_what_to_do_and_native_models_answer", &library);
        }
        return;
    };
    let failure = Library::load(std::slice::from_ref(&role)).map(drop).unwrap_err();
    assert_eq!(failure.code, "onnx_library");
    let reason = match role.file_stem().unwrap().to_str().unwrap() {
        "too-old" => "got '1.10.0'",
        "other-api" => "Failed to initialize ORT API",
        "truncated-early" | "truncated-late" => "the file is truncated",
        "no-library" => "invalid ELF header",
        "missing" => "No such file",
        _ => "does not export `OrtGetApiBase`",
    };
    for words in [role.to_str().unwrap(), reason, "pip install onnxruntime"] {
        assert!(failure.message.contains(words), "{words}: {failure}");
    }
    let failure = Library::load(&[]).map(drop).unwrap_err();
    assert!(failure.message.contains("none was found"), "{failure}");
    let native = ExecutorDevice::Cpu { threads: Some(1) }.open(&[model(ModelSource::Folder(fixture()))]).unwrap();
    native.load(0, None).unwrap();
    assert!(!rows(&*native, &[vec![5, 6, 7]], 0).is_empty());
}

#[test]
fn a_provider_that_leaves_its_work_to_the_cpu_in_silence_is_found_before_the_first_answer() {
    let Some(library) = std::env::var_os(LIBRARY).map(PathBuf::from) else {
        let Some(real) = device(None).map(|device| device.load_library().unwrap().path) else { return };
        let dir = tempfile::tempdir().unwrap();
        let fake = dir.path().join("libonnxruntime.so");
        let offsets = [
            ("OFFSET_OFFER", offset_of!(OrtApi, GetAvailableProviders)),
            ("OFFSET_RELEASE_OFFER", offset_of!(OrtApi, ReleaseAvailableProviders)),
            ("OFFSET_CREATE", offset_of!(OrtApi, CreateCUDAProviderOptions)),
            ("OFFSET_UPDATE", offset_of!(OrtApi, UpdateCUDAProviderOptions)),
            ("OFFSET_RELEASE", offset_of!(OrtApi, ReleaseCUDAProviderOptions)),
            ("OFFSET_APPEND", offset_of!(OrtApi, SessionOptionsAppendExecutionProvider_CUDA_V2)),
            ("OFFSET_CONFIG", offset_of!(OrtApi, AddSessionConfigEntry)),
            ("TABLE_BYTES", size_of::<OrtApi>()),
        ];
        let mut defines = vec![("REAL", format!("{real:?}"))];
        defines.extend(offsets.map(|(name, bytes)| (name, bytes.to_string())));
        compile(&fake, &defines);
        run_again("a_provider_that_leaves_its_work_to_the_cpu_in_silence_is_found_before_the_first_answer", &fake);
        return;
    };
    let cache = tempfile::tempdir().unwrap();
    let options = OnnxOptions { library: Some(library), cache: Some(cache.path().into()), ..OnnxOptions::default() };
    let liar = OnnxDevice::new(&options, &SearchPath::loader_only(), 1);
    assert!(liar.load_library().unwrap().providers().contains(&OnnxProvider::Cuda));
    let failure = open(liar.clone().with_providers(vec![OnnxProvider::Cuda]), onnx_model()).map(drop).unwrap_err();
    assert!(failure.message.contains("cuda: its first run was not computed by it"), "{failure}");
    assert!(failure.message.contains("CPUExecutionProvider"), "{failure}");
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0, "the profile is gone");
    let next = liar.with_providers(vec![OnnxProvider::Cuda, OnnxProvider::Cpu]);
    let executor = ExecutorDevice::Onnx(next).open(&[onnx_model()]).unwrap();
    assert_eq!(executor.load(0, None).unwrap().provider, Some(OnnxProvider::Cpu));
    assert_eq!(rows(&*executor, &[vec![5, 6, 7]], 0).len(), 48);
}

/// A build without a provider does not look at libraries of that name: the provider is missing, and the next computes.
#[test]
fn a_provider_library_beside_a_build_that_does_not_know_it_is_not_used() {
    let Some(library) = std::env::var_os(LIBRARY).map(PathBuf::from) else {
        let Some(real) = device(None).map(|device| device.load_library().unwrap()) else { return };
        if real.providers().contains(&OnnxProvider::Cuda) || !real.path.is_absolute() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("libonnxruntime.so");
        std::fs::copy(&real.path, &copy).unwrap();
        for provider in ["shared", "cuda"] {
            let name = format!("libonnxruntime_providers_{provider}.so");
            compile(&dir.path().join(name), &[("VERSION", "\"1.31.1\"".to_owned())]);
        }
        run_again("a_provider_library_beside_a_build_that_does_not_know_it_is_not_used", &copy);
        return;
    };
    let cache = tempfile::tempdir().unwrap();
    let options = OnnxOptions { library: Some(library), cache: Some(cache.path().into()), ..OnnxOptions::default() };
    let device = OnnxDevice::new(&options, &SearchPath::loader_only(), 1);
    let failure = open(device.clone().with_providers(vec![OnnxProvider::Cuda]), onnx_model()).map(drop).unwrap_err();
    assert!(failure.message.contains("was built without it"), "{failure}");
    let next = device.with_providers(vec![OnnxProvider::Cuda, OnnxProvider::Cpu]);
    let executor = ExecutorDevice::Onnx(next).open(&[onnx_model()]).unwrap();
    assert_eq!(executor.load(0, None).unwrap().provider, Some(OnnxProvider::Cpu));
}
