//! The pool: hands blocks out of what is mapped, in constant time, and takes them back.
//! Calls the driver only when nothing fits; reads no clock.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{
    AllocateError, Block, Forecast, PoolOptions, PoolStats, StreamId, Upstream,
    handles::Handles,
    part::{Measure, Part, Piece, State},
    quick::{Kept, Quick},
};

/// The two parts of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Small,
    Large,
}

/// Streams that may have resting blocks at once.
const STREAMS_MAX: usize = 1024;

/// Of what is reserved, the part that may be kept for whoever asks next without being joined.
const QUICK_PART: u64 = 128;

/// A stream that has, or had, blocks that rest.
struct StreamSlot {
    id: StreamId,
    reached: u64,
}

/// A pool of memory in one range of addresses. Places are told as offsets from the start of the range.
pub struct Pool<U: Upstream> {
    /// Tells this pool's blocks from those of others.
    id: u32,
    pub(super) options: PoolOptions,
    /// Where the large part begins.
    split: u64,
    small: Part,
    large: Part,
    /// Blocks of the small part that were freed a moment ago; their records say that they are used.
    quick: Quick,
    pub(super) handles: Handles<U>,
    streams: Vec<StreamSlot>,
    pub(super) forecast: Forecast,
    pub(super) epoch: u32,
    used: u64,
    pub(super) parked: u64,
    /// Mapped memory of blocks with handles of their own: what history does not speak of.
    pub(super) apart: u64,
    peak_used: u64,
    blocks: u64,
    hits: u64,
    misses: u64,
    pub(super) trims: u64,
    pub(super) stitches: u64,
}

impl<U: Upstream> Pool<U> {
    /// A pool without memory.
    ///
    /// # Panics
    /// If the options contradict each other: see [`PoolOptions`].
    pub fn new(options: PoolOptions, upstream: U) -> Self {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let options = options.checked();
        let split = options.small_part_bytes();
        let grain_log2 = options.grain_bytes.trailing_zeros();
        let part = |base: u64, bytes: u64, unit: u64| {
            let units = u32::try_from(bytes / unit).unwrap_or_else(|_| panic!("a range of {bytes} bytes is too long"));
            Part::new(Measure { base, unit_log2: unit.trailing_zeros(), grain_log2 }, units)
        };
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            options,
            split,
            small: part(0, split, options.align_bytes),
            large: part(split, options.range_bytes - split, options.grain_bytes),
            quick: Quick::new(),
            handles: Handles::new(upstream, options.limit_bytes),
            streams: Vec::new(),
            forecast: Forecast::default(),
            epoch: 0,
            used: 0,
            parked: 0,
            apart: 0,
            peak_used: 0,
            blocks: 0,
            hits: 0,
            misses: 0,
            trims: 0,
            stitches: 0,
        }
    }

    /// A block of so many bytes for a caller who uses it in this stream first. Large ones begin and end at grains.
    /// Where it fails, callers have what they had.
    pub fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Block, AllocateError<U::Error>> {
        if let Some(block) = self.allocate_at_hand(bytes, stream) {
            return Ok(block);
        }
        let kind = self.kind_of(bytes);
        let Some(units) = self.part(kind).units_for(bytes) else { return Err(self.beyond_limit(bytes)) };
        let index = self.miss(kind, units)?;
        Ok(self.hand_out_at(kind, index, units, bytes))
    }

    /// As [`allocate`](Self::allocate), if that needs nothing of the upstream.
    #[inline]
    pub fn allocate_at_hand(&mut self, bytes: u64, stream: StreamId) -> Option<Block> {
        let kind = self.kind_of(bytes);
        let units = self.part(kind).units_for(bytes)?;
        if kind == Kind::Small
            && let Some(kept) = self.quick.take(units)
        {
            self.hits += 1;
            return Some(self.hand_out(kind, kept, bytes));
        }
        let index = self.part(kind).find(units, self.slot_of(stream))?;
        self.hits += 1;
        Some(self.hand_out_at(kind, index, units, bytes))
    }

    #[inline]
    fn kind_of(&self, bytes: u64) -> Kind {
        if bytes < self.options.large_bytes { Kind::Small } else { Kind::Large }
    }

    /// Hands out the beginning of a free piece.
    #[inline]
    fn hand_out_at(&mut self, kind: Kind, index: u32, units: u32, bytes: u64) -> Block {
        self.part_mut(kind).take(index, units);
        let Piece { at, units } = self.part(kind).piece(index);
        self.hand_out(kind, Kept { index, at, units }, bytes)
    }

    /// A block with handles of its own, so that [`park`](Self::park) can give back all its memory: for what comes and
    /// goes as a whole.
    pub fn allocate_parkable(&mut self, bytes: u64) -> Result<Block, AllocateError<U::Error>> {
        let Some(units) = self.large.units_for(bytes) else { return Err(self.beyond_limit(bytes)) };
        let index = self.grow_apart(units)?;
        self.misses += 1;
        self.apart += self.large.bytes(index);
        let Piece { at, units } = self.large.piece(index);
        let mut block = self.hand_out(Kind::Large, Kept { index, at, units }, bytes);
        block.is_apart = true;
        Ok(block)
    }

    /// Takes back a block that nobody uses any more.
    pub fn free(&mut self, block: Block) {
        if self.keep(&block) {
            return;
        }
        let (kind, index) = self.find_block(&block);
        self.forget_block(&block, kind, index);
        if self.part(kind).state(index) == State::Parked {
            self.free_parked(index);
        } else {
            let epoch = self.epoch;
            self.part_mut(kind).give_back(index, epoch);
        }
    }

    /// Takes back a block that a stream may use until it has reached a point. The same stream may get it again at once,
    /// others when the point is [`reached`](Self::reached). Points of a stream never fall.
    pub fn free_after(&mut self, block: Block, stream: StreamId, point: u64) {
        let (kind, index) = self.find_block(&block);
        let slot = self.make_slot(stream);
        // Nothing runs on memory that was taken away.
        let is_over = self.part(kind).state(index) == State::Parked;
        if is_over || self.streams[usize::from(slot)].reached >= point {
            return self.free(block);
        }
        self.forget_block(&block, kind, index);
        self.part_mut(kind).rest(index, slot, point);
    }

    /// A stream has done everything up to a point: what rested until then is free.
    pub fn reached(&mut self, stream: StreamId, point: u64) {
        let Some(slot) = self.slot_of(stream) else { return };
        let reached = &mut self.streams[usize::from(slot)].reached;
        *reached = (*reached).max(point);
        let (reached, epoch) = (*reached, self.epoch);
        self.small.wake(slot, reached, epoch);
        self.large.wake(slot, reached, epoch);
    }

    /// The pool's own time goes on: called now and then, for what is forgotten and given back by age.
    pub fn age(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.forecast.age();
    }

    /// A model needed so many bytes of workspace for a bucket of shapes.
    pub fn note(&mut self, model: u32, bucket: u32, bytes: u64) {
        self.forecast.note(model, bucket, bytes);
    }

    /// What a model is expected to need for a bucket of shapes; 0 if nothing is known.
    pub fn expected(&self, model: u32, bucket: u32) -> u64 {
        self.forecast.expected(model, bucket)
    }

    /// Forgets what a model needed.
    pub fn forget(&mut self, model: u32) {
        self.forecast.forget(model);
    }

    /// What callers are expected to need at most at once, by history.
    pub fn predicted(&self) -> u64 {
        self.forecast.predicted()
    }

    /// How the pool is. Small blocks that were freed a moment ago are not yet part of the largest free one.
    pub fn stats(&self) -> PoolStats {
        // What is free in the small part serves small blocks only.
        let largest_small = self.options.large_bytes - self.options.align_bytes;
        PoolStats {
            reserved: self.handles.reserved,
            used: self.used,
            peak_reserved: self.handles.peak_reserved,
            peak_used: self.peak_used,
            parked: self.parked,
            largest_free: self.large.largest_free().max(self.small.largest_free().min(largest_small)),
            blocks: self.blocks,
            hits: self.hits,
            misses: self.misses,
            driver_calls: self.handles.driver_calls,
            trims: self.trims,
            stitches: self.stitches,
            predicted: self.forecast.predicted(),
        }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.handles.upstream
    }

    /// Where the memory comes from.
    pub fn upstream_mut(&mut self) -> &mut U {
        &mut self.handles.upstream
    }

    #[inline]
    pub(super) fn part(&self, kind: Kind) -> &Part {
        match kind {
            Kind::Small => &self.small,
            Kind::Large => &self.large,
        }
    }

    #[inline]
    pub(super) fn part_mut(&mut self, kind: Kind) -> &mut Part {
        match kind {
            Kind::Small => &mut self.small,
            Kind::Large => &mut self.large,
        }
    }

    /// The record of a caller's block.
    #[inline]
    pub(super) fn find_block(&self, block: &Block) -> (Kind, u32) {
        assert_eq!(block.pool, self.id, "a block of another pool");
        let kind = if block.at < self.split { Kind::Small } else { Kind::Large };
        let part = self.part(kind);
        let is_known =
            part.at(block.index) == block.at && matches!(part.state(block.index), State::Used | State::Parked);
        assert!(is_known, "a block that was not handed out, at {}", block.at);
        (kind, block.index)
    }

    /// The most that was used was now, maybe.
    pub(super) fn note_peak(&mut self) {
        self.peak_used = self.peak_used.max(self.used.saturating_sub(self.parked));
    }

    pub(super) fn beyond_limit<E>(&self, wanted: u64) -> AllocateError<E> {
        AllocateError::Limit { wanted, reserved: self.handles.reserved, limit: self.options.limit_bytes }
    }

    /// Nothing that was looked at fits: looks at all, then asks the driver.
    #[cold]
    fn miss(&mut self, kind: Kind, units: u32) -> Result<u32, AllocateError<U::Error>> {
        self.join_kept();
        if let Some(index) = self.part(kind).find_patiently(units) {
            self.hits += 1;
            return Ok(index);
        }
        let index = self.grow(kind, units)?;
        self.misses += 1;
        Ok(index)
    }

    /// Keeps a small block for whoever asks next, if there is a place for it.
    #[inline]
    fn keep(&mut self, block: &Block) -> bool {
        assert_eq!(block.pool, self.id, "a block of another pool");
        if block.at >= self.split {
            return false;
        }
        let Piece { at, units } = self.small.piece_of(block.at, self.small.bytes_of(block.units));
        let units_max = self.small.units_in(self.handles.reserved / QUICK_PART);
        let is_kept = self.quick.put(Kept { index: block.index, at, units }, units_max);
        if is_kept {
            self.small.touch(Piece { at, units }, self.epoch);
            self.blocks -= 1;
            self.used -= block.bytes;
        }
        is_kept
    }

    /// Joins the blocks that were kept with their neighbours: for when all that is free must be seen.
    pub(super) fn join_kept(&mut self) {
        for kept in self.quick.drain() {
            self.small.join(kept.index);
        }
    }

    #[inline]
    fn hand_out(&mut self, kind: Kind, kept: Kept, bytes: u64) -> Block {
        self.used += bytes;
        self.blocks += 1;
        self.note_peak();
        let Kept { index, at, units } = kept;
        Block { at: self.part(kind).place_of(at), bytes, index, units, pool: self.id, is_apart: false }
    }

    /// A caller has a block no more.
    #[inline]
    fn forget_block(&mut self, block: &Block, kind: Kind, index: u32) {
        self.blocks -= 1;
        self.used -= block.bytes;
        if kind == Kind::Small {
            return;
        }
        let is_parked = self.large.state(index) == State::Parked;
        if is_parked {
            self.parked -= self.parked_bytes(block);
        } else if block.is_apart {
            self.apart -= self.large.bytes(index);
        }
    }

    #[inline]
    fn slot_of(&self, stream: StreamId) -> Option<u16> {
        self.streams.iter().position(|slot| slot.id == stream).map(|position| position as u16)
    }

    /// A place for a stream.
    fn make_slot(&mut self, stream: StreamId) -> u16 {
        if let Some(slot) = self.slot_of(stream) {
            return slot;
        }
        let fresh = StreamSlot { id: stream, reached: 0 };
        // A place where nothing rests any more serves again, so that streams that come and go leave nothing behind.
        let idle = (0..self.streams.len() as u16).find(|slot| !self.small.rests(*slot) && !self.large.rests(*slot));
        match idle {
            Some(slot) => {
                self.streams[usize::from(slot)] = fresh;
                slot
            }
            None => {
                assert!(
                    self.streams.len() < STREAMS_MAX,
                    "{STREAMS_MAX} streams have blocks that rest: tell `reached`"
                );
                self.streams.push(fresh);
                self.streams.len() as u16 - 1
            }
        }
    }
}

impl<U: Upstream> Drop for Pool<U> {
    fn drop(&mut self) {
        self.handles.clear();
    }
}
