//! Vectors of floats, one interface over the instruction sets. Each op's arithmetic is written once over it.
//! Chooses nothing at run time but the entry: [`vectorize`] runs a kernel on the path it is told.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(test)]
pub(super) use portable::Portable;

use half::bf16;
use magray_core::CpuPath;

/// A vector of floats on one instruction set.
///
/// # Safety
/// Methods may use instructions the machine lacks: call them from inside [`Kernel::run`] alone, which runs only where
/// [`vectorize`] found its path. Pointers must be valid for `LANES` elements of their type, at any alignment.
pub(super) unsafe trait Simd: Copy {
    /// `LANES` floats.
    type F: Copy;
    const LANES: usize;
    /// Whether loops prefetch. Where the compiler makes the vectors it arranges a loop better without.
    const FETCHES: bool = true;
    /// Rows of the largest tile of a matrix product whose sums still fit the registers.
    const TILE_ROWS: usize;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn load_bf16(p: *const bf16) -> Self::F;
    /// Pairs of bf16: the first of each, and the second of each.
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u32) -> [Self::F; 2] {
        let (mut even, mut odd) = ([0.0f32; 16], [0.0f32; 16]);
        for (i, (even, odd)) in even.iter_mut().zip(&mut odd).enumerate().take(Self::LANES) {
            // SAFETY: the caller's pointer is valid for LANES elements.
            let pair = unsafe { p.add(i).read_unaligned() };
            (*even, *odd) = (f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000));
        }
        // SAFETY: the arrays are as long as the longest vector.
        unsafe { [Self::load(even.as_ptr()), Self::load(odd.as_ptr())] }
    }
    /// Rounds to nearest even.
    unsafe fn store_bf16(p: *mut bf16, x: Self::F);
    /// Two vectors end to end, as [`Simd::store_bf16`].
    #[inline(always)]
    unsafe fn store_two_bf16(p: *mut bf16, x: Self::F, y: Self::F) {
        // SAFETY: as the caller's.
        unsafe {
            Self::store_bf16(p, x);
            Self::store_bf16(p.add(Self::LANES), y);
        }
    }
    unsafe fn load_i8(p: *const i8) -> Self::F;
    /// Loads 32-bit integers and converts them.
    unsafe fn load_i32(p: *const i32) -> Self::F;
    /// Four vectors end to end, rounded to the nearest integer, beyond a byte's range to its end.
    unsafe fn store_four_u8(p: *mut u8, x: [Self::F; 4]);
    /// Bounds that also hold two vectors of bf16, from zeros on; only [`Simd::bounds_bf16`] reads them.
    #[inline(always)]
    unsafe fn widen_bounds_bf16([low, high]: [Self::F; 2], p: *const bf16) -> [Self::F; 2] {
        // SAFETY: as the caller's.
        unsafe {
            let (x, y) = (Self::load_bf16(p), Self::load_bf16(p.add(Self::LANES)));
            [Self::min(low, Self::min(x, y)), Self::max(high, Self::max(x, y))]
        }
    }
    /// The lowest and the highest, at most and at least 0.
    #[inline(always)]
    unsafe fn bounds_bf16([low, high]: [Self::F; 2]) -> [f32; 2] {
        // SAFETY: as the caller's.
        unsafe { [-Self::maximum(Self::sub(Self::splat(0.0), low)), Self::maximum(high)] }
    }
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `1 / x` within two units in the last place, where neither is near the largest or the smallest of numbers.
    #[inline(always)]
    unsafe fn inverse(x: Self::F) -> Self::F {
        // SAFETY: as the caller's.
        unsafe { Self::div(Self::splat(1.0), x) }
    }
    /// `a * b + c`.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `x` where it is within `bound` of zero, else the bound with its sign.
    #[inline(always)]
    unsafe fn clip(x: Self::F, bound: f32) -> Self::F {
        // SAFETY: as the caller's.
        unsafe { Self::max(Self::min(x, Self::splat(bound)), Self::splat(-bound)) }
    }
    unsafe fn abs(a: Self::F) -> Self::F;
    /// Rounds to the nearest integer, as a float.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `x * 2^n` for integral `n` in -127..=127; below, the result is zero or nearly so.
    unsafe fn scale_by_power(x: Self::F, n: Self::F) -> Self::F;
    /// `2^x` within 8e-5 of it, for what is rounded to bf16 next; zero, or as good as, for minus infinity.
    #[inline(always)]
    unsafe fn exp2_coarse(x: Self::F) -> Self::F {
        // SAFETY: as the caller's.
        unsafe { exp2::<Self>(x) }
    }
    /// Asks for a line of memory, which need not exist, to be in the second cache when it is read.
    #[inline(always)]
    unsafe fn fetch<T>(p: *const T) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; every x86-64 has it and it never faults.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
    /// As [`Simd::fetch`], into the first cache.
    #[inline(always)]
    unsafe fn fetch_near<T>(p: *const T) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
    unsafe fn sum(a: Self::F) -> f32;
    unsafe fn maximum(a: Self::F) -> f32;
}

/// Arithmetic over vectors of any width.
pub(super) trait Kernel {
    /// Does the work with the vectors of `S`. Must be `#[inline(always)]`, so that it is compiled for their instructions.
    ///
    /// # Safety
    /// The machine has the instructions of `S`, and what the kernel points at is valid.
    unsafe fn run<S: Simd>(self);
}

/// Runs a kernel with the vectors of a path.
///
/// # Safety
/// The path is one that the machine was found to have, and what the kernel points at is valid.
pub(super) unsafe fn vectorize<K: Kernel>(path: CpuPath, kernel: K) {
    // SAFETY: the caller vouches for both.
    unsafe {
        match path {
            #[cfg(target_arch = "x86_64")]
            CpuPath::Amx => avx512::run_with_bf16(kernel),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 => avx512::run(kernel),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx2 => avx2::run(kernel),
            _ => kernel.run::<portable::Portable>(),
        }
    }
}

/// Runs a kernel with the vectors of the AMX path, and compiles it for no other.
///
/// # Safety
/// The machine was found to have the AMX path, and what the kernel points at is valid.
pub(super) unsafe fn vectorize_on_amx<K: Kernel>(kernel: K) {
    // SAFETY: the caller vouches for both.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        avx512::run_with_bf16(kernel);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = kernel;
}

/// `2^x`, exact to a few units in the last place. Below 2^-100 it stays there: next to the sums it joins that is
/// nothing, and smaller numbers would soon be denormal, which cost many times as much.
#[inline(always)]
pub(super) unsafe fn exp2<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller's.
    unsafe {
        let x = S::max(x, S::splat(-100.0));
        let whole = S::round(x);
        let part = S::sub(x, whole);
        // Taylor of 2^r over |r| <= 1/2, seven terms: the remainder is below 3e-8.
        let mut p = S::splat(1.535_336_2e-4);
        p = S::fma(p, part, S::splat(1.339_887_4e-3));
        p = S::fma(p, part, S::splat(9.618_437e-3));
        p = S::fma(p, part, S::splat(5.550_332_5e-2));
        p = S::fma(p, part, S::splat(2.402_264_8e-1));
        p = S::fma(p, part, S::splat(6.931_472e-1));
        p = S::fma(p, part, S::splat(1.0));
        S::scale_by_power(p, whole)
    }
}

/// A stored number that vectors are loaded from and stored to.
pub(super) trait Element: Copy {
    /// # Safety
    /// As [`Simd::load`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::F;
    /// # Safety
    /// As [`Simd::store`].
    unsafe fn store<S: Simd>(p: *mut Self, x: S::F);
    /// Two vectors end to end.
    ///
    /// # Safety
    /// As [`Simd::store`], for twice as much.
    unsafe fn store_two<S: Simd>(p: *mut Self, x: S::F, y: S::F);
    /// As [`Simd::widen_bounds_bf16`].
    ///
    /// # Safety
    /// As [`Simd::load`], for twice as much.
    unsafe fn widen_bounds<S: Simd>(bounds: [S::F; 2], p: *const Self) -> [S::F; 2];
    /// As [`Simd::bounds_bf16`].
    ///
    /// # Safety
    /// The machine has the instructions of `S`.
    unsafe fn bounds<S: Simd>(bounds: [S::F; 2]) -> [f32; 2];
    fn from_f32(x: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: as the caller's.
        unsafe { S::load(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, x: S::F) {
        // SAFETY: as the caller's.
        unsafe { S::store(p, x) }
    }

    #[inline(always)]
    unsafe fn store_two<S: Simd>(p: *mut Self, x: S::F, y: S::F) {
        // SAFETY: as the caller's.
        unsafe {
            S::store(p, x);
            S::store(p.add(S::LANES), y);
        }
    }

    #[inline(always)]
    unsafe fn widen_bounds<S: Simd>([low, high]: [S::F; 2], p: *const Self) -> [S::F; 2] {
        // SAFETY: as the caller's.
        unsafe {
            let (x, y) = (S::load(p), S::load(p.add(S::LANES)));
            [S::min(low, S::min(x, y)), S::max(high, S::max(x, y))]
        }
    }

    #[inline(always)]
    unsafe fn bounds<S: Simd>([low, high]: [S::F; 2]) -> [f32; 2] {
        // SAFETY: as the caller's.
        unsafe { [-S::maximum(S::sub(S::splat(0.0), low)), S::maximum(high)] }
    }

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: as the caller's.
        unsafe { S::load_bf16(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, x: S::F) {
        // SAFETY: as the caller's.
        unsafe { S::store_bf16(p, x) }
    }

    #[inline(always)]
    unsafe fn store_two<S: Simd>(p: *mut Self, x: S::F, y: S::F) {
        // SAFETY: as the caller's.
        unsafe { S::store_two_bf16(p, x, y) }
    }

    #[inline(always)]
    unsafe fn widen_bounds<S: Simd>(bounds: [S::F; 2], p: *const Self) -> [S::F; 2] {
        // SAFETY: as the caller's.
        unsafe { S::widen_bounds_bf16(bounds, p) }
    }

    #[inline(always)]
    unsafe fn bounds<S: Simd>(bounds: [S::F; 2]) -> [f32; 2] {
        // SAFETY: as the caller's.
        unsafe { S::bounds_bf16(bounds) }
    }

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Self::from_f32(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::detect::available_paths;

    struct EveryOp<'a> {
        x: &'a [f32],
        out: &'a mut [Vec<f32>],
    }

    impl Kernel for EveryOp<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let n = self.x.len();
            // SAFETY: the buffers are 64 elements long, a multiple of every path's lanes.
            unsafe {
                for i in (0..n).step_by(S::LANES) {
                    let x = S::load(self.x.as_ptr().add(i));
                    let put = |op: usize, v: S::F| S::store(self.out[op].as_ptr().cast_mut().add(i), v);
                    put(0, exp2::<S>(x));
                    put(1, S::round(x));
                    put(2, S::fma(x, x, S::splat(1.0)));
                    put(3, S::abs(x));
                    put(4, S::splat(S::sum(x)));
                    put(5, S::splat(S::maximum(x)));
                    let mut short = [bf16::ZERO; 16];
                    S::store_bf16(short.as_mut_ptr(), x);
                    put(6, S::load_bf16(short.as_ptr()));
                    let mut bytes = [0u8; 64];
                    let raised = S::add(x, S::splat(60.0));
                    S::store_four_u8(bytes.as_mut_ptr(), [x, raised, S::splat(300.0), S::splat(-300.0)]);
                    put(7, S::load_i8(bytes.as_ptr().cast()));
                    put(11, S::load_i8(bytes.as_ptr().cast::<i8>().add(S::LANES)));
                    let ends = bytes[2 * S::LANES..4 * S::LANES].iter().map(|&byte| f32::from(byte));
                    put(12, S::splat(ends.sum::<f32>() / S::LANES as f32));
                    let mut twice = [bf16::ZERO; 32];
                    S::store_two_bf16(twice.as_mut_ptr(), x, x);
                    let zeros = [S::splat(0.0); 2];
                    let [low, high] = S::bounds_bf16(S::widen_bounds_bf16(zeros, twice.as_ptr()));
                    put(13, S::splat(low));
                    put(14, S::splat(high));
                    put(8, S::exp2_coarse(x));
                    put(9, S::clip(x, 4.0));
                    let mut both = [bf16::ZERO; 32];
                    S::store_two_bf16(both.as_mut_ptr(), S::abs(x), x);
                    put(10, S::load_bf16(both.as_ptr().add(S::LANES)));
                    let [even, odd] = S::load_bf16_pairs(self.x.as_ptr().add(i).cast());
                    put(15, even);
                    put(16, odd);
                }
            }
        }
    }

    #[test]
    fn every_path_agrees_with_plain_floats() {
        let x: Vec<f32> = (0..64).map(|i| (i as f32 - 31.3) * 1.37).collect();
        for path in available_paths() {
            let mut out = vec![vec![0.0f32; 64]; 17];
            // SAFETY: the path is available.
            unsafe { vectorize(path, EveryOp { x: &x, out: &mut out }) };
            for (i, &x) in x.iter().enumerate() {
                let close = |got: f32, want: f32| {
                    assert!((got - want).abs() <= want.abs() * 4e-7 + 1e-38, "{path} lane {i}: {got} is not {want}");
                };
                close(out[0][i], x.exp2());
                close(out[1][i], x.round_ties_even());
                close(out[2][i], x.mul_add(x, 1.0));
                close(out[3][i], x.abs());
                assert!((out[8][i] / x.exp2() - 1.0).abs() < 8e-5, "{path} lane {i}");
                assert_eq!(out[9][i], x.clamp(-4.0, 4.0), "{path} lane {i}");
                assert_eq!(out[10][i], out[6][i], "{path} lane {i}");
                close(out[6][i], bf16::from_f32(x).to_f32());
                close(out[7][i], x.max(0.0).round_ties_even());
                close(out[11][i], (x + 60.0).round_ties_even());
                assert_eq!(out[12][i], 255.0, "{path} lane {i}");
                let halves = [x.to_bits() << 16, x.to_bits() & 0xffff_0000];
                assert_eq!([out[15][i].to_bits(), out[16][i].to_bits()], halves, "{path} lane {i}");
            }
            let lanes = out[5].windows(2).position(|w| w[0] != w[1]).unwrap() + 1;
            for block in 0..64 / lanes {
                let range = block * lanes..(block + 1) * lanes;
                let sum: f32 = x[range.clone()].iter().sum();
                assert!((out[4][range.start] - sum).abs() < 1e-3, "{path}");
                assert_eq!(out[5][range.start], x[range.end - 1], "{path}");
                let [low, high] = [x[range.start].min(0.0), x[range.end - 1].max(0.0)].map(bf16::from_f32);
                assert_eq!([out[13][range.start], out[14][range.start]], [low, high].map(bf16::to_f32), "{path}");
            }
        }
    }
}
