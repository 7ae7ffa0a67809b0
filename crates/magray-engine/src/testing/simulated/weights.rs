//! Weights on a simulated GPU: they take their part of its memory, and their time to come and go.
//! Holds no number: those never leave this process.

use super::filling::{Filling, Mark};
use super::{Shared, duration};
use crate::executors::held_weights::HeldWeights;
use crate::executors::image_parts::Parts;
use crate::executors::{Arriving, Failure, FilledImage, OnFilled};
use crate::gpu::GpuError;
use magray_device::SharedMemory;
use magray_device::cuda::DeviceError;
use std::sync::Arc;

pub(super) struct SimulatedWeights {
    device: Arc<Shared>,
    bytes: u64,
    is_resident: bool,
    /// The image that they are kept in, whole or being filled.
    filling: Option<Filling>,
}

impl SimulatedWeights {
    /// Brings weights to the device. Their numbers come from the files all the same: what an image holds is a mark, by which one
    /// that is not whole is known.
    pub(super) fn load(device: &Arc<Shared>, bytes: u64, image: Option<FilledImage>) -> Result<Self, Failure> {
        let mut us_per_mib = device.gpu.load_us_per_mib;
        if let Some(image) = &image {
            if Mark::read(&image.memory) != Some(Mark { bytes: image.bytes }) {
                let error = DeviceError::WrongImage { expected: bytes, found: 0 };
                return Err(Failure::of_image(error.into()));
            }
            us_per_mib = device.gpu.wake_us_per_mib;
        }
        device.check()?;
        device.memory.take(bytes).map_err(GpuError::from)?;
        std::thread::sleep(duration(bytes, us_per_mib));
        let filling = image.map(|image| Filling::whole(image.memory));
        Ok(Self { device: Arc::clone(device), bytes, is_resident: true, filling })
    }

    /// The same for a group, whose devices have these bytes, and parts of the image.
    pub(super) fn load_parts(
        devices: &[Arc<Shared>],
        bytes: &[u64],
        image: Option<FilledImage>,
    ) -> Result<Vec<Self>, Failure> {
        let parts = image.map(|image| Parts::of(bytes.iter().copied()).divide(&image)).transpose();
        let mut parts = parts.map_err(|error| Failure::of_image(error.into()))?.into_iter().flatten();
        devices.iter().zip(bytes).map(|(device, bytes)| Self::load(device, *bytes, parts.next())).collect()
    }
}

impl HeldWeights for SimulatedWeights {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_resident(&self) -> bool {
        self.is_resident
    }

    fn arriving(&self) -> Option<Arriving> {
        None
    }

    fn keep_image(&mut self, image: SharedMemory, on_filled: OnFilled) {
        let takes = duration(self.bytes, self.device.gpu.fill_us_per_mib);
        self.filling = Some(Filling::begin(image, Mark { bytes: self.bytes }, takes, on_filled));
    }

    fn has_image(&self) -> bool {
        self.filling.as_ref().is_some_and(Filling::is_whole)
    }

    fn take_image(&mut self, image: FilledImage) {
        if Mark::read(&image.memory) == Some(Mark { bytes: self.bytes }) {
            self.filling = Some(Filling::whole(image.memory));
        }
    }

    fn offload(&mut self) -> Result<(), GpuError> {
        if self.is_resident {
            std::thread::sleep(duration(self.bytes, self.device.gpu.offload_us_per_mib));
            self.device.memory.give_back(self.bytes);
            self.is_resident = false;
        }
        Ok(())
    }

    fn wake(&mut self) -> Result<(), GpuError> {
        if !self.is_resident {
            self.device.check()?;
            self.device.memory.take(self.bytes)?;
            let gpu = self.device.gpu;
            let us_per_mib = if self.has_image() { gpu.wake_us_per_mib } else { gpu.load_us_per_mib };
            std::thread::sleep(duration(self.bytes, us_per_mib));
            self.is_resident = true;
        }
        Ok(())
    }
}

impl Drop for SimulatedWeights {
    fn drop(&mut self) {
        if self.is_resident {
            self.device.memory.give_back(self.bytes);
        }
    }
}
