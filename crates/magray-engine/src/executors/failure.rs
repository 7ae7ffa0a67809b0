//! Why an executor did not do what it was told, sorted by what to do about it.
//! Retries nothing.

use crate::gpu::GpuError;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io;

pub use magray_core::schedule::Failure as FailureKind;

/// Sentences for people are cut to this.
const MESSAGE_BYTES_MAX: usize = 2048;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What to do about it.
    pub kind: FailureKind,
    /// One word for programs; it never changes its meaning.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

impl Failure {
    /// The code of a batch whose model is not on the devices.
    pub const NOT_LOADED: &'static str = "not_loaded";
    /// The code of an image that is of no use, where nothing else is wrong.
    pub(crate) const IMAGE_SPOILT: &'static str = "image_spoilt";
    /// The code of a model whose files may not be read.
    pub(crate) const MODEL_UNREADABLE: &'static str = "model_unreadable";

    /// A failure of this kind.
    pub fn new(kind: FailureKind, code: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        Self { kind, code: code.to_owned(), message }
    }

    /// The executor's memory is full: less at a time may do.
    pub fn out_of_memory(message: impl Into<String>) -> Self {
        Self::new(FailureKind::OutOfMemory, "out_of_memory", message)
    }

    /// The model's weights are not on the devices. Not the devices' fault: who sent the batch had not waited for them.
    pub fn not_loaded() -> Self {
        let message = "the weights of the model are not on the device";
        Self::new(FailureKind::Transient, Self::NOT_LOADED, message)
    }

    /// The executor computes nothing of this kind.
    pub fn unsupported(what: &str) -> Self {
        Self::new(FailureKind::Transient, "unsupported", format!("this executor gives no {what}"))
    }

    pub(crate) fn panicked(payload: &(dyn std::any::Any + Send)) -> Self {
        let said = payload.downcast_ref::<&str>().copied();
        let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        Self::new(FailureKind::Transient, "panicked", format!("the computation panicked: {said}"))
    }

    /// A model that cannot be read or made ready.
    pub(crate) fn of_model(error: impl Error + 'static) -> Self {
        let code = if is_denied(&error) { Self::MODEL_UNREADABLE } else { "model_broken" };
        Self::new(FailureKind::Transient, code, error.to_string())
    }

    pub(crate) fn image(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Transient, Self::IMAGE_SPOILT, message)
    }

    /// Why weights did not come from an image: for its own sake, or as they would not have come from anywhere.
    pub(crate) fn of_image(error: GpuError) -> Self {
        match error {
            GpuError::Residency(error) => Self::image(error.to_string()),
            error => error.into(),
        }
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        Self::new(error.failure(), error.code(), error.to_string())
    }
}

/// Whether the system did not permit to read a file.
fn is_denied(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_for_people_is_cut_between_letters() {
        let long = "\u{e9}".repeat(5000);
        assert_eq!(Failure::out_of_memory(&long[..]).message, &long[..MESSAGE_BYTES_MAX]);
    }
}
