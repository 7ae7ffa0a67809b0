//! Whatever bytes come as a body: the readers of texts refuse them or read them, and never panic.
//! They are also never more lenient than JSON itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[expect(dead_code, reason = "the readers alone are fuzzed")]
#[path = "../../crates/magray/src/server/inputs.rs"]
mod inputs;

fuzz_target!(|body: &[u8]| {
    let is_json = serde_json::from_slice::<Value>(body).is_ok();
    let is_read = [
        serde_json::from_slice::<inputs::Input<'_>>(body).is_ok(),
        serde_json::from_slice::<inputs::Texts<'_>>(body).is_ok(),
        serde_json::from_slice::<inputs::Sequences<'_>>(body).is_ok(),
        serde_json::from_slice::<inputs::Documents<'_>>(body).is_ok(),
    ];
    assert!(is_json || !is_read.contains(&true));
});
