//! Tiny decoders with random weights, of every kind that the description of decoders knows, on any device.
//! Expects no values: the tests do.

use half::{bf16, f16};
use magray_core::{Activation, BlockFormat};
use magray_device::{
    ActsRole, AttentionLayer, BlockLinear, BlockMatrix, DecoderDevice, DecoderOps, HeadShape, KvShape, PAGE_TOKENS,
    Place, Role, RopeSource, StepBatch,
};

/// What a decoder is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_size: usize,
    pub(crate) layers: usize,
    pub(crate) vocab: usize,
    pub(crate) format: BlockFormat,
    pub(crate) window: Option<usize>,
    pub(crate) cap: Option<f32>,
    pub(crate) norms_after: bool,
    pub(crate) head_norms: bool,
    pub(crate) biases: bool,
    pub(crate) neighbours: bool,
    /// Numbers of a head that are turned.
    pub(crate) rotated: usize,
    pub(crate) activation: Activation,
}

pub(crate) const PLAIN: Kind = Kind {
    hidden: 256,
    ffn: 512,
    heads: 4,
    kv_heads: 2,
    head_size: 64,
    layers: 2,
    vocab: 400,
    format: BlockFormat::Bf16,
    window: None,
    cap: None,
    norms_after: false,
    head_norms: false,
    biases: false,
    neighbours: false,
    rotated: 64,
    activation: Activation::Silu,
};

/// Numbers that are the same on every device, between -1 and 1.
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let number = |i: u64| {
        let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed.wrapping_mul(0xd1b5_4a32_d192_ed03));
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f32 / 8388608.0 - 1.0
    };
    (0..count as u64).map(number).collect()
}

/// A matrix of random weights whose products with rows of about 1 are of about 1.
pub(crate) fn matrix(format: BlockFormat, rows: usize, columns: usize, seed: u64) -> BlockMatrix {
    let scale = (3.0 / columns as f32).sqrt();
    let values = numbers(rows * columns, seed);
    let mut bytes = Vec::new();
    match format {
        BlockFormat::Bf16 => bytes.extend(values.iter().flat_map(|x| bf16::from_f32(x * scale).to_le_bytes())),
        BlockFormat::Q8_0 => {
            for block in values.chunks(32) {
                bytes.extend(f16::from_f32(scale / 127.0).to_le_bytes());
                bytes.extend(block.iter().map(|x| (x * 127.0).round() as i8 as u8));
            }
        }
        BlockFormat::Q4_0 | BlockFormat::Q4_1 => {
            for (i, block) in values.chunks(32).enumerate() {
                let step = scale / 7.5 * (1.0 + (i % 5) as f32 * 0.1);
                bytes.extend(f16::from_f32(step).to_le_bytes());
                if format == BlockFormat::Q4_1 {
                    bytes.extend(f16::from_f32(-7.3 * step).to_le_bytes());
                }
                let number = |x: f32| (x * 7.5 + 7.5).round().clamp(0.0, 15.0) as u8;
                bytes.extend((0..16).map(|j| number(block[j]) | number(block[j + 16]) << 4));
            }
        }
        other => panic!("no random {other}"),
    }
    BlockMatrix::new(bytes, format, columns)
}

type Of<D, T> = <<D as DecoderDevice>::Ops as OpsTypes<T>>::Out;

/// Names the types of a device's operations.
pub(crate) trait OpsTypes<T> {
    type Out;
}
pub(crate) struct L;
pub(crate) struct N;
impl<O: DecoderOps> OpsTypes<L> for O {
    type Out = O::Linear;
}
impl<O: DecoderOps> OpsTypes<N> for O {
    type Out = O::Norm;
}

struct Layer<D: DecoderDevice> {
    attention_norm: Of<D, N>,
    qkv: Of<D, L>,
    query_norm: Option<Of<D, N>>,
    key_norm: Option<Of<D, N>>,
    output: Of<D, L>,
    attention_after: Option<Of<D, N>>,
    ffn_norm: Of<D, N>,
    gate_up: Of<D, L>,
    down: Of<D, L>,
    ffn_after: Option<Of<D, N>>,
}

/// A decoder on a device, with pages and activations.
pub(crate) struct Model<D: DecoderDevice> {
    pub(crate) kind: Kind,
    table: Of<D, L>,
    layers: Vec<Layer<D>>,
    norm: Of<D, N>,
    rope: <D::Ops as DecoderOps>::Rope,
    pages: <D::Ops as DecoderOps>::Pages,
    acts: [<D::Ops as DecoderOps>::Acts; 4],
}

impl<D: DecoderDevice> Model<D> {
    pub(crate) fn new(device: &D, kind: Kind, pages: usize, seed: u64) -> Self {
        Self::packed(device, device, kind, pages, seed)
    }

    /// The same with layers that another device has packed for this one's operations.
    pub(crate) fn packed<P: DecoderDevice<Ops = D::Ops, Error = D::Error>>(
        device: &D,
        packer: &P,
        kind: Kind,
        pages: usize,
        seed: u64,
    ) -> Self {
        let Kind { hidden, ffn, heads, kv_heads, head_size, .. } = kind;
        let norm = |place: Place, size: usize, seed: u64| {
            let gain = numbers(size, seed).iter().map(|x| 1.0 + 0.3 * x).collect();
            packer.norm_at(place, gain, 1e-5).expect("the norm is taken over")
        };
        let source = |parts: &[usize], inputs, seed: u64| BlockLinear {
            parts: parts.iter().zip(seed..).map(|(rows, seed)| matrix(kind.format, *rows, inputs, seed)).collect(),
            bias: match kind.biases {
                true => numbers(parts.iter().sum(), seed + 7).iter().map(|x| 0.2 * x).collect(),
                false => Vec::new(),
            },
        };
        let shape = HeadShape { heads, kv_heads, head_size };
        let linear_at = |place, role, source| packer.linear_at(place, role, source).expect("the layer is taken over");
        let layers = (0..kind.layers as u64).map(|layer| {
            let place = Place::Layer(layer as usize);
            let (linear, norm) = (|role, source| linear_at(place, role, source), |size, seed| norm(place, size, seed));
            let seed = seed + 100 * (layer + 1);
            let only_if = |there: bool, size, seed| there.then(|| norm(size, seed));
            let gates = source(&[ffn, ffn], hidden, seed + 20);
            Layer {
                attention_norm: norm(hidden, seed),
                qkv: linear(
                    Role::Qkv(shape),
                    source(&[heads * head_size, kv_heads * head_size, kv_heads * head_size], hidden, seed + 1),
                ),
                query_norm: only_if(kind.head_norms, head_size, seed + 10),
                key_norm: only_if(kind.head_norms, head_size, seed + 11),
                output: linear(Role::Attended(shape), source(&[hidden], heads * head_size, seed + 12)),
                attention_after: only_if(kind.norms_after, hidden, seed + 13),
                ffn_norm: norm(hidden, seed + 14),
                gate_up: linear(Role::Gates, gates),
                down: linear(Role::Gated, source(&[hidden], ffn, seed + 30)),
                ffn_after: only_if(kind.norms_after, hidden, seed + 31),
            }
        });
        let pairs = kind.rotated / 2;
        let radians = (0..pairs).map(|i| 10000f32.powf(-(i as f32) / pairs as f32)).collect();
        let rope = RopeSource { radians, scale: 1.0, neighbours: kind.neighbours };
        let kv = KvShape { layers: kind.layers, kv_heads, head_size };
        let acts = [
            (ActsRole::Hidden, hidden),
            (ActsRole::Qkv(shape), (heads + 2 * kv_heads) * head_size),
            (ActsRole::Attended(shape), heads * head_size),
            (ActsRole::Gated, ffn),
        ];
        let mut kept = device.pages(kv, pages).expect("pages are known");
        // In two steps: what the first ones hold moves along.
        for count in [1, pages] {
            device.grow_pages(&mut kept, count).expect("there is room for pages");
        }
        let mut table = source(&[kind.vocab], hidden, seed + 2);
        table.bias.clear();
        Self {
            kind,
            table: linear_at(Place::TiedTable, Role::Vocabulary, table),
            layers: layers.collect(),
            norm: norm(Place::Head, hidden, seed + 3),
            rope: packer.rope(rope).expect("frequencies are taken over"),
            pages: kept,
            acts: acts.map(|(role, columns)| device.acts_for(role, columns)),
        }
    }

    /// Computes a batch; the logits of its wanted rows are the operations' next answer.
    pub(crate) fn forward(&mut self, ops: &mut D::Ops, steps: &StepBatch<'_>) {
        let Self { kind, table, layers, norm, rope, pages, acts } = self;
        let [hidden, qkv, attended, gated] = acts;
        for acts in [&mut *hidden, &mut *qkv, &mut *attended, &mut *gated] {
            ops.resize(acts, steps.tokens());
        }
        ops.embed(steps, table, 1.5, hidden);
        for (index, layer) in layers.iter().enumerate() {
            let attention = AttentionLayer {
                layer: index,
                heads: kind.heads,
                // Windows in every second layer, as models have them.
                window: kind.window.filter(|_| index % 2 == 0),
                scale: (kind.head_size as f32).powf(-0.5),
                cap: kind.cap,
                rope,
                query_norm: layer.query_norm.as_ref(),
                key_norm: layer.key_norm.as_ref(),
            };
            ops.enter(steps, index, hidden);
            ops.norm_linear(hidden, &layer.attention_norm, &layer.qkv, qkv);
            ops.rope_append(steps, &attention, qkv, pages);
            ops.attend(steps, &attention, qkv, pages, attended);
            ops.linear_add(attended, &layer.output, layer.attention_after.as_ref(), hidden);
            ops.gated_linear(hidden, &layer.ffn_norm, &layer.gate_up, kind.activation, gated);
            ops.linear_add(gated, &layer.down, layer.ffn_after.as_ref(), hidden);
        }
        ops.logits(steps, hidden, norm, table, kind.cap);
    }
}

/// Sequences that advance together, with the pages that each has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequences {
    pub(crate) lengths: Vec<usize>,
    pages: Vec<Vec<u32>>,
    free: Vec<u32>,
}

/// A batch of steps with its own memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) ids: Vec<u32>,
    offsets: Vec<usize>,
    starts: Vec<usize>,
    pages: Vec<u32>,
    page_offsets: Vec<usize>,
    pub(crate) logit_rows: Vec<usize>,
}

impl Batch {
    pub(crate) fn steps(&self) -> StepBatch<'_> {
        StepBatch {
            ids: &self.ids,
            offsets: &self.offsets,
            starts: &self.starts,
            pages: &self.pages,
            page_offsets: &self.page_offsets,
            logit_rows: &self.logit_rows,
        }
    }
}

impl Sequences {
    /// With this many pages, which are given out in no order.
    pub(crate) fn new(count: usize, pages: usize) -> Self {
        // 11 and the counts used here have no common divisor.
        let free = (0..pages).map(|i| (i * 11 % pages) as u32).collect();
        Self { lengths: vec![0; count], pages: vec![Vec::new(); count], free }
    }

    /// A batch in which each sequence gets this many new tokens, with ids of a small vocabulary.
    pub(crate) fn advance(&mut self, new: &[usize], vocab: usize, seed: u64) -> Batch {
        let mut batch = Batch { offsets: vec![0], page_offsets: vec![0], ..Default::default() };
        for (i, &count) in new.iter().enumerate().filter(|(_, count)| **count > 0) {
            let start = self.lengths[i];
            self.lengths[i] += count;
            while self.pages[i].len() * PAGE_TOKENS < self.lengths[i] {
                self.pages[i].push(self.free.pop().expect("pages for all"));
            }
            let id = |at: usize| (numbers(1, seed + (i * 10_000 + at) as u64)[0].abs() * (vocab - 1) as f32) as u32;
            batch.ids.extend((start..start + count).map(id));
            batch.offsets.push(batch.ids.len());
            batch.starts.push(start);
            batch.pages.extend_from_slice(&self.pages[i]);
            batch.page_offsets.push(batch.pages.len());
            batch.logit_rows.push(batch.ids.len() - 1);
        }
        batch
    }
}
