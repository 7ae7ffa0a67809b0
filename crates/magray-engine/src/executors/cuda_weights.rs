//! Puts the layers of models into blocks of a GPU's memory: those of their files, or those of an image.
//! Knows no model: who calls it packs the layers.

use super::FilledImage;
use crate::decoder::{Decoder, DecoderFiles, LoadDecoderError};
use crate::gpu::GpuError;
use crate::model::PackError;
use magray_device::cuda::{Cuda, DeviceError, Site, WeightsBlock};

/// Puts a model's layers into one block: measured first, so that it is exactly as long as they need. `pack` is told whether
/// the numbers will be read.
pub(super) fn place<T, E: From<DeviceError>>(
    cuda: &Cuda,
    image: Option<FilledImage>,
    pack: impl Fn(&Site<'_>, bool) -> Result<T, E>,
) -> Result<(T, WeightsBlock), E> {
    let measured = Site::measuring(cuda);
    pack(&measured, false)?;
    let site = Site::of_bytes(cuda, measured.bytes())?;
    let model = pack(&site, image.is_none())?;
    let weights = match image {
        None => site.fill()?,
        Some(FilledImage { memory, bytes }) => site.fill_from(memory, bytes)?,
    };
    Ok((model, weights))
}

/// Puts a language model into one block.
pub(super) fn place_decoder(
    cuda: &Cuda,
    files: &DecoderFiles,
    context: usize,
    image: Option<FilledImage>,
) -> Result<(Decoder<Cuda>, WeightsBlock), LoadDecoderError<DeviceError>> {
    let unread = files.unread();
    place(cuda, image, |site, is_read| Decoder::<Cuda>::pack(site, if is_read { files } else { &unread }, context))
}

impl From<DeviceError> for LoadDecoderError<DeviceError> {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<PackError<DeviceError>> for GpuError {
    fn from(error: PackError<DeviceError>) -> Self {
        match error {
            PackError::Weights(error) => Self::Weights(error),
            PackError::Device(error) => error.into(),
        }
    }
}

impl From<DeviceError> for GpuError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Cuda(error) => Self::Cuda(error),
            DeviceError::Kernel(error) => Self::Kernel(error),
            error @ (DeviceError::System(_)
            | DeviceError::WrongImage { .. }
            | DeviceError::CannotPark
            | DeviceError::Away) => Self::Residency(error),
        }
    }
}
