//! A GPU that is none: the CPU's arithmetic behind a GPU's interface, with memory, speed and failures by script.
//! Meant for tests on machines without a GPU; nobody should compute with it.

use crate::encoder::LoadError;
use crate::executors::cpu::CpuExecutor;
use crate::executors::{Accelerator, NewTokens, OnFilled, SequenceStep};
use crate::gpu::{GpuError, MemoryMeter, MemoryStats};
use crate::model::{Model, TensorSource};
use crate::packed::Tokens;
use crate::spec::ModelSpec;
use filling::{Filling, Mark};
use generating::Sequences;
use magray_core::pool::PoolStats;
use magray_core::{EncoderShape, Precision, PrecisionChoice};
use magray_device::SharedMemory;
use magray_device::cpu::Cpu;
use magray_device::cuda::{CudaError, DeviceError, InjectedFault};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

mod filling;
mod generating;

/// What a simulated GPU is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedGpu {
    /// Its number, for its name.
    pub index: usize,
    /// Its memory. Weights and activations take of it what they would take of a real one's.
    pub memory_bytes: u64,
    /// What every batch takes at least.
    pub batch_us: u64,
    /// What every token adds to that. Where the CPU is slower, a batch takes as long as the CPU needs.
    pub token_ns: u64,
    /// What weights take to come from files, for each MiB.
    pub load_us_per_mib: u64,
    /// What weights take to come from the host's memory, for each MiB.
    pub wake_us_per_mib: u64,
    /// What weights take to leave, for each MiB.
    pub offload_us_per_mib: u64,
    /// What it takes to keep weights in the host's memory too, for each MiB.
    pub fill_us_per_mib: u64,
    /// Tokens of sequences whose state it keeps; none: it generates nothing.
    pub kv_tokens_max: u64,
}

impl Default for SimulatedGpu {
    fn default() -> Self {
        Self {
            index: 0,
            memory_bytes: 8 << 30,
            batch_us: 0,
            token_ns: 0,
            load_us_per_mib: 0,
            wake_us_per_mib: 0,
            offload_us_per_mib: 0,
            fill_us_per_mib: 0,
            kv_tokens_max: 0,
        }
    }
}

/// The simulated device, shared by the models on it.
pub(crate) struct SimulatedDevice {
    gpu: SimulatedGpu,
    cpu: Arc<Cpu>,
    memory: Arc<Memory>,
    /// What every call fails with after a fault that lasts.
    broken: Mutex<Option<CudaError>>,
}

/// A model on it.
pub(crate) struct SimulatedModel {
    device: Arc<SimulatedDevice>,
    executor: CpuExecutor,
    shape: EncoderShape,
    precision: Precision,
    weight_bytes: u64,
    /// Whether the weights take their part of the device's memory; the numbers themselves never leave this process.
    is_resident: bool,
    /// The image that the weights are kept in, whole or on its way.
    filling: Option<Filling>,
    /// The largest batch that there is room for.
    room_tokens: usize,
    /// What the room takes. Room that was outgrown stays taken until it is trimmed, as in a heap full of holes.
    room_bytes: u64,
    /// The state of sequences.
    sequences: Sequences,
}

#[derive(Debug)]
struct Memory {
    total: u64,
    /// What may be taken of it.
    limit: u64,
    allocated: AtomicU64,
    peak: AtomicU64,
}

impl SimulatedDevice {
    /// Opens it; of its memory no more is taken than the limit allows.
    pub(crate) fn open(gpu: SimulatedGpu, limit: Option<u64>) -> Result<Arc<Self>, LoadError> {
        let total = gpu.memory_bytes;
        let limit = limit.map_or(total, |limit| limit.min(total));
        let memory = Arc::new(Memory { total, limit, allocated: AtomicU64::new(0), peak: AtomicU64::new(0) });
        let cpu = Arc::new(Cpu::new(None, Some(1))?);
        Ok(Arc::new(Self { gpu, cpu, memory, broken: Mutex::new(None) }))
    }

    /// What it is called.
    pub(crate) fn name(&self) -> String {
        "Simulated GPU".to_owned()
    }

    /// Names it as UUIDs name real ones.
    pub(crate) fn uuid(&self) -> String {
        format!("SIM-{}", self.gpu.index)
    }

    pub(crate) fn meter(&self) -> MemoryMeter {
        let memory = Arc::clone(&self.memory);
        Arc::new(move || memory.stats())
    }

    /// Puts a model on it, from its files.
    pub(crate) fn load(
        self: &Arc<Self>,
        spec: &ModelSpec,
        source: &dyn TensorSource,
        precision: PrecisionChoice,
    ) -> Result<(SimulatedModel, Precision), LoadOnSimulated> {
        self.place(spec, source, precision, self.gpu.load_us_per_mib)
    }

    /// Puts a model on it from an image, of which so many bytes are in use. The numbers come from the files all the same:
    /// what an image of a simulated GPU holds is a mark, by which one that is not whole is known.
    pub(crate) fn load_from_image(
        self: &Arc<Self>,
        spec: &ModelSpec,
        source: &dyn TensorSource,
        precision: PrecisionChoice,
        (memory, bytes): (SharedMemory, u64),
    ) -> Result<(SimulatedModel, Precision), LoadOnSimulated> {
        if Mark::read(&memory) != Some(Mark { bytes }) {
            let expected = spec.shape.weight_bytes(precision.settle_cpu(self.cpu.has_fast_bf16()));
            return Err(LoadOnSimulated::Gpu(DeviceError::WrongImage { expected, found: 0 }.into()));
        }
        let (mut model, precision) = self.place(spec, source, precision, self.gpu.wake_us_per_mib)?;
        model.filling = Some(Filling::whole(memory));
        Ok((model, precision))
    }

    fn place(
        self: &Arc<Self>,
        spec: &ModelSpec,
        source: &dyn TensorSource,
        precision: PrecisionChoice,
        us_per_mib: u64,
    ) -> Result<(SimulatedModel, Precision), LoadOnSimulated> {
        self.check().map_err(LoadOnSimulated::Gpu)?;
        let precision = precision.settle_cpu(self.cpu.has_fast_bf16());
        let weight_bytes = spec.shape.weight_bytes(precision);
        self.memory.take(weight_bytes).map_err(|error| LoadOnSimulated::Gpu(error.into()))?;
        std::thread::sleep(duration(weight_bytes, us_per_mib));
        let packed = Model::pack(&*self.cpu, spec, source, precision).map_err(|error| {
            self.memory.give_back(weight_bytes);
            LoadOnSimulated::Load(error.into())
        })?;
        let executor = CpuExecutor::new(Arc::clone(&self.cpu), packed);
        let (device, shape) = (Arc::clone(self), spec.shape);
        let model = SimulatedModel {
            device,
            executor,
            shape,
            precision,
            weight_bytes,
            is_resident: true,
            filling: None,
            room_tokens: 0,
            room_bytes: 0,
            sequences: Sequences::new(spec.shape.vocab, self.gpu.kv_tokens_max),
        };
        Ok((model, precision))
    }

    /// Lets a batch of so many tokens take its time.
    fn take_time(&self, tokens: usize, began: Instant) {
        let SimulatedGpu { batch_us, token_ns, .. } = self.gpu;
        let takes = Duration::from_micros(batch_us)
            .saturating_add(Duration::from_nanos(token_ns.saturating_mul(tokens as u64)));
        std::thread::sleep(takes.saturating_sub(began.elapsed()));
    }

    /// Whether it still works.
    fn check(&self) -> Result<(), GpuError> {
        match &*self.broken() {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }

    fn broken(&self) -> MutexGuard<'_, Option<CudaError>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a model is not on a simulated GPU.
#[derive(Debug)]
pub(crate) enum LoadOnSimulated {
    /// The device refused it.
    Gpu(GpuError),
    /// The model is broken.
    Load(LoadError),
}

impl SimulatedModel {
    /// Takes the memory that a batch needs beyond what is there.
    fn make_room(&mut self, tokens: usize) -> Result<(), CudaError> {
        if tokens > self.room_tokens {
            let bytes = self.shape.activation_bytes(self.precision, tokens);
            self.device.memory.take(bytes)?;
            self.room_bytes += bytes;
            self.room_tokens = tokens;
        }
        Ok(())
    }
}

impl Accelerator for SimulatedModel {
    fn outputs(&self) -> usize {
        self.executor.outputs()
    }

    fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError> {
        let began = Instant::now();
        self.device.check()?;
        assert!(self.is_resident, "who gives it batches knows that its weights are there");
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        self.make_room(tokens)?;
        self.executor.run(texts, skip, out);
        self.device.take_time(tokens, began);
        Ok(())
    }

    fn advance(&mut self, steps: &[SequenceStep<'_>]) -> Result<Vec<NewTokens>, GpuError> {
        let began = Instant::now();
        self.device.check()?;
        let new = steps.iter().map(|step| self.sequences.advance(step)).collect::<Result<_, CudaError>>()?;
        self.device.take_time(steps.iter().map(|step| step.ids.len()).sum(), began);
        Ok(new)
    }

    fn free(&mut self, sequence: u64) {
        self.sequences.free(sequence);
    }

    fn is_resident(&self) -> bool {
        self.is_resident
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn workspace_bytes(&self) -> u64 {
        self.room_bytes
    }

    fn keep_image(&mut self, image: SharedMemory, on_filled: OnFilled) {
        let mark = Mark { bytes: self.weight_bytes };
        let takes = duration(self.weight_bytes, self.device.gpu.fill_us_per_mib);
        self.filling = Some(Filling::begin(image, mark, takes, on_filled));
    }

    fn offload(&mut self) -> Result<(), GpuError> {
        if self.is_resident {
            if let Some(filling) = &mut self.filling {
                filling.wait();
            }
            std::thread::sleep(duration(self.weight_bytes, self.device.gpu.offload_us_per_mib));
            self.device.memory.give_back(self.weight_bytes);
            self.is_resident = false;
        }
        Ok(())
    }

    fn wake(&mut self) -> Result<(), GpuError> {
        if !self.is_resident {
            self.device.check()?;
            self.device.memory.take(self.weight_bytes)?;
            std::thread::sleep(duration(self.weight_bytes, self.device.gpu.wake_us_per_mib));
            self.is_resident = true;
        }
        Ok(())
    }

    fn memory_used_bytes(&self) -> u64 {
        if self.is_resident { self.weight_bytes + self.room_bytes } else { self.room_bytes }
    }

    fn trim(&mut self) {
        self.device.memory.give_back(std::mem::take(&mut self.room_bytes));
        self.room_tokens = 0;
    }

    fn inject(&mut self, fault: InjectedFault) -> Result<(), GpuError> {
        match fault {
            InjectedFault::IllegalAddress => {
                // As the driver does it: this call fails, and every later one too.
                let error = CudaError::Sticky { code: 700, name: "illegal_address".to_owned() };
                *self.device.broken() = Some(error.clone());
                Err(error.into())
            }
            InjectedFault::Hang => loop {
                std::thread::park();
            },
        }
    }
}

impl Drop for SimulatedModel {
    fn drop(&mut self) {
        self.device.memory.give_back(self.memory_used_bytes());
    }
}

/// What moving so many bytes takes.
fn duration(bytes: u64, us_per_mib: u64) -> Duration {
    let us = (u128::from(bytes) * u128::from(us_per_mib)) >> 20;
    Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX))
}

impl Memory {
    fn take(&self, bytes: u64) -> Result<(), CudaError> {
        let fits = |allocated: u64| allocated.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let before = self.allocated.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        let before = before.map_err(|_| CudaError::OutOfMemory)?;
        self.peak.fetch_max(before + bytes, Ordering::AcqRel);
        Ok(())
    }

    fn give_back(&self, bytes: u64) {
        let before = self.allocated.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "no more is given back than was taken");
    }

    fn stats(&self) -> MemoryStats {
        let allocated = self.allocated.load(Ordering::Acquire);
        let peak_allocated = self.peak.load(Ordering::Acquire).max(allocated);
        let (total, free) = (self.total, self.total - allocated);
        // A pool without holes: what is used is all that it has.
        let pool = PoolStats {
            reserved: allocated,
            used: allocated,
            peak_reserved: peak_allocated,
            peak_used: peak_allocated,
            largest_free: free,
            ..PoolStats::default()
        };
        MemoryStats { allocated, reserved: allocated, spare: 0, peak_allocated, free, total, pool }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::synthetic_spec;
    use crate::model::Synthetic;

    fn model(memory_bytes: u64) -> SimulatedModel {
        let gpu = SimulatedGpu { memory_bytes, ..SimulatedGpu::default() };
        let spec = synthetic_spec("tiny".parse().unwrap());
        let device = SimulatedDevice::open(gpu, None).unwrap();
        device.load(&spec, &Synthetic, PrecisionChoice::Exactly(Precision::F32)).unwrap().0
    }

    fn run(model: &mut SimulatedModel, tokens: usize) -> Result<Vec<f32>, &'static str> {
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let mut out = vec![0.0; model.outputs()];
        let ran = model.run(&[Tokens { ids: &ids, types: &[] }], 0, &mut out);
        ran.map(|()| out).map_err(|error| error.code())
    }

    /// Memory for the weights and for batches of so many tokens.
    fn room_for(tokens: usize) -> u64 {
        let shape: EncoderShape = "tiny".parse().unwrap();
        shape.weight_bytes(Precision::F32) + shape.activation_bytes(Precision::F32, tokens)
    }

    #[test]
    fn a_batch_too_large_fails_and_smaller_ones_go_on() {
        let mut model = model(room_for(100));
        assert_eq!(run(&mut model, 101), Err("out_of_memory"));
        assert!(run(&mut model, 100).is_ok() && run(&mut model, 50).is_ok());
    }

    #[test]
    fn trimming_makes_room_that_holes_had_taken() {
        let mut model = model(room_for(100));
        let meter = model.device.meter();
        assert!(run(&mut model, 60).is_ok());
        assert_eq!(run(&mut model, 70), Err("out_of_memory"), "the room for 60 is in the way");
        model.trim();
        assert!(run(&mut model, 70).is_ok());
        assert_eq!(meter().allocated, room_for(70));
        assert_eq!((meter().peak_allocated, meter().total), (room_for(70), room_for(100)));
        drop(model);
        assert_eq!(meter().allocated, 0);
    }

    #[test]
    fn weights_that_leave_give_their_memory_back_and_answer_as_before_when_they_return() {
        let mut model = model(room_for(100));
        let meter = model.device.meter();
        let before = run(&mut model, 50).unwrap();
        assert!(model.offload().is_ok() && model.offload().is_ok());
        // What passes had taken stays, as recordings of a real one need it.
        assert!(!model.is_resident() && model.workspace_bytes() > 0);
        assert_eq!(meter().allocated, model.workspace_bytes());
        assert!(model.wake().is_ok() && model.wake().is_ok());
        assert_eq!((model.is_resident(), meter().allocated), (true, room_for(50)));
        assert_eq!(run(&mut model, 50).unwrap(), before);
        model.offload().unwrap();
        model.trim();
        assert_eq!((meter().allocated, meter().free), (0, room_for(100)));
        model.wake().unwrap();
        model.offload().unwrap();
        drop(model);
        assert_eq!(meter().allocated, 0);
    }

    #[test]
    fn weights_that_find_no_room_stay_away_until_there_is_some() {
        let mut first = model(room_for(0));
        first.offload().unwrap();
        let spec = synthetic_spec("tiny".parse().unwrap());
        let second = first.device.load(&spec, &Synthetic, PrecisionChoice::Exactly(Precision::F32)).unwrap().0;
        assert_eq!(first.wake().unwrap_err().code(), "out_of_memory");
        assert!(!first.is_resident());
        drop(second);
        assert!(first.wake().is_ok() && first.is_resident());
    }

    #[test]
    fn a_broken_device_wakes_and_loads_nothing() {
        let mut model = model(1 << 30);
        model.offload().unwrap();
        assert!(model.inject(InjectedFault::IllegalAddress).is_err());
        assert_eq!(model.wake().unwrap_err().code(), "gpu_fault");
        let spec = synthetic_spec("tiny".parse().unwrap());
        let loaded = model.device.load(&spec, &Synthetic, PrecisionChoice::Auto).map(|_| ());
        assert!(matches!(loaded, Err(LoadOnSimulated::Gpu(error)) if error.code() == "gpu_fault"));
    }

    #[test]
    fn moves_take_the_time_that_they_are_given() {
        assert_eq!(duration(3 << 20, 7), Duration::from_micros(21));
        assert_eq!(duration(u64::MAX, u64::MAX), Duration::from_micros(u64::MAX));
        assert_eq!(duration(1 << 40, 0), Duration::ZERO);
    }

    #[test]
    fn a_model_larger_than_the_memory_is_refused() {
        let gpu = SimulatedGpu { memory_bytes: 1000, ..SimulatedGpu::default() };
        let spec = synthetic_spec("tiny".parse().unwrap());
        let loaded = SimulatedDevice::open(gpu, None).unwrap().load(&spec, &Synthetic, PrecisionChoice::Auto);
        assert!(matches!(loaded.map(|_| ()), Err(LoadOnSimulated::Gpu(error)) if error.code() == "out_of_memory"));
    }

    #[test]
    fn a_limit_holds_whatever_memory_there_is() {
        let spec = synthetic_spec("tiny".parse().unwrap());
        let device = SimulatedDevice::open(SimulatedGpu::default(), Some(1000)).unwrap();
        let loaded = device.load(&spec, &Synthetic, PrecisionChoice::Auto);
        assert!(matches!(loaded.map(|_| ()), Err(LoadOnSimulated::Gpu(error)) if error.code() == "out_of_memory"));
        assert_eq!(device.meter()().total, SimulatedGpu::default().memory_bytes);
    }

    #[test]
    fn an_illegal_address_breaks_every_later_call() {
        let mut model = model(1 << 30);
        let before = run(&mut model, 5).unwrap();
        assert!(before.iter().any(|x| *x != 0.0));
        assert_eq!(model.inject(InjectedFault::IllegalAddress).unwrap_err().code(), "gpu_fault");
        assert_eq!(run(&mut model, 5), Err("gpu_fault"));
        model.trim();
        assert_eq!(run(&mut model, 5), Err("gpu_fault"));
    }
}
