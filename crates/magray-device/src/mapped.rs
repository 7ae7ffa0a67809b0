//! Maps a whole file into memory, for reading.
//! Never writes; the bytes have no alignment and no format here.

use std::{
    fs::File,
    io,
    ops::{Deref, Range},
    path::Path,
};

use memmap2::Mmap;

/// The bytes of a file, read from the disk when they are first touched.
///
/// The file must not be shortened while it is mapped: the system then kills a process that touches the lost part.
/// Model files are put in place by a rename and never edited, so this takes a deliberate act.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
    file: File,
}

impl MappedFile {
    /// Maps the file at `path`, which must be a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Asked before opening: to open a pipe waits for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is private and read-only and outlives no borrow of itself. That no process shortens or rewrites
        // the file under it is stated as the contract of this type; it cannot be enforced on any system.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map, file })
    }

    /// Copies bytes of the file out, from `at` on. Faster than through the map where many are wanted once: no page has to
    /// be brought into this process's memory first.
    pub fn read_at(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        assert!(at + out.len() <= self.map.len(), "the range lies inside the file");
        std::os::unix::fs::FileExt::read_exact_at(&self.file, out, at as u64)
    }

    /// Gives the memory of these bytes back to the system; touched again, they are read from the file again.
    ///
    /// Only advice: where the system does not take it, nothing happens.
    pub fn release_pages(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.map.len(), "the range lies inside the file");
        if !range.is_empty() {
            // SAFETY: the map is file-backed and never written, so that a dropped page comes back with the same bytes
            // and no borrow of them can see a difference. The range was checked above.
            let advised = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            // A refusal costs memory and no correctness.
            drop(advised);
        }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_after_their_pages_were_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        assert_eq!(&mapped[..], &bytes[..]);
        mapped.release_pages(5..90_001);
        mapped.release_pages(7..7);
        assert_eq!(&mapped[..], &bytes[..]);
        let mut copied = vec![0; 1000];
        mapped.read_at(99_000, &mut copied).unwrap();
        assert_eq!(copied, bytes[99_000..]);
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, []).unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
    }

    #[test]
    fn what_is_not_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(MappedFile::open(dir.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(MappedFile::open(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    #[should_panic(expected = "inside the file")]
    fn a_range_beyond_the_end_is_a_bug() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("short");
        std::fs::write(&path, [1, 2, 3]).unwrap();
        MappedFile::open(&path).unwrap().release_pages(0..4);
    }
}
