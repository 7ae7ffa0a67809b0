//! Vectors in a GPU's memory, and the scan for those with the best scores by queries.
//! Knows no metric: a score is a product, and what is added for a vector. Products are of numbers of 16 bits: who needs the exact
//! order ranks what is found again.

use super::compile::KernelSpec;
use super::device::Cuda;
use super::device_error::DeviceError;
use super::function::LaunchShape;
use super::matrix::{TensorMap, stride_of};
use super::memory::{DeviceBuffer, Number};
use super::ops::{Arg, int};
use super::pinned_buffers::PinnedBytes;
use super::scan_plan::{MOST, ROOM, SCANNED_AT_ONCE, SIGNS_QUERIES_MAX, ScanTile, by_signs, careful, rising};
use super::stream::{Stream, Urgency};
use super::variants;
use super::vector_signs::{VectorSigns, gauge_bytes};
use std::ops::Range;
use std::sync::Arc;

/// Queries of one scan.
const QUERIES_MAX: usize = 256;
/// A query's record: bar, count, whether candidates were lost.
const RECORD_BYTES: usize = 16;
/// Bytes that vectors are brought in at a time.
const STAGED_BYTES: usize = 8 << 20;
/// Scores of no number are below it, and all others above.
const NO_BAR: u64 = 0x007f_ffff << 32;
const ROWS_OF_WARP: usize = 8;
const WARPS: usize = 8;
/// Blocks of the kernel for few queries that a multiprocessor has at once.
const BLOCKS_AT_ONCE: usize = 3;
/// The same of the kernel that reads signs.
const SIGN_BLOCKS_AT_ONCE: usize = 6;
const TILE_ROWS: usize = 128;

/// A vector that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// Which.
    pub slot: u32,
    /// Its score.
    pub score: f32,
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// One after the other.
    pub queries: &'a [f32],
    /// How many vectors are looked at, from the first on.
    pub rows: usize,
    /// How many are wanted for each query.
    pub most: usize,
    /// A bit for each vector that may be found; `None`: all may.
    pub allowed: Option<&'a [u64]>,
    /// The least score.
    pub least: Option<f32>,
    /// Never miss one of the best for the sake of time.
    pub is_exact: bool,
}

/// Vectors of one length.
#[derive(Debug)]
pub struct Vectors {
    cuda: Arc<Cuda>,
    stream: Stream,
    dims: usize,
    room: usize,
    rows: DeviceBuffer,
    /// What is added to the score of each.
    offsets: DeviceBuffer,
    map: Option<(TensorMap, TensorMap)>,
    /// Of all vectors, once they are kept.
    signs: Option<VectorSigns>,
    staged: PinnedBytes,
    /// Records of the queries, then the queries, then what is made of them for signs.
    asked: DeviceBuffer,
    keys: DeviceBuffer,
    allowed: DeviceBuffer,
    told: PinnedBytes,
}

impl Vectors {
    /// Room for vectors, all of them zero. With offsets, each has one that is added to its scores.
    pub fn new(cuda: &Arc<Cuda>, dims: usize, room: usize, has_offsets: bool) -> Result<Self, DeviceError> {
        assert!(dims > 0 && room < i32::MAX as usize, "{room} vectors of {dims} numbers");
        let (context, stride) = (cuda.context(), stride_of(dims));
        let stream = Stream::new(context, Urgency::Usual)?;
        let rows = DeviceBuffer::private(&stream, room * stride * 2)?;
        let offsets = DeviceBuffer::private(&stream, if has_offsets { room * 4 } else { 0 })?;
        let asked = QUERIES_MAX * (RECORD_BYTES + stride * 2) + SIGNS_QUERIES_MAX * gauge_bytes(dims);
        let asked = DeviceBuffer::private(&stream, asked)?;
        let map = if cuda.has_wgmma() && room > 0 {
            let queries = asked.address() + (QUERIES_MAX * RECORD_BYTES) as u64;
            let queries = TensorMap::encode(queries, Number::F16, QUERIES_MAX, dims)?;
            Some((TensorMap::encode(rows.address(), Number::F16, room, dims)?, queries))
        } else {
            None
        };
        Ok(Self {
            staged: PinnedBytes::take(context, STAGED_BYTES.max(asked.bytes()))?,
            keys: DeviceBuffer::private(&stream, ROOM * 8)?,
            allowed: DeviceBuffer::empty(context),
            told: PinnedBytes::take(context, QUERIES_MAX * (MOST + 1) * 8)?,
            cuda: Arc::clone(cuda),
            stream,
            dims,
            room,
            rows,
            offsets,
            map,
            signs: None,
            asked,
        })
    }

    /// Memory of the GPU that it holds.
    pub fn bytes(&self) -> u64 {
        let buffers = [&self.rows, &self.offsets, &self.asked, &self.keys, &self.allowed];
        let signs = self.signs.as_ref().map_or(0, VectorSigns::bytes);
        buffers.iter().map(|buffer| buffer.bytes() as u64).sum::<u64>() + signs as u64
    }

    /// Keeps the signs of all vectors, turned about a centre: about the mean of many. Scans that need not be exact read them first.
    pub fn keep_signs(&mut self, centre: Vec<f32>) -> Result<(), DeviceError> {
        assert_eq!(centre.len(), self.dims, "as long as the vectors");
        let signs = VectorSigns::new(&self.stream, centre, self.room)?;
        let constants = signs.constants();
        Number::F32.write(&constants, &mut self.staged.as_mut_slice()[..constants.len() * 4]);
        self.bring(signs.constants_at(), constants.len() * 4)?;
        self.signs = Some(signs);
        self.sketch(&(0..self.room))
    }

    /// Makes the signs of vectors that were put, where they are kept.
    fn sketch(&self, made: &Range<usize>) -> Result<(), DeviceError> {
        let Some(signs) = &self.signs else { return Ok(()) };
        let shape = signs.making_shape(made, self.cuda.multiprocessors());
        let arguments = signs.making(self.rows.address(), stride_of(self.dims), made);
        self.launch(&variants::scan_sketch(), shape, arguments, false)?;
        Ok(self.stream.wait()?)
    }

    /// Puts vectors, one after the other, from this one on; `offsets` has one for each, or is empty.
    pub fn put(&mut self, first: usize, vectors: &[f32], offsets: &[f32]) -> Result<(), DeviceError> {
        let (count, stride) = (vectors.len() / self.dims, stride_of(self.dims));
        assert!(first + count <= self.room && vectors.len() == count * self.dims, "within the room");
        assert_eq!(offsets.len() * 4, if self.offsets.bytes() > 0 { count * 4 } else { 0 }, "one for each");
        let at_once = STAGED_BYTES / (stride * 2);
        for (part, vectors) in vectors.chunks(at_once * self.dims).enumerate() {
            let bytes = vectors.len() / self.dims * stride * 2;
            let staged = &mut self.staged.as_mut_slice()[..bytes];
            write_rows(vectors, self.dims, staged);
            let to = self.rows.address() + ((first + part * at_once) * stride * 2) as u64;
            self.bring(to, bytes)?;
        }
        for (part, offsets) in offsets.chunks(STAGED_BYTES / 4).enumerate() {
            Number::F32.write(offsets, &mut self.staged.as_mut_slice()[..offsets.len() * 4]);
            let to = self.offsets.address() + ((first + part * (STAGED_BYTES / 4)) * 4) as u64;
            self.bring(to, offsets.len() * 4)?;
        }
        self.sketch(&(first..first + count))
    }

    /// The best of the vectors for each query, best first; of equal scores the lower slot is better.
    pub fn best(&mut self, scan: &Scan<'_>) -> Result<Vec<Vec<Near>>, DeviceError> {
        assert!(scan.rows <= self.room && scan.queries.len().is_multiple_of(self.dims), "within the room");
        assert!((1..=MOST).contains(&scan.most), "from 1 to {MOST} are found");
        if scan.rows == 0 {
            return Ok(vec![Vec::new(); scan.queries.len() / self.dims]);
        }
        let allowed = self.bring_allowed(scan)?;
        let mut found = Vec::new();
        for queries in scan.queries.chunks(QUERIES_MAX * self.dims) {
            let count = queries.len() / self.dims;
            if self.keys.bytes() < count * ROOM * 8 {
                self.keys = DeviceBuffer::empty(self.cuda.context());
                self.keys = DeviceBuffer::private(&self.stream, count.next_power_of_two() * ROOM * 8)?;
            }
            let is_by_signs = self.signs.is_some() && !scan.is_exact && count <= SIGNS_QUERIES_MAX;
            let way = if is_by_signs { Way::Signs } else { Way::Rising };
            self.run(scan, queries, allowed, way)?;
            if self.is_lost(count, scan.most) {
                self.run(scan, queries, allowed, Way::Careful)?;
            }
            found.extend((0..count).map(|query| self.found(query, scan.most)));
        }
        Ok(found)
    }

    /// Scores the rows part by part, and waits for the best.
    fn run(&mut self, scan: &Scan<'_>, queries: &[f32], allowed: u64, way: Way) -> Result<(), DeviceError> {
        let parts = match way {
            Way::Rising => rising(scan.rows, scan.most, queries.len() / self.dims),
            Way::Signs => by_signs(scan.rows, scan.most),
            Way::Careful => careful(scan.rows, scan.most),
        };
        self.bring_queries(scan, queries, way)?;
        let count = queries.len() / self.dims;
        for (number, rows) in parts.iter().enumerate() {
            let place = (number == 0 || way == Way::Careful).then_some(scan.most);
            let part = Part { rows: rows.clone(), is_first: number == 0, place };
            match &self.signs {
                Some(signs) if way == Way::Signs && number > 0 => self.score_likely(signs, &part, count, allowed)?,
                _ => self.score(&part, count, allowed)?,
            }
            let out = if number + 1 == parts.len() { self.told.address() } else { 0 };
            let arguments = vec![
                Arg::Address(self.asked.address()),
                Arg::Address(self.keys.address()),
                int(ROOM),
                int(place.map_or(0, |_| rows.len())),
                int(scan.most),
                Arg::Address(out),
            ];
            let shape = LaunchShape::new([count as u32, 1, 1], [1024, 1, 1]);
            self.launch(&variants::scan_select(), shape, arguments, true)?;
        }
        Ok(self.stream.wait()?)
    }

    /// Begins to copy the queries and their records.
    fn bring_queries(&mut self, scan: &Scan<'_>, queries: &[f32], way: Way) -> Result<(), DeviceError> {
        let count = queries.len() / self.dims;
        let (records, stride) = (QUERIES_MAX * RECORD_BYTES, stride_of(self.dims));
        let bar = scan.least.map_or(NO_BAR, |least| key_of(least) - 1);
        let gauges = self.signs.as_ref().filter(|_| way == Way::Signs);
        let gauges: Vec<u8> =
            gauges.map_or(Vec::new(), |signs| queries.chunks(self.dims).flat_map(|query| signs.gauge(query)).collect());
        let numbers = if gauges.is_empty() { count } else { QUERIES_MAX } * stride * 2;
        let bytes = records + numbers + gauges.len();
        let staged = &mut self.staged.as_mut_slice()[..bytes];
        staged[records + numbers..].copy_from_slice(&gauges);
        staged[..records].fill(0);
        for record in staged[..count * RECORD_BYTES].chunks_exact_mut(RECORD_BYTES) {
            record[..8].copy_from_slice(&bar.to_le_bytes());
        }
        write_rows(queries, self.dims, &mut staged[records..records + numbers]);
        self.cuda.context().bind()?;
        // SAFETY: both have room for it; the stream is waited for before the host writes there again.
        Ok(unsafe { self.stream.copy_in(self.asked.address(), self.staged.address(), bytes) }?)
    }

    /// Puts the scores of a part, or those of them above the bars, among the candidates.
    fn score(&self, part: &Part, queries: usize, allowed: u64) -> Result<(), DeviceError> {
        let boxes = self.dims.div_ceil(64);
        let tile = self.map.zip(ScanTile::of(boxes, queries));
        let Some(((rows, asked), tile)) = tile else { return self.score_few(part, queries, allowed) };
        let groups = queries.div_ceil(tile.queries);
        let tiles = part.rows.len().div_ceil(TILE_ROWS) * groups;
        let blocks = tiles.min(self.cuda.multiprocessors() / groups * groups);
        let mut arguments = vec![Arg::Map(rows), Arg::Map(asked), int(part.rows.start), int(part.rows.end)];
        arguments.extend([int(queries), int(groups), int(boxes)]);
        arguments.extend(self.wanted(part, 0, allowed));
        let shape = LaunchShape::new([blocks as u32, 1, 1], [384, 1, 1]);
        let shape = shape.with_shared_bytes(tile.shared_bytes(boxes) as u32);
        self.launch(&variants::scan_many(tile, part.place.is_some()), shape, arguments, !part.is_first)
    }

    /// The same by the kernel of every GPU, for some queries at a time.
    fn score_few(&self, part: &Part, queries: usize, allowed: u64) -> Result<(), DeviceError> {
        let at_once = SCANNED_AT_ONCE.into_iter().find(|most| *most >= queries).unwrap_or(SCANNED_AT_ONCE[2]);
        let blocks = part.rows.len().div_ceil(WARPS * ROWS_OF_WARP).min(BLOCKS_AT_ONCE * self.cuda.multiprocessors());
        let stride = stride_of(self.dims);
        for first in (0..queries).step_by(at_once) {
            let asked = self.asked.address() + (QUERIES_MAX * RECORD_BYTES + first * stride * 2) as u64;
            let mut arguments = vec![Arg::Address(self.rows.address()), int(stride / 8)];
            arguments.extend([int(part.rows.start), int(part.rows.end), Arg::Address(asked)]);
            arguments.push(int((queries - first).min(at_once)));
            arguments.extend(self.wanted(part, first, allowed));
            let shape = LaunchShape::new([blocks as u32, 1, 1], [(32 * WARPS) as u32, 1, 1]);
            let shape = shape.with_shared_bytes((at_once * stride * 4) as u32);
            self.launch(&variants::scan_few(at_once), shape, arguments, !part.is_first || first > 0)?;
        }
        Ok(())
    }

    /// Puts those scores among the candidates of which signs say that they may be above the bars.
    fn score_likely(&self, signs: &VectorSigns, part: &Part, queries: usize, allowed: u64) -> Result<(), DeviceError> {
        let stride = stride_of(self.dims);
        let asked = self.asked.address() + (QUERIES_MAX * RECORD_BYTES) as u64;
        let mut arguments = vec![Arg::Address(self.rows.address()), int(stride / 8)];
        arguments.extend([int(part.rows.start), int(part.rows.end), Arg::Address(asked)]);
        arguments.extend(self.wanted(part, 0, allowed).into_iter().take(5));
        arguments.extend(signs.reading(asked + (QUERIES_MAX * stride * 2) as u64));
        let blocks = part.rows.len().div_ceil(32 * WARPS).min(SIGN_BLOCKS_AT_ONCE * self.cuda.multiprocessors());
        let shape = LaunchShape::new([blocks as u32, queries as u32, 1], [(32 * WARPS) as u32, 1, 1]);
        let shape = shape.with_shared_bytes((stride * 4 + gauge_bytes(self.dims)) as u32);
        self.launch(&variants::scan_signs(), shape, arguments, !part.is_first)
    }

    /// What both kernels know of the vectors beside their numbers, and where candidates go, of the queries from `first` on.
    fn wanted(&self, part: &Part, first: usize, allowed: u64) -> [Arg; 6] {
        [
            Arg::Address(self.offsets.address()),
            Arg::Address(allowed),
            Arg::Address(self.asked.address() + (first * RECORD_BYTES) as u64),
            Arg::Address(self.keys.address() + (first * ROOM * 8) as u64),
            int(ROOM),
            Arg::Int(part.place.map_or(-1, |place| place as i32)),
        ]
    }

    fn launch(
        &self,
        spec: &KernelSpec,
        mut shape: LaunchShape,
        mut arguments: Vec<Arg>,
        follows: bool,
    ) -> Result<(), DeviceError> {
        let function = self.cuda.function(spec)?;
        shape.overlaps = follows && self.cuda.overlaps();
        let mut pointers: Vec<_> = arguments.iter_mut().map(Arg::pointer).collect();
        self.cuda.context().bind()?;
        // SAFETY: the stream is of the same context; arguments are the kernel's, in order, with addresses of buffers that are
        // large enough and live until the stream was waited for.
        Ok(unsafe { function.launch(self.stream.put(), &shape, &mut pointers) }?)
    }

    /// A bit for each vector, on the GPU; 0 where all may be found.
    fn bring_allowed(&mut self, scan: &Scan<'_>) -> Result<u64, DeviceError> {
        let Some(bits) = scan.allowed else { return Ok(0) };
        let words = scan.rows.div_ceil(64);
        assert!(bits.len() >= words, "a bit for each vector");
        if self.allowed.bytes() < words * 8 {
            self.allowed = DeviceBuffer::empty(self.cuda.context());
            self.allowed = DeviceBuffer::private(&self.stream, (words * 8).next_power_of_two())?;
        }
        for (part, bits) in bits[..words].chunks(STAGED_BYTES / 8).enumerate() {
            for (word, to) in bits.iter().zip(self.staged.as_mut_slice().as_chunks_mut::<8>().0) {
                *to = word.to_le_bytes();
            }
            self.bring(self.allowed.address() + (part * STAGED_BYTES) as u64, bits.len() * 8)?;
        }
        Ok(self.allowed.address())
    }

    /// Copies what is staged, and waits for it.
    fn bring(&mut self, to: u64, bytes: usize) -> Result<(), DeviceError> {
        self.cuda.context().bind()?;
        // SAFETY: the caller has seen to the room; the stream is waited for before the host writes there again.
        unsafe { self.stream.copy_in(to, self.staged.address(), bytes) }?;
        Ok(self.stream.wait()?)
    }

    /// Whether there were more candidates of a query than there is room for.
    fn is_lost(&mut self, queries: usize, most: usize) -> bool {
        (0..queries).any(|query| self.words_of(query, most)[0] == u64::MAX)
    }

    fn found(&mut self, query: usize, most: usize) -> Vec<Near> {
        let words = self.words_of(query, most);
        let count = usize::try_from(words[0]).unwrap_or(0).min(most);
        words[1..=count].iter().map(|key| Near { slot: !(*key as u32), score: score_of(*key) }).collect()
    }

    /// How many were found, and their keys.
    fn words_of(&mut self, query: usize, most: usize) -> Vec<u64> {
        let bytes = &self.told.as_mut_slice()[query * (most + 1) * 8..][..(most + 1) * 8];
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }
}

/// How a scan goes over the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In parts that grow as the bar rises.
    Rising,
    /// The same, and only what signs let through is scored.
    Signs,
    /// In parts of which every score has a place.
    Careful,
}

/// A part of the vectors in a scan.
struct Part {
    rows: Range<usize>,
    /// Nothing was put into the stream before it that it could follow closely.
    is_first: bool,
    /// Where the first of its scores goes, if all of them are candidates.
    place: Option<usize>,
}

/// Rows of 16-bit numbers, padded with zeros.
fn write_rows(rows: &[f32], dims: usize, to: &mut [u8]) {
    for (row, to) in rows.chunks_exact(dims).zip(to.chunks_exact_mut(stride_of(dims) * 2)) {
        let (numbers, padding) = to.split_at_mut(dims * 2);
        Number::F16.write(row, numbers);
        padding.fill(0);
    }
}

/// The least key of a score.
fn key_of(score: f32) -> u64 {
    let bits = score.to_bits();
    u64::from(if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }) << 32
}

fn score_of(key: u64) -> f32 {
    let ordered = (key >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_order_of_scores() {
        let scores = [f32::NEG_INFINITY, -2.0, -1e-30, -0.0, 0.0, 1e-30, 0.5, f32::INFINITY];
        assert!(scores.map(key_of).is_sorted_by(|a, b| a < b));
        for score in scores {
            assert_eq!(score_of(key_of(score)).to_bits(), score.to_bits());
        }
        assert_eq!(key_of(f32::NEG_INFINITY), NO_BAR);
    }
}
