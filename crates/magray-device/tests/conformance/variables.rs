//! What the environment sets: the one place of the suite that reads it. Decides nothing.

use magray_device::cuda::{SearchPath, Visible};
use std::env::{var, var_os};
use std::path::PathBuf;

const SEED: &str = "CONFORMANCE_SEED";
/// Set and not empty: a missing GPU is a failure.
const NEEDS_GPU: &str = "CONFORMANCE_NEEDS_GPU";
/// A folder where compiled kernels are kept from one run to the next.
const KERNEL_CACHE: &str = "CONFORMANCE_KERNEL_CACHE";

/// Where random numbers start; another seed tries other numbers.
#[expect(clippy::print_stdout, reason = "a seed is the test's to tell, and captured as such")]
pub(crate) fn seed() -> u64 {
    let seed = var(SEED).map_or(20_260_101, |seed| seed.parse().expect("the seed is a number"));
    println!("seed {seed}; {SEED} sets another");
    seed
}

/// Whether a machine without a GPU fails the tests for one.
pub(crate) fn needs_gpu() -> bool {
    var_os(NEEDS_GPU).is_some_and(|value| !value.is_empty())
}

/// Where compiled kernels are kept, if anywhere.
pub(crate) fn kernel_cache() -> Option<PathBuf> {
    var_os(KERNEL_CACHE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Where the driver and the kernels' compiler are looked for.
pub(crate) fn search_path() -> SearchPath {
    let named = |names: [&'static str; 2]| names.into_iter().filter_map(var_os).map(PathBuf::from);
    let search = named(["CUDA_HOME", "CUDA_PATH"]).fold(SearchPath::system(), SearchPath::with_toolkit);
    named(["CONDA_PREFIX", "VIRTUAL_ENV"]).fold(search, SearchPath::with_python)
}

/// The GPUs that may be used.
pub(crate) fn visible() -> Visible {
    let [nvidia, cuda] = ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"].map(|name| var(name).ok());
    Visible::parse(nvidia.as_deref(), cuda.as_deref())
}
