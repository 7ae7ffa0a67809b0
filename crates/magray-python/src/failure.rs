//! What goes wrong, as exceptions of Python: bad input is a `ValueError`, all else a `MagrayError`.
//! Holds messages of the crates below; makes up none where they have one.

use std::io;

use magray_engine::engine::EngineError;
use magray_engine::store::{NameError, StoreError};
use magray_engine::{LoadError, Refusal};
use magray_generation::JobError;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(magray, MagrayError, PyRuntimeError, "What magray could not do, and why.");
create_exception!(magray, Busy, MagrayError, "Too much is waiting: try again.");
create_exception!(magray, DeviceError, MagrayError, "The device that was asked for cannot be used.");
create_exception!(magray, Cancelled, MagrayError, "The work was cancelled.");
create_exception!(magray, WorkerLost, MagrayError, "Two workers ended while they computed the same text of a request.");
create_exception!(magray, Forked, MagrayError, "It was made before a fork, in another process.");

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Load(Box<LoadError>),
    #[error(transparent)]
    Device(#[from] Refusal),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    Index(#[from] magray_index::Error),
    #[error("the request cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Input(String),
    #[error("the work was cancelled")]
    Cancelled,
    #[error("the interpreter is ending")]
    Closing,
    #[error("no pipe for an event loop: {0}")]
    Pipe(#[from] io::Error),
}

impl Failure {
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::Input(message.into())
    }
}

impl From<LoadError> for Failure {
    fn from(reason: LoadError) -> Self {
        Self::Load(Box::new(reason))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        match failure {
            Failure::Input(_) | Failure::Json(_) | Failure::Name(_) => PyValueError::new_err(message),
            Failure::Store(StoreError::FolderMissing { .. } | StoreError::Name(_)) => PyValueError::new_err(message),
            Failure::Index(magray_index::Error::BadInput(_)) => PyValueError::new_err(message),
            Failure::Job(JobError::Engine(error)) | Failure::Engine(error) => of_engine(&error, message),
            Failure::Job(_) => PyValueError::new_err(message),
            Failure::Device(_) => DeviceError::new_err(message),
            Failure::Load(reason) if matches!(*reason, LoadError::Device(_)) => DeviceError::new_err(message),
            Failure::Cancelled => Cancelled::new_err(message),
            Failure::Store(_) | Failure::Load(_) | Failure::Index(_) | Failure::Closing | Failure::Pipe(_) => {
                MagrayError::new_err(message)
            }
        }
    }
}

fn of_engine(error: &EngineError, message: String) -> PyErr {
    match error {
        EngineError::Text(_) | EngineError::NoText | EngineError::TokenKinds { .. } | EngineError::NoPrompt(_) => {
            PyValueError::new_err(message)
        }
        EngineError::TooLarge => PyValueError::new_err(message),
        EngineError::Full { .. } => Busy::new_err(message),
        EngineError::NoDevice { .. } => DeviceError::new_err(message),
        EngineError::Poison => WorkerLost::new_err(message),
        EngineError::NoModel(_)
        | EngineError::Expired
        | EngineError::NotYet { .. }
        | EngineError::Overruled
        | EngineError::Panicked
        | EngineError::Draining => MagrayError::new_err(message),
    }
}
