//! Memory that supervisor and worker share for vectors: a bit for each that may be found, then those that are put.
//! One order uses it at a time.

use super::message::HeldShape;
use magray_device::SharedMemory;
use std::io;
use std::os::fd::OwnedFd;

/// Bytes of vectors that are put at a time.
const PUT_BYTES: usize = 4 << 20;

/// The memory, and how it is divided.
#[derive(Debug)]
pub struct VectorWindow {
    memory: SharedMemory,
    shape: HeldShape,
}

impl VectorWindow {
    /// New memory.
    pub fn create(shape: HeldShape) -> io::Result<Self> {
        Ok(Self { memory: SharedMemory::create(words_of(shape))?, shape })
    }

    /// The memory that another process has created for the same shape.
    pub(super) fn from_fd(fd: OwnedFd, shape: HeldShape) -> io::Result<Self> {
        Ok(Self { memory: SharedMemory::from_fd(fd, words_of(shape))?, shape })
    }

    /// What the other process gets.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Vectors that are put at a time, at most.
    pub fn put_max(&self) -> usize {
        put_max(self.shape)
    }

    /// Lays vectors ready to be put; no more than [`VectorWindow::put_max`].
    pub fn write(&self, slots: &[u32], vectors: &[f32], offsets: &[f32]) {
        let at = bits_words(self.shape);
        self.memory.write(at, slots);
        self.memory.write_floats(at + self.put_max(), offsets);
        self.memory.write_floats(at + 2 * self.put_max(), vectors);
    }

    /// The vectors that lie ready: slots, vectors, offsets.
    pub(super) fn read(&self, count: usize) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
        let (mut slots, mut offsets) = (vec![0; count], vec![0.0; count]);
        let mut vectors = vec![0.0; count * self.shape.dims as usize];
        let at = bits_words(self.shape);
        self.memory.read(at, &mut slots);
        self.memory.read_floats(at + self.put_max(), &mut offsets);
        self.memory.read_floats(at + 2 * self.put_max(), &mut vectors);
        (slots, vectors, offsets)
    }

    /// Lays ready which may be found; bits beyond the room do not matter.
    pub fn write_bits(&self, bits: &[u64]) {
        let room = bits_words(self.shape) / 2;
        let bits = &bits[..bits.len().min(room)];
        self.memory.write_bits(0, bits);
        self.memory.write_bits(bits.len() * 2, &vec![0; room - bits.len()]);
    }

    pub(super) fn read_bits(&self) -> Vec<u64> {
        let mut bits = vec![0; bits_words(self.shape) / 2];
        self.memory.read_bits(0, &mut bits);
        bits
    }
}

fn bits_words(shape: HeldShape) -> usize {
    (shape.room as usize).div_ceil(64) * 2
}

fn put_max(shape: HeldShape) -> usize {
    (PUT_BYTES / 4 / shape.dims.max(1) as usize).max(1)
}

fn words_of(shape: HeldShape) -> usize {
    bits_words(shape) + put_max(shape) * (2 + shape.dims as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_vectors_arrive_as_they_were_written() {
        let window = VectorWindow::create(HeldShape { dims: 3, room: 130 }).unwrap();
        window.write_bits(&[u64::MAX, 5, 1]);
        window.write(&[7, 9], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[0.5, f32::NEG_INFINITY]);
        assert_eq!(window.read_bits(), [u64::MAX, 5, 1]);
        let put = (vec![7, 9], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![0.5, f32::NEG_INFINITY]);
        assert_eq!(window.read(2), put);
        window.write_bits(&[3]);
        assert_eq!(window.read_bits(), [3, 0, 0], "slots beyond the end are not allowed");
        window.write_bits(&[1, 2, 3, 4, 5]);
        assert_eq!((window.read_bits(), window.read(2)), (vec![1, 2, 3], put_again()));
    }

    fn put_again() -> (Vec<u32>, Vec<f32>, Vec<f32>) {
        (vec![7, 9], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![0.5, f32::NEG_INFINITY])
    }
}
