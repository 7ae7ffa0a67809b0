//! Reads and checks the header of a safetensors file.
//! Refuses a header that leaves room for doubt: gaps, overlaps, sizes that do not fit, bytes that no tensor owns.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::WeightsError;

/// Headers of the largest models have a few megabytes; the format itself allows 100 MB.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The length of the header stands before it in so many bytes.
const LENGTH_BYTES: usize = 8;

/// Where a tensor lies and what it is.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// Its bytes in the whole file.
    pub(super) range: Range<usize>,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// Reads the tensors that the file's header lists, all inside the file.
pub(super) fn read(file: &Path, bytes: &[u8]) -> Result<BTreeMap<String, Entry>, WeightsError> {
    let corrupt = |reason: String| WeightsError::Corrupt { file: PathBuf::from(file), reason };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(corrupt(format!("it has {} bytes, too few for a header", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(corrupt(format!("its header claims to have {length} bytes, which no header has")));
    }
    let header = usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or_else(|| {
        corrupt(format!("its header claims to have {length} bytes and the file has {} in all", bytes.len()))
    })?;
    let mut raw: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(header).map_err(|e| corrupt(format!("its header is no valid JSON ({e})")))?;
    raw.remove("__metadata__");

    let mut entries = Vec::with_capacity(raw.len());
    for (name, value) in raw {
        let entry: RawEntry = serde_json::from_value(value)
            .map_err(|e| corrupt(format!("its header describes tensor '{name}' in a way that is not valid ({e})")))?;
        entries.push((name, entry));
    }
    entries.sort_by_key(|(_, entry)| entry.data_offsets);

    let data_start = LENGTH_BYTES + header.len();
    let data_bytes = (bytes.len() - data_start) as u64;
    let mut expected_start = 0;
    let mut previous = String::from("the header");
    let mut tensors = BTreeMap::new();
    for (name, entry) in entries {
        let (start, end) = entry.data_offsets;
        if end < start {
            return Err(corrupt(format!("tensor '{name}' ends before it starts ({start}..{end})")));
        }
        if start < expected_start {
            return Err(corrupt(format!("tensor '{name}' overlaps with {previous}")));
        }
        if start > expected_start {
            return Err(corrupt(format!("there is a gap between {previous} and tensor '{name}'")));
        }
        if let Some(size) = size_of(&entry.dtype) {
            let count = entry.shape.iter().try_fold(size, |product, &n| product.checked_mul(n as u64));
            if count != Some(end - start) {
                let (shape, bytes) = (&entry.shape, end - start);
                return Err(corrupt(format!("tensor '{name}' of shape {shape:?} cannot have {bytes} bytes")));
            }
        }
        if end > data_bytes {
            return Err(WeightsError::Truncated {
                file: file.to_owned(),
                tensor: name,
                expected: end.saturating_add(data_start as u64),
                found: bytes.len() as u64,
            });
        }
        // Both fit: they are at most the length of a slice.
        let range = data_start + start as usize..data_start + end as usize;
        expected_start = end;
        previous = format!("tensor '{name}'");
        tensors.insert(name, Entry { dtype: entry.dtype, shape: entry.shape, range });
    }
    if expected_start != data_bytes {
        return Err(corrupt(format!("{} bytes after {previous} belong to no tensor", data_bytes - expected_start)));
    }
    Ok(tensors)
}

/// Bytes of one number; `None` for types that are smaller than a byte or unknown.
fn size_of(dtype: &str) -> Option<u64> {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" => Some(1),
        "F16" | "BF16" | "U16" | "I16" => Some(2),
        "F32" | "U32" | "I32" => Some(4),
        "F64" | "U64" | "I64" => Some(8),
        _ => None,
    }
}
