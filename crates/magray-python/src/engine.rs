//! An engine with one model, started as the commands start theirs: on the CPU in this process, on GPUs in workers.
//! Decides nothing about devices: the engine does.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use magray_engine::engine::{
    Engine as Running, EngineModel, EngineOptions, Limits, ModelPlan, ModelSource, Options, Output,
};
use magray_engine::executors::BackendChoice;
use magray_engine::gpu::GpuOptions;
use magray_engine::spec::decoder::DecoderSource;
use magray_engine::spec::{ModelSpec, Task};
use magray_engine::store::{ModelRef, Store};
use magray_engine::testing::{FaultPlan, SimulatedGpu};
use magray_engine::{DeviceChoice, EncoderOptions, LoadError, PrecisionChoice, Reason};
use magray_generation::chat_template;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use serde_json::json;

use crate::encoding::{Input, MODEL, Request, encode};
use crate::failure::Failure;
use crate::generation::{Answers, Asked};
use crate::leaving::{Home, detached, is_left_alone};
use crate::pending::Pending;

/// A GPU may compile its kernels when it starts for the first time.
const STARTED_WITHIN: Duration = Duration::from_secs(120);

#[pyclass(frozen, module = "magray._magray")]
pub(crate) struct Engine {
    /// `None` when it was closed.
    running: std::sync::Mutex<Option<Running>>,
    fallback: Option<String>,
    home: Home,
}

/// How an engine is asked for.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Wanted {
    name: String,
    path: PathBuf,
    device: String,
    threads: Option<usize>,
    precision: String,
    backend: String,
    worker: Option<PathBuf>,
    cache: Option<PathBuf>,
    faults: String,
    simulated_gpus: usize,
}

/// The folder of a model of the store, or of its own; `None`: it is to be pulled.
#[pyfunction]
pub(crate) fn find_model(python: Python<'_>, store: PathBuf, name: &str) -> PyResult<Option<PathBuf>> {
    let model = ModelRef::parse(name).map_err(Failure::from)?;
    Ok(detached(python, || Store::open(store).find(&model))?.map_err(Failure::from)?)
}

impl Wanted {
    fn source(&self) -> Result<ModelSource, Failure> {
        if self.path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf")) {
            return Ok(ModelSource::Decoder(DecoderSource::Path(self.path.clone())));
        }
        let backend = match self.backend.as_str() {
            "auto" => BackendChoice::Auto,
            "native" => BackendChoice::Native,
            "onnx" => BackendChoice::Onnx,
            other => return Err(Failure::input(format!("there is no backend '{other}': auto, native or onnx"))),
        };
        let (source, _) = ModelSource::in_folder(self.path.clone(), backend, self.precision()?)
            .map_err(|error| Failure::from(LoadError::from(error)))?;
        Ok(source)
    }

    fn precision(&self) -> Result<PrecisionChoice, Failure> {
        self.precision.parse().map_err(|_| Failure::input(format!("there is no precision '{}'", self.precision)))
    }

    fn options(&self) -> Result<EngineOptions, Failure> {
        let plan = ModelPlan { is_preloaded: true, idle_timeout: None, ..ModelPlan::default() };
        let model = EngineModel { name: self.name.clone(), assigned: None, source: self.source()?, plan };
        let device: DeviceChoice =
            self.device.parse().map_err(|_| Failure::input(format!("there is no device '{}'", self.device)))?;
        let options = match &self.worker {
            Some(worker) if device != DeviceChoice::Cpu || self.simulated_gpus > 0 => {
                EngineOptions::with_gpus(vec![model], worker.clone())
            }
            None if device != DeviceChoice::Cpu && device != DeviceChoice::Auto => {
                return Err(Failure::input("GPUs are used by the program magray, and it was not found"));
            }
            _ => EngineOptions::on_cpu(vec![model]),
        };
        let device = if self.worker.is_none() { DeviceChoice::Cpu } else { device };
        let cached = |name: &str| self.cache.as_ref().map(|folder| folder.join(name));
        let gpu = GpuOptions {
            kernel_cache: cached("kernels"),
            score_cache: cached("scores.json"),
            ..options.encoder.gpu.clone()
        };
        let encoder =
            EncoderOptions { precision: self.precision()?, threads: self.threads, device, gpu, ..options.encoder };
        let faults = match self.faults.as_str() {
            "" => None,
            plan => Some(plan.parse::<FaultPlan>().map_err(|error| Failure::input(format!("faults: {error}")))?),
        };
        let simulated = |index| SimulatedGpu { index, ..SimulatedGpu::default() };
        // Who calls bounds what it has under way.
        let limits = Limits { requests_max: usize::MAX, tokens_max: u64::MAX, wait_max: None };
        Ok(EngineOptions {
            encoder,
            schedule: Options { limits, ..options.schedule },
            simulated_gpus: (0..self.simulated_gpus).map(simulated).collect(),
            faults,
            ..options
        })
    }

    fn start(&self) -> Result<(Running, Option<String>), Failure> {
        let options = self.options()?;
        let uses_gpus = options.encoder.device != DeviceChoice::Cpu;
        let running = Running::start(options)?;
        if !uses_gpus {
            return Ok((running, None));
        }
        let verdict = running.settle(MODEL, STARTED_WITHIN)?;
        Ok((running, Some(verdict.reason).filter(Reason::is_fallback).map(|reason| reason.to_string())))
    }
}

impl Engine {
    fn running(&self) -> PyResult<Running> {
        self.home.check()?;
        let running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(running.clone().ok_or(Failure::input("this engine was closed"))?)
    }

    fn encode(&self, request: Request) -> PyResult<Pending> {
        let running = self.running()?;
        Ok(Pending::new(Arc::clone(&request.done), encode(running, Arc::new(request))))
    }
}

#[pymethods]
impl Engine {
    #[new]
    fn new(python: Python<'_>, wanted: Wanted) -> PyResult<Self> {
        let (running, fallback) = detached(python, || wanted.start())??;
        Ok(Self { running: std::sync::Mutex::new(Some(running)), fallback, home: Home::here() })
    }

    /// What the model is, as JSON.
    fn model(&self) -> PyResult<String> {
        let running = self.running()?;
        let Some(spec) = running.spec(MODEL) else { return Err(Failure::input("the engine has no model").into()) };
        Ok(described(spec).to_string())
    }

    /// How the engine is, as JSON.
    fn status(&self) -> PyResult<String> {
        let status = self.running()?.status();
        let devices: Vec<_> = status.devices.iter().map(|device| {
            let state = format!("{:?}", device.schedule.state);
            json!({"name": device.name.to_string(), "hardware": device.hardware, "state": state, "texts": device.schedule.texts_finished})
        }).collect();
        let cpu = json!({"path": status.cpu.path.to_string(), "threads": status.cpu.threads});
        let (waiting, requests) = (status.waiting, status.requests);
        let shown = json!({"devices": devices, "cpu": cpu, "waiting": waiting, "requests": requests, "fallback": self.fallback});
        Ok(shown.to_string())
    }

    /// The rows of texts: one a text, or one a token.
    #[pyo3(signature = (texts, prompt, portion, columns_max, is_scaled, by_token))]
    fn embed(
        &self,
        texts: Vec<PyBackedStr>,
        prompt: Option<String>,
        portion: usize,
        columns_max: Option<usize>,
        is_scaled: bool,
        by_token: bool,
    ) -> PyResult<Pending> {
        let output = if by_token { Output::Tokens } else { Output::Texts };
        let (input, done) = (Input::Texts(texts), Arc::new(AtomicUsize::new(0)));
        self.encode(Request { input, prompt, output, portion, columns_max, is_scaled, done })
    }

    /// The numbers of pairs, one a label.
    fn score(&self, pairs: Vec<(PyBackedStr, PyBackedStr)>, portion: usize) -> PyResult<Pending> {
        let (input, done) = (Input::Pairs(pairs), Arc::new(AtomicUsize::new(0)));
        let (prompt, columns_max) = (None, None);
        self.encode(Request { input, prompt, output: Output::Texts, portion, columns_max, is_scaled: false, done })
    }

    /// The token ids of texts, special ones included.
    fn tokens(&self, python: Python<'_>, texts: Vec<PyBackedStr>) -> PyResult<Vec<Vec<u32>>> {
        let running = self.running()?;
        let spell = |text: &PyBackedStr| running.spell(MODEL, text, true);
        let ids = detached(python, || texts.iter().map(spell).collect::<Result<Vec<_>, _>>())?;
        Ok(ids.map_err(Failure::from)?.into_iter().map(|text| text.iter().map(|token| token.id).collect()).collect())
    }

    /// Answers to a conversation, or how a text goes on.
    fn generate(&self, python: Python<'_>, request: &str) -> PyResult<Answers> {
        let running = self.running()?;
        let begin = || {
            let asked: Asked = serde_json::from_str(request)?;
            let template = chat_template(&running, MODEL).map_err(magray_generation::JobError::from)?;
            let prepared = asked.into_job()?.prepare(&running, template.as_ref())?;
            Answers::begin(&running, &prepared)
        };
        Ok(detached(python, begin)??)
    }

    /// Ends it when the work that it has is done. Others who have it get an error from then on.
    fn close(&self, python: Python<'_>) -> PyResult<()> {
        self.home.check()?;
        let running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(running) = running {
            detached(python, || running.shut_down())?;
        }
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if is_left_alone(self.home) {
            std::mem::forget(running);
        } else if let Some(running) = running {
            // It waits for threads, and this one has the interpreter.
            let ending = std::thread::Builder::new().name("end".to_owned());
            drop(ending.spawn(move || drop(running)));
        }
    }
}

fn described(spec: &ModelSpec) -> serde_json::Value {
    let mut shown = json!({
        "does": spec.does().code(),
        "dimensions": spec.outputs(),
        "max_tokens": spec.max_tokens,
        "prompts": spec.prompts,
        "default_prompt": spec.default_prompt,
    });
    match &spec.task {
        Task::Embed(embed) => {
            shown["include_prompt"] = embed.include_prompt.into();
            shown["normalizes"] = embed.normalize.into();
        }
        Task::Classify(classify) => shown["labels"] = json!(classify.labels),
        Task::Generate(_) => {}
    }
    shown
}
