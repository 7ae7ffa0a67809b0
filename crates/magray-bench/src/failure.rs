//! Why a measurement stopped, and the exit code that follows.
//! 1: something of magray's is wrong; 2: what was asked for cannot be measured; 3: a file cannot be read or written.

use std::{io, path::PathBuf, process::ExitCode};

use magray_engine::{
    EmbedError, LoadError,
    gpu::{CudaError, Declined},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    /// The other end of the pipe was closed, as `head` does. Nothing is wrong.
    #[error("the reader of the output has gone")]
    ReaderGone,
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: io::Error },
    #[error("{0}")]
    Trace(String),
    #[error("cannot load '{model}': {reason}")]
    Load { model: String, reason: Box<LoadError> },
    #[error(transparent)]
    Embed(#[from] EmbedError),
    #[error("there is no GPU to measure: {0}; `--device simulated` needs none")]
    NoGpuToMeasure(Declined),
    #[error("the GPU gave no memory: {0}")]
    Memory(CudaError),
    #[error(transparent)]
    Worker(#[from] magray_engine::ServeError),
    #[error("cannot find this program's own file to start workers from: {0}")]
    OwnProgram(io::Error),
    #[error("{0}")]
    Broken(String),
}

impl Failure {
    pub(crate) fn exit(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) | Self::NoGpuToMeasure(_) | Self::Load { .. } => 2,
            Self::File { .. } | Self::Trace(_) => 3,
            _ => 1,
        })
    }

    pub(crate) fn load(model: &str, reason: LoadError) -> Self {
        Self::Load { model: model.to_owned(), reason: Box::new(reason) }
    }
}
