//! Memory for activations and packed weights: zeroed, on cache lines, on huge pages where it is large.
//! Never grows: what is planned once is what there is.

use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}

/// A fixed slice whose first element lies on a cache line.
pub(crate) struct Aligned<T: Plain> {
    start: NonNull<T>,
    len: usize,
    /// The pages it lies on; `None`: it has memory of its own from the heap.
    pages: Option<Arc<Pages>>,
    owns: PhantomData<T>,
}

/// Bytes of a cache line, and of a page as the hardware follows it.
pub(super) const LINE_BYTES: usize = 64;
pub(super) const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

impl<T: Plain> Aligned<T> {
    pub(crate) fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        if layout.size() >= HUGE_PAGE_BYTES {
            return Self::on(Pages::new(layout.size()), 0, len);
        }
        if len == 0 {
            return Self { start: NonNull::dangling(), len, pages: None, owns: PhantomData };
        }
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw.cast::<T>()) else { handle_alloc_error(layout) };
        Self { start, len, pages: None, owns: PhantomData }
    }

    /// The bytes of the pages from `at` on, which are used by no other slice.
    fn on(pages: Arc<Pages>, at: usize, len: usize) -> Self {
        assert!(
            at + len * size_of::<T>() <= pages.bytes && at.is_multiple_of(LINE_BYTES),
            "inside the pages, on a line"
        );
        // SAFETY: inside the mapping, as was just seen.
        let start = unsafe { pages.start.add(at) }.cast();
        Self { start, len, pages: Some(pages), owns: PhantomData }
    }

    fn layout(len: usize) -> Layout {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&b| b <= isize::MAX as usize - 2 * HUGE_PAGE_BYTES);
        let bytes = bytes.expect("a buffer's size was checked when it was planned");
        Layout::from_size_align(bytes, LINE_BYTES).expect("a power of two, and the size was checked")
    }
}

impl<T: Plain> Drop for Aligned<T> {
    fn drop(&mut self) {
        if self.len > 0 && self.pages.is_none() {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(self.start.as_ptr().cast(), Self::layout(self.len)) };
        }
    }
}

/// Zeroed memory straight from the system, on huge pages where that has them. Takes room when it is first written.
struct Pages {
    /// The first byte, on a huge page.
    start: NonNull<u8>,
    bytes: usize,
    _map: MmapMut,
}

// SAFETY: an address; what is read and written through it belongs to the slices.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(bytes: usize) -> Arc<Self> {
        let layout = Layout::from_size_align(bytes, HUGE_PAGE_BYTES).expect("the size was checked");
        let mut map = MmapMut::map_anon(bytes + HUGE_PAGE_BYTES).unwrap_or_else(|_| handle_alloc_error(layout));
        // A walk through the page table every 4 KiB is a good part of the time that it takes to read weights.
        // A refusal only costs speed.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let start = map.as_mut_ptr();
        let start = start.wrapping_add(start.align_offset(HUGE_PAGE_BYTES));
        Arc::new(Self { start: NonNull::new(start).expect("a mapping is not at zero"), bytes, _map: map })
    }
}

/// Memory that many buffers share, one after another, each on a page of its own: the weights of one layer alone would
/// not fill huge pages. What is freed is used again when all its neighbours are.
#[derive(Default)]
pub(crate) struct Region {
    room: Mutex<Room>,
}

#[derive(Default)]
struct Room {
    pages: Weak<Pages>,
    used: usize,
}

/// Larger buffers have pages of their own.
const ROOM_BYTES: usize = 16 * HUGE_PAGE_BYTES;

impl Region {
    pub(crate) fn zeroed<T: Plain>(&self, len: usize) -> Aligned<T> {
        let bytes = Aligned::<T>::layout(len).size().next_multiple_of(PAGE_BYTES);
        if bytes == 0 || bytes >= ROOM_BYTES {
            return Aligned::zeroed(len);
        }
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = match room.pages.upgrade() {
            Some(pages) if room.used + bytes <= ROOM_BYTES => pages,
            _ => {
                let pages = Pages::new(ROOM_BYTES);
                *room = Room { pages: Arc::downgrade(&pages), used: 0 };
                pages
            }
        };
        let at = room.used;
        room.used += bytes;
        Aligned::on(pages, at, len)
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

    #[test]
    fn buffers_of_a_region_are_apart_and_outlive_each_other() {
        let region = Region::default();
        let lens = [0, 1, 1000, 300_000, ROOM_BYTES / 4 - 1, 5, 2_000_000, ROOM_BYTES];
        let mut buffers: Vec<Aligned<f32>> = lens.iter().map(|&len| region.zeroed(len)).collect();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.iter().all(|&x| x == 0.0), "no other buffer's");
            buffer.fill(i as f32);
        }
        buffers.remove(2);
        assert!([0, 1, 3, 4, 5, 6, 7].iter().zip(&buffers).all(|(&i, buffer)| buffer.iter().all(|&x| x == i as f32)));

        drop(buffers);
        assert!(region.room.lock().unwrap().pages.upgrade().is_none(), "all of it went back");
    }
}
