//! One suite of conformance tests over every device and all its variants: each operation against a plain twin in 64-bit
//! floats. Uses the public API alone, and never passes silently where a device or a path is missing.
//!
//! The compiled binary needs neither cargo nor the sources. A test's name says what it ran on (`on_cpu`, `on_cuda`), so a filter
//! chooses the device; `variables.rs` lists what the environment sets.

/// Makes tests of functions over a rig: one test a device, each over all of the device's rigs.
macro_rules! conforms {
    ($($test:ident),+ $(,)?) => {
        mod on_cpu {
            $(
                #[test]
                fn $test() {
                    crate::cpu::each_rig(super::$test);
                }
            )+
        }

        mod on_cuda {
            $(
                #[test]
                fn $test() {
                    crate::cuda::each_rig(super::$test);
                }
            )+
        }
    };
}

mod activations;
mod attention;
mod cpu;
mod cuda;
mod decoder;
mod decoder_model;
mod decoder_residency;
mod draws;
mod embedding;
mod graphs;
mod isolation;
mod layer;
mod linear;
mod masks;
mod poison;
mod pooling;
mod residency;
mod reuse;
mod rig;
mod rows;
mod single;
mod split;
mod stack;
mod sums;
mod tensor;
mod texts;
mod twin;
mod variables;
mod vectors;
