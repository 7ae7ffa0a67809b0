//! What it costs to share the layers of a decoder among ranks: the time of a token on one rank and on groups, by layer, with sums on the device
//! and on the host. Random weights of a known shape; all ranks are on one device, so that the arithmetic is the same work in all.
//!
//! `group_speed [cuda|cpu] [layers] [ranks,...]`, for instance `group_speed cuda 16 1,2,4`.

use magray_core::{Activation, BlockFormat};
use magray_device::cpu::Cpu;
use magray_device::cuda::{Cuda, CudaOptions, SearchPath, Visible, probe};
use magray_device::{
    ActsRole, AttentionLayer, BlockLinear, BlockMatrix, DecoderDevice, DecoderOps, HeadShape, KvShape, PAGE_TOKENS,
    Place, Role, RopeSource, SharedOps, StepBatch, SumsPlace, Tensor,
};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

const HIDDEN: usize = 2048;
const FFN: usize = 8192;
const VOCAB: usize = 32_000;
const HEADS: HeadShape = HeadShape { heads: 32, kv_heads: 8, head_size: 64 };
/// Tokens that are not timed, and those that are.
const WARM: usize = 8;
const TIMED: usize = 48;

type LinearOf<D> = <<D as DecoderDevice>::Ops as DecoderOps>::Linear;
type NormOf<D> = <<D as DecoderDevice>::Ops as DecoderOps>::Norm;

struct Layer<D: DecoderDevice> {
    norms: [NormOf<D>; 2],
    qkv: LinearOf<D>,
    output: LinearOf<D>,
    gate_up: LinearOf<D>,
    down: LinearOf<D>,
}

/// Random bf16 numbers around 0.02.
fn matrix(rows: usize, columns: usize) -> BlockLinear {
    let mut bytes = vec![0u8; 2 * rows * columns];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        chunk.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes()[..chunk.len()]);
    }
    bytes.chunks_exact_mut(2).for_each(|x| x[1] = x[1] & 0x80 | 0x3c);
    BlockLinear { parts: vec![BlockMatrix::new(bytes, BlockFormat::Bf16, columns)], bias: Vec::new() }
}

/// Microseconds of a token of one sequence.
fn token_us<D: DecoderDevice>(device: &D, mut ops: D::Ops, layers: usize) -> Result<f64, Box<dyn Error>>
where
    D::Error: 'static,
{
    let HeadShape { heads, kv_heads, head_size } = HEADS;
    let linear = |layer, role, rows, columns| device.linear_at(Place::Layer(layer), role, matrix(rows, columns));
    let norm = |place| device.norm_at(place, vec![1.0; HIDDEN], 1e-5);
    let qkv_columns = (heads + 2 * kv_heads) * head_size;
    let mut all: Vec<Layer<D>> = Vec::new();
    for layer in 0..layers {
        all.push(Layer {
            norms: [norm(Place::Layer(layer))?, norm(Place::Layer(layer))?],
            qkv: linear(layer, Role::Qkv(HEADS), qkv_columns, HIDDEN)?,
            output: linear(layer, Role::Attended(HEADS), HIDDEN, heads * head_size)?,
            gate_up: linear(layer, Role::Gates, 2 * FFN, HIDDEN)?,
            down: linear(layer, Role::Gated, HIDDEN, FFN)?,
        });
    }
    let table = device.linear_at(Place::TiedTable, Role::Vocabulary, matrix(VOCAB, HIDDEN))?;
    let last_norm = norm(Place::Head)?;
    let radians = (0..head_size / 2).map(|i| 500000f32.powf(-2.0 * i as f32 / head_size as f32)).collect();
    let rope = device.rope(RopeSource { radians, scale: 1.0, neighbours: false })?;
    let count = (WARM + TIMED).div_ceil(PAGE_TOKENS);
    let mut pages = device.pages(KvShape { layers, kv_heads, head_size }, count)?;
    device.grow_pages(&mut pages, count)?;
    let roles = [
        (ActsRole::Hidden, HIDDEN),
        (ActsRole::Qkv(HEADS), qkv_columns),
        (ActsRole::Attended(HEADS), heads * head_size),
        (ActsRole::Gated, FFN),
    ];
    let [mut hidden, mut qkv, mut attended, mut gated] = roles.map(|(role, columns)| device.acts_for(role, columns));
    let numbers: Vec<u32> = (0..count as u32).collect();
    let mut start = Instant::now();
    for token in 0..WARM + TIMED {
        if token == WARM {
            start = Instant::now();
        }
        let steps = StepBatch {
            ids: &[token as u32 + 1],
            offsets: &[0, 1],
            starts: &[token],
            pages: &numbers,
            page_offsets: &[0, count],
            logit_rows: &[0],
        };
        for acts in [&mut hidden, &mut qkv, &mut attended, &mut gated] {
            ops.resize(acts, 1);
        }
        ops.embed(&steps, &table, 1.0, &mut hidden);
        for (layer, weights) in all.iter().enumerate() {
            let attention = AttentionLayer {
                layer,
                heads,
                window: None,
                scale: (head_size as f32).powf(-0.5),
                cap: None,
                rope: &rope,
                query_norm: None,
                key_norm: None,
            };
            ops.enter(&steps, layer, &mut hidden);
            ops.norm_linear(&hidden, &weights.norms[0], &weights.qkv, &mut qkv);
            ops.rope_append(&steps, &attention, &mut qkv, &mut pages);
            ops.attend(&steps, &attention, &qkv, &pages, &mut attended);
            ops.linear_add(&attended, &weights.output, None, &mut hidden);
            ops.gated_linear(&hidden, &weights.norms[1], &weights.gate_up, Activation::Silu, &mut gated);
            ops.linear_add(&gated, &weights.down, None, &mut hidden);
        }
        ops.logits(&steps, &hidden, &last_norm, &table, None);
        let chosen = ops.chosen()?;
        assert!(chosen.len() == 1 && chosen[0] != u32::MAX, "logits are finite");
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / TIMED as f64)
}

#[expect(clippy::print_stdout, reason = "a program's answer")]
fn measure<D: DecoderDevice>(
    device: &Arc<D>,
    ops: impl Fn() -> Result<D::Ops, Box<dyn Error>>,
    (layers, ranks): (usize, &str),
) -> Result<(), Box<dyn Error>>
where
    D::Ops: SharedOps,
    D::Error: 'static,
{
    let alone = token_us(&**device, ops()?, layers)?;
    println!("alone: {alone:.0} us a token, {:.1} us a layer", alone / layers as f64);
    for count in ranks.split(',') {
        let count: usize = count.parse()?;
        let group = Tensor::new(vec![Arc::clone(device); count]);
        let all = || (0..count).map(|_| ops()).collect::<Result<Vec<_>, _>>();
        let on_devices = group.ops(all()?);
        let place = on_devices.sums().map_or_else(|| "alone".to_owned(), SumsPlace::to_string);
        let mut on_host = group.ops(all()?);
        on_host.sum_on_host("this is compared");
        for (place, ops) in [(place, on_devices), ("host".to_owned(), on_host)] {
            let us = token_us(&group, ops, layers)?;
            let (layer, more) = (us / layers as f64, (us - alone) / layers as f64);
            println!("group of {count}, sums: {place}: {us:.0} us a token, {layer:.1} us a layer, {more:.1} us more");
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, usual: &str| arguments.get(at).map_or(usual.to_owned(), Clone::clone);
    let (layers, ranks) = (argument(1, "16").parse()?, argument(2, "1,2,4"));
    if argument(0, "cuda") == "cpu" {
        let cpu = Arc::new(Cpu::new(None, None)?);
        return measure(&cpu, || Ok(cpu.decoder()), (layers, &ranks));
    }
    let search = SearchPath::system();
    let gpus = probe(&search, &Visible::all())?;
    let options =
        CudaOptions { search, kernel_cache: Some(std::env::temp_dir().join("group_speed")), ..Default::default() };
    let cuda = Cuda::open(&gpus[0], options)?;
    measure(&cuda, || Ok(cuda.decoder()?), (layers, &ranks))
}
