//! Vectors of sixteen floats on AVX-512, with and without the instruction that rounds to bf16.
//! Calls no tile instruction.

use super::{Kernel, Simd};
use half::bf16;
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

/// The same and AVX512_BF16.
#[derive(Clone, Copy)]
pub(super) struct Avx512Bf16;

/// # Safety
/// The machine has AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    // SAFETY: the caller vouches for the instructions and the kernel's pointers.
    unsafe { kernel.run::<Avx512>() }
}

/// # Safety
/// The machine has AVX-512 F, BW, DQ, VL and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
pub(super) unsafe fn run_with_bf16<K: Kernel>(kernel: K) {
    // SAFETY: the caller vouches for the instructions and the kernel's pointers.
    unsafe { kernel.run::<Avx512Bf16>() }
}

#[inline(always)]
unsafe fn round_bits_to_bf16(p: *mut bf16, x: __m512) {
    // SAFETY: as `Simd::store_bf16`.
    unsafe {
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
    }
}

#[inline(always)]
unsafe fn convert_to_bf16(p: *mut bf16, x: __m512) {
    // SAFETY: as `Simd::store_bf16`, and AVX512_BF16 is there.
    unsafe { p.cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(x)) }
}

#[inline(always)]
unsafe fn round_bits_of_two(p: *mut bf16, x: __m512, y: __m512) {
    // SAFETY: as `Simd::store_two_bf16`.
    unsafe {
        round_bits_to_bf16(p, x);
        round_bits_to_bf16(p.add(16), y);
    }
}

/// As costly as converting one of them.
#[inline(always)]
unsafe fn convert_two(p: *mut bf16, x: __m512, y: __m512) {
    // SAFETY: as `Simd::store_two_bf16`, and AVX512_BF16 is there.
    unsafe { p.cast::<__m512bh>().write_unaligned(_mm512_cvtne2ps_pbh(y, x)) }
}

macro_rules! sixteen_lanes {
    ($name:ident, $store_bf16:ident, $store_two_bf16:ident) => {
        // SAFETY: every method needs the instructions that the path's `run` was promised, and valid pointers, which
        // its caller promises.
        #[expect(clippy::undocumented_unsafe_blocks, reason = "one contract for all the methods, stated above")]
        unsafe impl Simd for $name {
            type F = __m512;
            const LANES: usize = 16;
            const TILE_ROWS: usize = 14;

            #[inline(always)]
            unsafe fn splat(x: f32) -> __m512 {
                unsafe { _mm512_set1_ps(x) }
            }

            #[inline(always)]
            unsafe fn load(p: *const f32) -> __m512 {
                unsafe { _mm512_loadu_ps(p) }
            }

            #[inline(always)]
            unsafe fn store(p: *mut f32, x: __m512) {
                unsafe { _mm512_storeu_ps(p, x) }
            }

            #[inline(always)]
            unsafe fn load_bf16(p: *const bf16) -> __m512 {
                unsafe {
                    let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))
                }
            }

            #[inline(always)]
            unsafe fn load_bf16_pairs(p: *const u32) -> [__m512; 2] {
                unsafe {
                    let both = _mm512_loadu_si512(p.cast());
                    let upper = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
                    [_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)), _mm512_castsi512_ps(upper)]
                }
            }

            #[inline(always)]
            unsafe fn store_bf16(p: *mut bf16, x: __m512) {
                unsafe { $store_bf16(p, x) }
            }

            #[inline(always)]
            unsafe fn store_two_bf16(p: *mut bf16, x: __m512, y: __m512) {
                unsafe { $store_two_bf16(p, x, y) }
            }

            #[inline(always)]
            unsafe fn load_i8(p: *const i8) -> __m512 {
                unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
            }

            #[inline(always)]
            unsafe fn load_i32(p: *const i32) -> __m512 {
                unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(p.cast())) }
            }

            #[inline(always)]
            unsafe fn store_four_u8(p: *mut u8, x: [__m512; 4]) {
                unsafe {
                    let upper = _mm512_packs_epi32(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1]));
                    let lower = _mm512_packs_epi32(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3]));
                    let packed = _mm512_packus_epi16(upper, lower);
                    // Packing works within quarters of a vector.
                    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                    _mm512_storeu_si512(p.cast(), _mm512_permutexvar_epi32(order, packed));
                }
            }

            #[inline(always)]
            unsafe fn widen_bounds_bf16([low, high]: [__m512; 2], p: *const bf16) -> [__m512; 2] {
                // As integers, signed, the largest is the highest number unless all are negative; unsigned, it is the
                // lowest unless none is.
                unsafe {
                    let x = _mm512_loadu_si512(p.cast());
                    let low = _mm512_max_epu16(_mm512_castps_si512(low), x);
                    let high = _mm512_max_epi16(_mm512_castps_si512(high), x);
                    [_mm512_castsi512_ps(low), _mm512_castsi512_ps(high)]
                }
            }

            #[inline(always)]
            unsafe fn bounds_bf16([low, high]: [__m512; 2]) -> [f32; 2] {
                unsafe {
                    let (low, high) = (_mm512_castps_si512(low), _mm512_castps_si512(high));
                    // The lower halves of the lanes; the upper ones win by themselves.
                    let low = _mm512_max_epu32(low, _mm512_slli_epi32(low, 16));
                    let high = _mm512_max_epi32(high, _mm512_slli_epi32(high, 16));
                    let low = f32::from_bits(_mm512_reduce_max_epu32(low) & !0xffff);
                    let high = f32::from_bits(_mm512_reduce_max_epi32(high).max(0) as u32 & !0xffff);
                    [if low.is_sign_negative() { low } else { 0.0 }, high]
                }
            }

            #[inline(always)]
            unsafe fn add(a: __m512, b: __m512) -> __m512 {
                unsafe { _mm512_add_ps(a, b) }
            }

            #[inline(always)]
            unsafe fn sub(a: __m512, b: __m512) -> __m512 {
                unsafe { _mm512_sub_ps(a, b) }
            }

            #[inline(always)]
            unsafe fn mul(a: __m512, b: __m512) -> __m512 {
                unsafe { _mm512_mul_ps(a, b) }
            }

            #[inline(always)]
            unsafe fn div(a: __m512, b: __m512) -> __m512 {
                unsafe { _mm512_div_ps(a, b) }
            }

            #[inline(always)]
            unsafe fn inverse(x: __m512) -> __m512 {
                // A guess of 14 bits and one step of Newton's: a division takes as long as all the rest of a GELU.
                unsafe {
                    let guess = _mm512_rcp14_ps(x);
                    _mm512_fmadd_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(1.0)), guess)
                }
            }

            #[inline(always)]
            unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
                unsafe { _mm512_fmadd_ps(a, b, c) }
            }

            #[inline(always)]
            unsafe fn max(a: __m512, b: __m512) -> __m512 {
                unsafe { _mm512_max_ps(a, b) }
            }

            #[inline(always)]
            unsafe fn min(a: __m512, b: __m512) -> __m512 {
                unsafe { _mm512_min_ps(a, b) }
            }

            #[inline(always)]
            unsafe fn clip(x: __m512, bound: f32) -> __m512 {
                // The operand nearer to zero, with the sign of the first.
                unsafe { _mm512_range_ps(x, _mm512_set1_ps(bound), 2) }
            }

            #[inline(always)]
            unsafe fn abs(a: __m512) -> __m512 {
                unsafe { _mm512_abs_ps(a) }
            }

            #[inline(always)]
            unsafe fn round(a: __m512) -> __m512 {
                unsafe { _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) }
            }

            #[inline(always)]
            unsafe fn scale_by_power(x: __m512, n: __m512) -> __m512 {
                unsafe { _mm512_scalef_ps(x, n) }
            }

            #[inline(always)]
            unsafe fn exp2_coarse(x: __m512) -> __m512 {
                // One instruction takes the fraction, one scales by the whole part, both right at the infinities.
                unsafe {
                    let part = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
                    let mut p = _mm512_set1_ps(7.802_452e-2);
                    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(2.260_671_6e-1));
                    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(6.958_335_6e-1));
                    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(9.999_252e-1));
                    _mm512_scalef_ps(p, x)
                }
            }

            #[inline(always)]
            unsafe fn sum(a: __m512) -> f32 {
                unsafe { _mm512_reduce_add_ps(a) }
            }

            #[inline(always)]
            unsafe fn maximum(a: __m512) -> f32 {
                unsafe { _mm512_reduce_max_ps(a) }
            }
        }
    };
}

sixteen_lanes!(Avx512, round_bits_to_bf16, round_bits_of_two);
sixteen_lanes!(Avx512Bf16, convert_to_bf16, convert_two);
