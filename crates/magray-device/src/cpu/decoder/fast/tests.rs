//! Packed operations against plain code and against the portable operations, on random inputs.

use super::few::{FewRows, ROWS};
use super::form::{Form, GROUP, PANEL};
use super::panels::Panels;
use super::rows::{FewInputs, PrepareRow};
use super::*;
use crate::blocks::BlockMatrix;
use crate::cpu::{Region, available_paths};
use crate::{BlockLinear, DecoderDevice, DecoderOps, KvFormat, KvShape};
use half::f16;
use magray_core::BlockFormat;
use proptest::prelude::*;
use std::sync::Arc;

/// Numbers that follow from a seed, from -1 to 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let number = |i: u64| {
        let x = (seed << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((x ^ (x >> 31)) >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..count as u64).map(number).collect()
}

/// Where a block's 16-bit floats lie, and what makes numbers of about 1 of random blocks.
fn halves_of(format: BlockFormat) -> (&'static [usize], f32) {
    match format {
        BlockFormat::Q4_0 => (&[0], 0.1),
        BlockFormat::Q5_0 => (&[0], 0.05),
        BlockFormat::Q8_0 => (&[0], 0.008),
        BlockFormat::Q4_1 => (&[0, 2], 0.06),
        BlockFormat::Q5_1 => (&[0, 2], 0.03),
        BlockFormat::Q2K => (&[80, 82], 0.02),
        BlockFormat::Q3K => (&[108], 0.015),
        BlockFormat::Q4K => (&[0, 2], 0.002),
        BlockFormat::Q5K => (&[0, 2], 0.001),
        BlockFormat::Q6K => (&[208], 0.0005),
        BlockFormat::F32 | BlockFormat::F16 | BlockFormat::Bf16 => (&[], 1.0),
    }
}

/// A matrix of random blocks.
fn matrix(format: BlockFormat, rows: usize, columns: usize, seed: u64) -> BlockMatrix {
    let values = numbers(rows * columns, seed);
    let bytes: Vec<u8> = match format {
        BlockFormat::F32 => return BlockMatrix::of_floats(&values, columns),
        BlockFormat::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        BlockFormat::Bf16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        _ => {
            let count = format.bytes_of(rows * columns).unwrap();
            let mut bytes: Vec<u8> = numbers(count, seed + 1).iter().map(|x| (x * 1000.0) as i32 as u8).collect();
            for (i, block) in bytes.chunks_exact_mut(format.bytes()).enumerate() {
                let (halves, size) = halves_of(format);
                for (at, half) in halves.iter().enumerate() {
                    let scale = f16::from_f32(size * (0.5 + values[2 * i + at].abs()));
                    block[*half..half + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            bytes
        }
    };
    BlockMatrix::new(bytes, format, columns)
}

fn formats() -> impl Strategy<Value = BlockFormat> {
    prop::sample::select(BlockFormat::ALL.to_vec())
}

fn pool() -> ThreadPool {
    ThreadPool::new(2).unwrap()
}

/// The instructions this machine has for bytes, each with a path that has them.
fn kinds() -> Vec<(Bytes, CpuPath)> {
    let paths = available_paths();
    let has = |path: &CpuPath| paths.contains(path);
    let kinds = [(Bytes::Avx2, CpuPath::Avx2), (Bytes::Vnni, CpuPath::Avx512)];
    kinds
        .into_iter()
        .filter(|(bytes, path)| has(path) && (*bytes == Bytes::Avx2 || detect::has_vnni()) && detect::has_f16c())
        .collect()
}

fn close(found: f32, wanted: f64, size: f64, tolerance: f64) -> Result<(), TestCaseError> {
    let off = (f64::from(found) - wanted).abs();
    prop_assert!(off <= tolerance * size + 1e-6, "{found} for {wanted}, of numbers of {size}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn panels_hold_what_the_blocks_say(format in formats(), rows in 1usize..70, seed in 0u64..1000) {
        let source = matrix(format, rows, 256, seed);
        let panels = Panels::pack(&source, &pool(), &Region::default());
        let (mut wanted, mut found) = (vec![0.0; 256], vec![0.0; 256]);
        for row in 0..rows {
            source.read_row(row, &mut wanted);
            panels.read(row, &mut found);
            for (part, (wanted, found)) in wanted.chunks(GROUP).zip(found.chunks(GROUP)).enumerate() {
                let largest = wanted.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let off = wanted.iter().zip(found).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
                let tolerance = match format {
                    BlockFormat::F32 | BlockFormat::F16 => largest / 256.0,
                    BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q8_0 | BlockFormat::Bf16 => largest * 1e-6,
                    BlockFormat::Q4K | BlockFormat::Q6K => largest * 2e-3,
                    _ => largest / 240.0,
                };
                prop_assert!(off <= tolerance, "{format}, row {row}, group {part}: {off} of {largest}");
            }
        }
    }

    #[test]
    fn panels_take_the_bytes_that_are_told(format in formats(), rows in 1usize..70, blocks in 1usize..3) {
        let source = matrix(format, rows, 256 * blocks, 1);
        let panels = Panels::pack(&source, &pool(), &Region::default());
        let told = PanelLinear::bytes_of(&BlockLinear { parts: vec![source.clone(), source], bias: vec![0.0; 3] });
        prop_assert_eq!(told, 2 * (panels.count() * panels.panel_bytes()) as u64 + 12);
    }

    #[test]
    fn few_rows_are_the_sums_of_their_bytes(
        format in formats(),
        rows in 1usize..=ROWS,
        groups in (1usize..4).prop_map(|blocks| blocks * 8),
        seed in 0u64..1000,
    ) {
        let source = matrix(format, PANEL, groups * GROUP, seed);
        let panels = Panels::pack(&source, &pool(), &Region::default());
        let x = numbers(rows * groups * GROUP, seed + 7);
        for (bytes, path) in kinds() {
            let mut inputs = FewInputs::default();
            inputs.resize(rows, groups, true);
            for (row, x) in x.chunks_exact(groups * GROUP).enumerate() {
                let numbers = row * groups * GROUP..(row + 1) * groups * GROUP;
                let scales = &mut inputs.scales[row * groups..(row + 1) * groups];
                let bytes = Some((&mut inputs.bytes[numbers.clone()], scales));
                // SAFETY: the path is available.
                unsafe { vectorize(path, PrepareRow { x, norm: None, floats: &mut inputs.floats[numbers], bytes }) };
            }
            let block = FewRows {
                rows,
                groups,
                floats: inputs.floats.as_ptr(),
                bytes: inputs.bytes.as_ptr(),
                scales: inputs.scales.as_ptr(),
                panel: panels.panel(0).as_ptr(),
            };
            let mut sums = [f32::NAN; ROWS * PANEL];
            let mut fetch = fetch::Fetch::new(panels.panel(0).as_ptr().addr(), 64);
            // SAFETY: the instructions are there; the inputs are whole.
            unsafe { block.multiply((bytes, path), panels.form(), &mut fetch, &mut sums) };
            let mut weights = vec![0.0; groups * GROUP];
            for output in 0..PANEL {
                panels.read(output, &mut weights);
                for row in 0..rows {
                    let x = |i: usize| {
                        let at = row * groups * GROUP + i;
                        match panels.form() {
                            Form::Bf16 => f64::from(inputs.floats[at]),
                            _ => f64::from(inputs.bytes[at]) * f64::from(inputs.scales[at / GROUP].scale),
                        }
                    };
                    let products = weights.iter().enumerate().map(|(i, weight)| f64::from(*weight) * x(i));
                    let (sum, size) = products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                    close(sums[row * PANEL + output], sum, size, 2e-6)?;
                }
            }
        }
    }

    #[test]
    fn bytes_of_a_group_are_near_its_numbers(seed in 0u64..1000, scale in 1e-3f32..1e3) {
        let x: Vec<f32> = numbers(3 * GROUP, seed).iter().map(|x| x * scale).collect();
        for path in available_paths() {
            let (mut floats, mut bytes) = (vec![0.0; 3 * GROUP], vec![0; 3 * GROUP]);
            let mut scales = [rows::GroupScale::default(); 3];
            let both = Some((&mut bytes[..], &mut scales[..]));
            // SAFETY: the path is available.
            unsafe { vectorize(path, PrepareRow { x: &x, norm: None, floats: &mut floats, bytes: both }) };
            prop_assert_eq!(&floats, &x);
            for (i, x) in x.iter().enumerate() {
                let facts = scales[i / GROUP];
                let off = (f32::from(bytes[i]) * facts.scale - x).abs();
                prop_assert!(off <= facts.scale * 0.5001, "{path}: {off} of {}", facts.scale);
            }
            for (facts, bytes) in scales.iter().zip(bytes.chunks(GROUP)) {
                prop_assert_eq!(facts.total, bytes.iter().map(|byte| i32::from(*byte)).sum::<i32>());
            }
        }
    }
}

/// One device and its operations.
struct Device {
    cpu: Arc<Cpu>,
    ops: super::super::CpuDecoderOps,
}

impl Device {
    fn new(path: CpuPath) -> Self {
        let cpu = Arc::new(Cpu::new(Some(path), Some(2)).unwrap());
        Self { ops: cpu.decoder(), cpu }
    }

    fn acts(&mut self, values: &[f32], columns: usize) -> RowActs {
        let mut acts = self.cpu.decoder_acts(columns);
        self.ops.resize(&mut acts, values.len() / columns);
        acts.values_mut().copy_from_slice(values);
        acts
    }
}

/// All three kinds of products, one after the other.
fn products(device: &mut Device, source: &[BlockLinear; 3], x: &[f32], rows: usize, normed: bool) -> Vec<Vec<f32>> {
    let columns = x.len() / rows;
    let [plain, gated, added] = source.clone().map(|source| device.cpu.block_linear(source).unwrap());
    let norm = device.cpu.rms_norm(numbers(columns, 5).iter().map(|x| x + 1.5).collect(), 1e-5).unwrap();
    let input = device.acts(x, columns);
    let mut out = device.acts(&vec![0.0; rows * source[0].outputs()], source[0].outputs());
    device.ops.norm_linear(&input, &norm, &plain, &mut out);
    let half = source[1].outputs() / 2;
    let mut gates = device.acts(&vec![0.0; rows * half], half);
    device.ops.gated_linear(&input, &norm, &gated, Activation::Silu, &mut gates);
    let mut hidden = device.acts(&numbers(rows * columns, 11), columns);
    device.ops.linear_add(&input, &added, normed.then_some(&norm), &mut hidden);
    [out, gates, hidden].map(|acts| acts.values().to_vec()).to_vec()
}

/// The root of the mean of squares.
fn size_of_numbers(values: &[f32]) -> f32 {
    (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn layers_are_those_of_the_portable_operations(
        parts in prop::collection::vec((formats(), 1usize..80), 1..4),
        gate in formats(),
        half in 1usize..70,
        in_one in any::<bool>(),
        rows in prop::sample::select(vec![1usize, 2, 3, 5, 7, 8, 16, 17, 33, 50]),
        normed in any::<bool>(),
        seed in 0u64..1000,
    ) {
        let columns = 512;
        let matrices = parts.iter().zip(seed..).map(|((format, rows), seed)| matrix(*format, *rows, columns, seed));
        let plain = BlockLinear { parts: matrices.collect(), bias: Vec::new() };
        let gates = match in_one {
            true => vec![matrix(gate, 2 * half, columns, seed)],
            false => vec![matrix(gate, half, columns, seed), matrix(BlockFormat::Q8_0, half, columns, seed + 1)],
        };
        let gated = BlockLinear { parts: gates, bias: numbers(2 * half, 4) };
        let added = BlockLinear { parts: vec![matrix(gate, columns, columns, seed)], bias: numbers(columns, 6) };
        let source = [plain, gated, added];
        let x = numbers(rows * columns, seed + 3);
        let wanted = products(&mut Device::new(CpuPath::Portable), &source, &x, rows, normed);
        for path in available_paths() {
            let found = products(&mut Device::new(path), &source, &x, rows, normed);
            for (kind, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
                // Inputs of 8 bits are off by up to a 254th of the largest of their group, so are weights of formats that are
                // rounded to 8 bits, and gates multiply what they are off.
                // Few numbers may all be small by chance.
                let size = size_of_numbers(wanted).max(if kind == 1 { 60.0 } else { 10.0 });
                let tolerance = if kind == 1 { 0.2 } else { 0.06 } * size;
                let relative = if kind == 1 { 0.15 } else { 0.05 };
                let mut total = 0.0;
                for (at, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                    let off = (wanted - found).abs();
                    total += off;
                    prop_assert!(off <= tolerance.max(relative * wanted.abs()), "{path} {kind} {at}: {found} for {wanted}");
                }
                // Few numbers have no average to speak of.
                let mean = total / wanted.len() as f32;
                let is_near = wanted.len() < 64 || mean <= tolerance / 4.0;
                prop_assert!(is_near, "{path} {kind}: off by {mean} on average");
            }
        }
    }

    #[test]
    fn attention_is_that_of_the_portable_operations(
        shape in prop::sample::select(vec![(1usize, 1usize, 64usize), (9, 3, 64), (14, 2, 64), (4, 4, 8), (8, 2, 96), (5, 1, 20)]),
        lengths in prop::collection::vec((0usize..700, 1usize..40), 1..4),
        window in prop::option::of(1usize..200),
        cap in prop::option::of(2.0f32..20.0),
        neighbours in any::<bool>(),
        norms in any::<bool>(),
        format in prop::sample::select(vec![KvFormat::Halves, KvFormat::Bytes]),
        seed in 0u64..1000,
    ) {
        let (heads, kv_heads, head_size) = shape;
        let columns = (heads + 2 * kv_heads) * head_size;
        let kv = KvShape { layers: 2, kv_heads, head_size };
        let rope = RopeSource {
            radians: (0..head_size / 2).map(|i| 0.9f32.powi(i as i32)).collect(),
            scale: 1.1,
            neighbours,
        };
        let most: usize = lengths.iter().map(|(start, new)| (start + new).div_ceil(PAGE_TOKENS)).sum();
        let attended = |path: CpuPath| {
            let mut device = Device::new(path);
            let mut pages = device.cpu.pages_in(format, kv, most).unwrap();
            let norm = device.cpu.rms_norm(numbers(head_size, 8).iter().map(|x| x + 1.5).collect(), 1e-6).unwrap();
            let norm = norms.then_some(&norm);
            let layer = AttentionLayer {
                layer: 1, heads, window, scale: 0.1, cap, rope: &rope, query_norm: norm, key_norm: norm,
            };
            let mut out = Vec::new();
            // All tokens but the last ones, then those.
            for last in [false, true] {
                let (mut offsets, mut starts) = (vec![0], Vec::new());
                let (mut table, mut page_offsets) = (Vec::new(), vec![0]);
                for (start, new) in &lengths {
                    let (start, new) = if last { (*start, *new) } else { (0, *start) };
                    offsets.push(offsets.last().unwrap() + new);
                    starts.push(start);
                    let pages = (start + new).div_ceil(PAGE_TOKENS);
                    table.push(pages);
                }
                // Pages of the sequences lie in turns, from the last on.
                let mut pages_of = vec![Vec::new(); lengths.len()];
                let mut free = (0..most as u32).rev();
                let wanted: Vec<usize> = lengths.iter().map(|(start, new)| (start + new).div_ceil(PAGE_TOKENS)).collect();
                while pages_of.iter().zip(&wanted).any(|(has, wants)| has.len() < *wants) {
                    for (has, wants) in pages_of.iter_mut().zip(&wanted) {
                        if has.len() < *wants {
                            has.push(free.next().unwrap());
                        }
                    }
                }
                let mut flat = Vec::new();
                for pages in &pages_of {
                    flat.extend_from_slice(pages);
                    page_offsets.push(flat.len());
                }
                let count = *offsets.last().unwrap();
                let ids = vec![0; count];
                let steps = StepBatch {
                    ids: &ids, offsets: &offsets, starts: &starts, pages: &flat, page_offsets: &page_offsets, logit_rows: &[],
                };
                let mut qkv = device.acts(&numbers(count * columns, seed + u64::from(last)), columns);
                let mut acts = device.acts(&vec![0.0; count * heads * head_size], heads * head_size);
                device.ops.rope_append(&steps, &layer, &mut qkv, &mut pages);
                device.ops.attend(&steps, &layer, &qkv, &pages, &mut acts);
                out.extend_from_slice(acts.values());
            }
            out
        };
        let wanted = attended(CpuPath::Portable);
        for path in available_paths() {
            let found = attended(path);
            let mut total = 0.0;
            for (at, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
                prop_assert!((wanted - found).abs() < 3e-2, "{path} {at}: {found} for {wanted}");
                total += (wanted - found).abs();
            }
            let mean = total / wanted.len() as f32;
            prop_assert!(mean < 3e-3, "{path}: off by {mean} on average");
        }
    }
}

#[test]
fn two_bits_grow_to_eight_and_floats_shrink_to_sixteen() {
    let bytes =
        |format| PanelLinear::bytes_of(&BlockLinear { parts: vec![matrix(format, PANEL, 256, 1)], bias: Vec::new() });
    let formats = [BlockFormat::F32, BlockFormat::Bf16, BlockFormat::Q2K, BlockFormat::Q4K, BlockFormat::Q6K];
    assert_eq!(formats.map(bytes), [16_384, 16_384, 8_704, 5_120, 7_168]);
}
