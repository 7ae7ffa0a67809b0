//! Estimates of scores from one bit a dimension: which rows may be among the best. Its margin is a likely one, not a bound.

use magray_core::CpuPath;

/// Rows whose signs lie together, a word of each in turn.
pub(in crate::scan) const GROUP_ROWS: usize = 8;
/// Bits of a query's number.
pub(in crate::scan) const SLICES: usize = 4;
/// Rows that are sifted at once.
const ROWS: usize = 64;

/// What is known of 64 rows.
pub(in crate::scan) struct SignRows<'a> {
    /// Groups of [`GROUP_ROWS`].
    pub(in crate::scan) words: &'a [u64],
    /// What a product of signs is worth.
    pub(in crate::scan) factors: &'a [f32],
    /// The usual error of the estimate, for a query of length one.
    pub(in crate::scan) errors: &'a [f32],
    /// The part of the product that is known.
    pub(in crate::scan) known: &'a [f32],
    pub(in crate::scan) lengths: &'a [f32],
}

/// A query as slices of bits, and what products with it say of scores.
pub(in crate::scan) struct SignGauge {
    /// For each word of a row: the four slices of the query there.
    pub(in crate::scan) slices: Vec<u64>,
    pub(in crate::scan) dims: i32,
    /// What a level of the query is worth.
    pub(in crate::scan) scale: f32,
    /// Weight of a row's error in the margin.
    pub(in crate::scan) by_error: f32,
    /// Of the dot product in the score: 2 for Euclid.
    pub(in crate::scan) weight: f32,
    /// Of a row's square: 1 for Euclid, else 0.
    pub(in crate::scan) square: f32,
    pub(in crate::scan) shift: f32,
}

/// The rows whose score likely reaches the floor, a bit each.
pub(in crate::scan) fn sift_signs(path: CpuPath, gauge: &SignGauge, rows: &SignRows<'_>, floor: f32) -> u64 {
    assert_eq!(rows.words.len() * SLICES, gauge.slices.len() * ROWS, "words of 64 rows");
    assert!([rows.factors, rows.errors, rows.known, rows.lengths].iter().all(|values| values.len() == ROWS));
    match path {
        #[cfg(target_arch = "x86_64")]
        CpuPath::Avx512 | CpuPath::Amx if is_x86_feature_detected!("avx512vpopcntdq") => {
            // SAFETY: the path and the check have found the instructions; the lengths were checked.
            unsafe { with_avx512(gauge, rows, floor) }
        }
        #[cfg(target_arch = "x86_64")]
        CpuPath::Avx2 | CpuPath::Avx512 | CpuPath::Amx if is_x86_feature_detected!("popcnt") => {
            // SAFETY: as above.
            unsafe { with_popcnt(gauge, rows, floor) }
        }
        _ => plain(gauge, rows, floor),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,popcnt")]
fn with_popcnt(gauge: &SignGauge, rows: &SignRows<'_>, floor: f32) -> u64 {
    plain(gauge, rows, floor)
}

#[inline(always)]
fn plain(gauge: &SignGauge, rows: &SignRows<'_>, floor: f32) -> u64 {
    let mut bits = 0;
    let words = gauge.slices.len() / SLICES;
    for (group, words) in rows.words.chunks_exact(words * GROUP_ROWS).enumerate() {
        let mut unlike = [0u32; GROUP_ROWS];
        for (word, slices) in words.chunks_exact(GROUP_ROWS).zip(gauge.slices.chunks_exact(SLICES)) {
            for (unlike, word) in unlike.iter_mut().zip(word) {
                for (slice, bits) in slices.iter().enumerate() {
                    *unlike += (word ^ bits).count_ones() << slice;
                }
            }
        }
        for (at, &unlike) in unlike.iter().enumerate() {
            let row = group * GROUP_ROWS + at;
            let product = (15 * gauge.dims - 2 * unlike as i32) as f32 * gauge.scale;
            let dot = product * rows.factors[row] + rows.known[row] + rows.errors[row] * gauge.by_error;
            let square = rows.lengths[row] * rows.lengths[row] * gauge.square;
            bits |= u64::from(dot * gauge.weight - square + gauge.shift >= floor) << row;
        }
    }
    bits
}

/// # Safety
/// The machine has the instructions; there are 64 rows of each, and words for all of them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")]
unsafe fn with_avx512(gauge: &SignGauge, rows: &SignRows<'_>, floor: f32) -> u64 {
    use std::arch::x86_64::*;
    let words = gauge.slices.len() / SLICES;
    let mut bits = 0;
    for group in 0..ROWS / GROUP_ROWS {
        let mut counts = [_mm512_setzero_si512(); SLICES];
        // SAFETY: eight words a word of the rows, for all groups.
        unsafe {
            let from = rows.words.as_ptr().add(group * words * GROUP_ROWS);
            for word in 0..words {
                let line = from.add(word * GROUP_ROWS);
                super::fetch_ahead(line.cast());
                let signs = _mm512_loadu_si512(line.cast());
                let slices = gauge.slices.as_ptr().add(word * SLICES);
                for (slice, count) in counts.iter_mut().enumerate() {
                    let unlike = _mm512_xor_si512(signs, _mm512_set1_epi64(*slices.add(slice) as i64));
                    *count = _mm512_add_epi64(*count, _mm512_popcnt_epi64(unlike));
                }
            }
        }
        let [a, b, c, d] = counts;
        let low = _mm512_add_epi64(a, _mm512_slli_epi64::<1>(b));
        let high = _mm512_add_epi64(c, _mm512_slli_epi64::<1>(d));
        let unlike = _mm512_cvtepi64_epi32(_mm512_add_epi64(low, _mm512_slli_epi64::<2>(high)));
        let product = _mm256_sub_epi32(_mm256_set1_epi32(15 * gauge.dims), _mm256_slli_epi32::<1>(unlike));
        let product = _mm256_mul_ps(_mm256_cvtepi32_ps(product), _mm256_set1_ps(gauge.scale));
        let at = group * GROUP_ROWS;
        // SAFETY: eight of 64 in each.
        let (factors, errors, known) = unsafe {
            (
                _mm256_loadu_ps(rows.factors.as_ptr().add(at)),
                _mm256_loadu_ps(rows.errors.as_ptr().add(at)),
                _mm256_loadu_ps(rows.known.as_ptr().add(at)),
            )
        };
        let dot = _mm256_fmadd_ps(product, factors, known);
        let dot = _mm256_fmadd_ps(errors, _mm256_set1_ps(gauge.by_error), dot);
        let mut score = _mm256_fmadd_ps(dot, _mm256_set1_ps(gauge.weight), _mm256_set1_ps(gauge.shift));
        // Without squares the lengths need not be read.
        if gauge.square > 0.0 {
            // SAFETY: as above.
            let lengths = unsafe { _mm256_loadu_ps(rows.lengths.as_ptr().add(at)) };
            score = _mm256_fnmadd_ps(_mm256_mul_ps(lengths, lengths), _mm256_set1_ps(gauge.square), score);
        }
        bits |= u64::from(_mm256_cmp_ps_mask::<_CMP_GE_OQ>(score, _mm256_set1_ps(floor))) << at;
    }
    bits
}
