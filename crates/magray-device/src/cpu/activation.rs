//! The functions between matrices, on vectors. Where the result is rounded to bf16 a coarser GELU does.

use super::simd::{Element, Simd, exp2};
use half::bf16;

/// A function of one vector that stores into `E`.
pub(super) trait Function {
    /// # Safety
    /// The machine has the instructions of `S`.
    unsafe fn of<S: Simd, E: Stored>(x: S::F) -> S::F;

    /// The same, where errors of 1e-3 do not matter.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn rough<S: Simd, E: Stored>(x: S::F) -> S::F {
        // SAFETY: as the caller's.
        unsafe { Self::of::<S, E>(x) }
    }
}

/// What an activation's result is stored as, which says how exact it need be.
pub(super) trait Stored: Element {
    /// Whether errors of 5e-5 vanish in the rounding.
    const COARSE: bool;
}

impl Stored for f32 {
    const COARSE: bool = false;
}

impl Stored for bf16 {
    const COARSE: bool = true;
}

pub(super) struct Identity;
pub(super) struct Gelu;
pub(super) struct GeluTanh;
pub(super) struct Relu;
pub(super) struct Silu;
pub(super) struct Tanh;

impl Function for Identity {
    #[inline(always)]
    unsafe fn of<S: Simd, E: Stored>(x: S::F) -> S::F {
        x
    }
}

impl Function for Relu {
    #[inline(always)]
    unsafe fn of<S: Simd, E: Stored>(x: S::F) -> S::F {
        // SAFETY: as the caller's.
        unsafe { S::max(x, S::splat(0.0)) }
    }
}

impl Function for Gelu {
    #[inline(always)]
    unsafe fn of<S: Simd, E: Stored>(x: S::F) -> S::F {
        // SAFETY: as the caller's.
        unsafe { if E::COARSE { gelu_coarse::<S>(x) } else { gelu_exact::<S>(x) } }
    }

    #[inline(always)]
    unsafe fn rough<S: Simd, E: Stored>(x: S::F) -> S::F {
        // SAFETY: as the caller's.
        unsafe { gelu_rough::<S>(x) }
    }
}

impl Function for GeluTanh {
    #[inline(always)]
    unsafe fn of<S: Simd, E: Stored>(x: S::F) -> S::F {
        // SAFETY: as the caller's.
        unsafe {
            let cube = S::mul(S::mul(x, x), x);
            let inner = S::mul(S::fma(cube, S::splat(0.044_715), x), S::splat(0.797_884_6));
            let half = S::mul(x, S::splat(0.5));
            S::fma(half, tanh::<S>(inner), half)
        }
    }
}

impl Function for Silu {
    #[inline(always)]
    unsafe fn of<S: Simd, E: Stored>(x: S::F) -> S::F {
        // SAFETY: as the caller's.
        unsafe {
            let power = exp2::<S>(S::min(S::mul(x, S::splat(-std::f32::consts::LOG2_E)), S::splat(126.0)));
            S::div(x, S::add(S::splat(1.0), power))
        }
    }
}

impl Function for Tanh {
    #[inline(always)]
    unsafe fn of<S: Simd, E: Stored>(x: S::F) -> S::F {
        // SAFETY: as the caller's.
        unsafe { tanh::<S>(x) }
    }
}

/// `1 - 2 / (e^2x + 1)`; its error is absolute, about 1e-7.
#[inline(always)]
unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller's.
    unsafe {
        let power = exp2::<S>(S::min(S::mul(x, S::splat(2.0 * std::f32::consts::LOG2_E)), S::splat(60.0)));
        S::sub(S::splat(1.0), S::div(S::splat(2.0), S::add(power, S::splat(1.0))))
    }
}

/// `x * Phi(x)` with the error function by Abramowitz and Stegun 7.1.26: absolute error below 2e-7 of `x`.
#[inline(always)]
unsafe fn gelu_exact<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller's.
    unsafe {
        let z = S::mul(S::abs(x), S::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = S::inverse(S::fma(z, S::splat(0.327_591_1), S::splat(1.0)));
        let mut p = S::splat(1.061_405_4);
        p = S::fma(p, t, S::splat(-1.453_152_1));
        p = S::fma(p, t, S::splat(1.421_413_8));
        p = S::fma(p, t, S::splat(-0.284_496_72));
        p = S::fma(p, t, S::splat(0.254_829_6));
        p = S::mul(p, t);
        let decay = exp2::<S>(S::mul(S::mul(z, z), S::splat(-std::f32::consts::LOG2_E)));
        // Half the complement: Phi(-|x|). Then x * Phi(x) = max(x, 0) - |x| * Phi(-|x|) on both sides of zero.
        let tail = S::mul(S::mul(p, decay), S::splat(0.5));
        S::sub(S::max(x, S::splat(0.0)), S::mul(S::abs(x), tail))
    }
}

/// `x * (1/2 + h P(h^2))` with `h` clipped to 4: a polynomial fitted for the least largest error, 4.4e-5.
#[inline(always)]
unsafe fn gelu_coarse<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller's.
    unsafe {
        let h = S::clip(x, 4.0);
        let t = S::mul(h, h);
        let mut p = S::splat(-1.301_294e-9);
        p = S::fma(p, t, S::splat(1.041_960_2e-7));
        p = S::fma(p, t, S::splat(-3.657_132_3e-6));
        p = S::fma(p, t, S::splat(7.485_504_5e-5));
        p = S::fma(p, t, S::splat(-1.006_490_4e-3));
        p = S::fma(p, t, S::splat(9.505_399e-3));
        p = S::fma(p, t, S::splat(-6.588_784_6e-2));
        p = S::fma(p, t, S::splat(3.986_734e-1));
        S::mul(x, S::fma(h, p, S::splat(0.5)))
    }
}

/// As [`gelu_coarse`] with three terms less: the largest error up to 10 is 1.1e-3.
#[inline(always)]
unsafe fn gelu_rough<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller's.
    unsafe {
        let h = S::clip(x, 3.4);
        let t = S::mul(h, h);
        let mut p = S::splat(1.055_525_9e-5);
        p = S::fma(p, t, S::splat(-4.151_084_5e-4));
        p = S::fma(p, t, S::splat(6.711_651e-3));
        p = S::fma(p, t, S::splat(-5.980_678_6e-2));
        p = S::fma(p, t, S::splat(3.942_785e-1));
        S::mul(x, S::fma(h, p, S::splat(0.5)))
    }
}
