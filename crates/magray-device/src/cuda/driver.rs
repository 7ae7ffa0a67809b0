//! Starts the driver, once a process, and remembers how that went.
//! Knows nothing of devices.

use super::declined::{Declined, LEAST_DRIVER};
use super::error::name_of;
use super::libraries::{SearchPath, load_driver};
use super::sys::{self, CUresult};
use std::sync::OnceLock;

/// The CUDA version of the driver, or why it does not start; set once.
static STARTED: OnceLock<Result<(u32, u32), Declined>> = OnceLock::new();

/// Whether the driver was started and is new enough.
pub(super) fn is_started() -> bool {
    matches!(STARTED.get(), Some(Ok(_)))
}

/// The CUDA version of the driver, started if it is not yet.
///
/// The first answer stands for the life of the process, as the driver's own does; only a driver that was not found is
/// looked for again, for the next caller may know more places.
pub(super) fn start(search: &SearchPath) -> Result<(u32, u32), Declined> {
    if !load_driver(search) {
        return Err(Declined::NoDriver);
    }
    STARTED.get_or_init(start_loaded).clone()
}

fn start_loaded() -> Result<(u32, u32), Declined> {
    let failed = |result: CUresult| Declined::DriverFailed { code: result as u32, name: name_of(result) };
    let mut number = 0;
    // SAFETY: the library is loaded; every version has this function, and it writes one number.
    match unsafe { sys::cuDriverGetVersion(&mut number) } {
        CUresult::CUDA_SUCCESS => {}
        result => return Err(failed(result)),
    }
    let version = split_version(number);
    if version < LEAST_DRIVER {
        return Err(Declined::DriverTooOld { found: version });
    }
    // SAFETY: takes no pointer; flags must be 0.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(version),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(Declined::NoDevice),
        result => Err(failed(result)),
    }
}

/// 12040 is 12.4.
pub(super) fn split_version(number: i32) -> (u32, u32) {
    let number = number.unsigned_abs();
    (number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    /// Functions that every driver since CUDA 12.0 has. Before one is added here: the bindings must have it under their
    /// feature `cuda-12000`, under the same name.
    const SINCE_12_0: &[&str] = &[
        "cuCtxGetStreamPriorityRange",
        "cuCtxSetCurrent",
        "cuCtxSetLimit",
        "cuDeviceCanAccessPeer",
        "cuDeviceGet",
        "cuDeviceGetAttribute",
        "cuDeviceGetCount",
        "cuDeviceGetName",
        "cuDeviceGetPCIBusId",
        "cuDeviceGetUuid",
        "cuDeviceGetUuid_v2",
        "cuDevicePrimaryCtxGetState",
        "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxRetain",
        "cuDeviceTotalMem_v2",
        "cuDriverGetVersion",
        "cuEventCreate",
        "cuEventDestroy_v2",
        "cuEventQuery",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuFuncSetAttribute",
        "cuGetErrorName",
        "cuGraphDestroy",
        "cuGraphExecDestroy",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuInit",
        "cuLaunchKernelEx",
        "cuMemAddressFree",
        "cuMemAddressReserve",
        "cuMemAllocFromPoolAsync",
        "cuMemCreate",
        "cuMemFreeAsync",
        "cuMemFreeHost",
        "cuMemGetAllocationGranularity",
        "cuMemGetInfo_v2",
        "cuMemHostAlloc",
        "cuMemHostRegister_v2",
        "cuMemHostUnregister",
        "cuMemMap",
        "cuMemPoolCreate",
        "cuMemPoolDestroy",
        "cuMemPoolSetAttribute",
        "cuMemPoolTrimTo",
        "cuMemRelease",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuMemsetD8Async",
        "cuModuleGetFunction",
        "cuModuleLoadData",
        "cuModuleUnload",
        "cuOccupancyMaxActiveClusters",
        "cuStreamBeginCapture_v2",
        "cuStreamCreateWithPriority",
        "cuStreamDestroy_v2",
        "cuStreamEndCapture",
        "cuStreamQuery",
        "cuStreamSynchronize",
        "cuStreamWaitEvent",
        "cuTensorMapEncodeTiled",
    ];

    #[test]
    fn only_functions_of_the_oldest_driver_are_called() {
        let sources = sources_below(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda")));
        let called: BTreeSet<String> = sources.iter().flat_map(|text| functions_in(text)).collect();
        let new: Vec<_> = called.iter().filter(|name| !SINCE_12_0.contains(&name.as_str())).collect();
        assert!(called.len() > 20 && new.is_empty(), "not known to be in a driver of 12.0: {new:?}");
    }

    /// The texts of all files of a folder and of those in it.
    fn sources_below(folder: &Path) -> Vec<String> {
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: PathBuf| match path.is_dir() {
            true => sources_below(&path),
            false => vec![std::fs::read_to_string(path).unwrap()],
        };
        paths.flat_map(read).collect()
    }

    /// The driver's functions that a source names: `sys::`, `cu`, a capital letter.
    fn functions_in(text: &str) -> Vec<String> {
        let words = text.split("sys::").skip(1);
        let names = words.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default());
        let is_function =
            |name: &&str| name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase));
        names.filter(is_function).map(str::to_owned).collect()
    }

    #[test]
    fn versions_are_split_as_the_driver_packs_them() {
        assert_eq!(split_version(12_040), (12, 4));
        assert_eq!(split_version(13_000), (13, 0));
        assert_eq!(split_version(11_080), (11, 8));
    }
}
