//! `magray gpu`: what GPUs there are, and what they are worth.
//! Works without any, and says so plainly.

pub(crate) mod benchmark;
pub(crate) mod info;
mod plot;
pub(crate) mod reset;
