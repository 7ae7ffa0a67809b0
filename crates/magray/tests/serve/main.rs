//! The server as clients meet it: the real binary, real sockets, tiny models.
//! Times nothing: what must happen is waited for, up to a limit far beyond what it takes.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

mod chat;
mod codings;
mod cohere;
mod commands;
mod critics;
mod draining;
mod gpu;
mod health;
mod hosts;
mod http;
mod http2;
mod hub;
mod idle;
mod keys;
mod limits;
mod lines;
mod live_models;
mod logs;
mod mcp;
mod metrics;
mod ollama;
mod open_inference;
mod openai;
mod pages;
mod priority;
mod profiles;
mod reload;
mod remote;
mod rig;
mod rough;
mod search;
mod settings;
mod stopping;
mod tei;
mod text_cache;
mod tls;
mod tokens;
mod trace_format;
mod traces;
mod ui;
mod vector_stores;
