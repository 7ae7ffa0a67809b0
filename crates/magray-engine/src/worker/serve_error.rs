//! Why a worker process ends before it is told to.
//! Failures of batches are none of these: they are reported.

use super::channel::ChannelError;
use super::wire::Garbled;
use std::io;

/// Why a worker ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It was started by hand.
    #[error("`magray worker` is started by magray itself: its input must be a socket")]
    NoSupervisor,
    /// The supervisor talks nonsense, or is of another version.
    #[error("the worker cannot talk to magray: {0}")]
    Channel(#[source] ChannelError),
    /// The system refused a thread or memory.
    #[error("the worker cannot get what it needs from the system: {0}")]
    System(#[from] io::Error),
}

impl From<ChannelError> for ServeError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

impl From<Garbled> for ServeError {
    fn from(error: Garbled) -> Self {
        Self::Channel(error.into())
    }
}
