//! Opens a session of a graph with the first provider that proves to compute it.
//! Takes no provider on trust: one that leaves its work to the CPU is passed over, with the reason.

use super::library::{Library, is_built_in};
use super::{cuda_libraries, proof};
use crate::executors::{Failure, FailureKind, OnnxDevice};
use crate::spec::{InputMeaning, OnnxInput, OnnxSpec};
use magray_core::OnnxProvider;
use ort::ep::{self, ExecutionProviderDispatch};
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions, Session, SessionInputValue, SessionOutputs};
use ort::value::TensorRef;
use std::path::Path;

/// A session and the provider that computes it.
pub(super) struct Opened {
    pub(super) session: Session,
    pub(super) provider: OnnxProvider,
    /// Of most runs ...
    options: RunOptions<HasSelectedOutputs>,
    /// ... and of those after which the arena gives back what they took.
    shrinking: RunOptions<HasSelectedOutputs>,
}

/// A run with more scores of attention than this is followed by a smaller arena: it takes gigabytes for one long text.
/// Texts of 512 tokens, as many as run together, stay below.
const SCORES_KEPT_MAX: usize = 4096 * 512;

/// Opens a session by the first provider that can.
pub(super) fn open(library: &Library, device: &OnnxDevice, spec: &OnnxSpec) -> Result<Opened, Failure> {
    let mut reasons = Vec::new();
    for &provider in device.providers() {
        match try_provider(library, device, spec, provider) {
            Ok(opened) => {
                if !reasons.is_empty() {
                    let (file, passed_over) = (spec.file.display(), reasons.join("; "));
                    tracing::info!(target: "magray::onnx", %file, %provider, passed_over, "a provider was chosen");
                }
                return Ok(opened);
            }
            Err(reason) => reasons.push(format!("{provider}: {reason}")),
        }
    }
    let message = format!("no provider of ONNX Runtime computes '{}': {}", spec.file.display(), reasons.join("; "));
    Err(Failure::new(FailureKind::Transient, "onnx_model", message))
}

fn try_provider(
    library: &Library,
    device: &OnnxDevice,
    spec: &OnnxSpec,
    provider: OnnxProvider,
) -> Result<Opened, String> {
    if !is_built_in(provider) {
        return Err(format!("{} was built without it", library.path.display()));
    }
    let build = |is_strict: bool, profile: Option<&Path>| {
        let committed = builder(library, device, provider, is_strict, profile)
            .and_then(|mut builder| builder.commit_from_file(&spec.file));
        committed.map_err(|error| error.message().to_owned())
    };
    let options = |shrinks: bool| -> ort::Result<_> {
        let mut options = RunOptions::new()?.with_outputs(OutputSelector::no_default().with(&spec.output.name));
        if shrinks && provider == OnnxProvider::Cpu {
            options.set("memory.enable_memory_arena_shrinkage", "cpu:0")?;
        }
        Ok(options)
    };
    let options = |shrinks| options(shrinks).map_err(|error| error.message().to_owned());
    let (options, shrinking) = (options(false)?, options(true)?);
    if provider == OnnxProvider::Cpu {
        return Ok(Opened { session: build(false, None)?, provider, options, shrinking });
    }
    if matches!(provider, OnnxProvider::Cuda | OnnxProvider::TensorRt) {
        cuda_libraries::load(device.folders());
    }
    let folder =
        device.cache().ok_or("there is no folder for the profile that proves it: set HOME or XDG_CACHE_HOME")?;
    let prefix = folder.join(format!("profile-{}", std::process::id()));
    // Graphs of most exporters have nodes for shapes that a GPU leaves to the CPU: then the profile alone must do.
    let session = build(true, Some(&prefix))
        .or_else(|strict| build(false, Some(&prefix)).map_err(|loose| format!("{strict}; {loose}")));
    let mut opened = Opened { session: session?, provider, options, shrinking };
    let ran = opened.first_run(spec);
    let profile = opened.session.end_profiling().map_err(|error| error.message().to_owned())?;
    let proved = ran.and_then(|()| proof::check(Path::new(&profile), provider));
    // Nothing reads it again; one that stays behind is some kilobytes of the cache.
    let _ = std::fs::remove_file(profile);
    proved.map(|()| opened)
}

impl Opened {
    /// Runs texts of this many tokens.
    pub(super) fn run<'s>(
        &'s mut self,
        inputs: Vec<(&str, SessionInputValue<'_>)>,
        [texts, tokens]: [usize; 2],
    ) -> ort::Result<SessionOutputs<'s>> {
        let is_large = texts.saturating_mul(tokens).saturating_mul(tokens) > SCORES_KEPT_MAX;
        let options = if is_large { &self.shrinking } else { &self.options };
        self.session.run_with_options(inputs, options)
    }

    /// Runs a text of two tokens.
    fn first_run(&mut self, spec: &OnnxSpec) -> Result<(), String> {
        let (texts, tokens) = (spec.fixed_texts.unwrap_or(1), spec.fixed_tokens.unwrap_or(2));
        let (ones, small) = (vec![1_i64; texts * tokens], vec![1_i32; texts * tokens]);
        let zeros = (vec![0_i64; texts * tokens], vec![0_i32; texts * tokens]);
        let numbers = |input: &OnnxInput| match input.meaning {
            InputMeaning::Ids | InputMeaning::Mask => (&ones[..], &small[..]),
            InputMeaning::Types | InputMeaning::Positions => (&zeros.0[..], &zeros.1[..]),
        };
        let inputs = spec.inputs.iter().map(|input| {
            let (wide, narrow) = numbers(input);
            Ok((input.name.as_str(), tensor(input.is_wide, [texts, tokens], wide, narrow)?))
        });
        let inputs = inputs.collect::<ort::Result<Vec<_>>>().map_err(|error| error.message().to_owned())?;
        self.run(inputs, [texts, tokens]).map(drop).map_err(|error| error.message().to_owned())
    }
}

/// A view of numbers as an input, in the width that the graph wants.
pub(super) fn tensor<'a>(
    is_wide: bool,
    shape: [usize; 2],
    wide: &'a [i64],
    narrow: &'a [i32],
) -> ort::Result<SessionInputValue<'a>> {
    Ok(match is_wide {
        true => TensorRef::from_array_view((shape, wide))?.into(),
        false => TensorRef::from_array_view((shape, narrow))?.into(),
    })
}

fn builder(
    library: &Library,
    device: &OnnxDevice,
    provider: OnnxProvider,
    is_strict: bool,
    profile: Option<&Path>,
) -> ort::Result<SessionBuilder> {
    let level = match device.graph_optimization() {
        super::GraphOptimization::Off => GraphOptimizationLevel::Disable,
        super::GraphOptimization::Basic => GraphOptimizationLevel::Level1,
        super::GraphOptimization::Extended => GraphOptimizationLevel::Level2,
        super::GraphOptimization::All => GraphOptimizationLevel::All,
    };
    let mut builder = Session::builder(&library.environment)?
        .with_optimization_level(level)?
        .with_intra_threads(device.threads())?
        .with_parallel_execution(device.is_parallel())?
        // Lengths differ from run to run: a plan of memory for each would be kept for ever.
        .with_memory_pattern(false)?
        // Between runs the cores belong to those who read texts.
        .with_config_entry("session.force_spinning_stop", "1")?;
    builder = builder.with_execution_providers(dispatches(device, provider))?;
    if is_strict {
        builder = builder.with_disable_cpu_fallback()?;
    }
    if let Some(profile) = profile {
        builder = builder.with_profiling(profile)?;
    }
    Ok(builder)
}

fn dispatches(device: &OnnxDevice, provider: OnnxProvider) -> Vec<ExecutionProviderDispatch> {
    let id = i32::try_from(device.device_id()).unwrap_or(0);
    let cuda = || {
        let cuda =
            ep::CUDA::default().with_device_id(id).with_arena_extend_strategy(ep::ArenaExtendStrategy::SameAsRequested);
        match device.memory_limit().and_then(|limit| usize::try_from(limit).ok()) {
            Some(limit) => cuda.with_memory_limit(limit),
            None => cuda,
        }
    };
    let all = match provider {
        // Without an arena every run maps and clears the memory of all its intermediate results.
        OnnxProvider::Cpu => return vec![ep::CPU::default().with_arena_allocator(true).build()],
        OnnxProvider::Cuda => vec![cuda().build()],
        OnnxProvider::TensorRt => {
            let mut tensorrt = ep::TensorRT::default().with_device_id(id).with_fp16(device.has_fp16());
            if let Some(cache) = device.cache().and_then(Path::to_str) {
                tensorrt = tensorrt.with_engine_cache(true).with_engine_cache_path(cache);
                tensorrt = tensorrt.with_timing_cache(true).with_timing_cache_path(cache);
            }
            // What TensorRT does not know stays on the GPU.
            vec![tensorrt.build(), cuda().build()]
        }
        OnnxProvider::DirectMl => vec![ep::DirectML::default().with_device_id(id).build()],
        OnnxProvider::CoreMl => vec![ep::CoreML::default().build()],
        OnnxProvider::OpenVino => vec![ep::OpenVINO::default().with_num_threads(device.threads()).build()],
        // Not of the library.
        OnnxProvider::Rust => Vec::new(),
    };
    all.into_iter().map(ExecutionProviderDispatch::error_on_failure).collect()
}
