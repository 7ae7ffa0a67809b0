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
#[path = "../../crates/magray-engine/src/decoder/sampling.rs"]
#[expect(dead_code, reason = "messages say how tokens are chosen, and choose none")]
mod sampling;

/// Where messages look for it.
mod decoder {
    pub(crate) use crate::sampling::Sampling;
}

/// Where messages look for it.
mod gpu {
    pub(crate) use crate::memory::{MemoryAccounts, MemoryStats};
}

/// Where messages look for it: as in the engine, without what the executors do with it.
mod executors {
    use magray_core::schedule::Failure as FailureKind;
    use serde::{Deserialize, Serialize};

    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Failure {
        pub kind: FailureKind,
        pub code: String,
        pub message: String,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Origin {
        Files,
        Image,
        Parked,
        Device,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Output {
        Texts,
        Tokens,
        Unscaled,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub struct NewTokens {
        pub tokens: Vec<u32>,
        pub is_end: bool,
        pub logprobs: Vec<crate::logprobs::TokenLogprobs>,
        pub problem: Option<String>,
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| messages::check(bytes));
