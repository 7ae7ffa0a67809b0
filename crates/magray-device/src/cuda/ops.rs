//! The GPU's operations: each puts kernels into a stream. A whole pass can be recorded and started as one.
//! What goes wrong is kept and told by `answer`; after it nothing more is put into the stream.

mod passes;
mod products;

use super::batch::{Bucket, Layout, padded_rows};
use super::compile::KernelSpec;
use super::device::Cuda;
use super::device_error::DeviceError;
use super::error::CudaError;
use super::function::LaunchShape;
use super::history::History;
use super::layers::{DeviceBias, DeviceEmbedding, DeviceNorm, Linear};
use super::matrix::{Acts, TensorMap};
use super::memory::{DeviceBuffer, Number};
use super::pinned_buffers::PinnedWords;
use super::stream::{Graph, Stream, Urgency};
use super::tiles::Product;
use super::variants::{self, HEAD_SIZES, Leaves};
use super::weights::{Ground, WeightSlice, WeightsBlock};
use crate::{AttentionShape, Ops, PoolShape, Rows, TokenBatch};
use magray_core::{Activation, Pooling};
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::sync::Arc;

/// Recordings kept; beyond it all are dropped, and made again as they are needed.
const MOST_RECORDINGS: usize = 256;
/// Rows that a block of the row-wise kernels does: a warp each.
const ROWS_A_BLOCK: usize = 4;
const WARP: usize = 32;

/// Operations of one stream.
#[derive(Debug)]
pub struct CudaOps {
    cuda: Arc<Cuda>,
    stream: Stream,
    mode: Mode,
    /// The batch, where the host writes it and where the kernels read it.
    staged: PinnedWords,
    batch: DeviceBuffer,
    layout: Layout,
    bucket: Bucket,
    skip: usize,
    sums: Scratch,
    bytes: Scratch,
    scales: Scratch,
    /// Written by the GPU.
    answer: PinnedWords,
    answer_len: usize,
    answer_columns: usize,
    recordings: HashMap<Bucket, Recording>,
    history: History,
    /// The weights that passes use: while they are on their way nothing is recorded.
    weights: Option<Arc<Ground>>,
    /// Whether the stream may have unfinished work.
    busy: bool,
    failure: Option<DeviceError>,
}

#[derive(Debug)]
struct Recording {
    graph: Graph,
    columns: usize,
}

/// What a launch does.
#[derive(Debug)]
enum Mode {
    /// Goes into the stream; each operation brings its batch along.
    Eager,
    /// As part of a pass, whose batch is staged; whether the next kernel may begin before the one ahead of it has ended.
    Pass { order: Order },
    /// Only its kernel is noted; buffers grow as they would.
    List(Vec<KernelSpec>),
    /// Only its kernel is noted, and nothing grows.
    Plan(BTreeSet<KernelSpec>),
}

/// How the kernels of a pass follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// None was launched yet: the first waits for the copy of the batch, which does not know the order below.
    First,
    /// Each may be brought onto the GPU while the one ahead of it still runs.
    Overlapping,
    /// One after the other: some wait for weights as well.
    Strict,
}

/// Memory that grows to the largest need.
#[derive(Debug)]
struct Scratch(DeviceBuffer);

/// An argument of a kernel.
pub(super) enum Arg {
    Address(u64),
    Int(i32),
    Long(i64),
    Float(f32),
    Map(TensorMap),
}

impl Arg {
    pub(super) fn pointer(&mut self) -> *mut c_void {
        match self {
            Self::Address(x) => std::ptr::from_mut(x).cast(),
            Self::Int(x) => std::ptr::from_mut(x).cast(),
            Self::Long(x) => std::ptr::from_mut(x).cast(),
            Self::Float(x) => std::ptr::from_mut(x).cast(),
            Self::Map(x) => std::ptr::from_mut(&mut x.0).cast(),
        }
    }
}

pub(super) fn int(x: usize) -> Arg {
    Arg::Int(i32::try_from(x).expect("sizes of activations fit 31 bits"))
}

impl CudaOps {
    pub(super) fn new(cuda: Arc<Cuda>) -> Result<Self, DeviceError> {
        let context = cuda.context();
        let bucket = Bucket::of(&TokenBatch { ids: &[], types: &[], offsets: &[0] });
        let scratch = || Scratch(DeviceBuffer::empty(context));
        Ok(Self {
            stream: Stream::new(context, Urgency::Usual)?,
            mode: Mode::Eager,
            staged: PinnedWords::zeroed(context, 0)?,
            batch: DeviceBuffer::empty(context),
            layout: bucket.layout(),
            bucket,
            skip: 0,
            sums: scratch(),
            bytes: scratch(),
            scales: scratch(),
            answer: PinnedWords::zeroed(context, 0)?,
            answer_len: 0,
            answer_columns: 0,
            recordings: HashMap::new(),
            history: History::default(),
            weights: None,
            busy: false,
            failure: None,
            cuda,
        })
    }

    /// Passes will use these weights: one that begins while they are still on their way waits for them layer by layer.
    pub fn rely_on(&mut self, weights: &WeightsBlock) {
        self.weights = Some(Arc::clone(weights.ground()));
    }

    /// Waits until all work is done.
    pub fn settle(&mut self) -> Result<(), DeviceError> {
        if self.busy {
            self.stream.wait()?;
            self.busy = false;
        }
        Ok(())
    }

    /// Whether nothing is under way any more.
    pub fn is_done(&self) -> bool {
        !self.busy || self.stream.is_done()
    }

    /// Memory of the GPU that these operations hold beside activations.
    pub fn scratch_bytes(&self) -> u64 {
        let buffers = [&self.batch, &self.sums.0, &self.bytes.0, &self.scales.0];
        buffers.iter().map(|buffer| buffer.bytes() as u64).sum()
    }

    /// How many sizes of batches have recorded passes.
    pub fn recorded(&self) -> usize {
        self.recordings.len()
    }

    /// Frees the memory of the largest batch so far; it grows again as it is needed. Activations are not included: they belong
    /// to their maker, and must be dropped after this, because recordings refer to them.
    pub fn release(&mut self) {
        // A stream that fails says so again with its next batch.
        let _ = self.settle();
        self.recordings.clear();
        for scratch in [&mut self.sums, &mut self.bytes, &mut self.scales] {
            scratch.0 = DeviceBuffer::empty(self.cuda.context());
        }
    }

    /// As [`CudaOps::release`], where memory is short: later passes take no more than they need.
    pub fn trim(&mut self) {
        self.history.forget();
        self.release();
    }

    /// Advances by about a second. Returns whether memory should be [released](CudaOps::release), because no recent pass needed
    /// nearly as much.
    pub fn age(&mut self) -> bool {
        self.history.age()
    }

    /// How much to allocate where a pass needs this much.
    fn expected_size(&self, size: usize) -> usize {
        match self.mode {
            Mode::List(_) => self.history.expected_size(size, self.bucket.tokens),
            Mode::Eager | Mode::Pass { .. } | Mode::Plan(_) => size,
        }
    }

    /// Copies an operation's batch to the GPU, unless it is part of a pass.
    fn bring(&mut self, batch: &TokenBatch<'_>, skip: usize) {
        if self.failure.is_some() {
            return;
        }
        match self.mode {
            Mode::Eager => {
                let staged = self.stage(batch, skip).and_then(|()| self.copy_batch());
                self.busy = true;
                staged.unwrap_or_else(|error| self.fail(error));
            }
            Mode::Pass { .. } | Mode::List(_) | Mode::Plan(_) => {
                assert_eq!(Bucket::of(batch), self.bucket, "a pass has one batch");
            }
        }
    }

    /// Where a part of the batch lies on the GPU.
    fn part(&self, word: usize) -> Arg {
        Arg::Address(self.batch.address() + 4 * word as u64)
    }

    fn is_planning(&self) -> bool {
        matches!(self.mode, Mode::Plan(_))
    }

    fn fail(&mut self, error: DeviceError) {
        self.failure.get_or_insert(error);
    }

    fn launch(&mut self, spec: KernelSpec, shape: LaunchShape, arguments: Vec<Arg>) {
        if self.failure.is_some() {
            return;
        }
        match &mut self.mode {
            Mode::List(specs) => return specs.push(spec),
            Mode::Plan(specs) => {
                specs.insert(spec);
                return;
            }
            Mode::Eager | Mode::Pass { .. } => {}
        }
        if let Err(error) = self.try_launch(&spec, shape, arguments) {
            self.fail(error);
        }
    }

    fn try_launch(
        &mut self,
        spec: &KernelSpec,
        mut shape: LaunchShape,
        mut arguments: Vec<Arg>,
    ) -> Result<(), DeviceError> {
        let function = self.cuda.function(spec)?;
        if let Mode::Pass { order } = &mut self.mode {
            shape.overlaps = self.cuda.overlaps() && *order == Order::Overlapping;
            if *order == Order::First {
                *order = Order::Overlapping;
            }
        }
        let mut pointers: Vec<*mut c_void> = arguments.iter_mut().map(Arg::pointer).collect();
        self.cuda.context().bind()?;
        // SAFETY: the stream is of the same context; each operation gives its kernel's arguments in order, and addresses
        // of buffers that were checked to be large enough and live until the stream was waited for.
        unsafe { function.launch(self.stream.put(), &shape, &mut pointers) }?;
        self.busy = true;
        Ok(())
    }

    /// Makes the stream wait for weights that are still being copied, and for all before them.
    fn hold(&mut self, last: &WeightSlice) {
        if self.failure.is_none()
            && matches!(self.mode, Mode::Eager | Mode::Pass { .. })
            && let Err(error) = last.hold(&self.stream)
        {
            self.fail(error);
        }
    }

    /// Grows scratch memory; recordings that use it are void if it moves.
    fn room(&mut self, which: fn(&mut Self) -> &mut Scratch, bytes: usize) -> u64 {
        if which(self).0.bytes() < bytes && self.failure.is_none() && !self.is_planning() {
            self.recordings.clear();
            if self.busy {
                let waited = self.stream.wait();
                waited.unwrap_or_else(|error| self.fail(error.into()));
            }
            // The old memory goes first: there may not be room for both.
            which(self).0 = DeviceBuffer::empty(self.cuda.context());
            let grown = |bytes: usize| DeviceBuffer::private(&self.stream, bytes.next_power_of_two());
            let expected = self.expected_size(bytes);
            // What is only expected is no reason to fail.
            let grown = match grown(expected) {
                Err(CudaError::OutOfMemory) if expected > bytes => grown(bytes),
                result => result,
            };
            match grown {
                Ok(buffer) => which(self).0 = buffer,
                Err(error) => self.fail(error.into()),
            }
        }
        which(self).0.address()
    }
}

/// A warp a row.
fn row_shape(rows: usize) -> LaunchShape {
    LaunchShape::new([rows.div_ceil(ROWS_A_BLOCK) as u32, 1, 1], [(ROWS_A_BLOCK * WARP) as u32, 1, 1])
}

impl Ops for CudaOps {
    type Error = DeviceError;
    type Acts = Acts;
    type Linear = Linear;
    type Embedding = DeviceEmbedding;
    type Norm = DeviceNorm;
    type Bias = DeviceBias;

    fn resize(&mut self, acts: &mut Acts, rows: usize) {
        if self.is_planning() && acts.has_room() {
            return acts.pretend(rows);
        }
        match acts.resize(rows, self.expected_size(padded_rows(rows)), &self.stream) {
            Ok(false) => {}
            // It moved: no recording may use the old place.
            Ok(true) => self.recordings.clear(),
            // The old place is gone as well.
            Err(error) => {
                self.recordings.clear();
                self.fail(error.into());
            }
        }
    }

    fn room_bytes(acts: &Acts) -> u64 {
        acts.room_bytes() as u64
    }

    fn embed(&mut self, batch: &TokenBatch<'_>, tables: &DeviceEmbedding, out: &mut Acts) {
        out.used_by(&self.stream);
        assert_eq!(tables.norm.columns, out.columns(), "vectors as wide as the model");
        assert_rows(out, batch.tokens());
        self.bring(batch, 0);
        self.hold(&tables.norm.shift);
        let rows = out.padded_rows();
        let arguments = vec![
            self.part(0),
            self.part(self.layout.ids),
            self.part(self.layout.positions),
            Arg::Address(tables.words.address()),
            Arg::Address(tables.positions.address() + tables.first_position_bytes),
            Arg::Address(tables.types.as_ref().map_or(0, WeightSlice::address)),
            Arg::Address(tables.norm.gain.address()),
            Arg::Address(tables.norm.shift.address()),
            Arg::Float(tables.norm.epsilon),
            int(out.columns()),
            int(out.stride()),
            int(rows),
            Arg::Address(out.address()),
        ];
        self.launch(variants::embed(out.number), row_shape(rows), arguments);
    }

    fn linear(&mut self, x: &Acts, weights: &Linear, activation: Activation, out: &mut Acts) {
        [x, out].iter().for_each(|acts| acts.used_by(&self.stream));
        assert_eq!(x.columns(), weights.inputs, "the layer takes rows of another length");
        assert_eq!(out.columns(), weights.outputs, "room for the layer's outputs");
        assert_rows(out, x.rows());
        self.hold(&weights.bias);
        if !self.hopper_product(x, weights, activation, out) {
            let to = out.address();
            self.portable_product(x, weights, Leaves::Results(activation), out.number, to);
        }
    }

    fn linear_add_norm(&mut self, x: &Acts, weights: &Linear, norm: &DeviceNorm, hidden: &mut Acts) {
        [x, hidden].iter().for_each(|acts| acts.used_by(&self.stream));
        assert_eq!(x.columns(), weights.inputs, "the layer takes rows of another length");
        assert_eq!(hidden.columns(), weights.outputs, "the layer gives back what it adds to");
        assert_eq!(hidden.columns(), norm.columns, "the norm is as wide");
        assert_rows(hidden, x.rows());
        self.hold(&weights.bias);
        self.hold(&norm.shift);
        if self.hopper_norm_product(x, weights, norm, hidden) {
            return;
        }
        let (rows, stride) = (hidden.padded_rows(), hidden.stride());
        let product = Product { rows, inputs: weights.inputs, columns: weights.outputs };
        let (_, parts) = product.mma_tile(self.cuda.multiprocessors(), true);
        let sums = self.room(|ops| &mut ops.sums, parts * rows * stride * 4);
        let parts = self.portable_product(x, weights, Leaves::Sums, hidden.number, sums);
        let arguments = vec![
            Arg::Address(sums),
            int(parts),
            Arg::Long((rows * stride) as i64),
            Arg::Address(weights.bias.address()),
            Arg::Address(norm.gain.address()),
            Arg::Address(norm.shift.address()),
            Arg::Float(norm.epsilon),
            int(rows),
            int(hidden.columns()),
            int(stride),
            Arg::Address(hidden.address()),
        ];
        self.launch(variants::add_norm(hidden.number), row_shape(rows), arguments);
    }

    fn attention(&mut self, qkv: &Acts, batch: &TokenBatch<'_>, shape: AttentionShape<'_, DeviceBias>, out: &mut Acts) {
        [qkv, out].iter().for_each(|acts| acts.used_by(&self.stream));
        assert_rows(qkv, batch.tokens());
        assert_rows(out, batch.tokens());
        assert_eq!(qkv.columns(), 3 * out.columns(), "queries, keys and values");
        assert!(shape.heads > 0 && out.columns().is_multiple_of(shape.heads), "whole heads");
        assert_eq!(qkv.number, out.number, "attention reads and writes one number format");
        assert!(
            shape.bias.is_none_or(|bias| batch.longest() <= bias.reach),
            "a text is longer than the bias was made for"
        );
        self.bring(batch, 0);
        if let Some(bias) = shape.bias {
            self.hold(&bias.values);
        }
        let size = out.columns() / shape.heads;
        let mut arguments = vec![
            Arg::Address(qkv.address()),
            int(qkv.stride()),
            Arg::Address(out.address()),
            int(out.stride()),
            self.part(0),
            self.part(self.layout.offsets),
            self.part(self.layout.blocks),
            Arg::Address(shape.bias.map_or(0, |bias| bias.values.address())),
            int(shape.bias.map_or(0, |bias| bias.reach)),
            int(shape.bias.map_or(0, |bias| bias.stride)),
            int(out.columns()),
            Arg::Float(1.0 / (size as f32).sqrt()),
        ];
        let grid = [self.bucket.blocks as u32, shape.heads as u32, 1];
        let launch = LaunchShape::new(grid, [128, 1, 1]);
        if out.number != Number::F32 && HEAD_SIZES.contains(&size) {
            self.launch(variants::attention(out.number, size, shape.bias.is_some()), launch, arguments);
        } else {
            arguments.push(int(size));
            self.launch(variants::attention_plain(out.number), launch, arguments);
        }
    }

    fn pool(&mut self, hidden: &Acts, batch: &TokenBatch<'_>, shape: PoolShape<'_>, out: &mut Acts) {
        [hidden, out].iter().for_each(|acts| acts.used_by(&self.stream));
        let columns = hidden.columns();
        assert_eq!(out.columns(), columns * shape.ways.len(), "room for each way");
        assert_rows(hidden, batch.tokens());
        assert_rows(out, batch.texts());
        self.bring(batch, shape.skip);
        assert!(self.is_planning() || self.skip == shape.skip, "a pass skips the same in every text");
        for (i, &way) in shape.ways.iter().enumerate() {
            let arguments = vec![
                Arg::Address(hidden.address()),
                int(hidden.stride()),
                self.part(0),
                self.part(self.layout.offsets),
                int(pooling_number(way)),
                int(columns),
                Arg::Address(out.address()),
                int(out.stride()),
                int(i * columns),
            ];
            let grid = [self.bucket.texts as u32, columns.div_ceil(128) as u32, 1];
            self.launch(variants::pool(hidden.number), LaunchShape::new(grid, [128, 1, 1]), arguments);
        }
    }

    fn finish(&mut self, acts: &Acts, normalize: bool) {
        acts.used_by(&self.stream);
        assert_eq!(acts.number, Number::F32, "answers are of 32-bit rows");
        // Alone, it brings a batch of as many texts as there are rows; in a pass there is one.
        if matches!(self.mode, Mode::Eager) {
            let offsets = vec![0; acts.rows() + 1];
            self.bring(&TokenBatch { ids: &[], types: &[], offsets: &offsets }, 0);
        }
        let texts = self.bucket.texts;
        if texts * acts.columns() > self.answer.len() && self.failure.is_none() && !self.is_planning() {
            self.recordings.clear();
            match PinnedWords::zeroed(self.cuda.context(), (texts * acts.columns()).next_power_of_two()) {
                Ok(answer) => self.answer = answer,
                Err(error) => self.fail(error.into()),
            }
        }
        self.answer_len = acts.rows() * acts.columns();
        self.answer_columns = acts.columns();
        let arguments = vec![
            Arg::Address(acts.address()),
            int(acts.stride()),
            self.part(0),
            int(acts.columns()),
            Arg::Int(i32::from(normalize)),
            Arg::Address(self.answer.address()),
        ];
        self.launch(variants::finish(), LaunchShape::new([texts as u32, 1, 1], [128, 1, 1]), arguments);
    }

    fn answer(&mut self) -> Result<&[f32], DeviceError> {
        // Told once: memory may be free the next time; a broken context fails again by itself.
        let settled = self.settle();
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        settled?;
        Ok(self.answer.floats(self.answer_len))
    }
}

/// The kernel's number of a pooling.
fn pooling_number(way: Pooling) -> usize {
    match way {
        Pooling::Cls => 0,
        Pooling::Last => 1,
        Pooling::Max => 2,
        Pooling::Mean => 3,
        Pooling::MeanSqrtLen => 4,
        Pooling::WeightedMean => 5,
    }
}

fn assert_rows(acts: &Acts, rows: usize) {
    assert_eq!(acts.rows(), rows, "activations are resized for the batch first");
}
