//! How fast a GPU decodes, with random weights of known shapes: tokens a second by streams at a context of 256, and the time of a prompt of
//! 1,000 tokens. Measures operations alone: no scheduler, no sampling but the most likely token.
//!
//! `decode_speed [1b|8b] [bf16|q8_0|q4_0] [streams,...] [prompt tokens] [layers] [known tokens]`, for instance `decode_speed 1b bf16 1,8,32 1000`.
//! With fewer layers than the shape has it is loaded sooner, for profiles. Known tokens are before those of the prompt, and not computed.

use magray_core::{Activation, BlockFormat};
use magray_device::cuda::{Cuda, CudaDecoderOps, CudaOptions, SearchPath, Visible, probe};
use magray_device::{
    AttentionLayer, BlockLinear, BlockMatrix, CHOSEN, DecoderDevice, DecoderOps, KvShape, PAGE_TOKENS, RopeSource,
    StepBatch,
};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Linear = <CudaDecoderOps as DecoderOps>::Linear;
type Norm = <CudaDecoderOps as DecoderOps>::Norm;

struct Shape {
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    ffn: usize,
    vocab: usize,
}

const SHAPES: [(&str, Shape); 2] = [
    ("1b", Shape { layers: 16, hidden: 2048, heads: 32, kv_heads: 8, head_size: 64, ffn: 8192, vocab: 128_256 }),
    ("8b", Shape { layers: 32, hidden: 4096, heads: 32, kv_heads: 8, head_size: 128, ffn: 14336, vocab: 128_256 }),
];

/// Tokens that each stream has when the clock starts.
const CONTEXT: usize = 224;
/// Tokens that are not timed, and those that are.
const WARM: usize = 8;
const TIMED: usize = 48;

struct Layer {
    norms: [Norm; 2],
    qkv: Linear,
    output: Linear,
    gate_up: Linear,
    down: Linear,
}

struct Model {
    shape: &'static Shape,
    table: Linear,
    head: Linear,
    norm: Norm,
    layers: Vec<Layer>,
    rope: <CudaDecoderOps as DecoderOps>::Rope,
}

/// Random bytes that are small weights in every format.
fn matrix(format: BlockFormat, rows: usize, columns: usize) -> BlockMatrix {
    let count = format.bytes_of(rows * columns).expect("whole blocks");
    let mut bytes = vec![0u8; count];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        chunk.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes()[..chunk.len()]);
    }
    match format {
        // The exponent of numbers around 0.02, and a random sign and mantissa.
        BlockFormat::Bf16 => bytes.chunks_exact_mut(2).for_each(|x| (x[0], x[1]) = (x[0], x[1] & 0x80 | 0x3c)),
        BlockFormat::Q8_0 => bytes.chunks_exact_mut(34).for_each(|x| x[..2].copy_from_slice(&[0x4a, 0x08])),
        _ => bytes.chunks_exact_mut(18).for_each(|x| x[..2].copy_from_slice(&[0x00, 0x1c])),
    }
    BlockMatrix::new(bytes, format, columns)
}

impl Model {
    fn new(cuda: &Cuda, shape: &'static Shape, format: BlockFormat, layers: usize) -> Result<Self, Box<dyn Error>> {
        let Shape { hidden, heads, kv_heads, head_size, ffn, vocab, .. } = *shape;
        let of = |rows, columns| BlockLinear { parts: vec![matrix(format, rows, columns)], bias: Vec::new() };
        let (qkv, output) = (of((heads + 2 * kv_heads) * head_size, hidden), of(hidden, heads * head_size));
        let (gate_up, down, head) = (of(2 * ffn, hidden), of(hidden, ffn), of(vocab, hidden));
        let norm = || cuda.rms_norm(vec![1.0; hidden], 1e-5);
        let layers = (0..layers).map(|_| -> Result<Layer, Box<dyn Error>> {
            Ok(Layer {
                norms: [norm()?, norm()?],
                qkv: cuda.block_linear(qkv.clone())?,
                output: cuda.block_linear(output.clone())?,
                gate_up: cuda.block_gates(gate_up.clone())?,
                down: cuda.block_linear(down.clone())?,
            })
        });
        let radians = (0..head_size / 2).map(|i| 500000f32.powf(-2.0 * i as f32 / head_size as f32)).collect();
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
            table: cuda.block_linear(head.clone())?,
            head: cuda.block_linear(head)?,
            norm: norm()?,
            rope: cuda.rope(RopeSource { radians, scale: 1.0, neighbours: false })?,
            shape,
        })
    }
}

/// A model with room for its steps.
struct Running<'a> {
    model: &'a Model,
    ops: CudaDecoderOps,
    pages: <CudaDecoderOps as DecoderOps>::Pages,
    acts: [<CudaDecoderOps as DecoderOps>::Acts; 4],
}

impl<'a> Running<'a> {
    fn new(cuda: &Arc<Cuda>, model: &'a Model, pages: usize) -> Result<Self, Box<dyn Error>> {
        let Shape { hidden, heads, kv_heads, head_size, ffn, .. } = *model.shape;
        let layers = model.layers.len();
        let columns = [hidden, (heads + 2 * kv_heads) * head_size, heads * head_size, ffn];
        let mut kept = cuda.pages(KvShape { layers, kv_heads, head_size }, pages)?;
        cuda.grow_pages(&mut kept, pages)?;
        Ok(Self { model, ops: cuda.decoder()?, pages: kept, acts: columns.map(|columns| cuda.decoder_acts(columns)) })
    }

    fn forward(&mut self, steps: &StepBatch<'_>) {
        let Self { model, ops, pages, acts } = self;
        let [hidden, qkv, attended, gated] = acts;
        for acts in [&mut *hidden, &mut *qkv, &mut *attended, &mut *gated] {
            ops.resize(acts, steps.tokens());
        }
        ops.embed(steps, &model.table, 1.0, hidden);
        for (index, layer) in model.layers.iter().enumerate() {
            let attention = AttentionLayer {
                layer: index,
                heads: model.shape.heads,
                window: None,
                scale: (model.shape.head_size as f32).powf(-0.5),
                cap: None,
                rope: &model.rope,
                query_norm: None,
                key_norm: None,
            };
            ops.norm_linear(hidden, &layer.norms[0], &layer.qkv, qkv);
            ops.rope_append(steps, &attention, qkv, pages);
            ops.attend(steps, &attention, qkv, pages, attended);
            ops.linear_add(attended, &layer.output, None, hidden);
            ops.gated_linear(hidden, &layer.norms[1], &layer.gate_up, Activation::Silu, gated);
            ops.linear_add(gated, &layer.down, None, hidden);
        }
        ops.logits(steps, hidden, &model.norm, &model.head, None);
    }
}

struct Speed {
    tokens_s: f64,
    /// Of a step, on the CPU.
    host_us: f64,
}

fn decode(cuda: &Arc<Cuda>, model: &Model, streams: usize) -> Result<Speed, Box<dyn Error>> {
    let pages_each = (CONTEXT + WARM + TIMED).div_ceil(PAGE_TOKENS);
    let mut running = Running::new(cuda, model, streams * pages_each)?;
    let pages: Vec<u32> = (0..(streams * pages_each) as u32).collect();
    let page_offsets: Vec<usize> = (0..=streams).map(|i| i * pages_each).collect();
    let offsets: Vec<usize> = (0..=streams).collect();
    let rows: Vec<usize> = (0..streams).collect();
    let mut ids = vec![1; streams];
    let mut start = Instant::now();
    let mut host = Duration::ZERO;
    for token in 0..WARM + TIMED {
        if token == WARM {
            running.ops.chosen()?;
            start = Instant::now();
            host = Duration::ZERO;
        }
        let begun = Instant::now();
        let starts = vec![CONTEXT + token; streams];
        running.forward(&StepBatch {
            ids: &ids,
            offsets: &offsets,
            starts: &starts,
            pages: &pages,
            page_offsets: &page_offsets,
            logit_rows: &rows,
        });
        ids = (0..streams as u32).map(|row| CHOSEN | row).collect();
        host += begun.elapsed();
        if token != 0 && token != WARM {
            running.ops.chosen()?;
        }
    }
    let last = running.ops.chosen()?;
    let seconds = start.elapsed().as_secs_f64();
    assert!(last.len() == streams && !last.contains(&u32::MAX), "logits are finite: {last:?}");
    Ok(Speed { tokens_s: (streams * TIMED) as f64 / seconds, host_us: host.as_secs_f64() * 1e6 / TIMED as f64 })
}

/// Milliseconds of a prompt behind tokens that are known, and how many of them on the CPU.
fn prompt(cuda: &Arc<Cuda>, model: &Model, tokens: usize, known: usize) -> Result<[f64; 2], Box<dyn Error>> {
    let pages: Vec<u32> = (0..(known + tokens).div_ceil(PAGE_TOKENS) as u32).collect();
    let mut running = Running::new(cuda, model, pages.len())?;
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i * 37 % 1000).collect();
    let mut times = Vec::new();
    for _ in 0..12 {
        let start = Instant::now();
        running.forward(&StepBatch {
            ids: &ids,
            offsets: &[0, tokens],
            starts: &[known],
            pages: &pages,
            page_offsets: &[0, pages.len()],
            logit_rows: &[tokens - 1],
        });
        let host = start.elapsed();
        running.ops.chosen()?;
        times.push([start.elapsed(), host].map(|time| time.as_secs_f64() * 1e3));
    }
    times.sort_by(|a, b| a[0].total_cmp(&b[0]));
    Ok(times[times.len() / 2])
}

#[expect(clippy::print_stdout, reason = "a program's answer")]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, usual: &str| arguments.get(at).map_or(usual.to_owned(), Clone::clone);
    let (name, format) = (argument(0, "1b"), argument(1, "bf16"));
    let shape = SHAPES.iter().find(|(known, _)| *known == name).map(|(_, shape)| shape).ok_or("1b or 8b")?;
    let block_format = match format.as_str() {
        "bf16" => BlockFormat::Bf16,
        "q8_0" => BlockFormat::Q8_0,
        "q4_0" => BlockFormat::Q4_0,
        _ => return Err("bf16, q8_0 or q4_0".into()),
    };
    let search = SearchPath::system();
    let gpus = probe(&search, &Visible::all())?;
    let options =
        CudaOptions { search, kernel_cache: Some(std::env::temp_dir().join("decode_speed")), ..Default::default() };
    let cuda = Cuda::open(&gpus[0], options)?;
    let start = Instant::now();
    let layers = argument(4, &shape.layers.to_string()).parse()?;
    let model = Model::new(&cuda, shape, block_format, layers)?;
    println!("{name} {format}: loaded in {:.1} s", start.elapsed().as_secs_f64());
    for streams in argument(2, "1,8,32,64,256").split(',').filter(|streams| !streams.is_empty()) {
        let streams: usize = streams.parse()?;
        let Speed { tokens_s, host_us } = decode(&cuda, &model, streams)?;
        let step_us = 1e6 * streams as f64 / tokens_s;
        println!(
            "{name} {format}: {streams:4} streams {tokens_s:9.0} tokens/s, {step_us:8.1} us a step, {host_us:.0} us on the CPU"
        );
    }
    let tokens: usize = argument(3, "1000").parse()?;
    if tokens > 0 {
        let known: usize = argument(5, "0").parse()?;
        let [all, host] = prompt(&cuda, &model, tokens, known)?;
        println!("{name} {format}: prompt of {tokens} tokens behind {known} {all:7.2} ms, {host:.2} ms on the CPU");
    }
    Ok(())
}
