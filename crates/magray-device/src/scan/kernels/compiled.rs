//! Plain loops compiled for the vectors of a CPU path. Computes nothing itself.

use magray_core::CpuPath;

/// A loop whose functions are inlined into `run`, which is inlined too: only so it gets the instructions of a path.
pub(in crate::scan) trait Loop {
    /// Computes. Results are those of any path: sums keep their order.
    fn run(self);
}

/// Runs a loop with the instructions of a path.
pub(in crate::scan) fn run_on(path: CpuPath, work: impl Loop) {
    match path {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the path has found the instructions.
        CpuPath::Avx512 | CpuPath::Amx => unsafe { with_avx512(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        CpuPath::Avx2 => unsafe { with_avx2(work) },
        _ => work.run(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn with_avx512(work: impl Loop) {
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(work: impl Loop) {
    work.run();
}
