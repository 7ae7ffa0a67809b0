//! Tries the scheduler: drives it with made-up load and faults in virtual time, from a seed, and checks every step.
//! Never reads a clock and never computes a text; the same seed gives the same world on every machine.

#![forbid(unsafe_code)]

mod agenda;
mod chance;
mod check;
mod draw;
mod experiment;
mod load;
mod measure;
mod memory;
mod overload;
mod scenario;
mod sequence;
mod shell;
mod trail;
mod trial;
mod trouble;
mod worker;
mod world;

pub use check::{Broken, Rule};
pub use experiment::{ExperimentError, Output, batching, placement};
pub use measure::{Answer, Measured};
pub use overload::{Manners, Overload, Seen, overload};
pub use trial::{Failed, Totals, replay, try_sabotaged, try_seed, try_seeds};
