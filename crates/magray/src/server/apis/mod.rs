//! The handlers of each API: they turn requests into texts and answers into JSON.
//! None computes, queues or checks keys; their paths are in `routes`.

pub(super) mod admin;
pub(super) mod anthropic;
pub(super) mod cohere;
pub(super) mod evaluate;
pub(super) mod faults;
pub(super) mod files;
pub(super) mod gpu;
pub(super) mod health;
pub(super) mod llama_cpp;
pub(super) mod models;
pub(super) mod new_documents;
pub(super) mod ollama;
pub(super) mod ollama_chat;
pub(super) mod open_inference;
pub(super) mod openai;
pub(super) mod openai_chat;
pub(super) mod passages;
pub(super) mod qdrant;
mod reranking;
pub(super) mod responses;
pub(super) mod tei;
pub(super) mod tei_embed_all;
pub(super) mod tei_tokenize;
pub(super) mod ui;
pub(super) mod vector_stores;
