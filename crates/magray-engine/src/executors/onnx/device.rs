//! What an executor of ONNX Runtime is told: the libraries to try, the providers in their order, and how sessions are made.
//! Loads nothing.

use super::library::Library;
use crate::executors::Failure;
use magray_core::{Backend, DeviceChoice, OnnxProvider, Rules};
use magray_device::cuda::SearchPath;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// How ONNX Runtime is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnnxOptions {
    /// The library, where it is named; else it is looked for.
    pub library: Option<PathBuf>,
    /// Whether TensorRT is tried before CUDA.
    pub use_tensorrt: bool,
    /// How far graphs are rewritten.
    pub graph_optimization: GraphOptimization,
    /// Whether branches of a graph run side by side.
    pub is_parallel: bool,
    /// Where TensorRT keeps its engines, and where the profiles of first runs lie for a moment.
    pub cache: Option<PathBuf>,
}

/// How far ONNX Runtime rewrites a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GraphOptimization {
    /// Not at all.
    Off,
    /// What holds for every provider.
    Basic,
    /// Fusions for the provider too.
    Extended,
    /// Layouts too.
    #[default]
    All,
}

/// What a worker opens to compute by ONNX Runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnnxDevice {
    libraries: Vec<PathBuf>,
    /// Folders of libraries that providers need.
    folders: Vec<PathBuf>,
    providers: Vec<OnnxProvider>,
    device_id: usize,
    memory_limit: Option<u64>,
    threads: usize,
    graph_optimization: GraphOptimization,
    is_parallel: bool,
    has_fp16: bool,
    cache: Option<PathBuf>,
}

impl OnnxDevice {
    /// The library as the options name it or as it is found, on the CPU alone with this many threads.
    pub fn new(options: &OnnxOptions, search: &SearchPath, threads: usize) -> Self {
        // NVIDIA's packages lie beside that of ONNX Runtime.
        let packages = options.library.as_deref().and_then(packages_of);
        let search = &packages.map_or_else(|| search.clone(), |packages| search.clone().with_python(packages));
        // Messages carry paths as UTF-8.
        let can_be_told = |path: &PathBuf| path.to_str().is_some();
        Self {
            libraries: libraries(options.library.as_deref(), search).into_iter().filter(can_be_told).collect(),
            folders: search.folders().into_iter().filter(can_be_told).collect(),
            providers: vec![OnnxProvider::Cpu],
            device_id: 0,
            memory_limit: None,
            threads,
            graph_optimization: options.graph_optimization,
            is_parallel: options.is_parallel,
            has_fp16: true,
            cache: options.cache.clone().filter(can_be_told),
        }
    }

    /// The same with these providers, in this order.
    #[must_use]
    pub fn with_providers(mut self, providers: Vec<OnnxProvider>) -> Self {
        self.providers = providers;
        self
    }

    /// The same on this GPU, with this much of its memory at most.
    #[must_use]
    pub fn on_gpu(mut self, device_id: usize, memory_limit: Option<u64>, has_fp16: bool) -> Self {
        self.device_id = device_id;
        self.memory_limit = memory_limit;
        self.has_fp16 = has_fp16;
        self
    }

    /// Loads the library into this process.
    pub fn load_library(&self) -> Result<Library, Failure> {
        Library::load(&self.libraries)
    }

    pub(crate) fn libraries(&self) -> &[PathBuf] {
        &self.libraries
    }

    /// Folders of libraries that providers need.
    pub(crate) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The memory of the GPU in bytes, free and all of it. Asked only while a session is there: it would make a context.
    pub(super) fn gpu_memory(&self) -> Option<(u64, u64)> {
        magray_device::cuda::memory_of(self.device_id, &SearchPath::of_folders(self.folders.clone()))
    }

    pub(crate) fn providers(&self) -> &[OnnxProvider] {
        &self.providers
    }

    /// Whether a provider of a GPU may be used.
    pub(crate) fn may_use_gpu(&self) -> bool {
        self.providers.iter().any(|provider| *provider != OnnxProvider::Cpu)
    }

    /// Whether the CPU may compute.
    pub(super) fn may_use_cpu(&self) -> bool {
        self.providers.contains(&OnnxProvider::Cpu)
    }

    pub(crate) fn cache(&self) -> Option<&Path> {
        self.cache.as_deref()
    }

    pub(super) fn device_id(&self) -> usize {
        self.device_id
    }

    pub(super) fn memory_limit(&self) -> Option<u64> {
        self.memory_limit
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn graph_optimization(&self) -> GraphOptimization {
        self.graph_optimization
    }

    pub(super) fn is_parallel(&self) -> bool {
        self.is_parallel
    }

    pub(super) fn has_fp16(&self) -> bool {
        self.has_fp16
    }
}

/// The library by its name, as the system's packages install it.
#[cfg(windows)]
const NAMES: [&str; 1] = ["onnxruntime.dll"];
#[cfg(target_os = "macos")]
const NAMES: [&str; 1] = ["libonnxruntime.dylib"];
#[cfg(not(any(windows, target_os = "macos")))]
const NAMES: [&str; 2] = ["libonnxruntime.so.1", "libonnxruntime.so"];

/// Every place where the library may be, in the order to try. One that is named is the only one.
fn libraries(named: Option<&Path>, search: &SearchPath) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named.to_owned()];
    }
    // All editions of the Python package have it in this folder.
    let in_packages =
        search.python_packages().into_iter().flat_map(|folder| files_in(&folder.join("onnxruntime/capi")));
    NAMES.iter().map(PathBuf::from).chain(in_packages).collect()
}

/// The folder of Python packages that a library is in: PACKAGES/onnxruntime/capi/libonnxruntime.so.
fn packages_of(library: &Path) -> Option<&Path> {
    let capi = library.parent().filter(|folder| folder.is_absolute() && folder.ends_with("onnxruntime/capi"))?;
    capi.ancestors().nth(2)
}

/// The libraries of a folder, the newest first.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let is_library = |name: &str| {
        let numbered =
            name.strip_prefix("libonnxruntime.so").is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let on_mac = name.starts_with("libonnxruntime.") && name.ends_with(".dylib");
        numbered || on_mac || name == "onnxruntime.dll"
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    let mut found: Vec<(String, PathBuf)> = named.filter(|(name, _)| is_library(name)).collect();
    found.sort_by(|a, b| b.0.cmp(&a.0));
    found.into_iter().map(|(_, path)| path).collect()
}

/// The providers to try for what was asked for, in the order of the settings.
pub(crate) fn provider_order(choice: &DeviceChoice, rules: &Rules, use_tensorrt: bool) -> Vec<OnnxProvider> {
    let nvidia = || use_tensorrt.then_some(OnnxProvider::TensorRt).into_iter().chain([OnnxProvider::Cuda]);
    let listed = || {
        let of = |backend: &Backend| match backend {
            Backend::Cuda => nvidia().collect(),
            Backend::Mps => vec![OnnxProvider::CoreMl],
            Backend::Cpu => vec![OnnxProvider::Cpu],
            Backend::Onnx(provider) => vec![*provider],
        };
        rules.preference.iter().flat_map(of).collect::<Vec<_>>()
    };
    let mut order = match choice {
        DeviceChoice::Cpu => vec![OnnxProvider::Cpu],
        DeviceChoice::Cuda(_) => nvidia().collect(),
        DeviceChoice::Auto if !rules.prefer_gpu => vec![OnnxProvider::Cpu],
        DeviceChoice::Auto => listed(),
    };
    let mut seen = Vec::new();
    order.retain(|provider| {
        !seen.contains(provider) && {
            seen.push(*provider);
            true
        }
    });
    // Where nothing may stand in for a GPU, the CPU computes only if it comes first.
    if *choice == DeviceChoice::Auto && !rules.fallback && order.first() != Some(&OnnxProvider::Cpu) {
        order.retain(|provider| *provider != OnnxProvider::Cpu);
    } else if *choice == DeviceChoice::Auto && !order.contains(&OnnxProvider::Cpu) && rules.fallback {
        order.push(OnnxProvider::Cpu);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_core::GpuSelector;
    use std::fs;

    #[test]
    fn libraries_of_python_packages_come_after_the_loader_and_a_named_one_alone() {
        let dir = tempfile::tempdir().unwrap();
        let capi = dir.path().join("venv/lib/python3.11/site-packages/onnxruntime/capi");
        fs::create_dir_all(&capi).unwrap();
        for name in ["libonnxruntime.so.1.31.1", "libonnxruntime_providers_shared.so", "onnxruntime_pybind11_state.so"]
        {
            fs::write(capi.join(name), b"").unwrap();
        }
        let search = SearchPath::loader_only().with_python(dir.path().join("venv"));
        let found = libraries(None, &search);
        assert_eq!(found[NAMES.len()..], [capi.join("libonnxruntime.so.1.31.1")]);
        // A name without folders is looked for by the loader, which does not look in the current folder.
        assert!(found[..NAMES.len()].iter().all(|name| name.components().count() == 1));
        let named = Path::new("/opt/ort/libonnxruntime.so");
        assert_eq!(libraries(Some(named), &search), [named]);
        assert_eq!(packages_of(named), None);
        assert_eq!(packages_of(&capi.join("libonnxruntime.so.1")), capi.ancestors().nth(2));
    }

    #[test]
    fn providers_come_in_the_order_of_the_settings() {
        use OnnxProvider::{CoreMl, Cpu, Cuda, OpenVino, TensorRt};
        let order = |choice: &DeviceChoice, rules: &Rules| provider_order(choice, rules, false);
        let rules = Rules::default();
        assert_eq!(order(&DeviceChoice::Auto, &rules), [Cuda, CoreMl, Cpu]);
        assert_eq!(provider_order(&DeviceChoice::Auto, &rules, true), [TensorRt, Cuda, CoreMl, Cpu]);
        assert_eq!(order(&DeviceChoice::Cpu, &rules), [Cpu]);
        assert_eq!(order(&DeviceChoice::Cuda(GpuSelector::Any), &rules), [Cuda]);
        let preference = vec![Backend::Onnx(OpenVino), Backend::Cuda, Backend::Onnx(OpenVino)];
        let listed = Rules { preference, ..Rules::default() };
        assert_eq!(order(&DeviceChoice::Auto, &listed), [OpenVino, Cuda, Cpu]);
        assert_eq!(order(&DeviceChoice::Auto, &Rules { fallback: false, ..listed }), [OpenVino, Cuda]);
        assert_eq!(order(&DeviceChoice::Auto, &Rules { prefer_gpu: false, ..Rules::default() }), [Cpu]);
    }
}
