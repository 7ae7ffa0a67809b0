//! Looks whether a folder holds a model that can be loaded: JSON that parses, weights that are whole.
//! Never reads the weights themselves, only their headers.

use safetensors::tensor::Metadata;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

pub(super) const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const WEIGHTS: &str = "model.safetensors";
pub(super) const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// The format's own limit; a longer header is a lie about its length.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Why a folder holds no model.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A file that every model has is not there.
    #[error("'{file}' is missing")]
    Missing {
        /// The file's name below the folder.
        file: String,
    },
    /// A file is not a JSON object.
    #[error("'{file}' is not a JSON object: {reason}")]
    NotJson {
        /// The file's name below the folder.
        file: String,
        /// What the parser said.
        reason: String,
    },
    /// There are no weights, or only in formats that are not read.
    #[error("there is neither '{WEIGHTS}' nor '{WEIGHTS_INDEX}'")]
    NoWeights,
    /// The index of sharded weights names something that is no file beside it.
    #[error("'{WEIGHTS_INDEX}' names '{shard}', which is no file of a model")]
    BadShard {
        /// The name as the index has it.
        shard: String,
    },
    /// A weights file is cut or corrupt.
    #[error("'{file}': {fault}")]
    Weights {
        /// The file's name below the folder.
        file: String,
        /// What is wrong with it.
        fault: HeaderError,
    },
    /// A file cannot be read.
    #[error("'{file}' cannot be read: {source}")]
    Unreadable {
        /// The file's name below the folder.
        file: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a safetensors file is not whole.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// The file ends before its header does.
    #[error("it is cut off within its header ({bytes} bytes)")]
    CutHeader {
        /// The size of the file.
        bytes: u64,
    },
    /// The header cannot be one of this format.
    #[error("it is not a safetensors file: {reason}")]
    NotSafetensors {
        /// What is wrong with it.
        reason: String,
    },
    /// The file is longer or shorter than its header says.
    #[error("it has {found} bytes where its header asks for {expected}")]
    WrongLength {
        /// What header and tensors need.
        expected: u64,
        /// The size of the file.
        found: u64,
    },
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// Checks the files that every model needs, and the weights with all their shards.
pub fn check_model(dir: &Path) -> Result<(), CheckError> {
    parse_object::<HashMap<String, IgnoredAny>>(dir, CONFIG)?;
    parse_object::<HashMap<String, IgnoredAny>>(dir, TOKENIZER)?;
    if dir.join(WEIGHTS).is_file() {
        return check_weights(dir, WEIGHTS);
    }
    if !dir.join(WEIGHTS_INDEX).is_file() {
        return Err(CheckError::NoWeights);
    }
    let index: ShardIndex = parse_object(dir, WEIGHTS_INDEX)?;
    let shards: BTreeSet<&String> = index.weight_map.values().collect();
    if shards.is_empty() {
        return Err(CheckError::NoWeights);
    }
    for shard in shards {
        if !super::model_ref::is_plain_segment(shard) {
            return Err(CheckError::BadShard { shard: shard.escape_default().to_string() });
        }
        check_weights(dir, shard)?;
    }
    Ok(())
}

/// Checks one weights file of a model.
pub(super) fn check_weights(dir: &Path, file: &str) -> Result<(), CheckError> {
    match read_header(&dir.join(file)) {
        Ok(_) => Ok(()),
        Err(HeaderError::Unreadable(e)) if e.kind() == ErrorKind::NotFound => {
            Err(CheckError::Missing { file: file.to_owned() })
        }
        Err(fault) => Err(CheckError::Weights { file: file.to_owned(), fault }),
    }
}

/// Reads the header of a safetensors file and checks that the file holds exactly the tensors it names:
/// no gap, no overlap, nothing cut off, nothing behind them.
pub fn read_header(path: &Path) -> Result<Metadata, HeaderError> {
    let mut file = File::open(path)?;
    let found = file.metadata()?.len();
    let mut length = [0; 8];
    if found < length.len() as u64 {
        return Err(HeaderError::CutHeader { bytes: found });
    }
    file.read_exact(&mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(HeaderError::NotSafetensors { reason: format!("its header would have {header_bytes} bytes") });
    }
    if 8 + header_bytes > found {
        return Err(HeaderError::CutHeader { bytes: found });
    }
    let mut header = Vec::new();
    file.take(header_bytes).read_to_end(&mut header)?;
    // Parsing also checks each tensor's offsets against its shape and against its neighbours.
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|e| HeaderError::NotSafetensors { reason: e.to_string() })?;
    let expected = (8 + header_bytes).saturating_add(metadata.data_len() as u64);
    if expected != found {
        return Err(HeaderError::WrongLength { expected, found });
    }
    Ok(metadata)
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: HashMap<String, String>,
}

fn parse_object<T: for<'de> Deserialize<'de>>(dir: &Path, file: &str) -> Result<T, CheckError> {
    let text = fs::read(dir.join(file)).map_err(|source| match source.kind() {
        ErrorKind::NotFound => CheckError::Missing { file: file.to_owned() },
        _ => CheckError::Unreadable { file: file.to_owned(), source },
    })?;
    serde_json::from_slice(&text).map_err(|e| CheckError::NotJson { file: file.to_owned(), reason: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake_model;
    use super::*;

    fn with_weights(bytes: &[u8]) -> Result<(), CheckError> {
        let dir = tempfile::tempdir().unwrap();
        fake_model::write(dir.path());
        fs::write(dir.path().join(WEIGHTS), bytes).unwrap();
        check_model(dir.path())
    }

    #[test]
    fn a_whole_model_passes() {
        with_weights(&fake_model::weights()).unwrap();
    }

    #[test]
    fn weights_cut_at_any_byte_are_refused() {
        let whole = fake_model::weights();
        for length in 0..whole.len() {
            let refused = with_weights(&whole[..length]);
            assert!(matches!(refused, Err(CheckError::Weights { .. })), "{length} bytes: {refused:?}");
        }
    }

    #[test]
    fn weights_that_lie_are_refused() {
        let mut longer = fake_model::weights();
        longer.push(0);
        let file = |header: &str, data: usize| {
            [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data][..]].concat()
        };
        let outside = file(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 4);
        let shape = file(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8);
        let gap = file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8);
        let html = b"<html>not found</html>".to_vec();
        let huge = u64::MAX.to_le_bytes().to_vec();
        for bytes in [longer, outside, shape, gap, html, huge] {
            assert!(matches!(with_weights(&bytes), Err(CheckError::Weights { .. })));
        }
    }

    #[test]
    fn missing_and_broken_files_are_named() {
        let check = |change: &dyn Fn(&Path)| {
            let dir = tempfile::tempdir().unwrap();
            fake_model::write(dir.path());
            change(dir.path());
            check_model(dir.path()).unwrap_err().to_string()
        };
        assert!(check(&|dir| fs::remove_file(dir.join(CONFIG)).unwrap()).contains("'config.json' is missing"));
        assert!(check(&|dir| fs::write(dir.join(TOKENIZER), "[]").unwrap()).contains("'tokenizer.json' is not"));
        assert!(check(&|dir| fs::remove_file(dir.join(WEIGHTS)).unwrap()).contains("neither 'model.safetensors'"));
    }

    #[test]
    fn every_shard_of_the_index_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        fake_model::write(dir.path());
        let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        fs::rename(dir.path().join(WEIGHTS), dir.path().join(first)).unwrap();
        let index = |a: &str, b: &str| format!(r#"{{"metadata":{{}},"weight_map":{{"a":"{a}","b":"{b}"}}}}"#);
        fs::write(dir.path().join(WEIGHTS_INDEX), index(first, second)).unwrap();
        assert!(matches!(check_model(dir.path()), Err(CheckError::Missing { file }) if file == second));
        fs::write(dir.path().join(second), fake_model::weights()).unwrap();
        check_model(dir.path()).unwrap();
        fs::write(dir.path().join(WEIGHTS_INDEX), index(first, "../escape.safetensors")).unwrap();
        assert!(matches!(check_model(dir.path()), Err(CheckError::BadShard { .. })));
    }
}
