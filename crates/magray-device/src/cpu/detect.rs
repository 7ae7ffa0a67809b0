//! Asks this machine which of the CPU paths it can run. Runs none of them.

use magray_core::CpuPath;

/// A path the machine cannot run, and what it can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this CPU cannot run the {asked} path; it can run: {}", names(available))]
pub struct PathUnavailable {
    /// The path that was asked for.
    pub asked: CpuPath,
    /// The paths the machine has, the plainest first.
    pub available: Vec<CpuPath>,
}

fn names(paths: &[CpuPath]) -> String {
    paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The paths this machine can run, the plainest first; the last is the fastest.
pub fn available_paths() -> Vec<CpuPath> {
    CpuPath::ALL.into_iter().filter(|&path| has(path)).collect()
}

/// Settles on the path asked for, or on the fastest there is.
pub(crate) fn choose_path(asked: Option<CpuPath>) -> Result<CpuPath, PathUnavailable> {
    let available = available_paths();
    match asked {
        None => Ok(available.last().copied().unwrap_or(CpuPath::Portable)),
        Some(path) if available.contains(&path) => Ok(path),
        Some(asked) => Err(PathUnavailable { asked, available }),
    }
}

#[cfg(target_arch = "x86_64")]
fn has(path: CpuPath) -> bool {
    match path {
        CpuPath::Portable => true,
        CpuPath::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        CpuPath::Avx512 => {
            has(CpuPath::Avx2)
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        }
        CpuPath::Amx => {
            has(CpuPath::Avx512)
                && is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx512bf16")
                && has_amx()
                && tile_permission()
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has(path: CpuPath) -> bool {
    path == CpuPath::Portable
}

pub(crate) fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vnni");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Whether vectors of 16-bit floats can be widened.
pub(crate) fn has_f16c() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Leaf 7 tells of the tiles; the standard library's detection does not on stable.
#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    let all = AMX_BF16 | AMX_TILE | AMX_INT8;
    let max_leaf = std::arch::x86_64::__cpuid(0).eax;
    max_leaf >= 7 && std::arch::x86_64::__cpuid_count(7, 0).edx & all == all
}

/// Asks the kernel for the tile registers' state, once a process; threads inherit it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tile_permission() -> bool {
    static GRANTED: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: arch_prctl takes two numbers here and only widens what this process may use.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    });
    *GRANTED
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tile_permission() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_is_always_there_and_paths_are_ordered() {
        let paths = available_paths();
        assert_eq!(paths[0], CpuPath::Portable);
        assert!(paths.is_sorted());
        assert_eq!(choose_path(None).unwrap(), *paths.last().unwrap());
    }
}
