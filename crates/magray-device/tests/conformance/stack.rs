//! A model of made-up numbers in one block of the GPU's memory, with a stream of its own.
//! Expects no values: what it answered before is what it must answer again.

use magray_core::{Activation, Pooling, Precision};
use magray_device::cuda::{Acts, Cuda, CudaOps, DeviceBias, DeviceEmbedding, DeviceError, DeviceNorm, Linear};
use magray_device::cuda::{Site, WeightsBlock};
use magray_device::{
    AttentionShape, Device, DistanceBias, Embedding, Generator, LinearNumbers, Norm, Numbers, Ops, PoolShape,
    SharedMemory, Table, TokenBatch,
};
use std::sync::Arc;

/// Tokens of the longest text.
const LONGEST: usize = 128;
/// Numbers of an attention head.
const HEAD: usize = 64;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    vocab: usize,
    hidden: usize,
    ffn: usize,
    layers: usize,
    pub(crate) precision: Precision,
}

impl Shape {
    /// Some megabytes, with rows that need padding.
    pub(crate) fn small(precision: Precision) -> Self {
        Self { vocab: 300, hidden: 256, ffn: 1100, layers: 5, precision }
    }

    /// One layer as wide as those of large language models.
    pub(crate) fn wide(precision: Precision) -> Self {
        Self { vocab: 300, hidden: 4096, ffn: 16_384, layers: 1, precision }
    }

    /// About 16 GB in 16 bits.
    pub(crate) fn huge() -> Self {
        Self { layers: 40, ..Self::wide(Precision::Bf16) }
    }

    /// About 2 GB in 16 bits.
    pub(crate) fn large() -> Self {
        Self { vocab: 1000, hidden: 2048, ffn: 8192, layers: 20, precision: Precision::Bf16 }
    }
}

/// Where a model's numbers come from: by the number of a tensor, and how many it has.
pub(crate) type Source<'a> = &'a dyn Fn(u64, usize) -> Numbers;

/// Made of the tensor's number and the index alone, so that any thread can make any part.
pub(crate) fn made(tensor: u64, count: usize) -> Numbers {
    let make: Arc<Generator> = Arc::new(move |start: usize, out: &mut [f32]| {
        for (i, x) in out.iter_mut().enumerate() {
            let mixed = ((start + i) as u64 + (tensor << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *x = ((mixed >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.1;
        }
    });
    Numbers::made(count, make)
}

/// They are never read.
pub(crate) fn unread(_: u64, count: usize) -> Numbers {
    Numbers::unread(count)
}

/// A model's layers.
struct Layers {
    heads: usize,
    embedding: DeviceEmbedding,
    bias: DeviceBias,
    layers: Vec<Layer>,
}

struct Layer {
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
    norm: DeviceNorm,
}

fn put(site: &Site<'_>, shape: Shape, source: Source<'_>) -> Result<Layers, DeviceError> {
    let Shape { vocab, hidden, ffn, layers, precision } = shape;
    let mut tensor = 0;
    let mut numbers = |count| {
        tensor += 1;
        source(tensor, count)
    };
    let norm = || Norm::new(vec![1.0; hidden], vec![0.0; hidden], 1e-12);
    let tables = Embedding {
        words: Table::of(numbers(vocab * hidden), hidden),
        positions: Table::of(numbers(LONGEST * hidden), hidden),
        types: None,
        norm: norm(),
        first_position: 0,
    };
    let bent = |head: usize, distance: isize| head as f32 * 0.01 * distance.abs() as f32;
    let mut linear = |count: usize, outputs: usize, inputs: usize| {
        let weights = (0..count).map(|_| numbers(outputs * inputs)).collect();
        // A vector is handed over as numbers in any case.
        let bias = (0..count * outputs).map(|i| (i % 7) as f32 * 0.01).collect();
        site.linear_of(LinearNumbers { weights, inputs, bias }, precision)
    };
    let mut layer = || {
        Ok(Layer {
            qkv: linear(3, hidden, hidden)?,
            out: linear(1, hidden, hidden)?,
            up: linear(1, ffn, hidden)?,
            down: linear(1, hidden, ffn)?,
            norm: site.norm(norm())?,
        })
    };
    Ok(Layers {
        heads: hidden / HEAD,
        embedding: site.embedding(tables, precision)?,
        bias: site.bias(DistanceBias::tabulate(hidden / HEAD, LONGEST, bent))?,
        layers: (0..layers).map(|_| layer()).collect::<Result<_, DeviceError>>()?,
    })
}

/// A model on a GPU.
pub(crate) struct Stack {
    pub(crate) ops: CudaOps,
    room: Room,
    layers: Layers,
    pub(crate) weights: WeightsBlock,
}

struct Room {
    hidden: Acts,
    qkv: Acts,
    context: Acts,
    up: Acts,
    pooled: Acts,
}

impl Stack {
    /// Puts a model on a GPU from its numbers.
    pub(crate) fn load(cuda: &Arc<Cuda>, shape: Shape, source: Source<'_>) -> Result<Self, DeviceError> {
        Self::place(cuda, shape, source, |site| site.fill())
    }

    /// Puts a model on a GPU from an image; its weights may still be on their way.
    pub(crate) fn from_image(
        cuda: &Arc<Cuda>,
        shape: Shape,
        image: SharedMemory,
        bytes: u64,
    ) -> Result<Self, DeviceError> {
        Self::place(cuda, shape, &unread, |site| site.fill_from(image, bytes))
    }

    fn place(
        cuda: &Arc<Cuda>,
        shape: Shape,
        source: Source<'_>,
        fill: impl FnOnce(Site<'_>) -> Result<WeightsBlock, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let measured = Site::measuring(cuda);
        put(&measured, shape, &unread)?;
        let site = Site::of_bytes(cuda, measured.bytes())?;
        let layers = put(&site, shape, source)?;
        let weights = fill(site)?;
        let mut ops = cuda.ops()?;
        ops.rely_on(&weights);
        Ok(Self { ops, room: Room::new(cuda, shape), layers, weights })
    }

    /// Frees what passes have taken, as an owner does that was told to.
    pub(crate) fn release(&mut self, cuda: &Cuda, shape: Shape) {
        self.ops.release();
        self.room = Room::new(cuda, shape);
    }

    /// The bits of the answer to some texts, and how often the pass was put together anew.
    pub(crate) fn run(&mut self, lengths: &[usize]) -> Result<(Vec<u32>, usize), DeviceError> {
        let mut offsets = vec![0];
        for length in lengths {
            offsets.push(offsets[offsets.len() - 1] + length);
        }
        let ids: Vec<u32> = (0..offsets[lengths.len()] as u32).map(|at| at * 7 % 300).collect();
        let batch = TokenBatch { ids: &ids, types: &[], offsets: &offsets };
        let mut asked = 0;
        let Self { ops, room, layers, .. } = self;
        ops.pass(&batch, 0, |ops| {
            asked += 1;
            layers.forward(ops, room, &batch);
        });
        let bits = self.ops.answer()?.iter().map(|x| x.to_bits()).collect();
        Ok((bits, asked))
    }
}

impl Room {
    fn new(cuda: &Cuda, shape: Shape) -> Self {
        let acts = |columns| cuda.acts(shape.precision, columns);
        Self {
            hidden: acts(shape.hidden),
            qkv: acts(3 * shape.hidden),
            context: acts(shape.hidden),
            up: acts(shape.ffn),
            pooled: cuda.acts(Precision::F32, shape.hidden),
        }
    }
}

impl Layers {
    fn forward(&self, ops: &mut CudaOps, room: &mut Room, batch: &TokenBatch<'_>) {
        for acts in [&mut room.hidden, &mut room.qkv, &mut room.context, &mut room.up] {
            ops.resize(acts, batch.tokens());
        }
        ops.resize(&mut room.pooled, batch.texts());
        let attention = AttentionShape { heads: self.heads, bias: Some(&self.bias) };
        ops.embed(batch, &self.embedding, &mut room.hidden);
        for layer in &self.layers {
            ops.linear(&room.hidden, &layer.qkv, Activation::Identity, &mut room.qkv);
            ops.attention(&room.qkv, batch, attention, &mut room.context);
            ops.linear_add_norm(&room.context, &layer.out, &layer.norm, &mut room.hidden);
            ops.linear(&room.hidden, &layer.up, Activation::Gelu, &mut room.up);
            ops.linear_add_norm(&room.up, &layer.down, &layer.norm, &mut room.hidden);
        }
        ops.pool(&room.hidden, batch, PoolShape { ways: &[Pooling::Mean], skip: 0 }, &mut room.pooled);
        ops.finish(&room.pooled, true);
    }
}
