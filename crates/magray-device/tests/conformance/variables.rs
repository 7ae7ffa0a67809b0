//! What the environment sets: the one place of the suite that reads it. Decides nothing.

use std::env::var;

const SEED: &str = "CONFORMANCE_SEED";

/// Where random numbers start; another seed tries other numbers.
#[expect(clippy::print_stdout, reason = "a seed is the test's to tell, and captured as such")]
pub(crate) fn seed() -> u64 {
    let seed = var(SEED).map_or(20_260_101, |seed| seed.parse().expect("the seed is a number"));
    println!("seed {seed}; {SEED} sets another");
    seed
}
