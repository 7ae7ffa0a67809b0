//! Every form in which the kernels are used, so that each can be compiled before a GPU is seen.
//! Compiles nothing.

use super::compile::KernelSpec;

/// All forms of all kernels.
pub fn all_specs() -> Vec<KernelSpec> {
    Vec::new()
}
