//! A GPU that is none: the CPU's arithmetic behind a GPU's interface, with memory, speed and failures by script.
//! Meant for tests on machines without a GPU; nothing should be computed with it.

use super::SimulatedGpu;
use crate::executors::cpu::CpuExecutor;
use crate::executors::held_weights::HeldWeights;
use crate::executors::native::{Hosted, Loading, NativeDevice, NativeModel};
use crate::executors::{Failure, HeldVectors, Label};
use crate::gpu::{GpuError, MemoryStats};
use crate::model::Model;
use crate::packed::Tokens;
use crate::spec::GenerateSpec;
use generating::SimulatedDecoder;
pub(crate) use group::SimulatedGroup;
use magray_core::pool::PoolStats;
use magray_core::{EncoderShape, Precision};
use magray_device::cpu::Cpu;
use magray_device::cuda::{CudaError, InjectedFault};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vectors::SimulatedVectors;
use weights::SimulatedWeights;

mod filling;
mod generating;
mod group;
mod vectors;
mod weights;

/// The simulated device.
#[derive(Clone)]
pub(crate) struct SimulatedDevice(Arc<Shared>);

/// What the models on it share.
struct Shared {
    gpu: SimulatedGpu,
    cpu: Arc<Cpu>,
    memory: Memory,
    /// What every call fails with after a fault that lasts.
    broken: Mutex<Option<CudaError>>,
}

/// A model on it.
pub(crate) struct SimulatedModel {
    device: Arc<Shared>,
    executor: CpuExecutor,
    shape: EncoderShape,
    precision: Precision,
    weights: SimulatedWeights,
    /// The largest batch that there is room for.
    room_tokens: usize,
    /// What the room takes. Room that was outgrown stays taken until it is trimmed, as in a heap full of holes.
    room_bytes: u64,
    /// Batches that were begun: their rows, and when they are there.
    begun: Vec<Option<(Vec<f32>, Instant)>>,
}

/// Batches that may be under way.
const UNDER_WAY_MAX: usize = 2;

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
    pub(crate) fn open(gpu: SimulatedGpu, limit: Option<u64>) -> Result<Self, Failure> {
        let total = gpu.memory_bytes;
        let limit = limit.map_or(total, |limit| limit.min(total));
        let memory = Memory { total, limit, allocated: AtomicU64::new(0), peak: AtomicU64::new(0) };
        let cpu = Arc::new(Cpu::new(None, Some(1)).map_err(Failure::of_model)?);
        Ok(Self(Arc::new(Shared { gpu, cpu, memory, broken: Mutex::new(None) })))
    }

    fn place(&self, loading: Loading<'_>) -> Result<(SimulatedModel, Precision), Failure> {
        let (shared, shape) = (&self.0, loading.spec.shape);
        let precision = loading.precision.settle_cpu(shared.cpu.has_fast_bf16());
        let weights = SimulatedWeights::load(shared, shape.weight_bytes(precision), loading.image)?;
        let source = (loading.source)()?;
        let packed = Model::pack(&*shared.cpu, loading.spec, &*source, precision).map_err(Failure::of_model)?;
        let model = SimulatedModel {
            device: Arc::clone(shared),
            executor: CpuExecutor::new(Arc::clone(&shared.cpu), packed),
            shape,
            precision,
            weights,
            room_tokens: 0,
            room_bytes: 0,
            begun: vec![None; UNDER_WAY_MAX],
        };
        Ok((model, precision))
    }
}

impl NativeDevice for SimulatedDevice {
    fn label(&self) -> Label {
        Label { name: "Simulated GPU".to_owned(), uuid: format!("SIM-{}", self.0.gpu.index) }
    }

    fn memory(&self) -> MemoryStats {
        self.0.memory.stats()
    }

    fn load(&self, loading: Loading<'_>) -> Result<Hosted, Failure> {
        if let Some(generate) = loading.spec.generates() {
            return load_decoder(std::slice::from_ref(&self.0), generate, loading);
        }
        let (model, precision) = self.place(loading)?;
        Ok(Hosted { model: Box::new(model), precision, sums: None, counts: 1 })
    }

    fn hold_vectors(&self, dims: usize, room: usize) -> Result<Box<dyn HeldVectors>, Failure> {
        Ok(Box::new(SimulatedVectors::new(&self.0, dims, room)?))
    }
}

/// A language model on one of these devices or on all.
fn load_decoder(devices: &[Arc<Shared>], generate: &GenerateSpec, loading: Loading<'_>) -> Result<Hosted, Failure> {
    let (model, sums) = SimulatedDecoder::new(devices, generate, loading)?;
    Ok(Hosted { model: Box::new(model), precision: Precision::F32, sums, counts: 1 })
}

impl Shared {
    /// The time that a batch of this many tokens takes.
    fn time_of(&self, tokens: usize) -> Duration {
        let SimulatedGpu { batch_us, token_ns, .. } = self.gpu;
        Duration::from_micros(batch_us).saturating_add(Duration::from_nanos(token_ns.saturating_mul(tokens as u64)))
    }

    /// Lets a batch of this many tokens take its time.
    fn take_time(&self, tokens: usize, began: Instant) {
        std::thread::sleep(self.time_of(tokens).saturating_sub(began.elapsed()));
    }

    /// Whether it still works.
    fn check(&self) -> Result<(), GpuError> {
        match &*self.broken() {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }

    fn inject(&self, fault: InjectedFault) -> Result<(), GpuError> {
        match fault {
            InjectedFault::IllegalAddress => {
                // As the driver does it: this call fails, and every later one too.
                let error = CudaError::Sticky { code: 700, name: "illegal_address".to_owned() };
                *self.broken() = Some(error.clone());
                Err(error.into())
            }
            InjectedFault::Hang => loop {
                std::thread::park();
            },
        }
    }

    fn broken(&self) -> MutexGuard<'_, Option<CudaError>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimulatedModel {
    /// Computes a batch, and says how long it should take.
    fn compute(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<Duration, GpuError> {
        self.device.check()?;
        assert!(self.weights.is_resident(), "who gives it batches knows that its weights are there");
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        self.make_room(tokens)?;
        self.executor.run(texts, skip, out);
        Ok(self.device.time_of(tokens))
    }

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

impl NativeModel for SimulatedModel {
    fn outputs(&self) -> usize {
        self.executor.outputs()
    }

    fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError> {
        let began = Instant::now();
        let takes = self.compute(texts, skip, out)?;
        std::thread::sleep(takes.saturating_sub(began.elapsed()));
        Ok(())
    }

    fn run_unscaled(&mut self, texts: &[Tokens<'_>], skip: usize, rows: &mut Vec<f32>) -> Result<(), GpuError> {
        let began = Instant::now();
        self.device.check()?;
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        self.make_room(tokens)?;
        self.executor.run_unscaled(texts, skip, rows);
        self.device.take_time(tokens, began);
        Ok(())
    }

    fn run_tokens(&mut self, texts: &[Tokens<'_>], rows: &mut Vec<f32>) -> Result<(), GpuError> {
        let began = Instant::now();
        self.device.check()?;
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        self.make_room(tokens)?;
        self.executor.run_tokens(texts, rows);
        self.device.take_time(tokens, began);
        Ok(())
    }

    /// Computed at once; the rows are there when the batch has taken its time.
    fn begin(&mut self, texts: &[Tokens<'_>], skip: usize) -> Result<Option<usize>, GpuError> {
        let began = Instant::now();
        let Some(key) = self.begun.iter().position(Option::is_none) else { return Ok(None) };
        let mut rows = vec![0.0; texts.len() * self.outputs()];
        let takes = self.compute(texts, skip, &mut rows)?;
        self.begun[key] = Some((rows, began + takes));
        Ok(Some(key))
    }

    fn is_done(&mut self, key: usize) -> bool {
        self.begun.get(key).and_then(Option::as_ref).is_none_or(|(_, done)| *done <= Instant::now())
    }

    fn finish(&mut self, key: usize, rows: &mut Vec<f32>) -> Result<(), GpuError> {
        rows.clear();
        self.device.check()?;
        if let Some((computed, done)) = self.begun.get_mut(key).and_then(Option::take) {
            std::thread::sleep(done.saturating_duration_since(Instant::now()));
            *rows = computed;
        }
        Ok(())
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    fn workspace_bytes(&self) -> u64 {
        self.room_bytes
    }

    fn weights(&self) -> Option<&dyn HeldWeights> {
        Some(&self.weights)
    }

    fn weights_mut(&mut self) -> Option<&mut (dyn HeldWeights + 'static)> {
        Some(&mut self.weights)
    }

    fn trim(&mut self) {
        self.device.memory.give_back(std::mem::take(&mut self.room_bytes));
        self.room_tokens = 0;
    }

    fn inject(&mut self, fault: InjectedFault, _: usize) -> Result<(), GpuError> {
        self.device.inject(fault)
    }
}

impl Drop for SimulatedModel {
    fn drop(&mut self) {
        self.device.memory.give_back(self.room_bytes);
    }
}

/// What moving this many bytes takes.
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
        MemoryStats { allocated, reserved: allocated, spare: 0, uneven: 0, peak_allocated, free, total, pool }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Synthetic;
    use crate::spec::ModelSpec;
    use magray_core::PrecisionChoice;
    use magray_device::KvFormat;

    fn model(memory_bytes: u64) -> SimulatedModel {
        let gpu = SimulatedGpu { memory_bytes, ..SimulatedGpu::default() };
        load(&SimulatedDevice::open(gpu, None).unwrap()).unwrap()
    }

    fn load(device: &SimulatedDevice) -> Result<SimulatedModel, String> {
        let (spec, precision) =
            (ModelSpec::synthetic("tiny".parse().unwrap()), PrecisionChoice::Exactly(Precision::F32));
        let loading = Loading {
            spec: &spec,
            precision,
            kv: KvFormat::default(),
            split: None,
            group: None,
            source: &|| Ok(Box::new(Synthetic)),
            image: None,
        };
        device.place(loading).map(|(model, _)| model).map_err(|failure| failure.code)
    }

    fn run(model: &mut SimulatedModel, tokens: usize) -> Result<Vec<f32>, &'static str> {
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let mut out = vec![0.0; model.outputs()];
        let ran = model.run(&[Tokens { ids: &ids, types: &[] }], 0, &mut out);
        ran.map(|()| out).map_err(|error| error.code())
    }

    /// Memory for the weights and for batches of this many tokens.
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
        let shared = Arc::clone(&model.device);
        let meter = || shared.memory.stats();
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
        let shared = Arc::clone(&model.device);
        let meter = || shared.memory.stats();
        let before = run(&mut model, 50).unwrap();
        assert!(model.offload().is_ok() && model.offload().is_ok());
        // What passes had taken stays, as recordings of a real one need it.
        assert!(!model.is_resident() && model.workspace_bytes() > 0);
        assert_eq!(meter().allocated, model.workspace_bytes());
        assert!(model.weights.wake().is_ok() && model.weights.wake().is_ok());
        assert_eq!((model.is_resident(), meter().allocated), (true, room_for(50)));
        assert_eq!(run(&mut model, 50).unwrap(), before);
        model.offload().unwrap();
        model.trim();
        assert_eq!((meter().allocated, meter().free), (0, room_for(100)));
        model.weights.wake().unwrap();
        model.offload().unwrap();
        drop(model);
        assert_eq!(meter().allocated, 0);
    }

    #[test]
    fn weights_that_find_no_room_stay_away_until_there_is_some() {
        let mut first = model(room_for(0));
        first.offload().unwrap();
        let second = load(&SimulatedDevice(Arc::clone(&first.device))).unwrap();
        assert_eq!(first.weights.wake().unwrap_err().code(), "out_of_memory");
        assert!(!first.is_resident());
        drop(second);
        assert!(first.weights.wake().is_ok() && first.is_resident());
    }

    #[test]
    fn a_broken_device_wakes_and_loads_nothing() {
        let mut model = model(1 << 30);
        model.offload().unwrap();
        assert!(model.inject(InjectedFault::IllegalAddress, 0).is_err());
        assert_eq!(model.weights.wake().unwrap_err().code(), "gpu_fault");
        let loaded = load(&SimulatedDevice(Arc::clone(&model.device))).map(drop);
        assert_eq!(loaded, Err("gpu_fault".to_owned()));
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
        let loaded = load(&SimulatedDevice::open(gpu, None).unwrap()).map(drop);
        assert_eq!(loaded, Err("out_of_memory".to_owned()));
    }

    #[test]
    fn a_limit_holds_whatever_memory_there_is() {
        let device = SimulatedDevice::open(SimulatedGpu::default(), Some(1000)).unwrap();
        assert_eq!(load(&device).map(drop), Err("out_of_memory".to_owned()));
        assert_eq!(device.memory().total, SimulatedGpu::default().memory_bytes);
    }

    #[test]
    fn an_illegal_address_breaks_every_later_call() {
        let mut model = model(1 << 30);
        let before = run(&mut model, 5).unwrap();
        assert!(before.iter().any(|x| *x != 0.0));
        assert_eq!(model.inject(InjectedFault::IllegalAddress, 0).unwrap_err().code(), "gpu_fault");
        assert_eq!(run(&mut model, 5), Err("gpu_fault"));
        model.trim();
        assert_eq!(run(&mut model, 5), Err("gpu_fault"));
    }
}
