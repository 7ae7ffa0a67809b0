//! Runs a model on a GPU: divides texts into passes and keeps several streams busy with them.
//! Never computes on another device in its place.

#[cfg(unix)]
use crate::executors::{Arriving, OnFilled};
use crate::gpu::{GpuError, GpuInfo, GpuOptions};
use crate::model::{Model, PackError, TensorSource, Unread, Workspace};
use crate::packed::{Packed, Tokens};
use crate::spec::ModelSpec;
use magray_core::{Precision, plan_passes};
use magray_device::Ops;
#[cfg(unix)]
use magray_device::SharedMemory;
use magray_device::cuda::{Cuda, CudaOps, CudaOptions, DeviceError, InjectedFault, Site, WeightsBlock};
use std::ops::Range;
use std::sync::Arc;

/// Tokens of a pass: enough to fill the largest GPU for many times its starting costs, few enough that the activations of
/// two streams take about 300 MB for the default model.
const TOKENS_A_PASS: usize = 32_768;

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
    /// An image that was filled from the same model on such a GPU, of so many bytes.
    #[cfg(unix)]
    Image { memory: SharedMemory, bytes: u64 },
}

/// A model on a GPU.
pub(crate) struct CudaExecutor {
    cuda: Arc<Cuda>,
    streams: Vec<PassStream>,
    model: Model<Cuda>,
    weights: WeightsBlock,
    tokens_a_pass: usize,
    /// Of the whole GPU, before the model came.
    free_bytes_before: u64,
}

/// A stream and what its passes need.
struct PassStream {
    ops: CudaOps,
    work: Workspace<Cuda>,
    packed: Packed,
    /// The texts of the pass that is under way.
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

    /// Puts a model on a GPU that is open already. From an image, weights may still be on their way when this returns.
    pub(crate) fn load(
        cuda: Arc<Cuda>,
        streams: usize,
        spec: &ModelSpec,
        from: WeightsFrom<'_>,
        precision: Precision,
    ) -> Result<Self, GpuError> {
        let (free_bytes_before, _) = cuda.context().memory_bytes()?;
        let (model, weights) = place(&cuda, spec, from, precision)?;
        let tokens_a_pass = tokens_a_pass(precision);
        let mut streams = (0..streams.max(1))
            .map(|_| {
                let (mut ops, work) = (cuda.ops()?, model.workspace(&cuda));
                ops.rely_on(&weights);
                Ok(PassStream { ops, work, packed: Packed::default(), texts: None })
            })
            .collect::<Result<Vec<_>, GpuError>>()?;
        // All kernels that any batch will need: none is compiled while somebody waits, and the cache on disk is whole.
        if let Some(PassStream { ops, work, .. }) = streams.first_mut() {
            let specs = ops.plan(tokens_a_pass, |ops, batch| model.forward(ops, work, batch, 0));
            cuda.prepare(&specs, std::thread::available_parallelism().map_or(1, usize::from))?;
        }
        Ok(Self { cuda, streams, model, weights, tokens_a_pass, free_bytes_before })
    }

    /// Numbers in a text's answer.
    pub(crate) fn outputs(&self) -> usize {
        self.model.outputs()
    }

    /// Computes the answers of all texts, in their order; `skip` leading tokens of each are not pooled.
    pub(crate) fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError> {
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
        // All streams are waited for, also after a failure: nothing may be under way when the next call comes.
        self.streams.iter_mut().fold(result, |result, stream| result.and(stream.collect(outputs, out)))
    }

    /// Frees what passes have taken. Their recordings go with it, so the next pass of each size is recorded again.
    pub(crate) fn trim(&mut self) {
        for stream in &mut self.streams {
            stream.ops.trim();
            stream.work = self.model.workspace(&self.cuda);
        }
        // Their memory lies idle in the pool now, where others want it.
        self.cuda.context().trim();
    }

    /// Time goes on, about a second: memory of a burst that is long over goes back to the pool.
    pub(crate) fn tend(&mut self) {
        for stream in &mut self.streams {
            if stream.ops.age() {
                stream.ops.release();
                stream.work = self.model.workspace(&self.cuda);
            }
        }
    }

    /// Bytes of the weights, wherever they are.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    /// Memory of the GPU that passes hold.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.ops.scratch_bytes() + stream.work.bytes()).sum()
    }

    /// Whether the weights have memory on the GPU.
    pub(crate) fn is_resident(&self) -> bool {
        self.weights.is_resident()
    }

    /// Waits until nothing is under way in any stream.
    fn settle(&mut self) -> Result<(), GpuError> {
        for stream in &mut self.streams {
            stream.ops.settle()?;
        }
        Ok(())
    }

    /// Lets the GPU fail on purpose.
    pub(crate) fn inject(&mut self, fault: InjectedFault) -> Result<(), GpuError> {
        Ok(self.cuda.inject(fault)?)
    }

    /// Memory of the GPU that went away since the model came: other processes' included, if they took some meanwhile.
    pub(crate) fn memory_used_bytes(&self) -> u64 {
        self.cuda.context().memory_bytes().map_or(0, |(free, _)| self.free_bytes_before.saturating_sub(free))
    }
}

#[cfg(unix)]
impl CudaExecutor {
    /// Waits, when it is called, for weights that are on their way.
    pub(crate) fn arriving(&self) -> Option<Arriving> {
        let arriving = self.weights.on_their_way()?;
        Some(Box::new(move || Ok(arriving.wait()?)))
    }

    /// Fills an image of the weights beside other work.
    pub(crate) fn keep_image(&mut self, image: SharedMemory, on_filled: OnFilled) {
        self.weights.keep_image(image, Box::new(|filled| on_filled(filled.map_err(GpuError::from))));
    }

    /// Takes the weights from the GPU; recorded passes stay, for the weights come back to their places.
    pub(crate) fn offload(&mut self) -> Result<(), GpuError> {
        self.settle()?;
        Ok(self.weights.offload()?)
    }

    /// Brings the weights back; returns when they are on their way, and passes may begin.
    pub(crate) fn wake(&mut self) -> Result<(), GpuError> {
        Ok(self.weights.wake()?)
    }
}

/// Puts a model's layers into one block of the GPU's memory: measured first, so that it is exactly as long as they need.
fn place(
    cuda: &Cuda,
    spec: &ModelSpec,
    from: WeightsFrom<'_>,
    precision: Precision,
) -> Result<(Model<Cuda>, WeightsBlock), GpuError> {
    let measured = Site::measuring(cuda);
    Model::<Cuda>::pack(&measured, spec, &Unread, precision)?;
    let site = Site::of_bytes(cuda, measured.bytes())?;
    match from {
        WeightsFrom::Files(source) => {
            let model = Model::pack(&site, spec, source, precision)?;
            Ok((model, site.fill()?))
        }
        #[cfg(unix)]
        WeightsFrom::Image { memory, bytes } => {
            let model = Model::pack(&site, spec, &Unread, precision)?;
            Ok((model, site.fill_from(memory, bytes)?))
        }
    }
}

/// Opens a GPU for the models that will be on it.
pub(crate) fn open_device(gpu: &GpuInfo, options: &GpuOptions) -> Result<Arc<Cuda>, GpuError> {
    let options = CudaOptions {
        kernel_cache: options.kernel_cache.clone(),
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

    /// Waits for the pass under way, if there is one, and copies its answer out.
    fn collect(&mut self, outputs: usize, out: &mut [f32]) -> Result<(), GpuError> {
        if let Some(texts) = self.texts.take() {
            let rows = self.ops.answer()?;
            out[texts.start * outputs..texts.end * outputs].copy_from_slice(rows);
        }
        Ok(())
    }
}

impl From<PackError<DeviceError>> for GpuError {
    fn from(error: PackError<DeviceError>) -> Self {
        match error {
            PackError::Weights(error) => Self::Weights(error),
            PackError::Device(error) => error.into(),
        }
    }
}

impl From<DeviceError> for GpuError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Cuda(error) => Self::Cuda(error),
            DeviceError::Kernel(error) => Self::Kernel(error),
            error @ (DeviceError::System(_)
            | DeviceError::WrongImage { .. }
            | DeviceError::CannotPark
            | DeviceError::Away) => Self::Residency(error),
        }
    }
}
