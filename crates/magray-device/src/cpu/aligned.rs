//! Memory for activations and packed weights: zeroed, on cache lines, on huge pages where it is large.
//! Never grows: what is planned once is what there is.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Plain numbers, for which all bits zero is a value.
///
/// # Safety
/// Implement it for types without padding, references or invalid bit patterns alone.
pub(crate) unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: numbers without padding.
unsafe impl Plain for f32 {}
// SAFETY: as above; a bf16 is two bytes, any of which are valid.
unsafe impl Plain for half::bf16 {}
// SAFETY: as above.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}

/// A fixed slice whose first element lies on a cache line.
pub(crate) struct Aligned<T: Plain> {
    start: NonNull<T>,
    len: usize,
    owns: PhantomData<T>,
}

const LINE_BYTES: usize = 64;
const HUGE_PAGE_BYTES: usize = 2 << 20;

impl<T: Plain> Aligned<T> {
    pub(crate) fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { start: NonNull::dangling(), len, owns: PhantomData };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw.cast::<T>()) else { handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        if layout.align() == HUGE_PAGE_BYTES {
            // Streaming 20 MB of weights through 4 KiB pages costs a page walk every 4 KiB.
            // SAFETY: the range is ours and page-aligned; the advice changes no content. A refusal only costs speed.
            unsafe { libc::madvise(raw.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Self { start, len, owns: PhantomData }
    }

    fn layout(len: usize) -> Layout {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&b| b <= isize::MAX as usize - HUGE_PAGE_BYTES);
        let bytes = bytes.expect("a buffer's size was checked when it was planned");
        let align = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { LINE_BYTES };
        Layout::from_size_align(bytes, align).expect("a power of two, and the size was checked")
    }
}

impl<T: Plain> Drop for Aligned<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(self.start.as_ptr().cast(), Self::layout(self.len)) };
        }
    }
}

impl<T: Plain> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` points at `len` initialised elements that we own.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: it owns plain numbers.
unsafe impl<T: Plain> Send for Aligned<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Plain> Sync for Aligned<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zero_and_on_a_line() {
        for len in [0, 1, 17, 4096, 1 << 20] {
            let buffer = Aligned::<f32>::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|&x| x == 0.0));
            assert!(len == 0 || (buffer.as_ptr() as usize).is_multiple_of(LINE_BYTES));
        }
    }
}
