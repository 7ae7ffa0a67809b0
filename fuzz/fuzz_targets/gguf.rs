//! Whatever bytes a GGUF file has: its header is read or refused, and nothing it speaks of lies outside of the file.
#![no_main]

#[path = "../../crates/magray-engine/src/weights/gguf/cursor.rs"]
mod cursor;
#[path = "../../crates/magray-engine/src/weights/error.rs"]
#[expect(dead_code, reason = "errors of whole folders are made elsewhere")]
mod error;
#[path = "../../crates/magray-engine/src/weights/gguf/header.rs"]
mod header;

use error::WeightsError;
use header::Value;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let header = match header::read(Path::new("model.gguf"), bytes) {
        Ok(header) => header,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for value in header.values.values() {
        match value {
            Value::Text(range) => assert!(std::str::from_utf8(&bytes[range.clone()]).is_ok()),
            Value::Array(array) => assert!(array.range.start <= array.range.end && array.range.end <= bytes.len()),
            _ => {}
        }
    }
    let mut ranges: Vec<_> = header.tensors.values().map(|entry| entry.range.clone()).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    for pair in ranges.windows(2) {
        assert!(pair[0].end <= pair[1].start);
    }
    for entry in header.tensors.values() {
        assert!(entry.range.end <= bytes.len());
        let numbers: usize = entry.shape.iter().product();
        assert_eq!(entry.format.bytes_of(numbers), Some(entry.range.len()));
    }
});
