//! Runs a model on a GPU: divides texts into passes and keeps several streams busy with them.
//! Never computes on another device in its place.

use super::cuda_weights::{PartedError, place, place_decoder, place_split};
use super::decoder_model::{DecoderModel, SequenceRoom, not_loaded};
use super::held_weights::HeldWeights;
use super::native::{Hosted, Loading, NativeDevice, NativeModel};
use super::vectors::CudaVectors;
use super::{CudaDevice, Failure, FailureKind, FilledImage, HeldVectors, Label, LayerSplit};
use crate::decoder::DecoderFiles;
use crate::gpu::{GpuError, GpuInfo, GpuOptions, MemoryStats};
use crate::model::{Model, TensorSource, Unread, Workspace};
use crate::packed::{Packed, Tokens};
use crate::spec::{GenerateSpec, ModelSpec};
use magray_core::{Precision, plan_passes};
use magray_device::cpu::Cpu;
use magray_device::cuda::{
    Cuda, CudaDecoderOps, CudaOps, CudaOptions, DeviceError, InjectedFault, Visible, WeightsBlock,
};
use magray_device::cuda::{probe, resolve};
use magray_device::{DecoderDevice, Device, KvFormat, Ops, Split, SplitError};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Tokens of a pass: enough to fill the largest GPU for many times its starting costs, few enough that the activations of
/// two streams take about 300 MB for the default model.
const TOKENS_A_PASS: usize = 32_768;

/// Tokens of a pass whose answer has a row for each: the rows take 32 MiB for a model of 1,024 numbers a token, on the GPU and in
/// page-locked memory. A longer text is a pass of its own.
const TOKEN_ROWS_A_PASS: usize = 8_192;

/// A model whose first layers the CPU computes, or that is on several GPUs, rehearses steps for this long: a large one would take minutes for
/// all sizes.
pub(super) const SPLIT_REHEARSED: Duration = Duration::from_secs(5);

/// Tokens of a pass in this precision: half as many where numbers are twice as wide, so that memory stays the same.
pub(crate) fn tokens_a_pass(precision: Precision) -> usize {
    match precision {
        Precision::F32 | Precision::Tf32 => TOKENS_A_PASS / 2,
        Precision::F16 | Precision::Bf16 | Precision::Int8 => TOKENS_A_PASS,
    }
}

/// Where a model's weights come from.
pub(crate) enum WeightsFrom<'a> {
    /// Its numbers, which are made ready for this GPU.
    Files(&'a dyn TensorSource),
    /// An image that was filled from the same model on such a GPU.
    Image(FilledImage),
}

/// A model on a GPU.
pub(crate) struct CudaExecutor {
    cuda: Arc<Cuda>,
    streams: Vec<PassStream>,
    model: Model<Cuda>,
    weights: WeightsBlock,
    tokens_a_pass: usize,
}

/// A stream and what its passes need.
struct PassStream {
    ops: CudaOps,
    work: Workspace<Cuda>,
    packed: Packed,
    /// The texts of the pass that runs.
    texts: Option<Range<usize>>,
}

impl CudaExecutor {
    /// Puts a model on a GPU.
    pub(crate) fn open(
        gpu: &GpuInfo,
        options: &GpuOptions,
        spec: &ModelSpec,
        source: &dyn TensorSource,
        precision: Precision,
    ) -> Result<Self, GpuError> {
        Self::load(open_device(gpu, options)?, options.streams, spec, WeightsFrom::Files(source), precision)
    }

    /// Puts a model on a GPU that is open already. From an image, weights may still be arriving when this returns.
    pub(crate) fn load(
        cuda: Arc<Cuda>,
        streams: usize,
        spec: &ModelSpec,
        from: WeightsFrom<'_>,
        precision: Precision,
    ) -> Result<Self, GpuError> {
        let (source, image) = match from {
            WeightsFrom::Files(source) => (source, None),
            WeightsFrom::Image(image) => (&Unread as &dyn TensorSource, Some(image)),
        };
        let (model, weights) = place(&cuda, image, |site, is_read| {
            let source = if is_read { source } else { &Unread };
            Ok::<_, GpuError>(Model::<Cuda>::pack(site, spec, source, precision)?)
        })?;
        let tokens_a_pass = tokens_a_pass(precision);
        let mut streams = (0..streams.max(1))
            .map(|_| {
                let (mut ops, work) = (cuda.ops()?, model.workspace(&cuda));
                ops.rely_on(&weights);
                Ok(PassStream { ops, work, packed: Packed::default(), texts: None })
            })
            .collect::<Result<Vec<_>, GpuError>>()?;
        // All kernels that any batch will need: none is compiled while a request waits, and the cache on disk is whole.
        if let Some(PassStream { ops, work, .. }) = streams.first_mut() {
            let specs = ops.plan(tokens_a_pass, |ops, batch| model.forward(ops, work, batch, 0));
            cuda.prepare(&specs, std::thread::available_parallelism().map_or(1, usize::from))?;
        }
        Ok(Self { cuda, streams, model, weights, tokens_a_pass })
    }
}

impl NativeModel for CudaExecutor {
    fn outputs(&self) -> usize {
        self.model.outputs()
    }

    fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError> {
        if !self.weights.is_resident() {
            return Err(DeviceError::Away.into());
        }
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        let outputs = self.outputs();
        let mut result = Ok(());
        for (i, pass) in plan_passes(&lengths, self.tokens_a_pass).into_iter().enumerate() {
            let stream = i % self.streams.len();
            let stream = &mut self.streams[stream];
            result = result.and(stream.collect(outputs, out));
            if result.is_ok() {
                stream.start(&self.model, texts, pass, skip);
            }
        }
        // All streams are waited for, also after a failure: nothing may run when the next call comes.
        self.streams.iter_mut().fold(result, |result, stream| result.and(stream.collect(outputs, out)))
    }

    /// Passes of their own, which are not recorded: few ask for rows that are not scaled.
    fn run_unscaled(&mut self, texts: &[Tokens<'_>], skip: usize, rows: &mut Vec<f32>) -> Result<(), GpuError> {
        if !self.weights.is_resident() {
            return Err(DeviceError::Away.into());
        }
        rows.clear();
        let Some(PassStream { ops, packed, .. }) = self.streams.first_mut() else { return Ok(()) };
        // Not that of recorded passes, which would have to be recorded again where it grows.
        let mut work = self.model.workspace(&self.cuda);
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        for pass in plan_passes(&lengths, self.tokens_a_pass) {
            packed.fill(texts[pass].iter().copied());
            self.model.forward_unscaled(ops, &mut work, &packed.batch(), skip);
            rows.extend_from_slice(ops.answer()?);
        }
        Ok(())
    }

    /// Passes of their own, which are not recorded: few ask for the rows of tokens.
    fn run_tokens(&mut self, texts: &[Tokens<'_>], rows: &mut Vec<f32>) -> Result<(), GpuError> {
        if !self.weights.is_resident() {
            return Err(DeviceError::Away.into());
        }
        rows.clear();
        let Some(PassStream { ops, packed, .. }) = self.streams.first_mut() else { return Ok(()) };
        // Not those of recorded passes, which would have to be recorded again where these grow.
        let (mut work, mut acts) =
            (self.model.workspace(&self.cuda), self.cuda.acts(Precision::F32, self.model.hidden()));
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        for pass in plan_passes(&lengths, TOKEN_ROWS_A_PASS.min(self.tokens_a_pass)) {
            packed.fill(texts[pass].iter().copied());
            let batch = packed.batch();
            let offsets: Vec<usize> = (0..=batch.tokens()).collect();
            self.model.forward_tokens(ops, (&mut work, &mut acts), &batch, &offsets);
            rows.extend_from_slice(ops.answer()?);
        }
        Ok(())
    }

    /// Texts of one pass, while all weights are there and a stream has nothing to do.
    fn begin(&mut self, texts: &[Tokens<'_>], skip: usize) -> Result<Option<usize>, GpuError> {
        if !self.weights.is_resident() {
            return Err(DeviceError::Away.into());
        }
        if self.weights.on_their_way().is_some() {
            return Ok(None);
        }
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        let [pass] = &plan_passes(&lengths, self.tokens_a_pass)[..] else { return Ok(None) };
        let Some(key) = self.streams.iter().position(|stream| stream.texts.is_none()) else { return Ok(None) };
        self.streams[key].start(&self.model, texts, pass.clone(), skip);
        Ok(Some(key))
    }

    fn is_done(&mut self, key: usize) -> bool {
        self.streams.get(key).is_none_or(|stream| stream.ops.is_done())
    }

    fn finish(&mut self, key: usize, rows: &mut Vec<f32>) -> Result<(), GpuError> {
        let outputs = self.outputs();
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        rows.resize(stream.texts.as_ref().map_or(0, |texts| texts.len() * outputs), 0.0);
        stream.collect(outputs, rows)
    }

    /// The recordings of passes go with their memory, so the next pass of each size is recorded again. Streams whose
    /// answers were not taken yet keep theirs.
    fn trim(&mut self) {
        for stream in self.streams.iter_mut().filter(|stream| stream.texts.is_none()) {
            stream.ops.trim();
            stream.work = self.model.workspace(&self.cuda);
        }
        // Their memory lies idle in the pool now, where others want it.
        self.cuda.context().trim();
    }

    /// Memory of a burst that is long over goes back to the pool.
    fn tend(&mut self) {
        for stream in self.streams.iter_mut().filter(|stream| stream.texts.is_none()) {
            if stream.ops.age() {
                stream.ops.release();
                stream.work = self.model.workspace(&self.cuda);
            }
        }
    }

    fn inject(&mut self, fault: InjectedFault, _: usize) -> Result<(), GpuError> {
        Ok(self.cuda.inject(fault)?)
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    fn workspace_bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.ops.scratch_bytes() + stream.work.bytes()).sum()
    }

    fn weights(&self) -> Option<&dyn HeldWeights> {
        Some(&self.weights)
    }

    fn weights_mut(&mut self) -> Option<&mut (dyn HeldWeights + 'static)> {
        Some(&mut self.weights)
    }

    /// Recorded passes stay, for the weights come back to their places.
    fn rest(&mut self) -> Result<(), Failure> {
        for stream in &mut self.streams {
            stream.ops.settle().map_err(GpuError::from)?;
        }
        Ok(())
    }
}

/// A GPU as a device of an executor.
pub(crate) struct CudaHost {
    cuda: Arc<Cuda>,
    gpu: GpuInfo,
    streams: usize,
    /// Memory for the keys and values of sequences.
    kv_bytes: u64,
    /// Computes the first layers of models that are not here as a whole; there once one is loaded.
    cpu: OnceLock<Arc<Cpu>>,
    /// Of the whole GPU, before any model came.
    free_bytes_before: u64,
}

impl CudaHost {
    /// The GPU.
    pub(super) fn cuda(&self) -> &Arc<Cuda> {
        &self.cuda
    }

    /// Memory for the keys and values of sequences.
    pub(super) fn kv_bytes(&self) -> u64 {
        self.kv_bytes
    }

    pub(crate) fn open(device: &CudaDevice, memory_limit_bytes: Option<u64>) -> Result<Self, Failure> {
        let options = device.options(memory_limit_bytes);
        let gpus = probe(&options.search, &Visible::all()).map_err(GpuError::from)?;
        let gpu = resolve(&gpus, &format!("cuda:{}", device.uuid())).map_err(|declined| {
            // It was there when it was chosen.
            Failure::new(FailureKind::Lost, declined.code(), declined.to_string())
        })?;
        let cuda = open_device(gpu, &options)?;
        let free_bytes_before = cuda.context().memory_bytes().map_or(0, |(free, _)| free);
        let (streams, kv_bytes) = (options.streams, device.kv_bytes());
        Ok(Self { cuda, gpu: gpu.clone(), streams, kv_bytes, cpu: OnceLock::new(), free_bytes_before })
    }
}

impl CudaHost {
    /// A language model, all of it on the GPU.
    fn load_decoder(
        &self,
        spec: &GenerateSpec,
        room: SequenceRoom,
        image: Option<FilledImage>,
    ) -> Result<Box<dyn NativeModel>, Failure> {
        let files = DecoderFiles::of(&spec.source).map_err(Failure::of_model)?;
        let not_placed = not_placed(image.as_ref());
        let placed = place_decoder(&self.cuda, &files, spec.decoder.context, image);
        let (decoder, weights) = placed.map_err(|error| not_loaded(error, not_placed))?;
        let ops = self.decoder_ops(&weights)?;
        let of_device = |error| GpuError::from(error).into();
        let model = DecoderModel::new(&self.cuda, (decoder, ops), spec, room, of_device);
        rehearsed(model, Box::new(weights), Duration::MAX)
    }

    /// A language model whose first layers the CPU computes.
    fn load_split(
        &self,
        spec: &GenerateSpec,
        room: SequenceRoom,
        split: LayerSplit,
        image: Option<FilledImage>,
    ) -> Result<Box<dyn NativeModel>, Failure> {
        let cpu = self.beside(split)?;
        let files = DecoderFiles::of(&spec.source).map_err(Failure::of_model)?;
        let (not_placed, cpu_layers) = (not_placed(image.as_ref()), split.cpu_layers.get());
        let placed = place_split((cpu, cpu_layers), &self.cuda, &files, spec.decoder.context, image);
        let (decoder, weights) = placed.map_err(|error| not_loaded(error, |error| not_placed(of_gpu(error))))?;
        let device = Arc::new(Split::new(Arc::clone(cpu), Arc::clone(&self.cuda), cpu_layers));
        let ops = device.ops(cpu.decoder(), self.decoder_ops(&weights)?);
        let room = SequenceRoom { token_bytes: split.kv_token_bytes, ..room };
        let of_device = |error| GpuError::from(of_gpu(error)).into();
        let model = DecoderModel::new(&device, (decoder, ops), spec, room, of_device);
        rehearsed(model, Box::new(weights), SPLIT_REHEARSED)
    }

    /// The CPU that computes the first layers of models that are not here as a whole.
    pub(super) fn beside(&self, split: LayerSplit) -> Result<&Arc<Cpu>, Failure> {
        if let Some(cpu) = self.cpu.get() {
            return Ok(cpu);
        }
        let cpu = Cpu::new(split.path, Some(split.threads.get())).map_err(Failure::of_model)?;
        Ok(self.cpu.get_or_init(|| Arc::new(cpu)))
    }

    /// Operations that wait for these weights where they are on their way.
    pub(super) fn decoder_ops(&self, weights: &WeightsBlock) -> Result<CudaDecoderOps, Failure> {
        let mut ops = self.cuda.decoder().map_err(GpuError::from)?;
        ops.rely_on(weights);
        Ok(ops)
    }
}

/// A language model that holds its weights on the GPU, and has computed steps of all sizes once, as far as there was time.
pub(super) fn rehearsed<D: DecoderDevice>(
    mut model: DecoderModel<D>,
    weights: Box<dyn HeldWeights>,
    within: Duration,
) -> Result<Box<dyn NativeModel>, Failure>
where
    DecoderModel<D>: NativeModel + 'static,
    D::Error: 'static,
{
    model.hold(weights);
    model.rehearse(within)?;
    Ok(Box::new(model))
}

/// Why weights have no place on the GPU: perhaps for their image.
pub(super) fn not_placed(image: Option<&FilledImage>) -> fn(DeviceError) -> Failure {
    match image {
        None => |error| GpuError::from(error).into(),
        Some(_) => |error| Failure::of_image(error.into()),
    }
}

/// Of a CPU and a GPU the latter alone fails.
fn of_gpu(error: PartedError) -> DeviceError {
    match error {
        SplitError::First(never) => match never {},
        SplitError::Last(error) => error,
    }
}

impl NativeDevice for CudaHost {
    fn label(&self) -> Label {
        Label { name: self.gpu.name.clone(), uuid: self.gpu.uuid.clone() }
    }

    fn memory(&self) -> MemoryStats {
        let context = self.cuda.context();
        let allocated = context.allocated_bytes();
        // A context that is broken does not tell any more: what is known is told.
        let (free, total) = context.memory_bytes().unwrap_or((self.free_bytes_before, self.gpu.memory_bytes));
        MemoryStats {
            allocated,
            reserved: self.free_bytes_before.saturating_sub(free).max(allocated),
            spare: 0,
            uneven: 0,
            peak_allocated: context.peak_allocated_bytes(),
            free,
            total,
            pool: context.device_pool_stats(),
        }
    }

    fn load(&self, loading: Loading<'_>) -> Result<Hosted, Failure> {
        let Loading { spec, precision, kv, split, source, image, .. } = loading;
        let precision = precision.settle_gpu(self.gpu.capability);
        if let Some(generate) = spec.generates() {
            if kv != KvFormat::Halves {
                return Err(Failure::unsupported("keys and values of 8 bits"));
            }
            let room = SequenceRoom::of(generate, self.kv_bytes, kv);
            let model = match split {
                None => self.load_decoder(generate, room, image)?,
                Some(split) => self.load_split(generate, room, split, image)?,
            };
            return Ok(Hosted { model, precision: Precision::Bf16, sums: None, counts: 1 });
        }
        let load =
            |from: WeightsFrom<'_>| CudaExecutor::load(Arc::clone(&self.cuda), self.streams, spec, from, precision);
        let model = match image {
            None => load(WeightsFrom::Files(&*source()?))?,
            Some(image) => load(WeightsFrom::Image(image)).map_err(Failure::of_image)?,
        };
        Ok(Hosted { model: Box::new(model), precision, sums: None, counts: 1 })
    }

    fn hold_vectors(&self, dims: usize, room: usize) -> Result<Box<dyn HeldVectors>, Failure> {
        Ok(Box::new(CudaVectors::new(&self.cuda, dims, room)?))
    }

    fn bind(&self) -> Result<(), Failure> {
        Ok(self.cuda.context().bind().map_err(GpuError::from)?)
    }

    fn tend(&self) {
        self.cuda.tend();
    }
}

/// Opens a GPU for the models that will be on it.
pub(crate) fn open_device(gpu: &GpuInfo, options: &GpuOptions) -> Result<Arc<Cuda>, GpuError> {
    let options = CudaOptions {
        kernel_cache: options.kernel_cache.clone(),
        kernel_archive: options.kernel_archive.clone(),
        search: options.search.clone(),
        memory_limit_bytes: options.rules.memory_limit_bytes,
        trace: options.memory_trace.clone(),
        ..CudaOptions::default()
    };
    Ok(Cuda::open(gpu, options)?)
}

impl PassStream {
    /// Begins a pass over some neighbouring texts.
    fn start(&mut self, model: &Model<Cuda>, texts: &[Tokens<'_>], pass: Range<usize>, skip: usize) {
        self.packed.fill(texts[pass.clone()].iter().copied());
        let batch = self.packed.batch();
        self.ops.pass(&batch, skip, |ops| model.forward(ops, &mut self.work, &batch, skip));
        self.texts = Some(pass);
    }

    /// Waits for the pass that runs, if there is one, and copies its answer out.
    fn collect(&mut self, outputs: usize, out: &mut [f32]) -> Result<(), GpuError> {
        if let Some(texts) = self.texts.take() {
            let rows = self.ops.answer()?;
            out[texts.start * outputs..texts.end * outputs].copy_from_slice(rows);
        }
        Ok(())
    }
}
