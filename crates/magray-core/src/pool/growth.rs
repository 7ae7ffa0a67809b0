//! How a pool comes to more memory in one place: handles that nobody uses are moved there first, then new ones are made.
//! Copies nothing, and takes no handle of which a caller or a stream uses a byte.

use super::{
    AllocateError, Pool, Upstream,
    allocate::Kind,
    handles::Loose,
    part::{Piece, State},
};

/// A small miss reserves this part of what is reserved already, so that little more is reserved than used.
const SMALL_GROWTH: u64 = 64;
/// A handle of large blocks is this part of what is reserved: a block that stays keeps the rest of the two handles at
/// its ends from going elsewhere. More parts cost more calls to the driver when memory is first mapped.
const LARGE_HANDLES: u64 = 256;

/// A handle that lies wholly in a free block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    pub(super) kind: Kind,
    /// The free block.
    pub(super) block: u32,
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// The epoch in which it was last used.
    pub(super) touched: u32,
}

/// What memory is wanted for a place.
#[derive(Clone, Copy, Debug)]
struct Want {
    kind: Kind,
    /// Whole grains.
    bytes: u64,
    /// What may lie there at most; more than wanted where the rest can be free memory.
    room: u64,
    /// What is made when something must be made: what is missing, or this if it is more.
    fresh_bytes: u64,
    /// The largest handle that is made.
    handle_bytes: u64,
}

impl Want {
    /// A small block that stays must not hold a large handle.
    fn may_move(&self, spare: &Spare) -> bool {
        self.kind == Kind::Large || spare.bytes <= self.fresh_bytes
    }
}

/// Where memory for a place comes from.
#[derive(Debug, Default)]
struct Plan {
    /// Spare handles that are mapped at the place instead.
    moved: Vec<Spare>,
    /// Spare handles that fit nowhere and are released, so that others can be made.
    released: Vec<Spare>,
    /// Sizes of new handles.
    created: Vec<u64>,
}

/// Memory on its way to a place.
pub(super) struct Gathered<H> {
    pub(super) loose: Vec<Loose<H>>,
    /// So many of them, at the end, are new.
    created: usize,
}

impl<H> Gathered<H> {
    /// Memory of which nothing is new.
    pub(super) fn of_moved(loose: Vec<Loose<H>>) -> Self {
        Self { loose, created: 0 }
    }

    fn bytes(&self) -> u64 {
        self.loose.iter().map(|loose| loose.bytes).sum()
    }
}

impl<U: Upstream> Pool<U> {
    /// Sees to it that a block of so many bytes can be had without a call to the driver. For a time at which nobody
    /// waits.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), AllocateError<U::Error>> {
        let kind = if bytes < self.options.large_bytes { Kind::Small } else { Kind::Large };
        let Some(units) = self.part(kind).units_for(bytes) else { return Err(self.beyond_limit(bytes)) };
        self.join_kept();
        if self.part(kind).find_patiently(units).is_none() {
            self.grow(kind, units)?;
        }
        Ok(())
    }

    /// Maps memory until there is a free block of so many units, and tells which.
    pub(super) fn grow(&mut self, kind: Kind, units: u32) -> Result<u32, AllocateError<U::Error>> {
        let grain = self.options.grain_bytes;
        let needed = self.part(kind).bytes_of(units);
        let Some(place) = self.best_place(kind, needed) else { return Err(self.beyond_limit(needed)) };
        let bytes = needed.saturating_sub(place.free_bytes).next_multiple_of(grain);
        if bytes == 0 {
            return Ok(place.free_block.unwrap_or_else(|| unreachable!("it has the bytes")));
        }
        let handle_max = self.options.handle_bytes;
        let share = |parts: u64| {
            let share = (self.handles.reserved + bytes) / parts;
            share.next_multiple_of(grain).clamp(grain, handle_max)
        };
        let want = match kind {
            Kind::Small => {
                let fresh_bytes = share(SMALL_GROWTH).max(bytes).min(place.room);
                Want { kind, bytes, room: place.room, fresh_bytes, handle_bytes: handle_max }
            }
            Kind::Large => {
                let handle_bytes = share(LARGE_HANDLES);
                Want { kind, bytes, room: place.room, fresh_bytes: 0, handle_bytes }
            }
        };
        // Small blocks leave the largest free block of the large part whole: it may have been mapped ahead.
        let left_whole = match kind {
            Kind::Small => self.part(Kind::Large).largest_free_block(),
            Kind::Large => None,
        };
        let spares = self.spares(|spare| match spare.kind {
            of if of == kind => Some(spare.block) != place.free_block,
            _ => Some(spare.block) != left_whole || self.handles.budget() < bytes,
        });
        let gathered = self.gather(want, spares)?;
        let hole = match place.free_block {
            // What was moved may have made the hole larger, but not moved its beginning.
            Some(block) => self.part(kind).next(block),
            None => self.lowest_hole(kind, gathered.bytes()),
        };
        let hole = hole.unwrap_or_else(|| unreachable!("holes only grew"));
        self.land(kind, hole, gathered).map_err(AllocateError::Upstream)
    }

    /// A used block of the large part, with handles of its own.
    pub(super) fn grow_apart(&mut self, units: u32) -> Result<u32, AllocateError<U::Error>> {
        let bytes = self.part(Kind::Large).bytes_of(units);
        if self.lowest_hole(Kind::Large, bytes).is_none() {
            return Err(self.beyond_limit(bytes));
        }
        let gathered = self.gather_exactly(bytes)?;
        let hole = self.lowest_hole(Kind::Large, bytes).unwrap_or_else(|| unreachable!("holes only grew"));
        let at = self.part(Kind::Large).piece(hole).at;
        let free = self.land(Kind::Large, hole, gathered).map_err(AllocateError::Upstream)?;
        Ok(self.part_mut(Kind::Large).carve(free, Piece { at, units }, State::Used))
    }

    /// Memory of exactly so many bytes, on its way to a place.
    pub(super) fn gather_exactly(&mut self, bytes: u64) -> Result<Gathered<U::Handle>, AllocateError<U::Error>> {
        self.join_kept();
        let handle_bytes = self.options.handle_bytes;
        let want = Want { kind: Kind::Large, bytes, room: bytes, fresh_bytes: 0, handle_bytes };
        let spares = self.spares(|_| true);
        self.gather(want, spares)
    }

    /// The handles that nobody uses, of those that the caller wants. Blocks that are kept must be joined before.
    pub(super) fn spares(&self, is_wanted: impl Fn(&Spare) -> bool) -> Vec<Spare> {
        let mut spares = Vec::new();
        for kind in [Kind::Small, Kind::Large] {
            let part = self.part(kind);
            let grain_units = part.units_for(self.options.grain_bytes).unwrap_or(u32::MAX);
            for block in part.free_from(grain_units) {
                let (from, to) = (part.at(block), part.at(block) + part.bytes(block));
                spares.extend(self.handles.within(from, to).filter_map(|(at, bytes)| {
                    let touched = part.touched(part.piece_of(at, bytes));
                    Some(Spare { kind, block, at, bytes, touched }).filter(&is_wanted)
                }));
            }
        }
        spares
    }

    /// Unmaps a spare handle: its place is a hole.
    pub(super) fn pull(&mut self, spare: &Spare) -> Loose<U::Handle> {
        let part = self.part(spare.kind);
        let piece = part.piece_of(spare.at, spare.bytes);
        // The block may be another by now, if another handle was pulled out of it.
        let holds = |block: u32| {
            let found = part.piece(block);
            part.state(block) == State::Free && found.at <= piece.at && piece.at + piece.units <= found.at + found.units
        };
        let block = match spare.block {
            block if holds(block) => block,
            _ => part
                .free_from(piece.units)
                .into_iter()
                .find(|block| holds(*block))
                .unwrap_or_else(|| unreachable!("a spare handle lies in a free block")),
        };
        let loose = self.handles.unmap(spare.at);
        self.part_mut(spare.kind).carve(block, piece, State::Hole);
        loose
    }

    /// Maps memory at the beginning of a hole; tells the free block that it becomes. Where that fails, what was new is
    /// given back, and what was moved is free memory at the new place or given back too.
    pub(super) fn land(&mut self, kind: Kind, hole: u32, gathered: Gathered<U::Handle>) -> Result<u32, U::Error> {
        assert!(!gathered.loose.is_empty(), "nothing is mapped");
        let moved = gathered.loose.len() - gathered.created;
        let epoch = self.epoch;
        let mut hole = Some(hole);
        let mut free = None;
        let mut landed = Vec::new();
        let mut rest = gathered.loose.into_iter();
        while let Some(loose) = rest.next() {
            let at_hole = hole.unwrap_or_else(|| unreachable!("the hole has room for all"));
            let (at, bytes) = (self.part(kind).at(at_hole), loose.bytes);
            if let Err(error) = self.handles.map(at, loose) {
                rest.for_each(|loose| self.handles.release(loose));
                for (at, bytes) in landed.into_iter().skip(moved) {
                    let spare = Spare { kind, block: at_hole, at, bytes, touched: epoch };
                    let loose = self.pull(&spare);
                    self.handles.release(loose);
                }
                return Err(error);
            }
            landed.push((at, bytes));
            let part = self.part_mut(kind);
            let piece = part.piece_of(at, bytes);
            part.touch(piece, epoch);
            let block = part.carve(at_hole, piece, State::Free);
            hole = part.next(block);
            free = Some(block);
        }
        Ok(free.unwrap_or_else(|| unreachable!("something was mapped")))
    }

    /// The lowest hole of at least so many bytes.
    pub(super) fn lowest_hole(&self, kind: Kind, bytes: u64) -> Option<u32> {
        let part = self.part(kind);
        part.holes_from(part.units_for(bytes)?).into_iter().min_by_key(|hole| part.piece(*hole).at)
    }

    /// Gets the memory that is wanted, or leaves everything as it is.
    fn gather(&mut self, want: Want, spares: Vec<Spare>) -> Result<Gathered<U::Handle>, AllocateError<U::Error>> {
        let Some(plan) = self.plan(want, spares) else { return Err(self.beyond_limit(want.bytes)) };
        for spare in &plan.released {
            let loose = self.pull(spare);
            self.handles.release(loose);
            self.trims += 1;
        }
        let mut created = Vec::with_capacity(plan.created.len());
        for bytes in &plan.created {
            match self.handles.create(*bytes) {
                Ok(loose) => created.push(loose),
                Err(error) => {
                    created.into_iter().for_each(|loose| self.handles.release(loose));
                    return Err(AllocateError::Upstream(error));
                }
            }
        }
        let mut loose: Vec<_> = plan.moved.iter().map(|spare| self.pull(spare)).collect();
        self.stitches += loose.len() as u64;
        let new = created.len();
        loose.append(&mut created);
        Ok(Gathered { loose, created: new })
    }

    /// Which handles make up what is wanted; `None` if the limit forbids it.
    fn plan(&self, want: Want, mut spares: Vec<Spare>) -> Option<Plan> {
        let total: u64 = spares.iter().map(|spare| spare.bytes).sum();
        if want.bytes > total + self.handles.budget() {
            return None;
        }
        spares.sort_unstable_by_key(|spare| std::cmp::Reverse((spare.bytes, spare.at)));
        let mut plan = Plan::default();
        let mut missing = want.bytes;
        spares.retain(|spare| {
            let fits = spare.bytes <= missing && want.may_move(spare);
            if fits {
                missing -= spare.bytes;
                plan.moved.push(*spare);
            }
            !fits
        });
        if missing > 0 {
            missing = plan.overshoot(want, missing, &mut spares);
        }
        if missing == 0 {
            return Some(plan);
        }
        let mut budget = self.handles.budget();
        while budget < missing {
            // All that is spare was counted above, so this ends.
            let spare = spares.pop()?;
            budget += spare.bytes;
            plan.released.push(spare);
        }
        let taken = want.bytes - missing;
        let fresh = want.fresh_bytes.min(budget).min(want.room - taken).max(missing);
        plan.created = cut(fresh, want.handle_bytes);
        Some(plan)
    }

    /// The hole where a block of so many bytes needs the least new memory: behind the largest free block, else the
    /// lowest.
    fn best_place(&self, kind: Kind, needed: u64) -> Option<Place> {
        let part = self.part(kind);
        let grain_units = part.units_for(self.options.grain_bytes)?;
        let places = part.holes_from(grain_units).into_iter().map(|hole| {
            let free_block = part.previous(hole).filter(|block| part.state(*block) == State::Free);
            let free_bytes = free_block.map_or(0, |block| part.bytes(block));
            Place { free_block, free_bytes, room: part.bytes(hole), at: part.at(hole) }
        });
        places
            .filter(|place| place.room >= needed.saturating_sub(place.free_bytes))
            .max_by_key(|place| (place.free_bytes, std::cmp::Reverse(place.at)))
    }
}

/// A hole, and the free block before it, if any.
struct Place {
    free_block: Option<u32>,
    free_bytes: u64,
    room: u64,
    at: u64,
}

impl Plan {
    /// Takes the smallest handle that is enough for what is missing, where the place has room for the rest of it, and
    /// leaves out what that makes needless. Tells what is still missing.
    fn overshoot(&mut self, want: Want, missing: u64, spares: &mut Vec<Spare>) -> u64 {
        let taken = want.bytes - missing;
        let fits = |spare: &Spare| spare.bytes >= missing && want.may_move(spare) && taken + spare.bytes <= want.room;
        // They are sorted, the largest first.
        let Some(position) = spares.iter().rposition(fits) else { return missing };
        let chosen = spares.remove(position);
        let mut surplus = taken + chosen.bytes - want.bytes;
        self.moved.retain(|spare| {
            let is_needed = spare.bytes > surplus;
            if !is_needed {
                surplus -= spare.bytes;
            }
            is_needed
        });
        self.moved.push(chosen);
        0
    }
}

/// So many bytes in handles of at most so many.
fn cut(bytes: u64, handle_bytes: u64) -> Vec<u64> {
    let whole = (bytes / handle_bytes) as usize;
    let rest = bytes % handle_bytes;
    std::iter::repeat_n(handle_bytes, whole).chain((rest > 0).then_some(rest)).collect()
}
