//! The APIs that clients speak, one file each: they turn requests into texts and answers into JSON.
//! None of them computes, queues or checks keys.

pub(super) mod admin;
pub(super) mod cohere;
pub(super) mod gpu;
pub(super) mod ollama;
pub(super) mod openai;
mod reranking;
pub(super) mod tei;
mod tei_tokens;
mod tei_words;
