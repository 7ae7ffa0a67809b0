//! Touches hardware: the fused operations that encoder models are made of.
//! Knows no files' formats, no HTTP, no JSON, reads no environment variable.

pub mod cpu;
pub mod cuda;
mod layers;
mod mapped;
mod ops;
mod table;

pub use layers::{Embedding, LinearSource, Norm};
pub use mapped::MappedFile;
pub use ops::{ActsPair, AttentionShape, Device, DistanceBias, Ops, PoolShape, Rows, TokenBatch};
pub use table::{NumberFormat, Table};
