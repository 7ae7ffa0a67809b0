//! Vectors by slot: setting, clearing and reading them. Searches in `top`.

use super::chunk::{CHUNK_ROWS, Chunk, Layout, Row};
use super::kernels::{Loop, run_on};
use super::sketch::{Signs, Sketcher};
use super::{MAX_DIMS, Metric, ScanError, Storage, check, normalise};
use crate::cpu::{Cpu, Region, Shares};
use half::f16;
use magray_core::CpuPath;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
        let vector = prepared(&self.layout, self.metric, vector)?;
        let (chunk, row) = place(slot);
        self.reach(chunk);
        let signs = self.sketcher.as_ref().map(|sketcher| (sketcher, &mut self.signs[chunk]));
        let mut part = Part { chunk: &mut self.chunks[chunk], signs };
        self.len += part.set(&self.layout, row, vector);
        self.keep_signs_of_many(None);
        Ok(())
    }

    /// Sets the vectors of many slots, which ascend, with all threads. Returns the slots whose vectors are refused.
    pub fn set_all(&mut self, cpu: &Cpu, slots: &[u32], vectors: &[f32]) -> Vec<u32> {
        let dims = self.layout.dims;
        assert!(slots.is_sorted() && vectors.len() == slots.len() * dims, "a vector for each slot, which ascend");
        let Some(&last) = slots.last() else { return Vec::new() };
        self.reach(place(last).0);
        let (layout, metric) = (&self.layout, self.metric);
        let signs = self.signs.iter_mut().map(|signs| self.sketcher.as_ref().map(|sketcher| (sketcher, signs)));
        let parts = self.chunks.iter_mut().zip(signs.chain(std::iter::repeat_with(|| None)));
        let mut parts = parts.map(|(chunk, signs)| Part { chunk, signs }).enumerate();
        let mut rest = vectors;
        let runs = slots.chunk_by(|one, next| place(*one).0 == place(*next).0).filter_map(|slots| {
            let vectors = rest.split_off(..slots.len() * dims)?;
            let (_, part) = parts.find(|(chunk, _)| *chunk == place(slots[0]).0)?;
            Some(Mutex::new((part, slots, vectors)))
        });
        let runs: Vec<_> = runs.collect();
        let done = Mutex::new((0, Vec::new()));
        each_on(Some(cpu), runs.len(), |run, path| {
            let (part, slots, vectors) = &mut *locked(&runs[run]);
            let (mut added, mut refused) = (0, Vec::new());
            run_on(path, SetRun { layout, metric, part, slots, vectors, added: &mut added, refused: &mut refused });
            let mut done = locked(&done);
            done.0 += added;
            done.1.extend(refused);
        });
        drop(runs);
        let (added, refused) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.len += added;
        self.keep_signs_of_many(Some(cpu));
        refused
    }

    /// Makes the chunks up to this one.
    fn reach(&mut self, chunk: usize) {
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, Chunk::new);
        }
        if let Some(sketcher) = &self.sketcher {
            self.signs.resize_with(self.chunks.len(), || Signs::new(sketcher, &self.region));
        }
    }

    fn keep_signs_of_many(&mut self, cpu: Option<&Cpu>) {
        if self.sketcher.is_none() && self.len >= SIGNS_KEPT_FROM {
            self.keep_signs(cpu);
        }
    }

    /// Makes the signs of all rows, which `set` keeps from then on.
    pub(super) fn keep_signs(&mut self, cpu: Option<&Cpu>) {
        if self.layout.dims < SIGNS_DIMS_MIN || self.metric == Metric::Manhattan {
            return;
        }
        let sums: Vec<_> = self.chunks.iter().map(|_| Mutex::new(vec![0.0f64; self.layout.dims])).collect();
        each_on(cpu, sums.len(), |chunk, _| {
            let own = &mut *locked(&sums[chunk]);
            self.each_row(chunk, |_, vector| own.iter_mut().zip(vector).for_each(|(sum, x)| *sum += f64::from(*x)));
        });
        let mean = |at: usize| (sums.iter().map(|sums| locked(sums)[at]).sum::<f64>() / self.len as f64) as f32;
        let sketcher = Sketcher::new((0..self.layout.dims).map(mean).collect());
        let signs: Vec<_> = self.chunks.iter().map(|_| Mutex::new(Signs::new(&sketcher, &self.region))).collect();
        each_on(cpu, signs.len(), |chunk, path| {
            run_on(path, WriteSigns { rows: self, chunk, sketcher: &sketcher, signs: &mut locked(&signs[chunk]) });
        });
        self.signs =
            signs.into_iter().map(|signs| signs.into_inner().unwrap_or_else(PoisonError::into_inner)).collect();
        self.sketcher = Some(sketcher);
    }

    /// Gives the rows of a chunk with their vectors as kept.
    #[inline(always)]
    fn each_row(&self, chunk: usize, mut take: impl FnMut(usize, &[f32])) {
        let mut vector = vec![0.0; self.layout.padded()];
        for row in 0..CHUNK_ROWS {
            if self.copy((chunk * CHUNK_ROWS + row) as u32, &mut vector) {
                take(row, &vector[..self.layout.dims]);
            }
        }
    }

    /// Empties a slot: no search returns it until it is set again.
    pub fn clear(&mut self, slot: u32) {
        let (chunk, row) = place(slot);
        self.len -= usize::from(self.chunks.get_mut(chunk).is_some_and(|chunk| chunk.clear(row)));
    }

    /// The vector of a slot as kept: normalised and rounded, by metric and storage.
    pub fn get(&self, slot: u32) -> Option<Vec<f32>> {
        let mut vector = vec![0.0; self.layout.padded()];
        let is_there = self.copy(slot, &mut vector);
        vector.truncate(self.layout.dims);
        is_there.then_some(vector)
    }

    /// Writes the vector of a slot as kept to the first numbers of `to`; `false`: the slot has none. There must be room for
    /// the padding of a row.
    pub fn copy(&self, slot: u32, to: &mut [f32]) -> bool {
        if !self.has(slot) {
            return false;
        }
        let (chunk, row) = place(slot);
        let chunk = &self.chunks[chunk];
        match chunk.kept(&self.layout, row) {
            Some(Row::F32(numbers)) => to[..numbers.len()].copy_from_slice(numbers),
            Some(Row::F16(numbers)) => {
                to.iter_mut().zip(numbers).for_each(|(to, &bits)| *to = f16::from_bits(bits).to_f32());
            }
            None => {
                chunk.row(&self.layout, row, to);
            }
        }
        true
    }

    /// Whether a slot has a vector.
    pub fn has(&self, slot: u32) -> bool {
        let (chunk, row) = place(slot);
        self.chunks.get(chunk).is_some_and(|chunk| chunk.has(row))
    }

    /// No slot from here on has a vector.
    pub fn slots_end(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK_ROWS;
        full + self.chunks.last().map_or(0, |last| last.set_words().len() * 64)
    }

    /// The first slot whose vector is longer than this, or as good as so; of metrics that bytes are kept for.
    pub(super) fn longer_than(&self, length: f32) -> Option<u32> {
        let mut chunks = self.chunks.iter().enumerate();
        chunks.find_map(|(at, chunk)| chunk.longer_than(length).map(|row| (at * CHUNK_ROWS + row) as u32))
    }

    /// Numbers that [`Rows::copy`] writes.
    pub fn padded(&self) -> usize {
        self.layout.padded()
    }

    /// The mean of the vectors, about, once there are many.
    pub fn centre(&self) -> Option<&[f32]> {
        self.sketcher.as_ref().map(Sketcher::centre)
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

/// A chunk as it is written.
struct Part<'a> {
    chunk: &'a mut Chunk,
    signs: Option<(&'a Sketcher, &'a mut Signs)>,
}

impl Part<'_> {
    /// Returns how many vectors there are more.
    #[inline(always)]
    fn set(&mut self, layout: &Layout, row: usize, mut vector: Vec<f32>) -> usize {
        self.chunk.reserve(layout, row);
        let added = usize::from(!self.chunk.has(row));
        self.chunk.write(layout, row, &mut vector);
        if let Some((sketcher, signs)) = &mut self.signs {
            signs.write(sketcher, row, &vector);
        }
        added
    }
}

/// A vector that can be kept: of the right length, finite, normalised where the metric wants it.
#[inline(always)]
fn prepared(layout: &Layout, metric: Metric, vector: &[f32]) -> Result<Vec<f32>, ScanError> {
    if vector.len() != layout.dims {
        return Err(ScanError::Dims { got: vector.len(), dims: layout.dims });
    }
    let length = check(vector)?;
    let mut vector = vector.to_vec();
    if metric == Metric::Cosine {
        normalise(&mut vector, length);
    }
    if layout.storage == Storage::F16
        && let Some(at) = vector.iter().position(|&x| f16::from_f32(x).is_infinite())
    {
        return Err(ScanError::BeyondF16 { at, value: vector[at] });
    }
    Ok(vector)
}

/// Vectors for the rows of a chunk, as they are set.
struct SetRun<'a, 'p> {
    layout: &'a Layout,
    metric: Metric,
    part: &'a mut Part<'p>,
    slots: &'a [u32],
    vectors: &'a [f32],
    /// How many there are more.
    added: &'a mut usize,
    refused: &'a mut Vec<u32>,
}

impl Loop for SetRun<'_, '_> {
    #[inline(always)]
    fn run(self) {
        if let Some(&last) = self.slots.last() {
            self.part.chunk.reserve(self.layout, place(last).1);
        }
        for (&slot, vector) in self.slots.iter().zip(self.vectors.chunks_exact(self.layout.dims)) {
            match prepared(self.layout, self.metric, vector) {
                Ok(vector) => *self.added += self.part.set(self.layout, place(slot).1, vector),
                Err(_) => self.refused.push(slot),
            }
        }
    }
}

/// The signs of a chunk's rows, as they are made.
struct WriteSigns<'a> {
    rows: &'a Rows,
    chunk: usize,
    sketcher: &'a Sketcher,
    signs: &'a mut Signs,
}

impl Loop for WriteSigns<'_> {
    #[inline(always)]
    fn run(self) {
        self.rows.each_row(self.chunk, |row, vector| self.signs.write(self.sketcher, row, vector));
    }
}

/// Does pieces of work: with all threads of a CPU and on its path, or by this thread.
fn each_on(cpu: Option<&Cpu>, pieces: usize, work: impl Fn(usize, CpuPath) + Sync) {
    let Some(cpu) = cpu else { return (0..pieces).for_each(|piece| work(piece, CpuPath::Portable)) };
    let shares = Shares::new(cpu.pool().threads());
    shares.fill(pieces);
    cpu.pool().run(&|rank| shares.of(rank).for_each(|piece| work(piece, cpu.path())));
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The chunk of a slot, and its row there.
pub(super) fn place(slot: u32) -> (usize, usize) {
    (slot as usize / CHUNK_ROWS, slot as usize % CHUNK_ROWS)
}
