//! Ranking by words: analysis of texts, BM25, sparse vectors, fusion of ranked lists, snippets.
//! Pure memory: no IO, no clock, no threads; what is here can be rebuilt from the documents.
//!
//! A document is known by its *slot*. Searches are exact: the best `limit` of all documents that share a term with the
//! query, best first, equal scores by the lower slot. A filter is a bit for each slot and is applied while scoring.

mod analyzer;
mod fusion;
mod inverted;
mod language;
mod postings;
mod snippet;
mod sparse;
mod stop_words;
mod top;
mod vocabulary;
mod words;

#[cfg(test)]
mod tests;

pub use analyzer::{Analyzer, Word};
pub use fusion::{Rrf, fuse_dbsf, fuse_rrf};
pub use inverted::Bm25;
pub use language::{Language, UnknownLanguage};
pub use snippet::{Snippet, SnippetLimits, snippet};
pub use sparse::SparseIndex;
pub use top::{Hit, Scope};
pub use words::WordIndex;
