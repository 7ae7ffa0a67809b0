//! Why a GPU did not do what was asked.
//! Decides nothing: what follows is up to the caller.

use super::cubin_sources::KernelError;
use super::error::CudaError;

/// Why a GPU did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The driver failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A kernel is not there.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The system refused what weights need: a file cannot be read, or there is no memory to share.
    #[error("the model's weights cannot be brought to the GPU: {0}")]
    System(String),
    /// Weights in shared memory are not those of the model: load it from its files.
    #[error(
        "the weights in shared memory have {found} bytes where the model has {expected}: load the model from its files"
    )]
    WrongImage {
        /// What the model's layers need.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// This GPU's memory cannot be unmapped from its addresses: drop the model instead.
    #[error("this GPU cannot take a model's memory away and keep its place: release the model instead")]
    CannotPark,
    /// The weights are not on the GPU: wake the model first.
    #[error("the model's weights are not on the GPU at the moment: wake the model first")]
    Away,
}

impl From<std::io::Error> for DeviceError {
    fn from(error: std::io::Error) -> Self {
        Self::System(error.to_string())
    }
}
