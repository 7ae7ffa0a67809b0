//! One image for the weights of several devices: each fills a part of it, and comes back from that part.
//! Copies nothing.

use super::{Failure, FilledImage, OnFilled};
use crate::gpu::GpuError;
use magray_device::SharedMemory;
use magray_device::cuda::DeviceError;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Parts begin at multiples of this. Each device page-locks its part by itself, so that no page may belong to two.
const ALIGN_BYTES: u64 = 64 << 10;

/// Where the parts of an image lie, one behind the other.
pub(crate) struct Parts(Vec<Range<u64>>);

impl Parts {
    /// Of weights of these sizes.
    pub(crate) fn of(bytes: impl IntoIterator<Item = u64>) -> Self {
        let mut next = 0_u64;
        let mut part = |bytes: u64| {
            let part = next..next.saturating_add(bytes);
            next = part.end.next_multiple_of(ALIGN_BYTES);
            part
        };
        Self(bytes.into_iter().map(&mut part).collect())
    }

    /// Bytes of the whole image.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.last().map_or(0, |last| last.end)
    }

    /// The parts as memory of their own.
    pub(crate) fn map(&self, image: &SharedMemory) -> io::Result<Vec<SharedMemory>> {
        self.0.iter().map(|part| image.part(part.clone())).collect()
    }

    /// The parts of an image that holds all of these weights.
    pub(crate) fn divide(&self, image: &FilledImage) -> Result<Vec<FilledImage>, DeviceError> {
        if image.bytes != self.bytes() {
            return Err(DeviceError::WrongImage { expected: self.bytes(), found: image.bytes });
        }
        let parts = self.map(&image.memory)?.into_iter().zip(&self.0);
        Ok(parts.map(|(memory, part)| FilledImage { memory, bytes: part.end - part.start }).collect())
    }

    /// Lets each part be filled; it is told once that all are whole, or why one never will be.
    pub(crate) fn fill(
        &self,
        image: &SharedMemory,
        on_filled: OnFilled,
        mut fill: impl FnMut(usize, SharedMemory, OnFilled),
    ) {
        let parts = match self.map(image) {
            Ok(parts) => parts,
            Err(error) => return on_filled(Err(GpuError::Residency(error.into()).into())),
        };
        let bytes = self.bytes();
        let waiting = Arc::new(Mutex::new(Some((parts.len(), on_filled))));
        for (at, part) in parts.into_iter().enumerate() {
            let waiting = Arc::clone(&waiting);
            let on_part = move |filled: Result<u64, Failure>| {
                let told = waiting.lock().unwrap_or_else(PoisonError::into_inner).take_if(|(left, _)| {
                    *left -= 1;
                    *left == 0 || filled.is_err()
                });
                if let Some((_, on_filled)) = told {
                    on_filled(filled.map(|_| bytes));
                }
            };
            fill(at, part, Box::new(on_part));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executors::FailureKind;

    fn parts() -> Parts {
        Parts::of([100, ALIGN_BYTES, 7])
    }

    #[test]
    fn parts_share_no_page() {
        assert_eq!(parts().0, [0..100, ALIGN_BYTES..2 * ALIGN_BYTES, 2 * ALIGN_BYTES..2 * ALIGN_BYTES + 7]);
        assert_eq!((parts().bytes(), Parts::of([]).bytes()), (2 * ALIGN_BYTES + 7, 0));
    }

    #[test]
    fn an_image_is_divided_where_it_is_of_weights_of_these_sizes() {
        let image = |bytes| FilledImage { memory: SharedMemory::of_bytes(3 * ALIGN_BYTES).unwrap(), bytes };
        let whole = image(parts().bytes());
        whole.memory.write((2 * ALIGN_BYTES / 4) as usize, &[42]);
        let divided = parts().divide(&whole).unwrap();
        assert_eq!(divided.iter().map(|part| part.bytes).collect::<Vec<_>>(), [100, ALIGN_BYTES, 7]);
        let mut word = [0];
        divided[2].memory.read(0, &mut word);
        assert_eq!(word, [42]);
        assert!(matches!(parts().divide(&image(7)), Err(DeviceError::WrongImage { found: 7, .. })));
        let short = FilledImage { memory: SharedMemory::create(9).unwrap(), bytes: parts().bytes() };
        assert!(parts().divide(&short).is_err());
    }

    /// What is told when parts are filled so.
    fn told(filled: [Option<bool>; 3]) -> Vec<Option<u64>> {
        let (tell, told) = std::sync::mpsc::channel();
        let image = SharedMemory::of_bytes(3 * ALIGN_BYTES).unwrap();
        let on_filled: OnFilled = Box::new(move |filled| tell.send(filled.ok()).unwrap());
        parts().fill(&image, on_filled, |at, part, on_part| match filled[at] {
            Some(true) => on_part(Ok(part.bytes() as u64)),
            Some(false) => on_part(Err(Failure::new(FailureKind::Transient, "broken", "broken"))),
            None => {}
        });
        told.try_iter().collect()
    }

    #[test]
    fn it_is_told_once_that_all_are_whole_or_that_one_never_will_be() {
        assert_eq!(told([Some(true); 3]), [Some(parts().bytes())]);
        assert_eq!(told([Some(true), None, Some(true)]), []);
        assert_eq!(told([Some(true), Some(false), Some(true)]), [None]);
        assert_eq!(told([Some(false); 3]), [None]);
    }

    #[test]
    fn an_image_that_is_too_short_is_told_before_a_part_is_filled() {
        let (tell, told) = std::sync::mpsc::channel();
        let image = SharedMemory::create(9).unwrap();
        parts().fill(&image, Box::new(move |filled| tell.send(filled.is_err()).unwrap()), |_, _, _| unreachable!());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [true]);
    }
}
