//! The arithmetic of search, for each CPU path. Decides nothing: it is told the path.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod compiled;
mod dots;
mod exact;
mod gauge;
mod levels;
mod signs;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub(super) use compiled::{Loop, run_on};
pub(super) use dots::DotKernel;
pub(super) use exact::exact_score;
pub(super) use gauge::{BoundRows, Gauge, quantise};
pub(super) use levels::{Levels, QUERIES, Sums};
pub(super) use signs::{GROUP_ROWS, SLICES, SignGauge, SignRows, sift_signs};

/// Asks for memory that is read soon.
#[inline]
pub(super) fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size_of_val(values).div_ceil(64) {
        // SAFETY: a hint, which every x86-64 has and which never faults.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                values.as_ptr().cast::<i8>().wrapping_add(line * 64),
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

/// Asks for memory that is scanned next, when this line is: in turn from eight pages. The hardware follows each page by
/// itself, and two cores read nearly twice as much this way as line after line.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch_ahead(line: *const u8) {
    const LINE: usize = 64;
    const PAGE: usize = 4096;
    const PAGES: usize = 8;
    let at = line as usize % (PAGES * PAGE);
    let nth = at / LINE;
    let next = line.wrapping_add(PAGES * PAGE - at + nth % PAGES * PAGE + nth / PAGES * LINE);
    // SAFETY: a hint, which every x86-64 has and which never faults.
    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(next.cast()) };
}
