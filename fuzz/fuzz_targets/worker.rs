//! Whatever bytes another process sends: they are messages between supervisor and worker, or an error.
#![no_main]

#[path = "../../crates/magray-engine/src/decoder/constraint.rs"]
#[expect(dead_code, reason = "messages carry constraints, and check none")]
mod constraint;
#[path = "../../crates/magray-engine/src/decoder/logprobs.rs"]
#[expect(dead_code, reason = "messages carry log probabilities, and compute none")]
mod logprobs;
#[path = "../../crates/magray-engine/src/gpu/memory.rs"]
#[expect(dead_code, reason = "messages hold what is measured, and measure nothing")]
mod memory;
#[expect(dead_code, reason = "what sends is not fuzzed")]
mod messages;
#[path = "../../crates/magray-engine/src/executors/outcome.rs"]
#[expect(dead_code, reason = "messages carry what came of orders, and print none of it")]
mod outcome;
#[path = "../../crates/magray-engine/src/decoder/sampling.rs"]
#[expect(dead_code, reason = "messages say how tokens are chosen, and choose none")]
mod sampling;

/// Where messages look for it.
mod decoder {
    pub(crate) use crate::logprobs::TokenLogprobs;
    pub(crate) use crate::sampling::Sampling;
}

/// Where messages look for it.
mod gpu {
    pub(crate) use crate::memory::{MemoryAccounts, MemoryStats};
}

/// Where messages look for it: failures as in the engine, without how they come about.
mod executors {
    pub(crate) use crate::outcome::{NewTokens, Origin, Output, RankSums};
    use magray_core::schedule::Failure as FailureKind;
    use serde::{Deserialize, Serialize};

    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Failure {
        pub kind: FailureKind,
        pub code: String,
        pub message: String,
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| messages::check(bytes));
