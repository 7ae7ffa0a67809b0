//! The part of the engine that reads the headers of weights, as it stands in its crate, and what must hold of it.
//! Maps no file: bytes come from the caller.

#[path = "../../../crates/magray-engine/src/weights/error.rs"]
mod error;
#[path = "../../../crates/magray-engine/src/weights/header.rs"]
mod header;

use error::WeightsError;
use safetensors::SafeTensors;
use std::path::Path;

/// What is read lies in the file, leaves no byte over, and is what the makers of the format read.
pub(crate) fn check(bytes: &[u8]) {
    let tensors = match header::read(Path::new("model.safetensors"), bytes) {
        Ok(tensors) => tensors,
        Err(error) => {
            // Every refusal can be told.
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let mut ranges: Vec<_> = tensors.values().map(|entry| entry.range.clone()).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    for pair in ranges.windows(2) {
        assert_eq!(pair[0].end, pair[1].start);
    }
    assert!(ranges.last().is_none_or(|last| last.end == bytes.len()));
    let theirs = SafeTensors::deserialize(bytes).expect("what is read here is a whole file");
    for (name, entry) in &tensors {
        let their = theirs.tensor(name).expect("both list the same tensors");
        assert_eq!((their.shape(), their.data()), (entry.shape.as_slice(), &bytes[entry.range.clone()]));
        assert_eq!(their.dtype(), entry.dtype);
    }
    assert_eq!(theirs.len(), tensors.len());
}
