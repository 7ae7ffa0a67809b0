//! Remembers: collections of points (ids, payloads, vectors) in a transactional store, filters and ranking.
//! Never has HTTP, printing or unsafe code; every index is derived from the store and can be built again.

#![forbid(unsafe_code)]

mod collection;
mod collections;
mod error;
pub mod files;
mod filter;
mod principal;
mod store;
pub mod text;
pub mod types;

pub use collection::{Change, Collection, Info, MapRequest, MapValues, NO_VALUE, PointMap, SearchCounts};
pub use collections::{AliasChange, Collections, Options, Snapshot};
pub use error::{Error, Result};
pub use magray_device::scan::{HostRules, RowsHost};
pub use types::*;
