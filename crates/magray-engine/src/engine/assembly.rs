//! Puts an engine together: devices, lanes, the clock, the watch over GPUs; and takes it apart again.
//! Decides nothing about requests.

use super::cpu_lane::CpuLane;
use super::desk::Desk;
use super::devices::{self, Devices, Gpu};
use super::lane::Lane;
use super::models::Models;
use super::news::News;
use super::tampering::{Strikes, Tampered};
use super::worker_lane::{LaneSpec, WorkerLane};
use super::{EngineOptions, Running};
use crate::encoder::LoadError;
use crate::health::{HealthSource, Monitor, MonitorOptions, NvmlSource, ScriptedSource};
use crate::worker::{CudaDevice, WorkerDevice, WorkerModel, WorkerSpec};
use magray_core::DeviceName;
use magray_core::schedule::{Allowed, DeviceId, DeviceKind, DeviceSpec, Machine};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Tokens of a batch on the CPU: more takes the cores from everybody else for tens of milliseconds.
const CPU_BATCH_TOKENS: u32 = 8_192;
/// Tokens of a batch on a GPU: one pass over the largest.
const GPU_BATCH_TOKENS: u32 = 32_768;
/// One batch is computed while the next is at hand.
const GPU_SLOTS: usize = 2;
/// The CPU's lane is the first; GPUs follow.
const CPU: DeviceId = DeviceId(0);
/// Workers that were told to stop have this long before they are killed.
const STOP_MAX: Duration = Duration::from_secs(3);

/// The parts that run.
pub(super) struct Assembly {
    pub(super) desk: Arc<Desk>,
    pub(super) news: Arc<News>,
    threads: Mutex<Option<Threads>>,
}

/// What watches and keeps the time.
struct Threads {
    clock: JoinHandle<()>,
    monitor: Option<Monitor>,
    strikes: Option<Strikes>,
}

/// The device of a GPU, by its place among the GPUs.
pub(super) fn device_of_gpu(gpu: usize) -> DeviceId {
    DeviceId(gpu as u16 + 1)
}

/// Puts everything together and starts it.
pub(super) fn start(options: &EngineOptions) -> Result<Running, LoadError> {
    let sources: Vec<_> = options.models.iter().map(|model| model.source.clone()).collect();
    // GPUs are looked for while the CPU reads the weights.
    let (devices, models) = std::thread::scope(|scope| {
        let devices = scope.spawn(|| devices::find(options));
        let models = Models::load(&sources, &options.encoder);
        (devices.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), models)
    });
    let (Devices { gpus, absent, allowed }, models) = (devices?, models?);
    let cpu = DeviceSpec { kind: DeviceKind::Cpu, slots: 1, batch_tokens_max: CPU_BATCH_TOKENS };
    let gpu = DeviceSpec { kind: DeviceKind::Gpu, slots: GPU_SLOTS, batch_tokens_max: GPU_BATCH_TOKENS };
    let specs = std::iter::once(cpu).chain(gpus.iter().map(|_| gpu)).collect();
    let machine = Machine::new(specs, options.schedule.clone());

    let news = Arc::new(News::new(&gpus, options.alerts.clone(), options.encoder.gpu.state_file.clone()));
    let on_change = {
        let news = Arc::clone(&news);
        Box::new(move |device, change| news.tell(device, change))
    };
    let desk = Arc::new(Desk::new(machine, absent, on_change));
    let allowed = options.models.iter().map(|model| match model.assigned {
        Some(DeviceName::Cpu) => Allowed::Cpu,
        Some(name) => {
            let at = gpus.iter().position(|gpu| gpu.name() == name);
            at.map_or(allowed, |at| Allowed::Only(device_of_gpu(at)))
        }
        None => allowed,
    });
    let allowed = allowed.collect();
    let lanes = lanes(options, &gpus, &models, Arc::downgrade(&desk));
    let mut all: Vec<Box<dyn Lane>> = vec![Box::new(CpuLane::new(CPU, models.on_cpu, Arc::downgrade(&desk))?)];
    all.extend(lanes);
    desk.open(all);
    for gpu in news.out_of_service() {
        desk.give_up(device_of_gpu(gpu));
    }
    let threads = Threads {
        clock: thread("clock", &desk, |desk| desk.keep_time())?,
        monitor: watch(options, &gpus, &desk, Arc::clone(&news))?,
        strikes: Strikes::start(options.faults.as_ref(), &desk)?,
    };
    Ok(Running {
        assembly: Assembly { desk, news, threads: Mutex::new(Some(threads)) },
        readers: models.readers,
        threads: models.threads,
        allowed,
    })
}

impl Assembly {
    /// Ends everything: the workers, the watch and the clock. A second time it does nothing.
    pub(super) fn end(&self) {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Threads { clock, monitor, strikes }) = threads else { return };
        drop((monitor, strikes));
        // From here on a worker that ends is no incident.
        self.desk.close();
        for lane in self.desk.lanes() {
            lane.stop();
        }
        let deadline = Instant::now() + STOP_MAX;
        for lane in self.desk.lanes() {
            if !lane.join(deadline) {
                lane.kill();
                lane.join(Instant::now() + STOP_MAX);
            }
        }
        let _ = clock.join();
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        self.end();
    }
}

/// A lane for each GPU.
fn lanes(options: &EngineOptions, gpus: &[Gpu], models: &Models, desk: Weak<Desk>) -> Vec<Box<dyn Lane>> {
    let longest = models.readers.iter().map(|reader| reader.spec.max_tokens).max().unwrap_or(0);
    // The known text rides along, and may not push another out.
    let known = models.canaries.iter().map(|canary| canary.tokens().ids.len()).max().unwrap_or(0);
    let precision = options.encoder.precision.or(options.encoder.gpu.precision);
    let worker_models = options.models.iter().map(|model| WorkerModel { source: model.source.clone(), precision });
    let worker_models: Vec<_> = worker_models.collect();
    let lane = |(at, gpu): (usize, &Gpu)| {
        let device = match gpu {
            Gpu::Cuda(gpu) => WorkerDevice::Cuda(CudaDevice::new(gpu, &options.encoder.gpu)),
            Gpu::Simulated(gpu) => WorkerDevice::Simulated(*gpu),
        };
        let spec = LaneSpec {
            id: device_of_gpu(at),
            name: gpu.name(),
            exe: options.worker_exe.clone(),
            worker: WorkerSpec {
                device,
                models: worker_models.clone(),
                slots: GPU_SLOTS,
                slot_tokens_max: longest.max(GPU_BATCH_TOKENS as usize) + known,
                slot_texts_max: options.schedule.batching.texts_max as usize + 1,
                faults: None,
            },
            faults: options.faults.as_ref().map(|plan| plan.of_device(&gpu.name().to_string())),
            canaries: Arc::clone(&models.canaries),
            ready_within: options.schedule.recovery.start_max,
        };
        Box::new(WorkerLane::new(spec, desk.clone())) as Box<dyn Lane>
    };
    gpus.iter().enumerate().map(lane).collect()
}

/// Watches over the GPUs, where somebody tells how they are.
fn watch(
    options: &EngineOptions,
    gpus: &[Gpu],
    desk: &Arc<Desk>,
    news: Arc<News>,
) -> Result<Option<Monitor>, LoadError> {
    let Some(interval) = options.monitor_interval else { return Ok(None) };
    let real: Vec<_> = gpus.iter().filter_map(Gpu::info).cloned().collect();
    let source: Box<dyn HealthSource> = match NvmlSource::open(&options.encoder.gpu.search, &real) {
        _ if gpus.is_empty() => return Ok(None),
        Some(source) if !real.is_empty() => Box::new(source),
        _ => Box::new(ScriptedSource::new(Vec::new())),
    };
    let source = match &options.faults {
        Some(plan) => Box::new(Tampered::new(source, plan, gpus, desk.started())),
        None => source,
    };
    let watched = MonitorOptions { gpus: gpus.len(), interval, ..MonitorOptions::default() };
    let desk = Arc::downgrade(desk);
    let monitor = Monitor::start(source, watched, move |gpu, condition, sample| {
        let Some(desk) = desk.upgrade() else { return };
        news.note(gpu, sample);
        desk.judged(device_of_gpu(gpu), condition);
        for gpu in news.returned_to_service() {
            desk.reset(device_of_gpu(gpu));
        }
    });
    Ok(Some(monitor?))
}

fn thread(name: &str, desk: &Arc<Desk>, run: impl FnOnce(&Desk) + Send + 'static) -> Result<JoinHandle<()>, LoadError> {
    let desk = Arc::clone(desk);
    Ok(std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&desk))?)
}
