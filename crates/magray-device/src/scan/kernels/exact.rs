//! The score of one row in 64-bit floats. The same bits on every path: one text, compiled for each.

use crate::scan::Metric;
use crate::scan::chunk::{PAD, Row};
use magray_core::CpuPath;

/// The score of a row by the metric; both are padded alike.
#[inline]
pub(in crate::scan) fn exact_score(path: CpuPath, metric: Metric, query: &[f32], row: Row<'_>) -> f64 {
    match path {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path is chosen only where the machine has its instructions.
        CpuPath::Avx512 | CpuPath::Amx => unsafe { with_avx512(metric, query, row) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        CpuPath::Avx2 => unsafe { with_avx2(metric, query, row) },
        _ => score(metric, query, row),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn with_avx512(metric: Metric, query: &[f32], row: Row<'_>) -> f64 {
    score(metric, query, row)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_avx2(metric: Metric, query: &[f32], row: Row<'_>) -> f64 {
    score(metric, query, row)
}

#[inline(always)]
fn score(metric: Metric, query: &[f32], row: Row<'_>) -> f64 {
    match row {
        Row::F32(row) => by_metric(metric, query, row, |x| x),
        Row::F16(row) => by_metric(metric, query, row, widen),
    }
}

#[inline(always)]
fn by_metric<T: Copy>(metric: Metric, query: &[f32], row: &[T], widen: impl Fn(T) -> f32) -> f64 {
    match metric {
        Metric::Cosine | Metric::Dot => sum(query, row, |q, x| q * f64::from(widen(x))),
        Metric::Euclid => -sum(query, row, |q, x| {
            let apart = q - f64::from(widen(x));
            apart * apart
        }),
        Metric::Manhattan => -sum(query, row, |q, x| (q - f64::from(widen(x))).abs()),
    }
}

/// A sum in as many lanes as the padding has numbers, added up in one order.
#[inline(always)]
fn sum<T: Copy>(query: &[f32], row: &[T], term: impl Fn(f64, T) -> f64) -> f64 {
    let mut lanes = [0.0f64; PAD];
    for (query, row) in query.as_chunks::<PAD>().0.iter().zip(row.as_chunks::<PAD>().0) {
        for ((lane, &query), &row) in lanes.iter_mut().zip(query).zip(row) {
            *lane += term(f64::from(query), row);
        }
    }
    let mut width = PAD;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// A finite 16-bit float. Without branches, so that the compiler makes vectors of it.
#[inline(always)]
fn widen(bits: u16) -> f32 {
    // The exponents' zeros are 112 apart; the multiplication also normalises what was not.
    const SHIFT: f32 = f32::from_bits((127 + 112) << 23);
    let size = f32::from_bits(u32::from(bits & 0x7fff) << 13) * SHIFT;
    f32::from_bits(size.to_bits() | u32::from(bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_finite_half_widens_as_it_should() {
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits);
            if x.is_finite() {
                assert_eq!(widen(bits).to_bits(), x.to_f32().to_bits());
            }
        }
    }
}
