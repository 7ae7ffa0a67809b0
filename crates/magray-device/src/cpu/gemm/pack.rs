//! Lays weights out for the products: panels of 32 output columns, in the order the inner loops read them.
//! Packs once, when a model is loaded; never on the way of a request.

use super::tiles::STEP_BYTES;
use crate::cpu::acts::PANEL;
use crate::cpu::aligned::Aligned;
use half::bf16;
use magray_core::{CpuPath, Precision};

/// Weights of one layer in the form its kernel reads.
pub(in crate::cpu) enum Panels {
    /// `[panel][k][32]` floats.
    F32(Aligned<f32>),
    /// `[panel][k][32]`, widened as they are read: half the memory of f32.
    Bf16(Aligned<bf16>),
    /// `[panel][k][32]`, widened as they are read: a quarter of the memory.
    I8(Aligned<i8>),
    /// `[panel][k / 32][2][16][16][2]`: pairs along k, for the tiles.
    Bf16Tiles(Aligned<bf16>),
    /// `[panel][k / 64][2][16][16][4]`: quadruples along k, for the tiles and VNNI.
    I8Tiles(Aligned<i8>),
}

/// How the kernels of a path read weights of a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) enum Layout {
    F32,
    Bf16,
    I8,
    Bf16Tiles,
    I8Tiles,
}

impl Layout {
    pub(in crate::cpu) fn of(path: CpuPath, precision: Precision, has_vnni: bool) -> Self {
        match (path, precision) {
            (_, Precision::F32) => Self::F32,
            (CpuPath::Amx, Precision::Bf16) => Self::Bf16Tiles,
            (_, Precision::Bf16) => Self::Bf16,
            (CpuPath::Amx, Precision::Int8) => Self::I8Tiles,
            (CpuPath::Avx512, Precision::Int8) if has_vnni => Self::I8Tiles,
            (_, Precision::Int8) => Self::I8,
            (_, Precision::F16 | Precision::Tf32) => {
                panic!(
                    "{precision} is for GPUs alone: settle it with PrecisionChoice::settle_cpu before the CPU packs a layer"
                )
            }
        }
    }

    /// The depth of a panel, in elements: whole steps of the kernel.
    pub(in crate::cpu) fn depth(self, k: usize) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::I8 => k,
            Self::Bf16Tiles => k.next_multiple_of(STEP_BYTES / 2),
            Self::I8Tiles => k.next_multiple_of(STEP_BYTES),
        }
    }

    pub(in crate::cpu) fn is_quantised(self) -> bool {
        matches!(self, Self::I8 | Self::I8Tiles)
    }
}

/// Where element `(k, column)` of a panel lies.
pub(in crate::cpu) fn element_index(layout: Layout, k: usize, column: usize) -> usize {
    let in_steps = |per_step: usize, group: usize| {
        let (step, within) = (k / per_step, k % per_step);
        let (tile, lane) = (column / 16, column % 16);
        (step * 2 + tile) * per_step * 16 + (within / group * 16 + lane) * group + within % group
    };
    match layout {
        Layout::F32 | Layout::Bf16 | Layout::I8 => k * PANEL + column,
        Layout::Bf16Tiles => in_steps(32, 2),
        Layout::I8Tiles => in_steps(64, 4),
    }
}

/// A row of weights scaled to -127..=127; returns the scale that undoes it.
fn quantise(row: &[f32], out: &mut [i8]) -> f32 {
    let largest = row.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let scale = if largest > 0.0 { largest / 127.0 } else { 1.0 };
    // Adding and taking away 1.5 * 2^23 rounds to the nearest without a call, which the compiler then vectorises.
    const MAGIC: f32 = 12_582_912.0;
    let inverse = 1.0 / scale;
    for (q, x) in out.iter_mut().zip(row) {
        *q = ((x * inverse + MAGIC) - MAGIC) as i8;
    }
    scale
}

/// One panel's share of the output: its part of the packed weights and of the columns' scales and sums.
pub(in crate::cpu) struct PanelPart<'a, T> {
    pub(in crate::cpu) packed: &'a mut [T],
    pub(in crate::cpu) scales: &'a mut [f32],
    /// The sums of the columns, as their bytes have them.
    pub(in crate::cpu) totals: &'a mut [f32],
}

/// Packs rows (output columns of the layer) of `weights` as f32.
pub(in crate::cpu) fn pack_f32(rows: &[&[f32]], packed: &mut [f32]) {
    for (column, row) in rows.iter().enumerate() {
        for (k, &x) in row.iter().enumerate() {
            packed[k * PANEL + column] = x;
        }
    }
}

/// Packs rows as bf16, plain or for the tiles.
pub(in crate::cpu) fn pack_bf16(layout: Layout, rows: &[&[f32]], packed: &mut [bf16]) {
    let round = |x: f32| bf16::from_f32(x);
    if layout == Layout::Bf16Tiles {
        for (column, row) in rows.iter().enumerate() {
            for (pair, x) in row.chunks(2).enumerate() {
                let at = element_index(layout, pair * 2, column);
                for (slot, &x) in packed[at..].iter_mut().zip(x) {
                    *slot = round(x);
                }
            }
        }
        return;
    }
    for (column, row) in rows.iter().enumerate() {
        for (k, &x) in row.iter().enumerate() {
            packed[element_index(layout, k, column)] = round(x);
        }
    }
}

/// Packs rows as bytes with a scale a row.
pub(in crate::cpu) fn pack_i8(layout: Layout, rows: &[&[f32]], part: PanelPart<'_, i8>) {
    let mut quantised = vec![0i8; rows.first().map_or(0, |row| row.len())];
    for (column, row) in rows.iter().enumerate() {
        part.scales[column] = quantise(row, &mut quantised);
        part.totals[column] = part.scales[column] * quantised.iter().map(|&q| i32::from(q)).sum::<i32>() as f32;
        for (k, &q) in quantised.iter().enumerate() {
            part.packed[element_index(layout, k, column)] = q;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_a_place_of_its_own() {
        for (layout, k) in [(Layout::F32, 37), (Layout::Bf16Tiles, 96), (Layout::I8Tiles, 128)] {
            let mut seen = vec![false; layout.depth(k) * PANEL];
            for k in 0..layout.depth(k) {
                for column in 0..PANEL {
                    let at = element_index(layout, k, column);
                    assert!(!std::mem::replace(&mut seen[at], true), "{layout:?} {k} {column}");
                }
            }
            assert!(seen.iter().all(|&s| s));
        }
    }

    #[test]
    fn quantising_keeps_the_largest_and_survives_zeros() {
        let mut out = [0i8; 3];
        let scale = quantise(&[0.5, -2.0, 0.0], &mut out);
        assert_eq!(out, [32, -127, 0]);
        assert!((scale - 2.0 / 127.0).abs() < 1e-9);
        assert_eq!(quantise(&[0.0; 3], &mut out), 1.0);
    }
}
