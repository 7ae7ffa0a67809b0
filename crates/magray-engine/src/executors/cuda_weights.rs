//! Puts the layers of models into blocks of a GPU's memory: those of their files, or those of an image.
//! Knows no model: who calls it packs the layers.

use super::FilledImage;
use super::group::Stages;
use super::image_parts::Parts;
use crate::decoder::{Decoder, DecoderFiles, LoadDecoderError};
use crate::gpu::GpuError;
use crate::model::PackError;
use magray_device::cpu::Cpu;
use magray_device::cuda::{Cuda, DeviceError, Site, WeightsBlock};
use magray_device::{RankError, Split, SplitError, StageError};
use std::convert::Infallible;
use std::panic::resume_unwind;
use std::sync::Arc;

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
    Ok((model, bring(site, image)?))
}

/// Brings the weights of all layers that were packed.
fn bring(site: Site<'_>, image: Option<FilledImage>) -> Result<WeightsBlock, DeviceError> {
    match image {
        None => site.fill(),
        Some(FilledImage { memory, bytes }) => site.fill_from(memory, bytes),
    }
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

/// The CPU with the first layers, and a GPU with the others.
pub(super) type Parted = Split<Arc<Cpu>, Arc<Cuda>>;
pub(super) type PartedError = SplitError<Infallible, DeviceError>;

/// Puts the last layers of a language model into one block, and the others on the CPU. An image has the block alone: the CPU's layers come
/// from the files in any case.
pub(super) fn place_split(
    (cpu, cpu_layers): (&Cpu, usize),
    cuda: &Cuda,
    files: &DecoderFiles,
    context: usize,
    image: Option<FilledImage>,
) -> Result<(Decoder<Parted>, WeightsBlock), LoadDecoderError<PartedError>> {
    let on_gpu = |error| LoadDecoderError::Device(SplitError::Last(error));
    // The CPU takes its layers over when all have their place: here a site that is nowhere stands for it.
    let (others, measured) = (Site::measuring(cuda), Site::measuring(cuda));
    let nowhere = Split::new(&others, &measured, cpu_layers);
    Decoder::<Split<&Site<'_>, &Site<'_>>>::load(&nowhere, &files.unread(), context).map_err(|error| {
        error.map_device(|error| match error {
            SplitError::First(error) | SplitError::Last(error) => SplitError::Last(error),
        })
    })?;
    let site = Site::of_bytes(cuda, measured.bytes()).map_err(on_gpu)?;
    let decoder = Decoder::pack(&Split::new(cpu, &site, cpu_layers), files, context)?;
    Ok((decoder, bring(site, image).map_err(on_gpu)?))
}

/// GPUs as one device for a language model.
pub(super) type Grouped = Stages<Arc<Cuda>>;
pub(super) type GroupedError = StageError<RankError<DeviceError>>;

/// Puts a language model onto a group of GPUs, each with a block of its own and a part of the image. `pack` makes the model on sites, and is
/// told whether the numbers will be read.
pub(super) fn place_group<T, E>(
    gpus: &[&Cuda],
    image: Option<FilledImage>,
    pack: impl Fn(&[Site<'_>], bool) -> Result<T, E>,
    on_gpu: impl Fn(usize, DeviceError) -> E,
) -> Result<(T, Vec<WeightsBlock>), E> {
    let measured: Vec<Site<'_>> = gpus.iter().map(|cuda| Site::measuring(cuda)).collect();
    pack(&measured, false)?;
    let images =
        image.map(|image| Parts::of(measured.iter().map(|site| site.bytes() as u64)).divide(&image)).transpose();
    let images = images.map_err(|error| on_gpu(0, error))?;
    let sites = gpus.iter().zip(&measured).enumerate();
    let sites = sites.map(|(at, (cuda, site))| Site::of_bytes(cuda, site.bytes()).map_err(|error| on_gpu(at, error)));
    let sites = sites.collect::<Result<Vec<_>, _>>()?;
    let model = pack(&sites, images.is_none())?;
    let mut images = images.into_iter().flatten();
    // All GPUs are filled beside each other.
    let filled: Vec<_> = std::thread::scope(|scope| {
        let fill = |site| {
            let image = images.next();
            scope.spawn(move || bring(site, image))
        };
        let fills: Vec<_> = sites.into_iter().map(fill).collect();
        fills.into_iter().map(|fill| fill.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let blocks = filled.into_iter().enumerate().map(|(at, filled)| filled.map_err(|error| on_gpu(at, error)));
    Ok((model, blocks.collect::<Result<_, _>>()?))
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
