//! Touches hardware: the fused operations that models are made of.
//! Knows no files' formats, no HTTP, no JSON, reads no environment variable.

mod blocks;
pub mod cpu;
pub mod cuda;
mod decoder_ops;
mod layers;
mod mapped;
mod number_format;
mod numbers;
mod ops;
pub mod scan;
mod shared_memory;
mod split;
mod table;

pub use blocks::{BlockMatrix, dequantise};
pub use decoder_ops::{
    AttentionLayer, BlockLinear, CHOSEN, Choice, DecoderDevice, DecoderOps, KvFormat, KvShape, PAGE_TOKENS, Place,
    RopeSource, Step, StepBatch, most_likely,
};
pub use layers::{Embedding, LinearNumbers, LinearSource, Norm};
pub use mapped::MappedFile;
pub use number_format::NumberFormat;
pub use numbers::{Generator, Numbers};
pub use ops::{ActsPair, AttentionShape, Device, DistanceBias, Ops, PoolShape, Rows, TokenBatch};
pub use shared_memory::SharedMemory;
pub use split::{Split, SplitActs, SplitError, SplitOps, SplitPages, SplitPart, SplitRope};
pub use table::Table;
