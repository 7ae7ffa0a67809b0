//! Reads the header of a safetensors file by the library of the format's makers, and says what is wrong with a file.
//! Refuses a header that is too large, and a file that is shorter or longer than its tensors.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use safetensors::{Dtype, tensor::Metadata};

use super::WeightsError;

/// Headers of the largest models have a few megabytes; the format itself allows 100 MB.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// The length of the header stands before it in this many bytes.
const LENGTH_BYTES: usize = 8;

/// Where a tensor lies and what it is.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Its bytes in the whole file.
    pub(super) range: Range<usize>,
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
    // Checks that the tensors follow each other without gaps and have the bytes of their shapes.
    let metadata: Metadata =
        serde_json::from_slice(header).map_err(|error| corrupt(format!("its header is not valid ({error})")))?;
    let (data_start, data_bytes) = (LENGTH_BYTES + header.len(), rest.len() - header.len());
    if data_bytes > metadata.data_len() {
        let over = data_bytes - metadata.data_len();
        return Err(corrupt(format!("{over} bytes at its end belong to no tensor")));
    }
    let mut tensors = BTreeMap::new();
    // In the order of the file: the first tensor that is cut off is named.
    for name in metadata.offset_keys() {
        let info = metadata.info(&name).unwrap_or_else(|| unreachable!("it was listed"));
        let (start, end) = info.data_offsets;
        if end > data_bytes {
            let (expected, found) = (end.saturating_add(data_start) as u64, bytes.len() as u64);
            return Err(WeightsError::Truncated { file: file.to_owned(), tensor: name, expected, found });
        }
        let entry = Entry { dtype: info.dtype, shape: info.shape.clone(), range: data_start + start..data_start + end };
        tensors.insert(name, entry);
    }
    Ok(tensors)
}
