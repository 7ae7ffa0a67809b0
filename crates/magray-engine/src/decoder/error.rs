//! Why a decoder's files cannot be used, or a device did not take them.
//! Says which file and what to do; carries no device's handles.

use crate::{spec::SpecError, tokenize::TokenizeError, weights::WeightsError};

/// Why a decoder's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// What they say of the model.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Their weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Their tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizeError),
}

/// Why a decoder could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadDecoderError<E: std::error::Error> {
    /// Its weights cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device did not take them.
    #[error("{0}")]
    Device(E),
    /// More tokens were asked for than the model was made for.
    #[error("a context of {asked} tokens was asked for, and the model was made for {most}")]
    Context {
        /// What was asked for.
        asked: usize,
        /// The most there is.
        most: usize,
    },
}

impl<E: std::error::Error> LoadDecoderError<E> {
    /// The same of a device whose failures are known otherwise.
    pub(crate) fn map_device<F: std::error::Error>(self, of: impl FnOnce(E) -> F) -> LoadDecoderError<F> {
        match self {
            Self::Weights(error) => LoadDecoderError::Weights(error),
            Self::Device(error) => LoadDecoderError::Device(of(error)),
            Self::Context { asked, most } => LoadDecoderError::Context { asked, most },
        }
    }
}
