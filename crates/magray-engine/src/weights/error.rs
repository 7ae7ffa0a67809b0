//! Why weights cannot be used. Says which file, which tensor, and what to do.

use std::{io, path::PathBuf};

/// Why weights were refused.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The folder holds no weights in a known form.
    #[error("no model.safetensors or model.safetensors.index.json in '{}'{hint}", dir.display())]
    NoWeights {
        /// The folder.
        dir: PathBuf,
        /// What to do where other weights lie there; empty otherwise.
        hint: &'static str,
    },
    /// A file is there and cannot be read.
    #[error("cannot read '{}': {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is not what its name says.
    #[error("'{}' is corrupt: {reason}; pull the model again", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file ends before its tensors do.
    #[error(
        "'{}' is cut off: tensor '{tensor}' ends at byte {expected} and the file has {found}; pull the model again",
        file.display()
    )]
    Truncated {
        /// The file.
        file: PathBuf,
        /// The first tensor that is not whole.
        tensor: String,
        /// Where it ends.
        expected: u64,
        /// Where the file ends.
        found: u64,
    },
    /// The index names a file that is not there.
    #[error("'{}' needs '{shard}', which does not exist beside it; pull the model again", index.display())]
    ShardMissing {
        /// The index.
        index: PathBuf,
        /// The file it names.
        shard: String,
    },
    /// The index promises a tensor that its file does not hold.
    #[error("'{}' says that tensor '{tensor}' is in '{shard}', and it is not; pull the model again", index.display())]
    NotInShard {
        /// The index.
        index: PathBuf,
        /// The file it names.
        shard: String,
        /// The tensor.
        tensor: String,
    },
    /// The model needs a tensor that the files do not hold.
    #[error("the weights in '{}' have no tensor '{name}'{}", dir.display(), list_nearest(nearest))]
    Missing {
        /// The folder.
        dir: PathBuf,
        /// The tensor.
        name: String,
        /// The names that look most like it.
        nearest: Vec<String>,
    },
    /// A tensor has other sizes than config.json says.
    #[error(
        "tensor '{name}' in '{}' has the shape {found:?} where config.json asks for {expected:?}: they are of different models",
        file.display()
    )]
    WrongShape {
        /// The tensor.
        name: String,
        /// The file.
        file: PathBuf,
        /// The sizes that follow from config.json.
        expected: Vec<usize>,
        /// The sizes in the file.
        found: Vec<usize>,
    },
    /// A tensor holds numbers of a type that is not read.
    #[error("tensor '{name}' in '{}' is of type {found}: use weights in F32, F16 or BF16", file.display())]
    WrongType {
        /// The tensor.
        name: String,
        /// The file.
        file: PathBuf,
        /// Its type.
        found: String,
    },
    /// A tensor of a GGUF file is stored in a form that is not read.
    #[error(
        "tensor '{name}' in '{}' is stored as {found}, which is not supported: use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 or Q2_K to Q6_K",
        file.display()
    )]
    UnreadFormat {
        /// The tensor.
        name: String,
        /// The file.
        file: PathBuf,
        /// The form.
        found: String,
    },
}

fn list_nearest(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; the nearest are {}", nearest.join(", ")) }
}
