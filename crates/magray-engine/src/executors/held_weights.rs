//! Weights of a model that leave a device and come back, whatever model they are of.
//! Does not know who computes with them: their owner waits for that before they leave.

use super::{Arriving, FilledImage, OnFilled};
use crate::gpu::GpuError;
use magray_device::SharedMemory;
use magray_device::cuda::WeightsBlock;

/// Weights of a model on a device.
pub(crate) trait HeldWeights: Send {
    /// What they take of the device's memory when they are there: of a group as many times what the fullest GPU has.
    fn bytes(&self) -> u64;

    /// Whether they have memory on the device; they may still be arriving.
    fn is_resident(&self) -> bool;

    /// Waits, when it is called, for weights that are arriving, while others compute. `None`: all are there.
    fn arriving(&self) -> Option<Arriving>;

    /// Fills an image of them beside other work, and tells once how that went.
    fn keep_image(&mut self, image: SharedMemory, on_filled: OnFilled);

    /// Whether an image holds all of them: it is what they come back from, else they are read again.
    fn has_image(&self) -> bool;

    /// Takes an image that others have filled, where it has none.
    fn take_image(&mut self, image: FilledImage);

    /// Takes them from the device; an image that is being filled goes on. Nothing computes with them.
    fn offload(&mut self) -> Result<(), GpuError>;

    /// Brings them back; returns when they may be computed with, while they may still be arriving. Without memory for them they
    /// stay away.
    fn wake(&mut self) -> Result<(), GpuError>;
}

impl HeldWeights for WeightsBlock {
    fn bytes(&self) -> u64 {
        Self::bytes(self)
    }

    fn is_resident(&self) -> bool {
        Self::is_resident(self)
    }

    fn arriving(&self) -> Option<Arriving> {
        let arriving = self.on_their_way()?;
        Some(Box::new(move || Ok(arriving.wait().map_err(GpuError::from)?)))
    }

    fn keep_image(&mut self, image: SharedMemory, on_filled: OnFilled) {
        Self::keep_image(
            self,
            image,
            Box::new(|filled| on_filled(filled.map_err(|error| GpuError::from(error).into()))),
        );
    }

    fn has_image(&self) -> bool {
        self.image_is_filled()
    }

    fn take_image(&mut self, FilledImage { memory, bytes }: FilledImage) {
        Self::take_image(self, memory, bytes);
    }

    fn offload(&mut self) -> Result<(), GpuError> {
        Ok(Self::offload(self)?)
    }

    fn wake(&mut self) -> Result<(), GpuError> {
        Ok(Self::wake(self)?)
    }
}
