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
mod pipeline;
pub mod scan;
mod shared_memory;
mod shared_ops;
mod split;
mod split_encoder;
mod table;
mod tensor;

pub use blocks::{BlockMatrix, dequantise};
pub use decoder_ops::{
    ActsRole, AttentionLayer, BlockLinear, CHOSEN, Choice, DecoderDevice, DecoderOps, HeadShape, KvFormat, KvShape,
    Mask, PAGE_TOKENS, Place, RULED_OUT, Role, RopeSource, Step, StepBatch, most_likely, rule_out,
};
pub use layers::{Embedding, LinearNumbers, LinearSource, Norm};
pub use mapped::MappedFile;
pub use number_format::NumberFormat;
pub use numbers::{Generator, Numbers};
pub use ops::{
    ActsPair, AttentionShape, Device, DistanceBias, EncoderActs, EncoderRole, Ops, PoolShape, Rows, SharedEncoderOps,
    TokenBatch,
};
pub use pipeline::{OnStages, Pipeline, PipelineOps, StageActs, StageError, StagePart};
pub use shared_memory::SharedMemory;
pub use shared_ops::{PartSums, SharedOps, SumsPlace};
pub use split::{Split, SplitActs, SplitError, SplitOps, SplitPages, SplitPart, SplitRope};
pub use split_encoder::SplitEncoderOps;
pub use table::Table;
pub use tensor::{RankError, Tensor, TensorActs, TensorEncoderOps, TensorLinear, TensorOps, TensorPages, TensorParts};
