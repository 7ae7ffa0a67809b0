//! Why a model's files cannot be used. Says which file, which setting, and what to do.

use crate::weights::WeightsError;
use std::{io, path::PathBuf};

/// Why a model folder's description was refused.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The file is not there.
    #[error("'{}' does not exist: a model folder holds config.json, tokenizer.json and model.safetensors", file.display())]
    Missing {
        /// The file that was looked for.
        file: PathBuf,
    },
    /// The file is there and cannot be read.
    #[error("cannot read '{}': {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is not the JSON it should be.
    #[error("'{}' is not a valid file of its kind: {source}; pull the model again or repair the file", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A setting has a value that cannot be true.
    #[error("'{}' has {field} = {found}: {rule}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The setting.
        field: String,
        /// Its value.
        found: String,
        /// What it must be.
        rule: String,
    },
    /// A file that holds description and weights is not what it should be.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A setting that is valid and not supported here.
    #[error("'{}' asks for {option}, which is not supported: {instead}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// What it asks for.
        option: String,
        /// What is supported.
        instead: String,
    },
}
