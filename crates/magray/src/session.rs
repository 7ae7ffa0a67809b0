//! A model, or several, in an engine of its own, for a command that computes and ends.
//! Decides nothing about devices: the engine does, as it does for a server.

use std::{env, sync::Arc, time::Duration};

use magray_engine::{
    DeviceChoice, DeviceName, EncoderOptions, Precision, Reason, Refusal,
    engine::{Answer, Engine, EngineError, EngineModel, EngineOptions, Limits, ModelPlan, ModelSource, Work},
    profile::Profile,
    spec::{ModelSpec, Task},
};

use crate::{
    config::Config,
    console::Console,
    exit::Failure,
    model,
    output::{Origin, OutputError},
};

/// A GPU may compile its kernels when it starts for the first time.
const STARTED_WITHIN: Duration = Duration::from_secs(120);

pub(crate) struct Session {
    engine: Engine,
    options: EncoderOptions,
    /// Why the CPU is used although a GPU was wanted, where that was known from the start.
    fallback: Option<Reason>,
}

impl Session {
    /// Starts an engine with the model of the settings, for this many bytes of text (`None`: unknown). The default model is
    /// pulled if it is missing.
    pub(crate) fn open(config: &Config, bytes: Option<u64>, console: &Console) -> Result<Self, Failure> {
        let source = model::source_named(&config.model()?.name, config, console)?;
        let mut options = model::encoder_options(config);
        options.gpu.rules.is_little_work = bytes.is_some_and(|bytes| is_little_work(&source, bytes));
        Self::start(config, options, source, console)
    }

    pub(crate) fn start(
        config: &Config,
        options: EncoderOptions,
        source: ModelSource,
        console: &Console,
    ) -> Result<Self, Failure> {
        Self::start_several(config, options, vec![(config.model()?.name, source)], console)
    }

    /// Starts an engine with several models; the session is about the first.
    pub(crate) fn start_several(
        config: &Config,
        options: EncoderOptions,
        models: Vec<(String, ModelSource)>,
        console: &Console,
    ) -> Result<Self, Failure> {
        let model = |(name, source): (String, ModelSource)| {
            let plan = ModelPlan { is_preloaded: true, idle_timeout: None, ..ModelPlan::default() };
            // A device that is named on the command line counts more than an assignment.
            let assigned = match options.device {
                DeviceChoice::Auto => model::assigned(&name, &source, config)?,
                DeviceChoice::Cpu | DeviceChoice::Cuda(_) => None,
            };
            Ok(EngineModel { name, assigned, source, plan })
        };
        let models = models.into_iter().map(model).collect::<Result<Vec<_>, Failure>>()?;
        let name = models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
        let mut how = engine_options(config, options.clone(), models)?;
        // A command bounds by itself what it has under way.
        how.schedule.limits = Limits { requests_max: usize::MAX, tokens_max: u64::MAX, wait_max: None };
        let engine = Engine::start(how).map_err(|reason| model::load_failure(&name, reason))?;
        let mut session = Self { engine, options, fallback: None };
        session.settle(console)?;
        if matches!(&session.spec().task, Task::Embed(embed) if embed.assumed) {
            console.warn(format_args!(
                "'{name}' does not say how its vectors are pooled: taking the mean of all tokens, normalised"
            ));
        }
        Ok(session)
    }

    /// Waits for a GPU that is to be used, calibrates it if it never was, and says which device is used and why.
    fn settle(&mut self, console: &Console) -> Result<(), Failure> {
        let verdict = self.engine.settle(FIRST, STARTED_WITHIN).map_err(Failure::Device)?;
        console.detail(format_args!("computing on {}: {}", verdict.device, verdict.reason));
        self.fallback = Some(verdict.reason).filter(Reason::is_fallback);
        Ok(())
    }

    pub(crate) fn spec(&self) -> &ModelSpec {
        self.engine.spec(FIRST).unwrap_or_else(|| unreachable!("a session has a model"))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Tokenises with all threads.
    pub(crate) fn read<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: Option<&str>) -> Result<Work, Failure> {
        Ok(self.engine.read_by(self.threads(), FIRST, texts, prompt)?)
    }

    /// Where the tokens of a text begin; one whose place is not known counts at its start.
    pub(crate) fn token_starts(&self, text: &str) -> Result<Vec<usize>, Failure> {
        let tokens = self.engine.spell(FIRST, text, false)?;
        Ok(tokens.into_iter().map(|token| token.place.map_or(0, |place| place.start)).collect())
    }

    pub(crate) fn threads(&self) -> usize {
        self.engine.status().cpu.threads
    }

    pub(crate) fn compute(&self, work: Work) -> Result<Answer, Failure> {
        self.take(self.engine.process(work))
    }

    pub(crate) fn take(&self, answer: Result<Answer, EngineError>) -> Result<Answer, Failure> {
        match answer {
            Ok(answer) if answer.fallback.is_some() && self.fallback.is_some() => {
                Ok(Answer { fallback: self.fallback.clone(), ..answer })
            }
            Ok(answer) => Ok(answer),
            Err(EngineError::NoDevice { code, message }) => {
                let reason = Reason::Failed { code, message };
                Err(Failure::Device(Refusal { asked: self.options.device.clone(), reason }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The device that computed, with its name or threads.
    pub(crate) fn describe(&self, origin: &Origin) -> String {
        let (device, status) = (&origin.device, self.engine.status());
        let precision = origin.precision.as_deref().unwrap_or_default();
        let known = status.devices.into_iter().find(|known| known.name.to_string() == *device);
        match known.and_then(|known| known.hardware) {
            Some(name) => format!("{device} ({name}, {precision})"),
            None if device.starts_with("onnx") => format!("{device} (ONNX Runtime, {precision})"),
            None => format!("{device} ({}, {precision}, threads: {})", status.cpu.path, status.cpu.threads),
        }
    }

    /// Does not wait for workers: each ends by itself when its supervisor is gone.
    pub(crate) fn leave(self) {
        if let Some(profile) = self.engine.profile()
            && let Err(error) = profile.finish()
        {
            tracing::warn!(target: "magray::engine", %error, "the profile is not whole: the disk took no more");
        }
        std::mem::forget(self);
    }
}

/// Whether the CPU computes this many bytes of text before a GPU would have started (half a second).
fn is_little_work(source: &ModelSource, bytes: u64) -> bool {
    /// What a slow CPU computes in about that time.
    const FLOPS_MAX: f64 = 2e10;
    /// A low estimate for any common language.
    const TOKEN_BYTES: u64 = 3;
    // What is wrong with the folder is reported when the model is loaded.
    let flops_a_token = source.spec().map(|spec| spec.shape.flops(&[1]) as f64);
    flops_a_token.is_ok_and(|flops| flops * (bytes / TOKEN_BYTES + 1) as f64 <= FLOPS_MAX)
}

pub(crate) const FIRST: usize = 0;

pub(crate) fn engine_options(
    config: &Config,
    mut encoder: EncoderOptions,
    models: Vec<EngineModel>,
) -> Result<EngineOptions, Failure> {
    let settings = config.engine()?;
    if settings.faults.is_some() {
        // What is remembered there outlives this process.
        encoder.gpu.state_file = None;
    }
    let profile = match config.path("log.profile") {
        Some(path) => {
            let made = Profile::create(&path);
            Some(Arc::new(made.map_err(|reason| OutputError::Create { path, reason })?))
        }
        None => None,
    };
    Ok(EngineOptions {
        encoder,
        models,
        models_folder: None,
        gpus: settings.gpus,
        strategy: settings.strategy,
        schedule: settings.schedule,
        speculate: config.speculate(),
        in_process: None,
        worker_exe: env::current_exe().map_err(Failure::OwnProgram)?,
        simulated_gpus: Vec::new(),
        host_bytes: None,
        faults: settings.faults,
        alerts: settings.alerts,
        monitor_interval: settings.monitor_interval,
        profile,
    })
}

/// Tells the user of fallbacks and of other precisions than the one that was named, once for each kind.
#[derive(Default)]
pub(crate) struct Notices {
    fallbacks: Vec<&'static str>,
    devices: Vec<DeviceName>,
}

impl Notices {
    pub(crate) fn tell(&mut self, answer: &Answer, session: &Session, console: &Console) {
        if let Some(reason) = &answer.fallback
            && !self.fallbacks.contains(&reason.code())
        {
            self.fallbacks.push(reason.code());
            console.warn(format_args!("the CPU computes in place of the GPU ({}): {reason}", reason.code()));
        }
        if !self.devices.contains(&answer.device) {
            self.devices.push(answer.device);
            tell_precision(answer.device, answer.precision, &session.options, console);
        }
    }
}

pub(crate) fn tell_precision(device: DeviceName, settled: Precision, options: &EncoderOptions, console: &Console) {
    let (asked, name) = match device {
        DeviceName::Cpu => (options.precision, "the CPU".to_owned()),
        DeviceName::Onnx(_) => (options.precision, "the graph for ONNX Runtime".to_owned()),
        DeviceName::Cuda(_) | DeviceName::Simulated(_) => {
            (options.precision.or(options.gpu.precision), device.to_string())
        }
    };
    if let Some(asked) = asked.replaced_by(settled) {
        console.warn(format_args!("{name} does not compute in {asked}: {settled} is used instead"));
    }
}
