//! Whatever bytes a file of weights has: its header is read or refused, and no tensor lies outside of the file.
#![no_main]

#[expect(dead_code, reason = "errors of whole folders are made elsewhere")]
mod weights;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weights::check(bytes));
