//! Failures of a GPU on purpose, so that recovery can be seen to work on real ones.
//! Called by a fault plan only: what it does cannot be undone in this process.

use super::device::Cuda;
use super::device_error::DeviceError;
use super::function::LaunchShape;
use super::pinned_buffers::PinnedWords;
use super::stream::{Stream, Urgency};
use super::variants;
use std::ffi::c_void;

/// How a GPU is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// A kernel writes to an unmapped address: the context is lost.
    IllegalAddress,
    /// A kernel never ends.
    Hang,
}

/// In the first page, which no GPU maps, so that a null pointer is caught.
const UNMAPPED_ADDRESS: u64 = 16;

impl Cuda {
    /// Makes the GPU fail: returns the driver's error, or never returns.
    pub fn inject(&self, fault: InjectedFault) -> Result<(), DeviceError> {
        let context = self.context();
        let stream = Stream::new(context, Urgency::Usual)?;
        // The kernel waits until a word of its own becomes 1, which is never written.
        let word = PinnedWords::zeroed(context, 1)?;
        let (mut address, mut waits) = match fault {
            InjectedFault::IllegalAddress => (UNMAPPED_ADDRESS, 0i32),
            InjectedFault::Hang => (word.address(), 1i32),
        };
        let mut arguments: [*mut c_void; 2] =
            [std::ptr::from_mut(&mut address).cast(), std::ptr::from_mut(&mut waits).cast()];
        let function = self.function(&variants::fault())?;
        context.bind()?;
        // SAFETY: the stream is of the same context, and the arguments are the kernel's: an address and a number. The word
        // that it reads outlives the wait below. The address is unmapped on purpose: the GPU stops the kernel.
        unsafe { function.launch(stream.put(), &LaunchShape::new([1, 1, 1], [1, 1, 1]), &mut arguments) }?;
        Ok(stream.wait()?)
    }
}
