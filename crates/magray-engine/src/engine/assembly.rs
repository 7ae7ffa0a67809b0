//! Puts an engine together: executors, the clock, the watch over GPUs; and takes it apart again.
//! Decides nothing about requests.

use super::choice::Choices;
use super::devices::{self, Gpu, IN_PROCESS, device_of_gpu, gpu_of_device};
use super::dispatcher::{Dispatcher, is_delivering};
use super::division::{Dividing, Division};
use super::executor_handle::{ExecutorHandle, ExecutorStatus, join_until};
use super::gpu_reports::GpuReports;
use super::host_memory::HostMemory;
use super::images::{Images, image_bytes_max};
use super::in_process::InProcess;
use super::in_worker::{InWorker, InWorkerSpec};
use super::later_models::{LaterModels, SlotRoom};
use super::models::{CpuPacker, Models};
use super::profiling::Profiling;
use super::status::{DeviceStatus, ModelStatus, Status};
use super::{EngineModel, EngineOptions, Running, background, division, grouping};
use crate::encoder::LoadError;
use crate::executors::cpu::{TOKENS_EACH, kv_bytes};
use crate::executors::cuda::tokens_a_pass;
use crate::executors::{ExecutorModel, LayersOnGpu};
use crate::health::{GroupSource, HealthSample, HealthSource, Monitor, MonitorOptions, NvmlSource};
#[cfg(feature = "testing")]
use crate::testing::{WorkerKiller, scripted_telemetry};
use crate::worker::WorkerSpec;
use magray_core::ledger::Budget;
use magray_core::schedule::{Allowed, DeviceId, DeviceKind, DeviceSpec, Location, Machine, ModelPlan, ModelView};
use magray_core::{DeviceName, Precision, PrecisionChoice, Reason};
use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Tokens of a batch on the CPU: more takes the cores from everybody else for tens of milliseconds.
const CPU_BATCH_TOKENS: u32 = 8_192;
/// ONNX Runtime on two cores took 22 ms for a text of 128 tokens alone, and 15 ms for each of four together.
const ONNX_BATCH_TOKENS: u32 = 512;
/// Batches that a worker may have: one that is computed and the next, which is begun beside it where there is a stream for it.
const GPU_SLOTS: std::ops::RangeInclusive<usize> = 2..=8;
/// Threads that have no more of a batch begin with the next while the others end it: as many batches as threads.
const CPU_SLOTS: std::ops::RangeInclusive<usize> = 2..=8;
/// A worker's slots have room for answers of this many numbers at least, for models that come later. What is not used costs
/// nothing.
const OUTPUTS_LEAST: usize = 4_096;
/// An answer with a row for each token has at most this many numbers in a worker's slot: 512 MiB, which cost nothing before they
/// are used. A model whose largest batch has more is asked for such rows on the CPU.
const TOKEN_NUMBERS_MAX: usize = 1 << 27;
/// A reset of a GPU by another process is noticed within this time.
const LEDGER_INTERVAL: Duration = Duration::from_secs(1);
/// Workers that were told to stop have this long before they are killed.
const STOP_MAX: Duration = Duration::from_secs(3);

/// The parts that run.
pub(super) struct Assembly {
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) gpu_reports: Arc<GpuReports>,
    threads: Mutex<Threads>,
}

/// What watches and keeps the time.
#[derive(Default)]
struct Threads {
    clock: Option<JoinHandle<()>>,
    /// They end when they are dropped.
    watchers: Vec<Box<dyn Any + Send>>,
}

/// Puts everything together and starts it.
pub(super) fn start(options: &EngineOptions) -> Result<Running, LoadError> {
    let mut options = options.clone();
    for model in &mut options.models {
        model.assigned = division::assigned(model, options.encoder.gpu_layers)?;
    }
    let options = &options;
    let host = HostMemory::of(options);
    // GPUs are looked for while the CPU reads the weights.
    let (devices, models) = std::thread::scope(|scope| {
        let devices = scope.spawn(|| devices::find(options));
        let models = Models::open(&options.models, &options.encoder, options.in_process.as_deref(), host);
        (devices.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), models)
    });
    let (devices, models) = (devices?, models?);
    let (devices, formed) = grouping::form(devices, options, host, |model| models.packer.spec(model))?;
    #[cfg(feature = "testing")]
    if let Some(plan) = &options.faults {
        let vocabulary = models.readers.iter().map(|reader| reader.spec.shape.vocab).max();
        plan.check_vocabulary(vocabulary.unwrap_or(usize::MAX))?;
    }
    let allowed =
        options.models.iter().map(|model| devices.allowed_for(model.assigned)).collect::<Result<Vec<_>, _>>()?;
    for (model, allowed) in options.models.iter().zip(&allowed) {
        let may_be_there = *allowed != Allowed::Cpu && devices.gpus.iter().any(Gpu::generates);
        let are_kept = devices.gpus.iter().all(|gpu| gpu.keeps(options.encoder.kv));
        if model.source.is_decoder() && may_be_there && !are_kept {
            return Err(LoadError::KvBits);
        }
    }
    let (found, absent) = (devices.gpus.clone(), devices.reason.clone().filter(Reason::is_fallback));
    let choices = Choices::new(&options.encoder, &models.packer, devices, allowed);
    // A GPU that is too slow for every model is not even started.
    let gpus = if choices.allowed_for_all() == Some(Allowed::Cpu) { Vec::new() } else { found };
    if !gpus.is_empty() {
        models.teach()?;
    }
    let threads = models.packer.cpu().pool().threads();
    let has_onnx = options.models.iter().any(|model| model.source.is_onnx());
    let onnx = has_onnx.then(|| Gpu::onnx(&options.encoder, threads));
    let gpus: Vec<Gpu> = gpus.into_iter().chain(onnx).collect();
    // The known text rides along, and may not make a pass of its own.
    let gpu_tokens = gpu_batch_tokens(options).saturating_sub(models.known_tokens()).max(1) as u32;
    let cpu = DeviceSpec {
        kind: DeviceKind::Cpu,
        location: Location::InProcess,
        slots: threads.clamp(*CPU_SLOTS.start(), *CPU_SLOTS.end()),
        batch_tokens_max: CPU_BATCH_TOKENS,
        batch_tokens_least: (threads * TOKENS_EACH) as u32,
        memory: Budget { kv_max: kv_bytes(), ..Budget::UNBOUNDED },
        is_reserved: false,
    };
    let gpu = |gpu: &Gpu| DeviceSpec {
        kind: if gpu.is_onnx() { DeviceKind::Cpu } else { DeviceKind::Gpu },
        location: Location::Worker,
        slots: gpu_slots(options),
        batch_tokens_max: if gpu.is_onnx() { CPU_BATCH_TOKENS } else { gpu_tokens },
        batch_tokens_least: if gpu.is_onnx() { ONNX_BATCH_TOKENS } else { 1 },
        memory: gpu.memory(options.encoder.gpu.rules.memory_limit_bytes),
        is_reserved: gpu.is_onnx(),
    };
    let specs: Vec<DeviceSpec> = std::iter::once(cpu).chain(gpus.iter().map(gpu)).collect();
    let dividing = Dividing::new(&options.encoder, &gpus, (threads, host), formed);
    let division = |(at, model): (usize, &EngineModel)| {
        dividing.of(model, models.packer.spec(at)).inspect(|one| dividing.take(one))
    };
    let mut divisions = options.models.iter().enumerate().map(division).collect::<Result<Vec<_>, _>>()?;
    // What a model cannot do without comes first, of all models.
    divisions.iter_mut().for_each(|division| dividing.stand_in(division));
    for (at, (division, model)) in divisions.iter().zip(&options.models).enumerate() {
        division.tell(&model.name);
        if division.is_off_cpu {
            choices.keep_off_cpu(at);
        }
    }
    models.settle(&options.models, &options.encoder.device, |at| divisions[at].is_off_cpu)?;
    let later = later_models(options, &models, &gpus, (dividing, &divisions));
    let plans = plans(options, &models, &later, &divisions);
    let machine = Machine::new(specs, plans, options.schedule.clone());

    let gpu_reports = Arc::new(GpuReports::new(&gpus, options.alerts.clone(), options.encoder.gpu.state_file.clone()));
    let on_change = {
        let gpu_reports = Arc::clone(&gpu_reports);
        Box::new(move |device, change, status: ExecutorStatus| gpu_reports.tell(device, change, status.blames_device))
    };
    let dispatcher = Arc::new(Dispatcher::new(machine, absent, on_change, Profiling::of(options)));
    let in_workers = in_workers(options, &gpus, (&models, &later), Arc::downgrade(&dispatcher));
    let cpu = InProcess::new(IN_PROCESS, Arc::clone(&models.packer), Arc::downgrade(&dispatcher))?;
    let mut all: Vec<Box<dyn ExecutorHandle>> = vec![Box::new(cpu)];
    all.extend(in_workers);
    let given_up: Vec<_> = gpu_reports.out_of_service().into_iter().map(device_of_gpu).collect();
    dispatcher.open(all, &given_up);
    // From here on it must be taken apart, also where a thread cannot be had.
    let assembly = Assembly { dispatcher, gpu_reports, threads: Mutex::default() };
    let threads = || assembly.threads.lock().unwrap_or_else(PoisonError::into_inner);
    threads().clock = Some(thread("clock", &assembly.dispatcher, |dispatcher| dispatcher.keep_time())?);
    if let Some(monitor) = watch(options, &gpus, &assembly)? {
        threads().watchers.push(Box::new(monitor));
    }
    #[cfg(feature = "testing")]
    if let Some(plan) = &options.faults {
        let dispatcher = Arc::clone(&assembly.dispatcher);
        let cpu = vec![dispatcher.executors()[0].name().to_string()];
        let names: Vec<_> = std::iter::once(cpu).chain(gpus.iter().map(names_of)).collect();
        let kill = move |device: usize| dispatcher.executors()[device].strike();
        let killer = WorkerKiller::start(plan, names.into_iter(), assembly.dispatcher.started(), kill)?;
        threads().watchers.push(Box::new(killer));
    }
    let canaries = Arc::clone(&models.packer.canaries);
    // Those that compute take all cores already: half as many keep up with them.
    let background = background::Threads::start(models.packer.cpu().pool().threads() / 2)?;
    let (transfers, passes) = (Arc::default(), Arc::default());
    let unread_max = options.schedule.generation.unread_max;
    let (readers, speculate) = (models.readers, options.speculate);
    Ok(Running { assembly, readers, canaries, later, background, transfers, passes, choices, unread_max, speculate })
}

impl Assembly {
    /// How everything is; the packer knows what models are called and how the CPU computes.
    pub(super) fn status(&self, packer: &CpuPacker, later: &LaterModels) -> Status {
        let dispatcher = &self.dispatcher;
        let view = dispatcher.view();
        let devices = dispatcher.executors().iter().zip(view.devices).enumerate().map(|(at, (executor, schedule))| {
            let status = executor.status();
            let gpu = gpu_of_device(DeviceId(at as u16));
            let health = gpu.map(|gpu| self.gpu_reports.sample(gpu));
            let hardware = gpu.and_then(|gpu| self.gpu_reports.hardware(gpu));
            DeviceStatus {
                name: executor.name(),
                hardware,
                schedule,
                pid: status.pid,
                memory: status.memory,
                memory_peak: status.memory_peak,
                health,
                last_error: status.last_error,
            }
        });
        let model = |(at, view): (usize, ModelView)| ModelStatus {
            name: packer.name(at).to_owned(),
            is_gone: later.is_gone(at),
            provider: dispatcher.executors().iter().find_map(|executor| match executor.name_for(at) {
                DeviceName::Onnx(provider) => provider,
                _ => None,
            }),
            layers: later.layers.get(at).cloned().flatten().map(|layers| LayersOnGpu {
                sums: dispatcher.executors().iter().find_map(|executor| executor.sums(at)),
                ..layers
            }),
            view,
        };
        Status {
            uptime: dispatcher.started().elapsed(),
            requests: view.requests,
            tokens: view.tokens,
            waiting: view.waiting,
            wait: view.wait,
            recent: dispatcher.recent(),
            cpu: packer.status(),
            devices: devices.collect(),
            models: view.models.into_iter().enumerate().map(model).collect(),
        }
    }

    /// Ends everything: the workers, the watch and the clock. A second time it does nothing.
    pub(super) fn end(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let dispatcher = Arc::clone(&self.dispatcher);
        if is_delivering() {
            // A caller let go of the engine in a thread that may belong to it: that cannot wait for itself.
            let _ = std::thread::Builder::new().name("end".to_owned()).spawn(move || take_apart(&dispatcher, threads));
        } else {
            take_apart(&dispatcher, threads);
        }
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        self.end();
    }
}

fn take_apart(dispatcher: &Dispatcher, Threads { mut clock, watchers }: Threads) {
    // From here on a worker that ends is no incident.
    dispatcher.close();
    for executor in dispatcher.executors() {
        executor.stop();
    }
    // The watch may be inside a driver that does not answer: it is not waited for without end.
    let watch = std::thread::Builder::new().name("end of watch".to_owned());
    let mut watch = watch.spawn(move || drop(watchers)).ok();
    let deadline = Instant::now() + STOP_MAX;
    let late: Vec<_> = dispatcher.executors().iter().filter(|executor| !executor.join(deadline)).collect();
    late.iter().for_each(|executor| executor.kill());
    let deadline = Instant::now() + STOP_MAX;
    for executor in late {
        executor.join(deadline);
    }
    join_until(&mut clock, deadline);
    join_until(&mut watch, deadline);
    dispatcher.profiling().finish();
}

/// How the models come and go, with what their weights will take of a GPU in this precision.
fn plans(options: &EngineOptions, models: &Models, later: &LaterModels, divisions: &[Division]) -> Vec<ModelPlan> {
    let plan = |((at, model), division): ((usize, &EngineModel), &Division)| {
        let plan = later.plan(model, models.packer.spec(at), models.packer.bytes(at, later.expected), division);
        ModelPlan { is_in_process: models.packer.has(at), ..plan }
    };
    options.models.iter().enumerate().zip(divisions).map(plan).collect()
}

/// What devices are told of models, and will be of those that come.
fn later_models(
    options: &EngineOptions,
    models: &Models,
    gpus: &[Gpu],
    (dividing, divisions): (Dividing, &[Division]),
) -> LaterModels {
    let asked = options.encoder.precision.or(options.encoder.gpu.precision);
    // What a GPU makes of it is known when the weights are there; 16 bits are what it does most. A simulated one computes as
    // the CPU does.
    let expected = match asked {
        PrecisionChoice::Exactly(precision) => precision,
        PrecisionChoice::Auto if gpus.iter().any(|gpu| gpu.info.is_none() && !gpu.is_onnx()) => {
            models.packer.precision()
        }
        PrecisionChoice::Auto => Precision::Bf16,
    };
    let longest = models.readers.iter().map(|reader| reader.spec.max_tokens).max().unwrap_or(0);
    let kv = options.encoder.kv;
    let in_worker = |(model, division): (&EngineModel, &Division)| {
        let (split, group) = (division.split, division.group.clone());
        ExecutorModel { source: model.source.clone(), precision: asked, kv, split, group }
    };
    LaterModels {
        adding: Mutex::default(),
        images: Arc::new(Images::new(models.readers.iter().map(|reader| image_bytes_max(&reader.spec)).collect())),
        in_workers: Arc::new(options.models.iter().zip(divisions).map(in_worker).collect()),
        dividing,
        layers: divisions.iter().map(|division| division.told.clone()).collect(),
        in_host: divisions.iter().map(Division::in_host).collect(),
        asked,
        kv,
        expected,
        onnx_home: gpus.iter().position(Gpu::is_onnx).map(device_of_gpu),
        gpus_generate: gpus.iter().any(Gpu::generates),
        gpus_keep: gpus.iter().filter(|gpu| gpu.generates()).all(|gpu| gpu.keeps(kv)),
        slot: (!gpus.is_empty()).then(|| {
            let tokens = longest.max(gpu_batch_tokens(options));
            let widest = models.readers.iter().map(|reader| reader.spec.shape.hidden).max().unwrap_or(0);
            let token_numbers = ((tokens + models.known_tokens()) * widest).min(TOKEN_NUMBERS_MAX);
            let known = models.known_tokens();
            SlotRoom { tokens, known, outputs: models.outputs_max().max(OUTPUTS_LEAST), token_numbers }
        }),
        gone: options.models.iter().map(|_| AtomicBool::new(false)).collect(),
    }
}

/// What a fault plan may call a GPU.
#[cfg(feature = "testing")]
fn names_of(gpu: &Gpu) -> Vec<String> {
    gpu.names().iter().map(ToString::to_string).collect()
}

/// An executor in a worker for each GPU.
fn in_workers(
    options: &EngineOptions,
    gpus: &[Gpu],
    (models, later): (&Models, &LaterModels),
    dispatcher: Weak<Dispatcher>,
) -> Vec<Box<dyn ExecutorHandle>> {
    let Some(slot) = later.slot else { return Vec::new() };
    #[cfg(feature = "testing")]
    let faults = |gpu: &Gpu| options.faults.as_ref().map(|plan| plan.of_device(&names_of(gpu)).to_string());
    #[cfg(not(feature = "testing"))]
    let faults = |_: &Gpu| None;
    let in_worker = |(at, gpu): (usize, &Gpu)| {
        let spec = InWorkerSpec {
            id: device_of_gpu(at),
            name: gpu.name,
            exe: options.worker_exe.clone(),
            worker: WorkerSpec {
                device: gpu.device.clone(),
                // Told when it starts.
                models: Vec::new(),
                models_folder: options.models_folder.clone(),
                slots: gpu_slots(options),
                slot_tokens_max: slot.tokens + models.known_tokens(),
                slot_texts_max: options.schedule.batching.texts_max as usize + 1,
                outputs_max: slot.outputs,
                token_numbers_max: slot.token_numbers,
                memory_limit_bytes: options.encoder.gpu.rules.memory_limit_bytes,
                sandbox: options.encoder.gpu.sandbox,
                faults: None,
            },
            faults: faults(gpu),
            packer: Arc::clone(&models.packer),
            models: Arc::clone(&later.in_workers),
            images: Arc::clone(&later.images),
            ready_within: options.schedule.recovery.start_max,
        };
        Box::new(InWorker::new(spec, dispatcher.clone())) as Box<dyn ExecutorHandle>
    };
    gpus.iter().enumerate().map(in_worker).collect()
}

/// Watches over the GPUs: their telemetry, if it is wanted and there is any, and whether one was reset.
fn watch(options: &EngineOptions, gpus: &[Gpu], assembly: &Assembly) -> Result<Option<Monitor>, LoadError> {
    if gpus.is_empty() {
        return Ok(None);
    }
    let real: Vec<Vec<_>> = gpus.iter().map(Gpu::infos).take_while(|infos| !infos.is_empty()).collect();
    let is_wanted = options.monitor_interval.is_some() && !real.is_empty();
    let nvml = is_wanted.then(|| NvmlSource::open(&options.encoder.gpu.search, &real.concat())).flatten();
    let source: Box<dyn HealthSource> = match nvml {
        Some(source) => Box::new(GroupSource::new(source, real.iter().map(Vec::len))),
        None => Box::new(|_: usize| HealthSample::default()),
    };
    #[cfg(feature = "testing")]
    let source = {
        let is_simulated = |gpu: &Gpu| gpu.info.is_none() && !gpu.is_onnx();
        let named: Vec<_> = gpus.iter().map(|gpu| (names_of(gpu), is_simulated(gpu))).collect();
        scripted_telemetry(source, &named, options.faults.as_ref(), assembly.dispatcher.started())
    };
    let interval = options.monitor_interval.unwrap_or(LEDGER_INTERVAL).min(LEDGER_INTERVAL);
    let watched = MonitorOptions { gpus: gpus.len(), interval, ..MonitorOptions::default() };
    let (dispatcher, gpu_reports) = (Arc::downgrade(&assembly.dispatcher), Arc::clone(&assembly.gpu_reports));
    let monitor = Monitor::start(source, watched, move |gpu, condition, sample| {
        let Some(dispatcher) = dispatcher.upgrade() else { return };
        gpu_reports.note(gpu, sample);
        dispatcher.judged(device_of_gpu(gpu), condition);
        if let Some(memory) = sample.memory_use() {
            dispatcher.memory_use(device_of_gpu(gpu), memory);
        }
        for gpu in gpu_reports.returned_to_service() {
            dispatcher.reset(device_of_gpu(gpu));
        }
    });
    Ok(Some(monitor?))
}

fn thread(
    name: &str,
    dispatcher: &Arc<Dispatcher>,
    run: impl FnOnce(&Dispatcher) + Send + 'static,
) -> Result<JoinHandle<()>, LoadError> {
    let dispatcher = Arc::clone(dispatcher);
    Ok(std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&dispatcher))?)
}

/// Tokens of a batch on a GPU: one pass, so that the known text is in the same pass as all others.
fn gpu_batch_tokens(options: &EngineOptions) -> usize {
    match options.encoder.precision.or(options.encoder.gpu.precision) {
        PrecisionChoice::Auto => tokens_a_pass(Precision::Bf16),
        PrecisionChoice::Exactly(precision) => tokens_a_pass(precision),
    }
}

/// One for each stream.
fn gpu_slots(options: &EngineOptions) -> usize {
    options.encoder.gpu.streams.clamp(*GPU_SLOTS.start(), *GPU_SLOTS.end())
}
