//! Operations of decoders against plain code: the portable ones, and what holds on every path.

use super::*;
use crate::cpu::available_paths;
use crate::{BlockMatrix, PAGE_TOKENS};
use magray_core::{BlockFormat, CpuPath};

fn cpu(path: CpuPath) -> Arc<Cpu> {
    Arc::new(Cpu::new(Some(path), Some(2)).unwrap())
}

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    (0..count)
        .map(|i| ((i as u32).wrapping_mul(2654435761).wrapping_add(seed * 40503) >> 8) as f32 / 8388608.0 - 1.0)
        .collect()
}

fn acts(cpu: &Cpu, ops: &mut CpuDecoderOps, values: &[f32], columns: usize) -> RowActs {
    let mut acts = cpu.decoder_acts(columns);
    ops.resize(&mut acts, values.len() / columns);
    acts.values_mut().copy_from_slice(values);
    acts
}

#[test]
fn parts_of_several_formats_are_one_layer_with_a_bias() {
    let (cpu, columns) = (cpu(CpuPath::Portable), 64);
    let mut ops = cpu.decoder();
    let floats = BlockMatrix::of_floats(&numbers(20 * columns, 1), columns);
    let mut bytes = Vec::new();
    for block in 0..30u8 {
        bytes.extend(half::f16::from_f32(0.01 * f32::from(block + 1)).to_le_bytes());
        bytes.extend((0..32).map(|i| i * 5 + block));
    }
    let bytes = BlockMatrix::new(bytes, BlockFormat::Q8_0, columns);
    let bias = numbers(35, 3);
    let weights = cpu.block_linear(BlockLinear { parts: vec![floats.clone(), bytes.clone()], bias: bias.clone() });
    let weights = weights.unwrap();
    let norm = cpu.rms_norm(numbers(columns, 4), 1e-5).unwrap();
    let x = numbers(3 * columns, 5);
    let rows = acts(&cpu, &mut ops, &x, columns);
    let mut out = cpu.decoder_acts(35);
    ops.resize(&mut out, 3);
    ops.norm_linear(&rows, &norm, &weights, &mut out);
    for row in 0..3 {
        let x = &x[row * columns..(row + 1) * columns];
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / columns as f64;
        for (output, bias) in bias.iter().enumerate() {
            let mut weights = vec![0.0; columns];
            if output < 20 {
                floats.read_row(output, &mut weights)
            } else {
                bytes.read_row(output - 20, &mut weights)
            };
            let wanted: f64 = (0..columns)
                .map(|i| f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(norm.gain[i]) * f64::from(weights[i]))
                .sum::<f64>()
                + f64::from(*bias);
            let found = f64::from(out.values()[row * 35 + output]);
            assert!((found - wanted).abs() < 1e-4, "row {row}, output {output}: {found} for {wanted}");
        }
    }
}

#[test]
fn positions_turn_pairs_of_both_layouts_alike() {
    let radians = vec![0.5, 0.1];
    let (mut halves, mut neighbours) = ([1.0, 2.0, 3.0, 4.0, 9.0], [1.0, 3.0, 2.0, 4.0, 9.0]);
    let rope = |neighbours| RopeSource { radians: radians.clone(), scale: 2.0, neighbours };
    exact::turn(&rope(false), 7, &mut halves);
    exact::turn(&rope(true), 7, &mut neighbours);
    assert_eq!(halves[4], 9.0, "numbers beyond the pairs stay");
    assert_eq!([halves[0], halves[2], halves[1], halves[3]], neighbours[..4]);
    let angle = 3.5f32;
    assert!((halves[0] - 2.0 * (angle.cos() - 3.0 * angle.sin())).abs() < 1e-5);
}

#[test]
fn a_window_hides_what_lies_before_it() {
    for path in available_paths() {
        check_window(path, KvFormat::Halves);
        check_window(path, KvFormat::Bytes);
    }
}

fn check_window(path: CpuPath, format: KvFormat) {
    let cpu = cpu(path);
    let mut ops = cpu.decoder();
    let shape = KvShape { layers: 1, kv_heads: 1, head_size: 4 };
    let tokens = PAGE_TOKENS + 8;
    let rope = RopeSource { radians: Vec::new(), scale: 1.0, neighbours: false };
    let attended = |window: Option<usize>, ops: &mut CpuDecoderOps, qkv: &[f32]| {
        let mut pages = cpu.pages_in(format, shape, 2).unwrap();
        let layer = AttentionLayer {
            layer: 0,
            heads: 1,
            window,
            scale: 0.5,
            cap: None,
            rope: &rope,
            query_norm: None,
            key_norm: None,
        };
        let ids = vec![0; tokens];
        let steps = StepBatch {
            ids: &ids,
            offsets: &[0, tokens],
            starts: &[0],
            pages: &[1, 0],
            page_offsets: &[0, 2],
            logit_rows: &[],
        };
        let mut rows = acts(&cpu, ops, qkv, 12);
        let mut out = cpu.decoder_acts(4);
        ops.resize(&mut out, tokens);
        ops.rope_append(&steps, &layer, &mut rows, &mut pages);
        ops.attend(&steps, &layer, &rows, &pages, &mut out);
        out.values().to_vec()
    };
    let mut qkv = numbers(tokens * 12, 9);
    let (narrow, wide) = (attended(Some(5), &mut ops, &qkv), attended(None, &mut ops, &qkv));
    assert_eq!(narrow[..20], wide[..20], "the first five tokens see the same");
    assert_ne!(narrow[20..], wide[20..]);
    assert_eq!(attended(Some(tokens), &mut ops, &qkv), wide);
    // A change of the first token reaches the last through no window.
    qkv[..12].fill(3.0);
    assert_eq!(attended(Some(5), &mut ops, &qkv)[20..], narrow[20..]);
}
