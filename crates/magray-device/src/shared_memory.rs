//! Memory that two processes share, with no name that could be left behind.
//! Hands out no references to it, only copies: what the other process writes meanwhile can harm nothing but the copy.

use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Words of 32 bits, all zero at first. The system gives them memory when they are first touched, and takes it back when
/// no process holds them any more, however that came about.
#[derive(Debug)]
pub struct SharedMemory {
    map: MmapRaw,
    fd: OwnedFd,
    /// Where it begins in what the descriptor names.
    from: u64,
}

const WORD_BYTES: usize = 4;

impl SharedMemory {
    /// Makes memory of this many words, at least one.
    pub fn create(words: usize) -> io::Result<Self> {
        let bytes = words
            .max(1)
            .checked_mul(WORD_BYTES)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "more shared memory than can be addressed"))?;
        Self::map(nameless(bytes)?, 0, bytes)
    }

    /// Makes memory of at least this many bytes, which cost nothing before they are touched.
    pub fn of_bytes(bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self::create(bytes.div_ceil(WORD_BYTES))
    }

    /// Takes memory over that another process made, as long as it is.
    pub fn from_fd_whole(fd: OwnedFd) -> io::Result<Self> {
        let bytes = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        Self::from_fd(fd, usize::try_from(bytes).unwrap_or(0) / WORD_BYTES)
    }

    /// Takes memory over that another process made; it must hold this many words.
    pub fn from_fd(fd: OwnedFd, words: usize) -> io::Result<Self> {
        let bytes = words.saturating_mul(WORD_BYTES);
        let there = rustix::fs::fstat(&fd)?.st_size;
        if words == 0 || u64::try_from(there).unwrap_or(0) < bytes as u64 {
            let message = format!("shared memory of {there} bytes was handed over, where {bytes} are needed");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Self::map(fd, 0, bytes)
    }

    /// These bytes of it as memory of its own, by a mapping of their own. They begin at a multiple of a page.
    pub fn part(&self, bytes: Range<u64>) -> io::Result<Self> {
        if bytes.is_empty() || bytes.end > self.bytes() as u64 {
            let message = format!("bytes {bytes:?} are not in shared memory of {}", self.bytes());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        // Both ends were found to be inside of what is mapped.
        Self::map(self.fd.try_clone()?, self.from + bytes.start, (bytes.end - bytes.start) as usize)
    }

    fn map(fd: OwnedFd, from: u64, bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new().offset(from).len(bytes).map_raw(fd.as_raw_fd())?;
        Ok(Self { map, fd, from })
    }

    /// Identifies it for another process; of a part it names the whole.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How many words there are.
    pub fn words(&self) -> usize {
        self.map.len() / WORD_BYTES
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Copies bytes out, from the byte `at` on. Faster than through the map where many are wanted once: no page has to be
    /// brought into this process's memory first.
    pub fn read_at(&self, at: usize, mut out: &mut [u8]) -> io::Result<()> {
        let mut at = self.place(at, out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        while !out.is_empty() {
            match rustix::io::pread(&self.fd, &mut *out, at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    at += count as u64;
                    out = &mut out[count..];
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Copies bytes in, from the byte `at` on. Where there is no memory left for them it fails, and no process is killed.
    pub(crate) fn write_at(&self, at: usize, mut bytes: &[u8]) -> io::Result<()> {
        let mut at = self.place(at, bytes.len()).ok_or(io::ErrorKind::WriteZero)?;
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.fd, bytes, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    at += count as u64;
                    bytes = &bytes[count..];
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Where bytes are in what the descriptor names, if all of them are here.
    fn place(&self, at: usize, bytes: usize) -> Option<u64> {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes());
        fits.then(|| self.from + at as u64)
    }

    /// Where it lies in this process, for a device that reads and writes it by itself.
    pub(crate) fn address(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Gives these bytes memory now, all at once. Otherwise they get it when they are touched, and where there is none left
    /// then, the system kills the process.
    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        match self.map.advise_range(memmap2::Advice::PopulateWrite, range.start, range.len()) {
            // A system that does not know the call can still be asked for the memory alone.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let (at, bytes) = (self.from + range.start as u64, range.len() as u64);
                Ok(rustix::fs::fallocate(&self.fd, rustix::fs::FallocateFlags::empty(), at, bytes)?)
            }
            done => done,
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = range;
            Ok(())
        }
    }

    /// Copies words in, from the word `at` on. Words that do not fit are a bug.
    pub fn write(&self, at: usize, words: &[u32]) {
        let to = self.word_ptr(at, words.len());
        // SAFETY: `word_ptr` checked that the range lies inside the map, which is as aligned as a page. The source is a
        // slice of this process, so the two do not overlap. No reference into the map exists: both processes reach
        // it by such copies alone, and any bits are a word. Which process may touch which words at a time is settled by
        // messages between them; one that does not keep to it spoils words, and nothing else.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), to, words.len()) }
    }

    /// Copies words out, from the word `at` on. Words beyond the end are a bug.
    pub fn read(&self, at: usize, words: &mut [u32]) {
        let from = self.word_ptr(at, words.len());
        // SAFETY: as in `write`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(from, words.as_mut_ptr(), words.len()) }
    }

    /// Copies floats in, from the word `at` on.
    pub fn write_floats(&self, at: usize, floats: &[f32]) {
        let to = self.word_ptr(at, floats.len()).cast::<f32>();
        // SAFETY: as in `write`; a float is as large and as aligned as a word.
        unsafe { std::ptr::copy_nonoverlapping(floats.as_ptr(), to, floats.len()) }
    }

    /// Copies floats out, from the word `at` on.
    pub fn read_floats(&self, at: usize, floats: &mut [f32]) {
        let from = self.word_ptr(at, floats.len()).cast::<f32>();
        // SAFETY: as in `read`; any bits are a float.
        unsafe { std::ptr::copy_nonoverlapping(from, floats.as_mut_ptr(), floats.len()) }
    }

    /// Copies bits in, from the word `at` on; two words for each.
    pub fn write_bits(&self, at: usize, bits: &[u64]) {
        let to = self.word_ptr(at, bits.len() * 2).cast::<u8>();
        // SAFETY: as in `write`; the copy is of bytes, which need no alignment.
        unsafe { std::ptr::copy_nonoverlapping(bits.as_ptr().cast::<u8>(), to, bits.len() * 8) }
    }

    /// Copies bits out, from the word `at` on.
    pub fn read_bits(&self, at: usize, bits: &mut [u64]) {
        let from = self.word_ptr(at, bits.len() * 2).cast::<u8>();
        // SAFETY: as in `read`; the copy is of bytes, and any bytes are a number.
        unsafe { std::ptr::copy_nonoverlapping(from, bits.as_mut_ptr().cast::<u8>(), bits.len() * 8) }
    }

    /// The address of a word that has this many words from it on inside the map.
    fn word_ptr(&self, at: usize, words: usize) -> *mut u32 {
        let fits = at.checked_add(words).is_some_and(|end| end <= self.words());
        assert!(fits, "{words} words at {at} do not fit into {} words of shared memory", self.words());
        self.map.as_mut_ptr().cast::<u32>().wrapping_add(at)
    }
}

/// Memory with a size and no name.
#[cfg(target_os = "linux")]
fn nameless(bytes: usize) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("magray", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes as u64)?;
    // Were it made shorter, the process that touches the lost part would be killed.
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Memory with a size, whose name is removed before another process could open it.
#[cfg(not(target_os = "linux"))]
fn nameless(bytes: usize) -> io::Result<OwnedFd> {
    use rustix::{fs::Mode, fs::ftruncate, shm};
    use std::sync::atomic::{AtomicU32, Ordering};
    static MADE: AtomicU32 = AtomicU32::new(0);
    let name = format!("/magray-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    // A name that is there already belongs to a process that was killed before it could remove it.
    let _ = shm::unlink(&name);
    let fd = shm::open(&name, shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR, Mode::RUSR | Mode::WUSR)?;
    shm::unlink(&name)?;
    ftruncate(&fd, bytes as u64)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_see_what_the_other_wrote() {
        let made = SharedMemory::create(5000).unwrap();
        let taken = SharedMemory::from_fd(made.fd().try_clone_to_owned().unwrap(), 5000).unwrap();
        let mut words = [7; 3];
        taken.read(4990, &mut words);
        assert_eq!(words, [0; 3]);
        made.write(4990, &[1, 2, u32::MAX]);
        taken.read(4990, &mut words);
        assert_eq!(words, [1, 2, u32::MAX]);
        taken.write_floats(0, &[0.5, -2.0]);
        drop(taken);
        let mut floats = [0.0; 2];
        made.read_floats(0, &mut floats);
        assert_eq!(floats, [0.5, -2.0]);
    }

    #[test]
    fn bytes_are_read_through_the_descriptor_as_through_the_map() {
        let made = SharedMemory::of_bytes(1 << 20).unwrap();
        assert_eq!(made.bytes(), 1 << 20);
        made.populate(0..1 << 16).unwrap();
        made.write(1000, &[0x0403_0201, 0x0807_0605]);
        let taken = SharedMemory::from_fd_whole(made.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(taken.bytes(), 1 << 20);
        let mut bytes = [9; 10];
        taken.read_at(4001, &mut bytes).unwrap();
        assert_eq!(bytes, [2, 3, 4, 5, 6, 7, 8, 0, 0, 0]);
        assert!(taken.read_at((1 << 20) - 5, &mut bytes).is_err());
        made.write_at(4003, &[30, 31]).unwrap();
        taken.read_at(4001, &mut bytes).unwrap();
        assert_eq!(bytes[..5], [2, 3, 30, 31, 6]);
        assert!(made.write_at((1 << 20) - 1, &[1, 2]).is_err(), "beyond the end");
    }

    #[test]
    fn a_part_is_memory_of_its_own_in_the_same_place() {
        let whole = SharedMemory::of_bytes(3 << 16).unwrap();
        let part = whole.part(1 << 16..(2 << 16) + 10).unwrap();
        assert_eq!(part.bytes(), (1 << 16) + 10);
        part.write_at(3, &[7, 8]).unwrap();
        part.write(2, &[9]);
        let mut bytes = [0; 9];
        whole.read_at((1 << 16) + 3, &mut bytes).unwrap();
        assert_eq!(bytes, [7, 8, 0, 0, 0, 9, 0, 0, 0]);
        part.populate(0..4096).unwrap();
        let inner = part.part(1 << 16..(1 << 16) + 10).unwrap();
        whole.write_at(2 << 16, &[5]).unwrap();
        inner.read_at(0, &mut bytes[..1]).unwrap();
        assert_eq!(bytes[0], 5);
        assert!(whole.part(0..(3 << 16) + 1).is_err() && part.part(1 << 16..2 << 16).is_err());
        assert!(whole.part(1 << 16..1 << 16).is_err(), "nothing");
        assert!(part.write_at(1 << 16, &[0; 11]).is_err() && inner.read_at(10, &mut bytes).is_err(), "not its own");
    }

    #[test]
    fn memory_that_is_too_short_is_refused() {
        let made = SharedMemory::create(10).unwrap();
        let refused = SharedMemory::from_fd(made.fd().try_clone_to_owned().unwrap(), 11).unwrap_err();
        assert!(refused.to_string().contains("40 bytes") && refused.to_string().contains("44"), "{refused}");
        assert!(SharedMemory::create(usize::MAX).is_err());
    }

    #[test]
    #[should_panic(expected = "do not fit")]
    fn words_beyond_the_end_are_a_bug() {
        SharedMemory::create(4).unwrap().write(3, &[1, 2]);
    }

    #[test]
    #[should_panic(expected = "do not fit")]
    fn a_place_that_overflows_is_a_bug() {
        SharedMemory::create(4).unwrap().read(usize::MAX, &mut [0; 2]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn no_process_can_shorten_it_under_the_other() {
        let made = SharedMemory::create(4).unwrap();
        assert!(rustix::fs::ftruncate(made.fd(), 4).is_err());
    }
}
