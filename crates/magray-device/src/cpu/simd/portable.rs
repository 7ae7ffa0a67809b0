//! Vectors as small arrays, which the compiler turns into whatever the target has. Uses no intrinsics.

use super::Simd;
use half::bf16;

#[derive(Clone, Copy)]
pub(in crate::cpu) struct Portable;

const LANES: usize = 4;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

// SAFETY: plain Rust; pointers are the caller's promise.
unsafe impl Simd for Portable {
    type F = [f32; LANES];
    const LANES: usize = LANES;
    const FETCHES: bool = false;
    const TILE_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: the caller's pointer is valid for LANES floats.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        // SAFETY: as above.
        unsafe { p.cast::<Self::F>().write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::F {
        // SAFETY: the caller's pointer is valid for LANES elements.
        each(|i| f32::from_bits(u32::from(unsafe { p.add(i).read_unaligned() }.to_bits()) << 16))
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, x: Self::F) {
        for (i, x) in x.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { p.add(i).write_unaligned(bf16::from_f32(x)) };
        }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        // SAFETY: as above.
        each(|i| f32::from(unsafe { *p.add(i) }))
    }

    #[inline(always)]
    unsafe fn load_i32(p: *const i32) -> Self::F {
        // SAFETY: as above.
        each(|i| unsafe { p.add(i).read_unaligned() } as f32)
    }

    #[inline(always)]
    unsafe fn store_four_u8(p: *mut u8, x: [Self::F; 4]) {
        for (i, x) in x.into_iter().flatten().enumerate() {
            // SAFETY: as above.
            unsafe { *p.add(i) = x.round_ties_even() as u8 };
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] / b[i])
    }

    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // Where the baseline has no fused instruction, `mul_add` would be a slow call.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            each(|i| a[i].mul_add(b[i], c[i]))
        } else {
            each(|i| a[i] * b[i] + c[i])
        }
    }

    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        each(|i| a[i].abs())
    }

    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        // Adding and taking away 1.5 * 2^23 rounds to even without a call, for |x| below 2^22.
        const MAGIC: f32 = 12_582_912.0;
        each(|i| (a[i] + MAGIC) - MAGIC)
    }

    #[inline(always)]
    unsafe fn scale_by_power(x: Self::F, n: Self::F) -> Self::F {
        each(|i| x[i] * f32::from_bits(((n[i] as i32).wrapping_add(127) << 23) as u32))
    }

    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }

    #[inline(always)]
    unsafe fn maximum(a: Self::F) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
