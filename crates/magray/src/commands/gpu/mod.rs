//! `magray gpu`: what GPUs there are, what they are worth, and which models are on them.
//! Works without any, and says so plainly.

pub(crate) mod benchmark;
pub(crate) mod info;
#[cfg(unix)]
pub(crate) mod moves;
mod plot;
pub(crate) mod reset;
#[cfg(unix)]
pub(crate) mod sandbox;
#[cfg(unix)]
pub(crate) mod status;
#[cfg(unix)]
mod words;
