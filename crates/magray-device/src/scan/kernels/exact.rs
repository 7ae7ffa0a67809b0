//! The score of one row in 64-bit floats. The same bits on every path: one text, compiled for each.

use crate::scan::Metric;
use crate::scan::chunk::{PAD, Row};
use magray_core::CpuPath;

/// The score of a row by the metric; both are padded alike. The query was widened once.
#[inline]
pub(in crate::scan) fn exact_score(path: CpuPath, metric: Metric, query: &[f64], row: Row<'_>) -> f64 {
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
fn with_avx512(metric: Metric, query: &[f64], row: Row<'_>) -> f64 {
    use std::arch::x86_64::*;
    // The compiler makes narrow vectors of the plain form.
    let Row::F32(row) = row else { return score(metric, query, row) };
    let mut sums = [_mm512_setzero_pd(); 2];
    for (query, row) in query.as_chunks::<PAD>().0.iter().zip(row.as_chunks::<PAD>().0) {
        for (half, sum) in sums.iter_mut().enumerate() {
            // SAFETY: eight of sixteen in each.
            let (q, x) = unsafe {
                let row = _mm256_loadu_ps(row.as_ptr().add(half * 8));
                (_mm512_loadu_pd(query.as_ptr().add(half * 8)), _mm512_cvtps_pd(row))
            };
            *sum = match metric {
                // The product of two 32-bit floats is exact in 64 bits: nothing is rounded but the sum.
                Metric::Cosine | Metric::Dot => _mm512_fmadd_pd(q, x, *sum),
                Metric::Euclid => {
                    let apart = _mm512_sub_pd(q, x);
                    _mm512_add_pd(*sum, _mm512_mul_pd(apart, apart))
                }
                Metric::Manhattan => _mm512_add_pd(*sum, _mm512_abs_pd(_mm512_sub_pd(q, x))),
            };
        }
    }
    let mut lanes = [0.0; PAD];
    // SAFETY: two times eight.
    unsafe {
        _mm512_storeu_pd(lanes.as_mut_ptr(), sums[0]);
        _mm512_storeu_pd(lanes.as_mut_ptr().add(8), sums[1]);
    }
    signed(metric, add_up(lanes))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_avx2(metric: Metric, query: &[f64], row: Row<'_>) -> f64 {
    score(metric, query, row)
}

#[inline(always)]
fn score(metric: Metric, query: &[f64], row: Row<'_>) -> f64 {
    match row {
        Row::F32(row) => by_metric(metric, query, row, |x| x),
        Row::F16(row) => by_metric(metric, query, row, widen),
    }
}

#[inline(always)]
fn by_metric<T: Copy>(metric: Metric, query: &[f64], row: &[T], widen: impl Fn(T) -> f32) -> f64 {
    let sum = match metric {
        Metric::Cosine | Metric::Dot => sum(query, row, |q, x| q * f64::from(widen(x))),
        Metric::Euclid => sum(query, row, |q, x| {
            let apart = q - f64::from(widen(x));
            apart * apart
        }),
        Metric::Manhattan => sum(query, row, |q, x| (q - f64::from(widen(x))).abs()),
    };
    signed(metric, sum)
}

/// Distances are the better the less they are.
#[inline(always)]
fn signed(metric: Metric, sum: f64) -> f64 {
    if matches!(metric, Metric::Cosine | Metric::Dot) { sum } else { -sum }
}

/// A sum in as many lanes as the padding has numbers.
#[inline(always)]
fn sum<T: Copy>(query: &[f64], row: &[T], term: impl Fn(f64, T) -> f64) -> f64 {
    let mut lanes = [0.0f64; PAD];
    for (query, row) in query.as_chunks::<PAD>().0.iter().zip(row.as_chunks::<PAD>().0) {
        for ((lane, &query), &row) in lanes.iter_mut().zip(query).zip(row) {
            *lane += term(query, row);
        }
    }
    add_up(lanes)
}

/// In one order on every path.
#[inline(always)]
fn add_up(mut lanes: [f64; PAD]) -> f64 {
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
    use crate::cpu::available_paths;
    use crate::scan::tests::Made;
    use half::f16;

    #[test]
    fn every_path_gives_the_same_bits() {
        for padded in [PAD, 5 * PAD, 24 * PAD] {
            let mut made = Made::new(padded as u64);
            let query: Vec<f64> = made.vector(padded).into_iter().map(f64::from).collect();
            let row = made.vector(padded);
            let short: Vec<u16> = row.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
            for metric in [Metric::Cosine, Metric::Dot, Metric::Euclid, Metric::Manhattan] {
                for row in [Row::F32(&row), Row::F16(&short)] {
                    let want = score(metric, &query, row);
                    for path in available_paths() {
                        assert_eq!(
                            exact_score(path, metric, &query, row).to_bits(),
                            want.to_bits(),
                            "{path} {metric:?}"
                        );
                    }
                }
            }
        }
    }

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
