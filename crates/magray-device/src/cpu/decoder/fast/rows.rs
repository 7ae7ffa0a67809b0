//! Rows of activations as the products read them: floats behind a norm, bytes with a scale a group, or bf16 in tiles.
//! A row's numbers depend on no other row.

use super::form::GROUP;
use crate::cpu::decoder::RmsNorm;
use crate::cpu::simd::{Kernel, Simd};
use half::bf16;

/// What a group of inputs is multiplied with, and the sums of its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(super) struct GroupScale {
    pub(super) scale: f32,
    pub(super) total: i32,
    /// The sum of the first 16.
    pub(super) first_total: i32,
}

/// Rows of inputs, read by kernels for few rows. Inputs beyond the last are zeros up to a whole group.
#[derive(Default)]
pub(super) struct FewInputs {
    pub(super) floats: Vec<f32>,
    pub(super) bytes: Vec<i8>,
    pub(super) scales: Vec<GroupScale>,
}

impl FewInputs {
    /// Makes room for rows of this many groups.
    pub(super) fn resize(&mut self, rows: usize, groups: usize, bytes: bool) {
        let numbers = rows * groups * GROUP;
        if self.floats.len() < numbers {
            self.floats.resize(numbers, 0.0);
        }
        if bytes && self.bytes.len() < numbers {
            self.bytes.resize(numbers, 0);
            self.scales.resize(rows * groups, GroupScale::default());
        }
        if bytes && self.scales.len() < rows * groups {
            self.scales.resize(rows * groups, GroupScale::default());
        }
    }
}

/// Puts a row behind its norm into floats, and into bytes where they are wanted.
pub(super) struct PrepareRow<'a> {
    pub(super) x: &'a [f32],
    pub(super) norm: Option<&'a RmsNorm>,
    /// Whole groups.
    pub(super) floats: &'a mut [f32],
    /// As many bytes, and a scale for each group.
    pub(super) bytes: Option<(&'a mut [i8], &'a mut [GroupScale])>,
}

impl Kernel for PrepareRow<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, norm, floats, bytes } = self;
        // SAFETY: as the caller's.
        unsafe {
            normalise::<S>(x, norm, &mut floats[..x.len()]);
            floats[x.len()..].fill(0.0);
            if let Some((bytes, scales)) = bytes {
                let groups = floats.as_chunks::<GROUP>().0.iter().zip(bytes.as_chunks_mut::<GROUP>().0).zip(scales);
                for ((numbers, bytes), scale) in groups {
                    *scale = round_group::<S>(numbers, bytes);
                }
            }
        }
    }
}

/// `out = norm(x)`, or a copy.
///
/// # Safety
/// As [`Kernel::run`]; both are as long.
#[inline(always)]
pub(super) unsafe fn normalise<S: Simd>(x: &[f32], norm: Option<&RmsNorm>, out: &mut [f32]) {
    let Some(norm) = norm else { return out.copy_from_slice(x) };
    assert!(x.len() == norm.gain.len() && x.len() == out.len(), "the norm is as wide");
    let whole = x.len() / S::LANES * S::LANES;
    // SAFETY: vectors up to `whole` lie inside the slices, which are as long as each other.
    unsafe {
        let mut squares = [S::splat(0.0); 2];
        let mut i = 0;
        while i < whole {
            let x = S::load(x.as_ptr().add(i));
            squares[i / S::LANES % 2] = S::fma(x, x, squares[i / S::LANES % 2]);
            i += S::LANES;
        }
        let rest: f32 = x[whole..].iter().map(|x| x * x).sum();
        let mean = (S::sum(S::add(squares[0], squares[1])) + rest) / x.len() as f32;
        let scale = 1.0 / (mean + norm.epsilon).sqrt();
        let mut i = 0;
        while i < whole {
            let scaled = S::mul(S::load(x.as_ptr().add(i)), S::splat(scale));
            S::store(out.as_mut_ptr().add(i), S::mul(scaled, S::load(norm.gain.as_ptr().add(i))));
            i += S::LANES;
        }
        for i in whole..x.len() {
            out[i] = x[i] * scale * norm.gain[i];
        }
    }
}

/// A group as bytes of -127 to 127.
#[inline(always)]
unsafe fn round_group<S: Simd>(numbers: &[f32; GROUP], bytes: &mut [i8; GROUP]) -> GroupScale {
    let from = numbers.as_ptr();
    // SAFETY: vectors lie inside the group; the buffer has room for four vectors of bytes more than a group.
    unsafe {
        let mut largest = S::splat(0.0);
        for i in (0..GROUP).step_by(S::LANES) {
            largest = S::max(largest, S::abs(S::load(from.add(i))));
        }
        let largest = S::maximum(largest);
        let (scale, inverse) = if largest > 0.0 { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
        let mut totals = [S::splat(0.0); 2];
        let mut shifted = [0u8; 2 * GROUP];
        for first in (0..GROUP).step_by(4 * S::LANES) {
            let mut four = [S::splat(0.0); 4];
            for (i, one) in four.iter_mut().enumerate() {
                let at = first + i * S::LANES;
                if at < GROUP {
                    let rounded = S::round(S::mul(S::load(from.add(at)), S::splat(inverse)));
                    totals[at / (GROUP / 2)] = S::add(totals[at / (GROUP / 2)], rounded);
                    *one = S::add(rounded, S::splat(128.0));
                }
            }
            S::store_four_u8(shifted.as_mut_ptr().add(first), four);
        }
        for (byte, shifted) in bytes.iter_mut().zip(shifted) {
            *byte = (shifted ^ 0x80) as i8;
        }
        let first_total = S::sum(totals[0]) as i32;
        GroupScale { scale, total: first_total + S::sum(totals[1]) as i32, first_total }
    }
}

/// Rows of a tile, and bytes of a tile of 32 bf16 inputs.
pub(super) const TILE_ROWS: usize = 16;
pub(super) const TILE_BYTES: usize = 1024;

/// Puts a row behind its norm into its tiles: `[block of 16 rows][group][row][input]`.
pub(super) struct TileRow<'a> {
    pub(super) x: &'a [f32],
    pub(super) norm: Option<&'a RmsNorm>,
    /// Room for whole groups.
    pub(super) floats: &'a mut [f32],
    /// The row's place in the first group's tile.
    pub(super) to: *mut bf16,
}

impl Kernel for TileRow<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, norm, floats, to } = self;
        // SAFETY: the caller vouches for the tiles of the row; vectors lie inside a group.
        unsafe {
            normalise::<S>(x, norm, &mut floats[..x.len()]);
            floats[x.len()..].fill(0.0);
            for (group, numbers) in floats.as_chunks::<GROUP>().0.iter().enumerate() {
                let to = to.add(group * TILE_BYTES / 2);
                for i in (0..GROUP).step_by(2 * S::LANES) {
                    let (one, two) = (S::load(numbers.as_ptr().add(i)), S::load(numbers.as_ptr().add(i + S::LANES)));
                    S::store_two_bf16(to.add(i), one, two);
                }
            }
        }
    }
}
