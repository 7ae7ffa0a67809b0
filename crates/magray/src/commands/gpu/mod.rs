//! `magray gpu`: what GPUs there are, what they are worth, and which models are on them.
//! Works without any, and says so plainly.

pub(crate) mod benchmark;
pub(crate) mod clear_cache;
pub(crate) mod info;
pub(crate) mod moves;
mod onnx;
pub(crate) mod profile;
pub(crate) mod reset;
pub(crate) mod sandbox;
pub(crate) mod status;
pub(in crate::commands) mod words;
