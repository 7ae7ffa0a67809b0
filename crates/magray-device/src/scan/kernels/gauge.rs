//! Bounds of scores from products of bytes: which rows may be among the best. A bound holds whatever the rounding.

use crate::scan::chunk::{Bounds, PANEL_ROWS, ZERO};
use crate::scan::{Metric, chunk};
use magray_core::CpuPath;

/// Rounding of 32-bit floats: of some operations on numbers as large as the product of two lengths.
const SLACK: f64 = 2e-6;
/// Below this floats lose digits.
const TINY: f32 = 1e-36;

/// What a query's bytes say of scores.
#[derive(Clone, Copy, Debug)]
pub(in crate::scan) struct Gauge {
    /// The sum of a product where every byte of the row stands for zero.
    offset: i32,
    /// What a product of two levels is worth, without the row's scale.
    scale: f32,
    /// Weight of a row's error and of its length in the margin.
    by_error: f32,
    by_length: f32,
    /// Weight of a row's square in the upper and in the lower bound.
    squares: [f32; 2],
    /// Added to both bounds.
    shift: f32,
}

/// Levels of a query's numbers, and what they say.
pub(in crate::scan) fn quantise(query: &[f32], metric: Metric, levels: f32) -> (Vec<i8>, Gauge) {
    let largest = query.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = largest / levels;
    let inverse = if scale > 0.0 && (1.0 / scale).is_finite() { 1.0 / scale } else { 0.0 };
    let bytes: Vec<i8> = query.iter().map(|x| (x * inverse).round_ties_even().clamp(-levels, levels) as i8).collect();
    let (mut error, mut square) = (0.0, 0.0);
    for (&x, &byte) in query.iter().zip(&bytes) {
        let missing = f64::from(x) - f64::from(byte) * f64::from(scale);
        error += missing * missing;
        square += f64::from(x) * f64::from(x);
    }
    let (error, length) = (error.sqrt(), square.sqrt());
    // -(q - x)^2 = 2qx - xx - qq
    let is_square = metric == Metric::Euclid;
    let factor = if is_square { 2.0 } else { 1.0 };
    let gauge = Gauge {
        offset: ZERO * bytes.iter().map(|&byte| i32::from(byte)).sum::<i32>(),
        scale: factor * scale,
        // The row's bytes are as long as the row and its error at most.
        by_error: chunk::raised(f64::from(factor) * (length + error)),
        by_length: chunk::raised(
            f64::from(factor) * (error + SLACK * length) + if is_square { SLACK * length } else { 0.0 },
        ),
        squares: if is_square { [1.0 - 4e-6, 1.0 + 4e-6] } else { [0.0; 2] },
        shift: if is_square { -square as f32 } else { 0.0 },
    };
    (bytes, gauge)
}

/// What is known of the rows of a panel.
#[derive(Clone, Copy)]
pub(in crate::scan) struct BoundRows<'a> {
    scales: &'a [f32; PANEL_ROWS],
    errors: &'a [f32; PANEL_ROWS],
    lengths: &'a [f32; PANEL_ROWS],
}

impl<'a> BoundRows<'a> {
    pub(in crate::scan) fn new(bounds: &'a Bounds, panel: usize) -> Self {
        let of = |values: &'a [f32]| -> &'a [f32; PANEL_ROWS] {
            values[panel * PANEL_ROWS..][..PANEL_ROWS].try_into().expect("as many as asked for")
        };
        Self { scales: of(&bounds.scales), errors: of(&bounds.errors), lengths: of(&bounds.lengths) }
    }
}

impl Gauge {
    /// The rows whose upper bound reaches the floor, a bit each.
    #[inline]
    pub(in crate::scan) fn sift(
        &self,
        path: CpuPath,
        sums: &[i32; PANEL_ROWS],
        rows: &BoundRows<'_>,
        floor: f32,
    ) -> u32 {
        match path {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a path is chosen only where the machine has its instructions.
            CpuPath::Avx512 | CpuPath::Amx => unsafe { self.sift_avx512(sums, rows, floor) },
            _ => (0..PANEL_ROWS).fold(0, |bits, row| bits | u32::from(self.bounds(sums, rows, row).1 >= floor) << row),
        }
    }

    /// The lower and the upper bound of a row's score.
    #[inline(always)]
    pub(in crate::scan) fn bounds(&self, sums: &[i32; PANEL_ROWS], rows: &BoundRows<'_>, row: usize) -> (f32, f32) {
        let score = (sums[row] - self.offset) as f32 * self.scale * rows.scales[row];
        let length = rows.lengths[row];
        let margin = rows.errors[row] * self.by_error + (length * self.by_length + TINY);
        let square = length * length;
        let lower = score - margin - square * self.squares[1] + self.shift;
        let upper = score + margin - square * self.squares[0] + self.shift;
        let rounding = self.shift.abs() * 1e-6;
        (lower - rounding, upper + rounding)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn sift_avx512(&self, sums: &[i32; PANEL_ROWS], rows: &BoundRows<'_>, floor: f32) -> u32 {
        use std::arch::x86_64::*;
        let mut bits = 0;
        for half in 0..2 {
            let at = half * 16;
            // SAFETY: sixteen of 32 in each.
            let (sums, scales, errors, lengths) = unsafe {
                (
                    _mm512_loadu_si512(sums.as_ptr().add(at).cast()),
                    _mm512_loadu_ps(rows.scales.as_ptr().add(at)),
                    _mm512_loadu_ps(rows.errors.as_ptr().add(at)),
                    _mm512_loadu_ps(rows.lengths.as_ptr().add(at)),
                )
            };
            let products = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, _mm512_set1_epi32(self.offset)));
            let score = _mm512_mul_ps(_mm512_mul_ps(products, _mm512_set1_ps(self.scale)), scales);
            let margin = _mm512_fmadd_ps(lengths, _mm512_set1_ps(self.by_length), _mm512_set1_ps(TINY));
            let margin = _mm512_fmadd_ps(errors, _mm512_set1_ps(self.by_error), margin);
            let squares = _mm512_mul_ps(lengths, lengths);
            let upper = _mm512_fnmadd_ps(squares, _mm512_set1_ps(self.squares[0]), _mm512_add_ps(score, margin));
            let upper = _mm512_add_ps(upper, _mm512_set1_ps(self.shift + self.shift.abs() * 1e-6));
            bits |= u32::from(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(upper, _mm512_set1_ps(floor))) << at;
        }
        bits
    }
}
