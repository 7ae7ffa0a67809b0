//! The memory of one device as accounts with owners: what is granted, what is reported, who gives way.
//! Allocates nothing, reads no clock, and never grants more than there is.
//!
//! A device's capacity is what its worker reports: free for everybody, plus what the worker holds. It is shared so:
//!
//! ```text
//! | context | KV share (reserved) | workspace, at least 1/16 | weights and vectors: the room |
//! ```
//!
//! Weights, vectors and KV pages are asked for and granted, or refused with what is missing. The context and the workspace
//! of passes are taken by the worker and reported. What a worker caches counts as free: it gives that up when it needs it.

mod accounts;
mod eviction;
mod owner;
mod report;
#[cfg(test)]
mod tests;

#[cfg(feature = "sabotage")]
pub use accounts::Fraud;
pub use accounts::{Budget, Ledger, Missing, Need};
pub use eviction::{Candidate, Rank, choose, first};
pub use owner::{CollectionId, ModelId, Owner};
pub use report::MemoryReport;
