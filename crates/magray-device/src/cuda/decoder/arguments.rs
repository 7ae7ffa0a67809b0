//! What the kernels of decoders get, in the layout that they have in `kernels/decoder.cuh` and `kernels/decoder_pages.cuh`.
//! Holds addresses, and nothing of what lies there.

use crate::cuda::CudaError;
use crate::cuda::matrix::TensorMap;
use std::ffi::c_void;

/// What follows a product.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(super) struct Finish {
    pub(super) kind: i32,
    pub(super) activation: i32,
    pub(super) bias: u64,
    pub(super) parts: u64,
    pub(super) part_count: i32,
    pub(super) inverse_inputs: f32,
    pub(super) epsilon: f32,
    pub(super) cap: f32,
    pub(super) out: u64,
    pub(super) out_stride: i32,
    pub(super) shadow_stride: i32,
    pub(super) gain: u64,
    pub(super) shadow: u64,
    pub(super) out_parts: u64,
    pub(super) out_part_count: i32,
    pub(super) tokens: i32,
    pub(super) outputs: i32,
    /// The row of the residual stream that is its first.
    pub(super) first_row: i32,
}

pub(super) const FINISH_ROWS: i32 = 0;
pub(super) const FINISH_GATED: i32 = 1;
pub(super) const FINISH_ADD: i32 = 2;
pub(super) const FINISH_FLOATS: i32 = 3;

impl Finish {
    pub(super) fn new(kind: i32) -> Self {
        Self {
            kind,
            activation: 0,
            bias: 0,
            parts: 0,
            part_count: 0,
            inverse_inputs: 0.0,
            epsilon: 0.0,
            cap: 0.0,
            out: 0,
            out_stride: 0,
            shadow_stride: 0,
            gain: 0,
            shadow: 0,
            out_parts: 0,
            out_part_count: 0,
            tokens: 0,
            outputs: 0,
            first_row: 0,
        }
    }
}

/// A layer's attention.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(super) struct LayerShape {
    pub(super) pages: u64,
    pub(super) radians: u64,
    pub(super) query_gain: u64,
    pub(super) key_gain: u64,
    pub(super) query_epsilon: f32,
    pub(super) key_epsilon: f32,
    pub(super) rope_scale: f32,
    pub(super) scale: f32,
    pub(super) cap: f32,
    pub(super) window: i32,
    pub(super) pairs: i32,
    pub(super) neighbours: i32,
    pub(super) heads: i32,
    pub(super) kv_heads: i32,
    pub(super) head_size: i32,
    pub(super) layer: i32,
    pub(super) layers: i32,
    pub(super) unused: i32,
}

/// Where the new tokens stand.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(super) struct Places {
    pub(super) positions: u64,
    pub(super) page_starts: u64,
    pub(super) pages: u64,
    pub(super) rows: u64,
}

/// Ranks whose parts are added at most.
pub(super) const RANKS_MOST: usize = 8;

/// Parts of sums, in the order of their ranks, wherever they lie.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(super) struct Parts {
    pub(super) of: [u64; RANKS_MOST],
    pub(super) count: i32,
    pub(super) unused: i32,
}

impl Parts {
    pub(super) fn new(parts: impl Iterator<Item = u64>) -> Self {
        let mut all = Self { of: [0; RANKS_MOST], count: 0, unused: 0 };
        for part in parts {
            all.of[all.count as usize] = part;
            all.count += 1;
        }
        all
    }
}

/// How the copy engine sees a matrix; encoded when a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Boxes {
    /// Rows of 16-bit numbers, 64 columns by this many rows at once.
    Numbers { address: u64, rows: usize, columns: usize, stride: usize, at_once: usize },
    /// Rows of floats, 32 columns by this many rows at once.
    Floats { address: u64, rows: usize, columns: usize, stride: usize, at_once: usize },
    /// Blocks of words, of this many eights of rows at once.
    Blocks { address: u64, words: usize, units: usize, eights: usize, at_once: usize },
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Argument {
    Address(u64),
    Int(i32),
    Float(f32),
    Boxes(Boxes),
    Finish(Finish),
    Layer(LayerShape),
    Places(Places),
    Parts(Parts),
}

/// An argument in memory, as the driver takes it.
pub(super) enum Passed {
    Plain(Argument),
    Map(TensorMap),
}

impl Argument {
    pub(super) fn passed(self) -> Result<Passed, CudaError> {
        match self {
            Self::Boxes(Boxes::Numbers { address, rows, columns, stride, at_once }) => {
                Ok(Passed::Map(TensorMap::of_numbers(address, [columns, rows], stride, at_once)?))
            }
            Self::Boxes(Boxes::Floats { address, rows, columns, stride, at_once }) => {
                Ok(Passed::Map(TensorMap::of_floats(address, [columns, rows], stride, at_once)?))
            }
            Self::Boxes(Boxes::Blocks { address, words, units, eights, at_once }) => {
                Ok(Passed::Map(TensorMap::of_blocks(address, [words, units, eights], at_once)?))
            }
            plain => Ok(Passed::Plain(plain)),
        }
    }
}

impl Passed {
    pub(super) fn pointer(&mut self) -> *mut c_void {
        match self {
            Self::Map(map) => std::ptr::from_mut(&mut map.0).cast(),
            Self::Plain(Argument::Address(x)) => std::ptr::from_mut(x).cast(),
            Self::Plain(Argument::Int(x)) => std::ptr::from_mut(x).cast(),
            Self::Plain(Argument::Float(x)) => std::ptr::from_mut(x).cast(),
            Self::Plain(Argument::Finish(x)) => std::ptr::from_mut(x).cast(),
            Self::Plain(Argument::Layer(x)) => std::ptr::from_mut(x).cast(),
            Self::Plain(Argument::Places(x)) => std::ptr::from_mut(x).cast(),
            Self::Plain(Argument::Parts(x)) => std::ptr::from_mut(x).cast(),
            Self::Plain(Argument::Boxes(x)) => std::ptr::from_mut(x).cast(),
        }
    }
}

pub(super) fn int(x: usize) -> Argument {
    Argument::Int(int_of(x))
}

pub(super) fn int_of(x: usize) -> i32 {
    i32::try_from(x).expect("sizes of activations fit 31 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!((size_of::<Finish>(), size_of::<LayerShape>(), size_of::<Places>()), (96, 88, 32));
        assert_eq!(size_of::<Parts>(), 72);
    }
}
