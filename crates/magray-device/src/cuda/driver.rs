//! Starts the driver, once a process, and remembers how that went.
//! Knows nothing of devices.

use super::declined::{Declined, LEAST_DRIVER};
use super::error::name_of;
use super::libraries::{SearchPath, load_driver};
use super::sys::{self, CUresult};
use std::sync::OnceLock;

/// The CUDA version of the driver that was loaded; set once, when its library was found.
static LOADED: OnceLock<()> = OnceLock::new();
static STARTED: OnceLock<Result<(u32, u32), Declined>> = OnceLock::new();

/// Whether functions of the driver may be called at all.
pub(super) fn is_loaded() -> bool {
    LOADED.get().is_some()
}

/// Whether the driver was started and is new enough.
pub(super) fn is_started() -> bool {
    matches!(STARTED.get(), Some(Ok(_)))
}

/// The CUDA version of the driver, started if it is not yet.
///
/// The first answer stands for the life of the process, as the driver's own does; only a driver that was not found is
/// looked for again, for the next caller may know more places.
pub(super) fn start(search: &SearchPath) -> Result<(u32, u32), Declined> {
    if !is_loaded() {
        if !load_driver(search) {
            return Err(Declined::NoDriver);
        }
        // A second thread may have been faster; it found the same library.
        let _ = LOADED.set(());
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

    #[test]
    fn versions_are_split_as_the_driver_packs_them() {
        assert_eq!(split_version(12_040), (12, 4));
        assert_eq!(split_version(13_000), (13, 0));
        assert_eq!(split_version(11_080), (11, 8));
    }
}
