//! Vectors by slot: setting, clearing and reading them. Searches in `top`.

use super::chunk::{CHUNK_ROWS, Chunk, Layout, Row};
use super::sketch::{Signs, Sketcher};
use super::{MAX_DIMS, Metric, ScanError, Storage, check, normalise};
use crate::cpu::Region;
use half::f16;

/// Dense vectors of one length, each in a slot of its own.
pub struct Rows {
    pub(super) layout: Layout,
    pub(super) metric: Metric,
    pub(super) chunks: Vec<Chunk>,
    /// Once there are many rows.
    pub(super) sketcher: Option<Sketcher>,
    /// A chunk's signs beside each chunk, if there is a sketcher.
    pub(super) signs: Vec<Signs>,
    /// The memory of signs.
    region: Region,
    len: usize,
}

/// Signs are kept from this many rows on: their mean is known well by then, and smaller collections never read them.
const SIGNS_KEPT_FROM: usize = 1 << 16;
/// Signs of fewer dimensions tell little, and bytes are few.
const SIGNS_DIMS_MIN: usize = 128;

impl Rows {
    /// No rows yet. Vectors have 1 to [`MAX_DIMS`] dimensions.
    pub fn new(dims: usize, storage: Storage, metric: Metric) -> Self {
        assert!((1..=MAX_DIMS).contains(&dims), "1 to {MAX_DIMS} dimensions");
        // Sums of absolute differences are not sums of products: bytes with scales of their own do not bound them.
        let has_bytes = metric != Metric::Manhattan || storage == Storage::Int8;
        Self {
            layout: Layout { dims, storage, has_bytes },
            metric,
            chunks: Vec::new(),
            sketcher: None,
            signs: Vec::new(),
            region: Region::default(),
            len: 0,
        }
    }

    /// Sets the vector of a slot, which may have one. A refused vector changes nothing.
    pub fn set(&mut self, slot: u32, vector: &[f32]) -> Result<(), ScanError> {
        let dims = self.layout.dims;
        if vector.len() != dims {
            return Err(ScanError::Dims { got: vector.len(), dims });
        }
        let length = check(vector)?;
        let mut vector = vector.to_vec();
        if self.metric == Metric::Cosine {
            normalise(&mut vector, length);
        }
        if self.layout.storage == Storage::F16
            && let Some(at) = vector.iter().position(|&x| f16::from_f32(x).is_infinite())
        {
            return Err(ScanError::BeyondF16 { at, value: vector[at] });
        }
        let (chunk, row) = place(slot);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, Chunk::new);
        }
        let rows = &mut self.chunks[chunk];
        rows.reserve(&self.layout, row);
        self.len += usize::from(!rows.has(row));
        rows.write(&self.layout, row, &mut vector);
        match &self.sketcher {
            Some(sketcher) => {
                self.signs.resize_with(self.chunks.len(), || Signs::new(sketcher, &self.region));
                self.signs[chunk].write(sketcher, row, &vector);
            }
            None if self.len >= SIGNS_KEPT_FROM => self.keep_signs(),
            None => {}
        }
        Ok(())
    }

    /// Makes the signs of all rows, which `set` keeps from then on.
    pub(super) fn keep_signs(&mut self) {
        if self.layout.dims < SIGNS_DIMS_MIN || self.metric == Metric::Manhattan {
            return;
        }
        let mut sums = vec![0.0f64; self.layout.dims];
        for vector in self.slots().filter_map(|slot| self.get(slot)) {
            sums.iter_mut().zip(vector).for_each(|(sum, x)| *sum += f64::from(x));
        }
        let sketcher = Sketcher::new(sums.iter().map(|sum| (sum / self.len as f64) as f32).collect());
        let mut signs: Vec<Signs> = self.chunks.iter().map(|_| Signs::new(&sketcher, &self.region)).collect();
        for slot in self.slots() {
            if let Some(vector) = self.get(slot) {
                let (chunk, row) = place(slot);
                signs[chunk].write(&sketcher, row, &vector);
            }
        }
        (self.sketcher, self.signs) = (Some(sketcher), signs);
    }

    fn slots(&self) -> impl Iterator<Item = u32> {
        0..(self.chunks.len() * CHUNK_ROWS) as u32
    }

    /// Empties a slot: no search returns it until it is set again.
    pub fn clear(&mut self, slot: u32) {
        let (chunk, row) = place(slot);
        self.len -= usize::from(self.chunks.get_mut(chunk).is_some_and(|chunk| chunk.clear(row)));
    }

    /// The vector of a slot as kept: normalised and rounded, by metric and storage.
    pub fn get(&self, slot: u32) -> Option<Vec<f32>> {
        let (chunk, row) = place(slot);
        let chunk = self.chunks.get(chunk).filter(|chunk| chunk.has(row))?;
        let mut space = vec![0.0; self.layout.padded()];
        let mut vector = match chunk.row(&self.layout, row, &mut space) {
            Row::F32(numbers) => numbers.to_vec(),
            Row::F16(numbers) => numbers.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect(),
        };
        vector.truncate(self.layout.dims);
        Some(vector)
    }

    /// How many slots have a vector.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no slot has a vector.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Dimensions of a vector.
    pub fn dims(&self) -> usize {
        self.layout.dims
    }

    /// How vectors are compared.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// How vectors are kept.
    pub fn storage(&self) -> Storage {
        self.layout.storage
    }

    /// Memory that the rows take.
    pub fn bytes(&self) -> usize {
        let signs: usize = self.signs.iter().map(Signs::memory_bytes).sum();
        self.chunks.iter().map(Chunk::memory_bytes).sum::<usize>() + signs
    }
}

/// The chunk of a slot, and its row there.
fn place(slot: u32) -> (usize, usize) {
    (slot as usize / CHUNK_ROWS, slot as usize % CHUNK_ROWS)
}
