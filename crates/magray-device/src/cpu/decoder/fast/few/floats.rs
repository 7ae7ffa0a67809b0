//! Few rows of floats by a panel of bf16, on vectors of any width.
//! Rounds no input.

use super::{FewRows, ROWS};
use crate::cpu::decoder::fast::fetch::Fetch;
use crate::cpu::decoder::fast::form::{Form, GROUP, PANEL};
use crate::cpu::simd::{Kernel, Simd};

pub(super) struct FloatRows<'a> {
    pub(super) block: FewRows,
    pub(super) fetch: &'a mut Fetch,
    pub(super) sums: &'a mut [f32; ROWS * PANEL],
}

impl Kernel for FloatRows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        // SAFETY: as the caller's.
        unsafe {
            match self.block.rows {
                1 => self.product::<S, 1>(),
                2 => self.product::<S, 2>(),
                3 => self.product::<S, 3>(),
                4 => self.product::<S, 4>(),
                rows => unreachable!("{rows} rows at once"),
            }
        }
    }
}

impl FloatRows<'_> {
    #[inline(always)]
    unsafe fn product<S: Simd, const N: usize>(&mut self) {
        let FewRows { groups, floats, panel, .. } = self.block;
        let numbers = groups * GROUP;
        // SAFETY: the pointers are valid for all groups; there is room for four rows of 32 sums.
        unsafe {
            for first in (0..PANEL).step_by(S::LANES) {
                let mut sums = [[S::splat(0.0); 2]; N];
                let mut at = panel.add(first / 16 * 1024 + first % 16 * 4);
                for group in 0..groups {
                    for pair in 0..GROUP / 2 {
                        let [even, odd] = S::load_bf16_pairs(at.add(pair * 64).cast());
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let x = floats.add(row * numbers + group * GROUP + pair * 2);
                            sums[0] = S::fma(even, S::splat(*x), sums[0]);
                            sums[1] = S::fma(odd, S::splat(*x.add(1)), sums[1]);
                        }
                    }
                    // All lines of the group, divided between the vectors that read it.
                    for _ in 0..GROUP * S::LANES / PANEL {
                        self.fetch.line();
                    }
                    at = at.add(Form::Bf16.group_bytes());
                }
                for (row, sums) in sums.into_iter().enumerate() {
                    S::store(self.sums.as_mut_ptr().add(row * PANEL + first), S::add(sums[0], sums[1]));
                }
            }
        }
    }
}
