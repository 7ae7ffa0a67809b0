//! Reads and checks the header of a safetensors file.
//! Refuses a header that leaves room for doubt (gaps, overlaps, names twice, bytes that no tensor owns) or is too large.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::WeightsError;

/// Headers of the largest models have a few megabytes; the format itself allows 100 MB.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// Tensors of a file: encoders have some hundreds, and the largest models of any kind fewer than this in a shard.
const MAX_TENSORS: usize = 1 << 16;

/// Bytes of a tensor's name.
const MAX_NAME_BYTES: usize = 1024;

/// Dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;

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

/// The tensors of a header, each as it is written, in the file's order.
struct Listed<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Listed<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look;

        impl<'de> Visitor<'de> for Look {
            type Value = Listed<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut rows: A) -> Result<Listed<'de>, A::Error> {
                let mut listed = Vec::new();
                while let Some((name, entry)) = rows.next_entry::<String, &RawValue>()? {
                    if name == "__metadata__" {
                        continue;
                    }
                    if name.len() > MAX_NAME_BYTES {
                        return Err(A::Error::custom(format!("a tensor's name has more than {MAX_NAME_BYTES} bytes")));
                    }
                    if listed.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format!("it lists more than {MAX_TENSORS} tensors")));
                    }
                    listed.push((name, entry));
                }
                Ok(Listed(listed))
            }
        }

        deserializer.deserialize_map(Look)
    }
}

/// Reads the tensors that the file's header lists, all inside the file.
pub(super) fn read(file: &Path, bytes: &[u8]) -> Result<BTreeMap<String, Entry>, WeightsError> {
    let corrupt = |reason: String| WeightsError::Corrupt { file: PathBuf::from(file), reason };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(corrupt(format!("it has {} bytes, too few for a header", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        let most = MAX_HEADER_BYTES;
        return Err(corrupt(format!("its header claims to have {length} bytes, and {most} is the most that is read")));
    }
    let header = usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or_else(|| {
        corrupt(format!("its header claims to have {length} bytes and the file has {} in all", bytes.len()))
    })?;
    let Listed(listed) =
        serde_json::from_slice(header).map_err(|e| corrupt(format!("its header is no valid JSON of tensors ({e})")))?;

    let mut entries = Vec::with_capacity(listed.len());
    for (name, written) in listed {
        let entry: RawEntry = serde_json::from_str(written.get())
            .map_err(|e| corrupt(format!("its header describes tensor '{name}' in a way that is not valid ({e})")))?;
        if entry.shape.len() > MAX_DIMENSIONS {
            let found = entry.shape.len();
            return Err(corrupt(format!("tensor '{name}' has {found} dimensions, and {MAX_DIMENSIONS} is the most")));
        }
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
        if tensors.insert(name, Entry { dtype: entry.dtype, shape: entry.shape, range }).is_some() {
            return Err(corrupt(format!("{previous} stands in its header twice")));
        }
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
