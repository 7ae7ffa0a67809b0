//! Memory of the host that never moves and that the GPU reads and writes itself, kept for the next who needs it.
//! Nothing is put together of pieces: a copy may not reach across two of the driver's allocations.

use super::device_memory::Resting;
use super::error::CudaError;
use super::progress::Progress;
use super::sys;
use magray_core::pool::PoolStats;
use std::sync::Arc;

/// The smallest piece, in bytes: a page.
const LEAST_BYTES: usize = 4096;
/// Sizes are powers of two, each with a list of its own.
const SIZES: usize = 40;

/// The page-locked memory of one context: pieces of powers of two, by size.
#[derive(Debug)]
pub(super) struct PinnedMemory {
    idle: [Vec<Idle>; SIZES],
    resting: Vec<Resting<Piece>>,
    epoch: u32,
    stats: PoolStats,
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) address: *mut u8,
    pub(super) bytes: usize,
}

// SAFETY: the memory belongs to who has the piece, and may be freed from any thread.
unsafe impl Send for Piece {}

#[derive(Debug)]
struct Idle {
    piece: Piece,
    since: u32,
}

fn class_of(bytes: usize) -> usize {
    (bytes.max(LEAST_BYTES).next_power_of_two() / LEAST_BYTES).ilog2() as usize
}

impl PinnedMemory {
    pub(super) fn new() -> Self {
        Self { idle: std::array::from_fn(|_| Vec::new()), resting: Vec::new(), epoch: 0, stats: PoolStats::default() }
    }

    /// Takes a piece of at least this many bytes, with undefined content; the context is current.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Piece, CudaError> {
        let class = class_of(bytes);
        let piece = match self.idle.get_mut(class).and_then(Vec::pop) {
            Some(Idle { piece, .. }) => {
                self.stats.hits += 1;
                piece
            }
            None => {
                let bytes = LEAST_BYTES << class;
                let mut address = std::ptr::null_mut();
                let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
                // SAFETY: a context is current; writes one address, freed in `free`.
                CudaError::check(unsafe { sys::cuMemHostAlloc(&mut address, bytes, flags) })?;
                self.stats.misses += 1;
                self.stats.driver_calls += 1;
                self.stats.reserved += bytes as u64;
                self.stats.peak_reserved = self.stats.peak_reserved.max(self.stats.reserved);
                Piece { address: address.cast(), bytes }
            }
        };
        self.stats.blocks += 1;
        self.stats.used += piece.bytes as u64;
        self.stats.peak_used = self.stats.peak_used.max(self.stats.used);
        Ok(piece)
    }

    /// Frees a piece, which waits until streams are done with it.
    pub(super) fn give_back(&mut self, piece: Piece, until: Vec<(Arc<Progress>, u64)>) {
        self.stats.blocks -= 1;
        self.stats.used -= piece.bytes as u64;
        match until.is_empty() {
            true => self.keep(piece),
            // The host writes into it at once, so not even the same stream may have it before.
            false => self.resting.push(Resting { what: piece, until }),
        }
    }

    /// Whether any piece waits for a stream.
    pub(super) fn rests(&self) -> bool {
        !self.resting.is_empty()
    }

    fn keep(&mut self, piece: Piece) {
        let idle = Idle { since: self.epoch, piece };
        self.idle[class_of(idle.piece.bytes)].push(idle);
    }

    /// Frees pieces whose streams have reached their points.
    pub(super) fn reached(&mut self) {
        let mut at = 0;
        while at < self.resting.len() {
            match self.resting[at].is_over() {
                true => {
                    let piece = self.resting.swap_remove(at).what;
                    self.keep(piece);
                }
                false => at += 1,
            }
        }
    }

    /// The epoch advances; what was unused for this long is given back. The context is current.
    pub(super) fn tend(&mut self, keep_epochs: u32) {
        self.epoch += 1;
        let (epoch, stats) = (self.epoch, &mut self.stats);
        for idle in &mut self.idle {
            idle.retain(|idle| {
                let stays = epoch - idle.since <= keep_epochs;
                if !stays {
                    free(&idle.piece, stats);
                }
                stays
            });
        }
    }

    /// Gives unused pieces back. The context is current.
    pub(super) fn trim_all(&mut self) {
        for idle in self.idle.iter_mut().flat_map(std::mem::take) {
            free(&idle.piece, &mut self.stats);
        }
    }

    /// Gives back everything: no stream is left. The context is current.
    pub(super) fn close(&mut self) {
        self.trim_all();
        for resting in std::mem::take(&mut self.resting) {
            free(&resting.what, &mut self.stats);
        }
    }

    pub(super) fn stats(&self) -> PoolStats {
        let largest = self.idle.iter().rev().flatten().next().map_or(0, |idle| idle.piece.bytes as u64);
        PoolStats { largest_free: largest, ..self.stats }
    }
}

/// Gives a piece back to the driver.
fn free(piece: &Piece, stats: &mut PoolStats) {
    stats.trims += 1;
    stats.driver_calls += 1;
    stats.reserved -= piece.bytes as u64;
    // SAFETY: allocated once in `take`, and the caller forgets the piece. A failure means a lost context.
    let _ = unsafe { sys::cuMemFreeHost(piece.address.cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_classes_of_powers_of_two() {
        assert_eq!([1, 4096, 4097, 8192, 8 << 20].map(class_of), [0, 0, 1, 1, 11]);
    }
}
