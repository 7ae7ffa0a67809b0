//! Rows of a run of slots: the numbers, and the bytes that are scanned with what bounds their error.
//! Grows by doubling up to its run of slots; never moves a row to another slot.

use super::Storage;
use crate::cpu::{Aligned, Plain};
use half::f16;

/// Slots of a full chunk.
pub(super) const CHUNK_ROWS: usize = 1 << 14;
/// Rows whose bytes lie together: two tiles of sixteen.
pub(super) const PANEL_ROWS: usize = 32;
/// Dimensions of a step through a panel: a line of bytes.
pub(super) const STEP: usize = 64;
const TILE_ROWS: usize = 16;
const TILE_BYTES: usize = TILE_ROWS * STEP;
/// Numbers of a kept row are padded to whole vectors.
pub(super) const PAD: usize = 16;
/// What stands for zero: bytes are unsigned, because the products are of unsigned with signed bytes.
pub(super) const ZERO: i32 = 128;
/// The largest level of a byte.
const LEVELS: f32 = 127.0;
/// Added and taken away it rounds small floats to whole numbers, to even ones between two.
const TO_WHOLE: f32 = 12_582_912.0;
const FIRST_ROWS: usize = 64;

/// How rows lie in every chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) dims: usize,
    pub(super) storage: Storage,
    /// Whether rows are kept as bytes.
    pub(super) has_bytes: bool,
}

impl Layout {
    /// Numbers of a kept row.
    pub(super) fn padded(&self) -> usize {
        self.dims.next_multiple_of(PAD)
    }

    /// Steps of a panel.
    pub(super) fn steps(&self) -> usize {
        self.dims.div_ceil(STEP)
    }

    pub(super) fn panel_bytes(&self) -> usize {
        self.steps() * 2 * TILE_BYTES
    }
}

/// What the scan knows of a row's bytes. All are rounded up where a bound needs it.
pub(super) struct Bounds {
    /// What a level is worth.
    pub(super) scales: Aligned<f32>,
    /// Length of the difference between the row and its bytes.
    pub(super) errors: Aligned<f32>,
    /// Length of the row.
    pub(super) lengths: Aligned<f32>,
}

/// A row as kept.
#[derive(Clone, Copy)]
pub(super) enum Row<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
}

/// Rows of up to [`CHUNK_ROWS`] slots.
pub(super) struct Chunk {
    rows: usize,
    /// A bit for each row that is set.
    set: Vec<u64>,
    wide: Aligned<f32>,
    half: Aligned<u16>,
    /// Panels of [`PANEL_ROWS`]; in a panel steps of [`STEP`] dimensions, in a step two tiles, in a tile
    /// four dimensions of each of its rows in turn.
    bytes: Aligned<u8>,
    bounds: Bounds,
}

impl Chunk {
    pub(super) fn new() -> Self {
        Self::with_rows(&Layout { dims: 1, storage: Storage::Int8, has_bytes: false }, 0)
    }

    fn with_rows(layout: &Layout, rows: usize) -> Self {
        let kept = |storage| if layout.storage == storage { rows * layout.padded() } else { 0 };
        let scanned = if layout.has_bytes { rows } else { 0 };
        Self {
            rows,
            set: vec![0; rows / 64],
            wide: Aligned::zeroed(kept(Storage::F32)),
            half: Aligned::zeroed(kept(Storage::F16)),
            bytes: Aligned::zeroed(scanned / PANEL_ROWS * layout.panel_bytes()),
            bounds: Bounds {
                scales: Aligned::zeroed(scanned),
                errors: Aligned::zeroed(scanned),
                lengths: Aligned::zeroed(scanned),
            },
        }
    }

    /// Makes room for this row.
    pub(super) fn reserve(&mut self, layout: &Layout, row: usize) {
        assert!(row < CHUNK_ROWS, "a row of another chunk");
        if row < self.rows {
            return;
        }
        let mut grown = Self::with_rows(layout, (row + 1).next_power_of_two().max(FIRST_ROWS));
        fn copy<T: Plain>(to: &mut Aligned<T>, from: &Aligned<T>) {
            to[..from.len()].copy_from_slice(from);
        }
        grown.set[..self.set.len()].copy_from_slice(&self.set);
        copy(&mut grown.wide, &self.wide);
        copy(&mut grown.half, &self.half);
        copy(&mut grown.bytes, &self.bytes);
        copy(&mut grown.bounds.scales, &self.bounds.scales);
        copy(&mut grown.bounds.errors, &self.bounds.errors);
        copy(&mut grown.bounds.lengths, &self.bounds.lengths);
        *self = grown;
    }

    /// Keeps a row for which there is room. What is kept may be rounded: `vector` becomes what was kept.
    #[inline(always)]
    pub(super) fn write(&mut self, layout: &Layout, row: usize, vector: &mut [f32]) {
        if layout.storage == Storage::F16 {
            let kept = &mut self.half[row * layout.padded()..][..layout.dims];
            for (kept, x) in kept.iter_mut().zip(&mut *vector) {
                let short = f16::from_f32(*x);
                (*kept, *x) = (short.to_bits(), short.to_f32());
            }
        }
        if layout.has_bytes {
            self.write_bytes(layout, row, vector);
        }
        if layout.storage == Storage::F32 {
            self.wide[row * layout.padded()..][..layout.dims].copy_from_slice(vector);
        }
        self.set[row / 64] |= 1 << (row % 64);
    }

    #[inline(always)]
    fn write_bytes(&mut self, layout: &Layout, row: usize, vector: &mut [f32]) {
        let largest = vector.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let scale = largest / LEVELS;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        // A scale so small that its inverse overflows has no levels: the bytes stay zero and the error is the row.
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        let (mut errors, mut squares) = ([0.0f64; 4], [0.0f64; 4]);
        let tile = byte_offset(layout, row);
        for (quad, numbers) in vector.chunks_mut(4).enumerate() {
            let mut bytes = [ZERO as u8; 4];
            let numbers = numbers.iter_mut().zip(&mut bytes).zip(errors.iter_mut().zip(&mut squares));
            for ((x, byte), (error, square)) in numbers {
                let level = ((*x * inverse).clamp(-LEVELS, LEVELS) + TO_WHOLE) - TO_WHOLE;
                *byte = (level as i32 + ZERO) as u8;
                if layout.storage == Storage::Int8 {
                    *x = level * scale;
                }
                let missing = f64::from(*x) - f64::from(level) * f64::from(scale);
                *error += missing * missing;
                *square += f64::from(*x) * f64::from(*x);
            }
            let at = tile + quad / TILE_ROWS * 2 * TILE_BYTES + quad % TILE_ROWS * STEP;
            self.bytes[at..at + 4].copy_from_slice(&bytes);
        }
        self.bounds.scales[row] = scale;
        self.bounds.errors[row] = raised(errors.iter().sum::<f64>().sqrt());
        self.bounds.lengths[row] = raised(squares.iter().sum::<f64>().sqrt());
    }

    /// Forgets a row. Returns whether it was set.
    pub(super) fn clear(&mut self, row: usize) -> bool {
        let was_set = self.has(row);
        if was_set {
            self.set[row / 64] &= !(1 << (row % 64));
        }
        was_set
    }

    pub(super) fn has(&self, row: usize) -> bool {
        row < self.rows && self.set[row / 64] >> (row % 64) & 1 == 1
    }

    /// The first row that is longer than this by the bounds of its bytes.
    pub(super) fn longer_than(&self, length: f32) -> Option<usize> {
        let rows = self.bounds.lengths.iter().enumerate();
        rows.filter(|(_, own)| **own > length).map(|(row, _)| row).find(|row| self.has(*row))
    }

    /// A bit for each row that is set.
    pub(super) fn set_words(&self) -> &[u64] {
        &self.set
    }

    /// The bytes of the rows, and what bounds their error.
    pub(super) fn scanned(&self) -> (&[u8], &Bounds) {
        (&self.bytes, &self.bounds)
    }

    /// A row as kept, padded with zeros; `None` where it is kept as bytes alone.
    #[inline]
    pub(super) fn kept(&self, layout: &Layout, row: usize) -> Option<Row<'_>> {
        let padded = layout.padded();
        match layout.storage {
            Storage::F32 => Some(Row::F32(&self.wide[row * padded..][..padded])),
            Storage::F16 => Some(Row::F16(&self.half[row * padded..][..padded])),
            Storage::Int8 => None,
        }
    }

    /// A row as kept, padded with zeros; `space` holds it where it must be made from bytes.
    pub(super) fn row<'a>(&'a self, layout: &Layout, row: usize, space: &'a mut [f32]) -> Row<'a> {
        self.kept(layout, row).unwrap_or_else(|| {
            self.widen(layout, row, space);
            Row::F32(&space[..layout.padded()])
        })
    }

    fn widen(&self, layout: &Layout, row: usize, space: &mut [f32]) {
        let (tile, scale) = (byte_offset(layout, row), self.bounds.scales[row]);
        for (quad, numbers) in space[..layout.dims].chunks_mut(4).enumerate() {
            let at = tile + quad / TILE_ROWS * 2 * TILE_BYTES + quad % TILE_ROWS * STEP;
            for (x, &byte) in numbers.iter_mut().zip(&self.bytes[at..at + 4]) {
                *x = (i32::from(byte) - ZERO) as f32 * scale;
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let bounds = 3 * self.bounds.scales.len();
        self.set.len() * 8 + (self.wide.len() + bounds) * 4 + self.half.len() * 2 + self.bytes.len()
    }
}

/// Where the first four bytes of a row lie.
fn byte_offset(layout: &Layout, row: usize) -> usize {
    row / PANEL_ROWS * layout.panel_bytes() + row % PANEL_ROWS / TILE_ROWS * TILE_BYTES + row % TILE_ROWS * 4
}

/// As a 32-bit float that is not less.
#[inline]
pub(super) fn raised(x: f64) -> f32 {
    (x * (1.0 + 1e-6)) as f32 + f32::MIN_POSITIVE
}
