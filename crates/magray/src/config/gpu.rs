//! How the settings and the environment ask for GPUs to be used, and where their libraries and caches are.
//! Looks for nothing: it says where to look.

use std::{ffi::OsString, path::PathBuf};

use magray_core::{Backend, DeviceChoice, Precision, PrecisionChoice, Rules};
use magray_engine::executors::{BackendChoice, GraphOptimization, OnnxOptions};
use magray_engine::gpu::{GpuOptions, SearchPath, Visible};

use super::{Config, Source, Value, file};

/// Read by the driver itself; kept here for the explanation of what it hides.
const CUDA_VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Meant for container runtimes.
pub(super) const NVIDIA_VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// Environment variables that are no settings.
#[derive(Clone, Debug, Default)]
pub(super) struct Surroundings {
    cache: Option<PathBuf>,
    /// Folders for what lives as long as a process, the best first.
    pub(super) running: Vec<PathBuf>,
    /// Toolkits, the most trusted last.
    toolkits: Vec<PathBuf>,
    /// Folders that Python is installed in, the most trusted last.
    pythons: Vec<PathBuf>,
    cuda_visible: Option<String>,
    nvidia_visible: Option<String>,
    /// <https://no-color.org>
    pub(super) no_color: bool,
}

impl Surroundings {
    pub(super) fn read(env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let folder = |name: &str| file::absolute(env(name));
        let text = |name: &str| env(name).map(|value| value.to_string_lossy().into_owned());
        Self {
            cache: file::cache_home(env),
            running: file::running_homes(env),
            toolkits: ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(folder).collect(),
            pythons: [file::home(env).map(|home| home.join(".local")), folder("CONDA_PREFIX"), folder("VIRTUAL_ENV")]
                .into_iter()
                .flatten()
                .collect(),
            cuda_visible: text(CUDA_VISIBLE),
            nvidia_visible: text(NVIDIA_VISIBLE),
            no_color: env("NO_COLOR").is_some_and(|value| !value.is_empty()),
        }
    }

    fn search(&self) -> SearchPath {
        let with_pythons = self.pythons.iter().fold(SearchPath::system(), |path, folder| path.with_python(folder));
        self.toolkits.iter().fold(with_pythons, |path, folder| path.with_toolkit(folder))
    }
}

impl Config {
    pub(crate) fn gpu(&self) -> GpuOptions {
        let (visible, visible_by) = self.visible();
        let cached = |name: &str| self.surroundings.cache.as_ref().map(|folder| folder.join(name));
        let defaults = GpuOptions::default();
        GpuOptions {
            rules: self.gpu_rules(),
            device_id: self.whole("gpu.device_id").unwrap_or_default(),
            precision: self.gpu_precision(),
            streams: self.whole("gpu.async.num_streams").unwrap_or(defaults.streams),
            search: self.surroundings.search(),
            visible,
            visible_by,
            kernel_cache: cached("kernels"),
            kernel_archive: magray_engine::gpu::carried_kernels(),
            score_cache: cached("scores.json"),
            state_file: self.path("gpu.state_file"),
            memory_trace: None,
            sandbox: self.text("gpu.sandbox").and_then(|word| word.parse().ok()).unwrap_or_default(),
        }
    }

    pub(crate) fn onnx(&self) -> OnnxOptions {
        OnnxOptions {
            library: self.path("onnx.library"),
            use_tensorrt: self.is_on("gpu.optimization.use_tensorrt"),
            graph_optimization: match self.text("gpu.optimization.graph_optimization").as_deref() {
                Some("disabled") => GraphOptimization::Off,
                Some("basic") => GraphOptimization::Basic,
                Some("extended") => GraphOptimization::Extended,
                _ => GraphOptimization::All,
            },
            is_parallel: self.text("gpu.optimization.execution_mode").as_deref() == Some("parallel"),
            cache: self.surroundings.cache.as_ref().map(|folder| folder.join("onnx")),
        }
    }

    pub(crate) fn backend(&self) -> BackendChoice {
        match self.text("model.backend").as_deref() {
            Some("native") => BackendChoice::Native,
            Some("onnx") => BackendChoice::Onnx,
            _ => BackendChoice::Auto,
        }
    }

    /// The arithmetic on the GPU: what names it most directly counts.
    fn gpu_precision(&self) -> PrecisionChoice {
        let named = self.precision("gpu.optimization.precision");
        let quantised = self.is_on("gpu.memory.quantization.enabled");
        let in_8_bits = if quantised { PrecisionChoice::Exactly(Precision::Int8) } else { PrecisionChoice::Auto };
        let in_f32 = match self.is_on("gpu.memory.mixed_precision") {
            true => PrecisionChoice::Auto,
            false => PrecisionChoice::Exactly(Precision::F32),
        };
        named.or(in_8_bits).or(self.precision("gpu.memory.dtype")).or(in_f32)
    }

    fn gpu_rules(&self) -> Rules {
        const MIB: u64 = 1 << 20;
        let preference = match &self.entry("gpu.device_preference").value {
            Value::List(names) => names.iter().filter_map(|name| name.parse::<Backend>().ok()).collect(),
            _ => Rules::default().preference,
        };
        let threshold = match self.entry("gpu.performance_threshold").value {
            Value::Number(threshold) => threshold,
            _ => Rules::PERFORMANCE_THRESHOLD,
        };
        Rules {
            prefer_gpu: self.is_on("gpu.enabled"),
            preference,
            performance_threshold: threshold,
            memory_limit_bytes: self.whole("gpu.memory_limit_mb").map(|limit| (limit as u64).saturating_mul(MIB)),
            fallback: self.is_on("gpu.fallback_enabled"),
            expects_gpu: self.text("embed.device").as_deref() == Some(DeviceChoice::PREFER_GPU),
            is_little_work: false,
        }
    }

    /// The GPUs that may be seen, and the setting that says so where it was no variable.
    fn visible(&self) -> (Visible, Option<&'static str>) {
        let Surroundings { cuda_visible, nvidia_visible, .. } = &self.surroundings;
        let entry = self.entry("gpu.visible_devices");
        let by_file = matches!(entry.source, Source::File { .. });
        let in_file = self.text(entry.setting.key).filter(|_| by_file);
        let named = in_file.as_ref().or(nvidia_visible.as_ref());
        (Visible::parse(named.map(String::as_str), cuda_visible.as_deref()), in_file.map(|_| entry.setting.key))
    }

    pub(crate) fn path(&self, key: &str) -> Option<PathBuf> {
        match &self.entry(key).value {
            Value::Path(path) => Some(path.clone()),
            _ => None,
        }
    }

    pub(super) fn is_on(&self, key: &str) -> bool {
        matches!(self.entry(key).value, Value::Switch(true))
    }
}
