//! One suite of conformance tests over every CPU path, alone and in a team, in every precision: each operation against
//! a plain twin in 64-bit floats. Uses the public API alone, and never passes silently where a path is missing.

mod activations;
mod attention;
mod embedding;
mod isolation;
mod linear;
mod pooling;
mod reuse;
mod rig;
mod rows;
mod single;
mod twin;
