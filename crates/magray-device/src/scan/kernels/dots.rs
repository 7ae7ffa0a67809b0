//! Products of a panel's bytes with the levels of up to 32 queries; the plain form, and the choice of another.

use super::levels::{Levels, Sums, TILE};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512, tiles};
use crate::scan::chunk::{PANEL_ROWS, STEP};
use magray_core::CpuPath;

/// The fastest form for a path, a machine and a count of queries. Belongs to the thread that made it.
pub(in crate::scan) enum DotKernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Vnni,
    #[cfg(target_arch = "x86_64")]
    Amx(crate::cpu::tiles::Tiles),
}

impl DotKernel {
    /// The largest level of a query's byte: pairs of products are summed in 16 bits on AVX2.
    pub(in crate::scan) fn query_levels(path: CpuPath) -> f32 {
        match path {
            CpuPath::Avx2 => 63.0,
            CpuPath::Avx512 if !crate::cpu::has_vnni() => 63.0,
            _ => 127.0,
        }
    }

    pub(in crate::scan) fn new(path: CpuPath, queries: usize) -> Self {
        match path {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the path is chosen only where the machine has AMX and the process may use tiles.
            CpuPath::Amx if queries > 1 => Self::Amx(unsafe { crate::cpu::tiles::Tiles::configure() }),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Amx => Self::Vnni,
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 if crate::cpu::has_vnni() => Self::Vnni,
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 | CpuPath::Avx2 => Self::Avx2,
            _ => Self::Portable,
        }
    }

    /// Multiplies a panel with all queries of the block.
    pub(in crate::scan) fn run(&self, panel: &[u8], levels: &Levels, sums: &mut Sums) {
        assert_eq!(panel.len(), levels.steps() * STEP * PANEL_ROWS, "a panel of as many steps");
        match self {
            Self::Portable => portable(panel, levels, sums),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` found the instructions; the panel has the levels' steps.
            Self::Avx2 => unsafe { avx2::dots(panel, levels, sums) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Vnni => unsafe { avx512::dots(panel, levels, sums) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; the tiles of this thread are configured, as `Tiles` cannot leave it.
            Self::Amx(_) => unsafe { tiles::dots(panel, levels, sums) },
        }
    }
}

fn portable(panel: &[u8], levels: &Levels, sums: &mut Sums) {
    for query in 0..levels.queries() {
        let sums = &mut sums.0[query * PANEL_ROWS..][..PANEL_ROWS];
        sums.fill(0);
        for (step, tiles) in panel.chunks_exact(STEP * PANEL_ROWS).enumerate() {
            let levels = &levels.step(step)[query * STEP..][..STEP];
            for (tile, sums) in tiles.chunks_exact(STEP * TILE).zip(sums.chunks_exact_mut(TILE)) {
                for (quad, levels) in tile.chunks_exact(STEP).zip(levels.chunks_exact(4)) {
                    for (row, sum) in quad.chunks_exact(4).zip(sums.iter_mut()) {
                        *sum += row.iter().zip(levels).map(|(&x, &q)| i32::from(x) * i32::from(q)).sum::<i32>();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::available_paths;
    use crate::scan::tests::Made;

    #[test]
    fn every_form_sums_the_same() {
        for (steps, queries) in [(1, 1), (6, 1), (6, 2), (2, 5), (3, 16), (1, 17), (6, 31), (16, 32)] {
            let mut made = Made::new(steps as u64);
            let panel: Vec<u8> =
                (0..steps * STEP * PANEL_ROWS).map(|i| if i % 7 == 0 { 255 } else { made.bits() as u8 }).collect();
            let extreme: Vec<Vec<i8>> = (0..queries)
                .map(|q| {
                    (0..steps * STEP - q % 3)
                        .map(|i| if (i + q) % 3 == 0 { 63 } else { (made.bits() % 127) as i8 - 63 })
                        .collect()
                })
                .collect();
            let levels = Levels::new(extreme.iter().map(|levels| &**levels), steps * STEP);
            let (mut want, mut got) = (Sums::new(), Sums::new());
            portable(&panel, &levels, &mut want);
            for path in available_paths() {
                DotKernel::new(path, queries).run(&panel, &levels, &mut got);
                for query in 0..queries {
                    assert_eq!(got.of(query), want.of(query), "{path} {steps} {queries}");
                }
            }
        }
    }
}
