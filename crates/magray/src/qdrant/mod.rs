//! The JSON of Qdrant's API: what clients send and are shown. The server speaks it, and the commands that search do.
//! Holds no points and embeds nothing. Fields without a meaning here (shards, consistency, graphs) are passed over.

pub(crate) mod bm25;
pub(crate) mod collections;
pub(crate) mod forms;
pub(crate) mod mmr;
pub(crate) mod older;
pub(crate) mod points;
pub(crate) mod query;
pub(crate) mod shown;
pub(crate) mod texts;
pub(crate) mod vectors;
