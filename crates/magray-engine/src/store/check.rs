//! Looks whether a folder holds a model that can be loaded: JSON that parses, weights that are whole.
//! Never reads the weights themselves, only their headers.

use crate::bounded_file::{self, SETTINGS_BYTES_MAX, TOKENIZER_BYTES_MAX};
use crate::spec::{ModelSpec, SpecError, find_graph};
use crate::weights::gguf::{self, Gguf};
use crate::weights::{Weights, WeightsError};
use magray_core::PrecisionChoice;
use serde::de::IgnoredAny;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::Path;

pub(super) const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const WEIGHTS: &str = "model.safetensors";
pub(super) const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

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
    /// The weights are missing, cut or corrupt.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The graph that stands in for weights cannot be used.
    #[error(transparent)]
    Graph(Box<SpecError>),
    /// A file cannot be read.
    #[error("'{file}' cannot be read: {source}")]
    Unreadable {
        /// The file's name below the folder.
        file: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Checks the files that every model needs, and the weights with all their shards.
pub fn check_model(dir: &Path) -> Result<(), CheckError> {
    if let Some(file) = gguf::find(dir) {
        return Ok(Gguf::open(&file).map(drop)?);
    }
    parse_object(dir, CONFIG, SETTINGS_BYTES_MAX)?;
    parse_object(dir, TOKENIZER, TOKENIZER_BYTES_MAX)?;
    // Opening checks every header against its file, and reads nothing more.
    let weights = Weights::open(dir);
    match find_graph(dir, PrecisionChoice::Auto).filter(|_| weights.is_err()) {
        Some(graph) => ModelSpec::read_onnx(dir, &graph).map(drop).map_err(|error| CheckError::Graph(Box::new(error))),
        None => Ok(weights.map(drop)?),
    }
}

fn parse_object(dir: &Path, file: &str, bytes_max: u64) -> Result<(), CheckError> {
    let text = bounded_file::read(&dir.join(file), bytes_max).map_err(|source| match source.kind() {
        ErrorKind::NotFound => CheckError::Missing { file: file.to_owned() },
        _ => CheckError::Unreadable { file: file.to_owned(), source },
    })?;
    let parsed: Result<HashMap<String, IgnoredAny>, _> = serde_json::from_slice(&text);
    parsed.map(drop).map_err(|e| CheckError::NotJson { file: file.to_owned(), reason: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake_model;
    use super::*;
    use std::fs;

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
            assert!(matches!(refused, Err(CheckError::Weights(_))), "{length} bytes: {refused:?}");
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
            assert!(matches!(with_weights(&bytes), Err(CheckError::Weights(_))));
        }
    }

    #[test]
    fn a_gguf_file_is_a_whole_model() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = gguf::writer::Writer::default();
        file.text("general.architecture", "llama");
        fs::write(dir.path().join("tiny.Q4_1.gguf"), file.bytes()).unwrap();
        check_model(dir.path()).unwrap();
        fs::write(dir.path().join("tiny.Q4_1.gguf"), &file.bytes()[..20]).unwrap();
        assert!(matches!(check_model(dir.path()), Err(CheckError::Weights(_))));
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
        assert!(check(&|dir| fs::remove_file(dir.join(WEIGHTS)).unwrap()).contains("no model.safetensors or"));
    }

    #[test]
    fn every_shard_of_the_index_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        fake_model::write(dir.path());
        let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        fs::rename(dir.path().join(WEIGHTS), dir.path().join(first)).unwrap();
        let index = |c: &str| format!(r#"{{"metadata":{{}},"weight_map":{{"a":"{first}","b":"{first}","c":"{c}"}}}}"#);
        fs::write(dir.path().join(WEIGHTS_INDEX), index(second)).unwrap();
        let refused = || match check_model(dir.path()) {
            Err(CheckError::Weights(fault)) => fault,
            other => panic!("{other:?}"),
        };
        assert!(matches!(refused(), WeightsError::ShardMissing { shard, .. } if shard == second));
        let header = r#"{"c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7; 4]].concat();
        fs::write(dir.path().join(second), file).unwrap();
        check_model(dir.path()).unwrap();
        fs::write(dir.path().join(WEIGHTS_INDEX), index("../escape.safetensors")).unwrap();
        assert!(matches!(refused(), WeightsError::Corrupt { .. }));
    }
}
