//! Workers as real processes of the real binary, each with a simulated GPU.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

mod batches;
mod endings;
mod faults;
mod leftovers;
mod models;
mod rig;
mod sandbox;
mod starts;
