//! One part of a pool's range, cut into blocks that lie side by side: used, free, holes.
//! Knows sizes in units only; calls no driver and keeps no handles.

use super::tlsf::{FEW, Links, MANY, NONE, SizeIndex, Slab};

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// A record that describes nothing now.
    Vacant,
    /// A caller has it.
    Used,
    /// A caller has its addresses; the memory was taken away for now.
    Parked,
    /// Freed, but a stream may still be using it.
    Resting,
    /// Mapped, and nobody's.
    Free,
    /// Nothing is mapped there.
    Hole,
}

/// A block. Half a cache line: a random mix of calls over many blocks costs what its cache misses cost.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Record {
    at: u32,
    units: u32,
    /// The neighbours by address.
    near: Links,
    /// The neighbours in the list of its size.
    list: Links,
    state: State,
    /// The stream that a resting block waits for.
    slot: u16,
}

const _: () = assert!(size_of::<Record>() == 32);

struct Records(Vec<Record>);

impl Slab for Records {
    #[inline]
    fn units(&self, index: u32) -> u32 {
        self.0[index as usize].units
    }
    #[inline]
    fn links(&mut self, index: u32) -> &mut Links {
        &mut self.0[index as usize].list
    }
    #[inline]
    fn after(&self, index: u32) -> u32 {
        self.0[index as usize].list.after
    }
}

impl Records {
    #[inline]
    fn at(&self, index: u32) -> &Record {
        &self.0[index as usize]
    }
    #[inline]
    fn at_mut(&mut self, index: u32) -> &mut Record {
        &mut self.0[index as usize]
    }
}

/// How a part of the range is measured; all powers of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// Where the part begins, in bytes of the range.
    pub(super) base: u64,
    pub(super) unit_log2: u32,
    pub(super) grain_log2: u32,
}

/// A piece of a part, in units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: u32,
    pub(super) units: u32,
}

/// The blocks that rest for one stream.
struct Resting {
    sizes: SizeIndex,
    /// The oldest and the youngest of the queue.
    first: u32,
    last: u32,
}

/// Where a resting block stands in its stream's queue.
#[derive(Clone, Copy)]
struct QueuePosition {
    queue: Links,
    point: u64,
}

/// One part of the range.
pub(super) struct Part {
    measure: Measure,
    records: Records,
    /// The first record that describes nothing; they are linked by `near.after`.
    vacant: u32,
    free: SizeIndex,
    holes: SizeIndex,
    resting: Vec<Resting>,
    /// Beside the records, and only as long as the highest block that ever rested.
    turns: Vec<QueuePosition>,
    /// For every grain the epoch in which something there was last given back.
    touched: Vec<u32>,
}

impl Part {
    /// A part of this many units, one hole.
    pub(super) fn new(measure: Measure, units: u32) -> Self {
        assert!(units > 0 && units < NONE, "a part of {units} units");
        let near = Links { before: NONE, after: NONE };
        let whole = Record { at: 0, units, near, list: near, state: State::Hole, slot: 0 };
        let grains = (u64::from(units) << measure.unit_log2) >> measure.grain_log2;
        let mut part = Self {
            measure,
            records: Records(vec![whole]),
            vacant: NONE,
            free: SizeIndex::new(),
            holes: SizeIndex::new(),
            resting: Vec::new(),
            turns: Vec::new(),
            touched: vec![0; grains as usize],
        };
        part.list(0);
        part
    }

    /// A free block of at least this many units, or one that rests for the asking stream, whichever is smaller.
    #[inline]
    pub(super) fn find(&self, units: u32, slot: Option<u16>) -> Option<u32> {
        let free = self.free.find(&self.records, units, FEW);
        let Some(resting) = slot.and_then(|slot| self.resting.get(usize::from(slot))) else { return free };
        match (free, resting.sizes.find(&self.records, units, FEW)) {
            (Some(free), Some(rests)) if self.units(free) < self.units(rests) => Some(free),
            (free, rests) => rests.or(free),
        }
    }

    /// The same, of free blocks only, and with more patience.
    pub(super) fn find_patiently(&self, units: u32) -> Option<u32> {
        self.free.find(&self.records, units, MANY)
    }

    /// All holes of at least this many units.
    pub(super) fn holes_from(&self, units: u32) -> Vec<u32> {
        self.holes.all_from(&self.records, units)
    }

    /// Hands out the first units of a block that was found; the rest of it stays what it was.
    #[inline]
    pub(super) fn take(&mut self, index: u32, units: u32) {
        self.unlist(index);
        if self.units(index) > units {
            let rest = self.split(index, units);
            if self.state(index) == State::Resting {
                self.queue_up_behind(rest, index);
            }
            self.list(rest);
        }
        if self.state(index) == State::Resting {
            self.leave_queue(index);
        }
        self.records.at_mut(index).state = State::Used;
    }

    /// Takes a block back: it is free, and one with its free neighbours.
    #[inline]
    pub(super) fn give_back(&mut self, index: u32, epoch: u32) {
        debug_assert!(matches!(self.state(index), State::Used | State::Parked), "{:?}", self.state(index));
        self.touch(self.piece(index), epoch);
        self.become_one(index, State::Free);
    }

    /// The same for a block whose grains were marked when it was freed.
    pub(super) fn join(&mut self, index: u32) {
        debug_assert_eq!(self.state(index), State::Used);
        self.become_one(index, State::Free);
    }

    /// Lets a block rest until its stream has reached a point.
    pub(super) fn rest(&mut self, index: u32, slot: u16, point: u64) {
        while self.resting.len() <= usize::from(slot) {
            self.resting.push(Resting { sizes: SizeIndex::new(), first: NONE, last: NONE });
        }
        let record = self.records.at_mut(index);
        debug_assert_eq!(record.state, State::Used);
        (record.state, record.slot) = (State::Resting, slot);
        let before = std::mem::replace(&mut self.resting[usize::from(slot)].last, index);
        self.set_turn(index, QueuePosition { queue: Links { before, after: NONE }, point });
        match before {
            NONE => self.resting[usize::from(slot)].first = index,
            before => self.turns[before as usize].queue.after = index,
        }
        self.list(index);
    }

    /// Whether a block rests for this stream.
    pub(super) fn rests(&self, slot: u16) -> bool {
        self.resting.get(usize::from(slot)).is_some_and(|resting| resting.first != NONE)
    }

    /// Frees the blocks of a stream that need not rest any longer.
    pub(super) fn wake(&mut self, slot: u16, reached: u64, epoch: u32) {
        while self.rests(slot) {
            let first = self.resting[usize::from(slot)].first;
            if self.turns[first as usize].point > reached {
                return;
            }
            self.unlist(first);
            self.leave_queue(first);
            self.records.at_mut(first).state = State::Used;
            self.give_back(first, epoch);
        }
    }

    /// Gives a piece of a block another state and joins it with its like; what is left of the block stays what it was,
    /// its beginning under the same index. Tells the index of what the piece is now part of.
    pub(super) fn carve(&mut self, index: u32, piece: Piece, state: State) -> u32 {
        let block = self.piece(index);
        assert!(
            piece.units > 0 && piece.at >= block.at && piece.at + piece.units <= block.at + block.units,
            "{piece:?} is not within {block:?}"
        );
        assert_ne!(self.state(index), State::Resting, "a stream may still use it");
        self.unlist(index);
        let mut middle = index;
        if piece.at > block.at {
            middle = self.split(index, piece.at - block.at);
            self.list(index);
        }
        if self.units(middle) > piece.units {
            let rest = self.split(middle, piece.units);
            self.list(rest);
        }
        self.become_one(middle, state)
    }

    /// Marks the grains of a piece as used lately.
    #[inline]
    pub(super) fn touch(&mut self, piece: Piece, epoch: u32) {
        let shift = self.measure.grain_log2 - self.measure.unit_log2;
        let (first, last) = (piece.at >> shift, (piece.at + piece.units - 1) >> shift);
        for grain in &mut self.touched[first as usize..=last as usize] {
            *grain = epoch;
        }
    }

    /// The epoch in which something in these grains was last given back.
    pub(super) fn touched(&self, piece: Piece) -> u32 {
        let shift = self.measure.grain_log2 - self.measure.unit_log2;
        let (first, last) = (piece.at >> shift, (piece.at + piece.units - 1) >> shift);
        self.touched[first as usize..=last as usize].iter().copied().max().unwrap_or(0)
    }

    /// All free blocks that may hold a whole handle.
    pub(super) fn free_from(&self, units: u32) -> Vec<u32> {
        self.free.all_from(&self.records, units)
    }

    /// The largest free block.
    pub(super) fn largest_free_block(&self) -> Option<u32> {
        self.free.largest(&self.records)
    }

    /// The bytes of the largest free block.
    pub(super) fn largest_free(&self) -> u64 {
        self.largest_free_block().map_or(0, |block| self.bytes(block))
    }

    /// What a block is now.
    #[inline]
    pub(super) fn state(&self, index: u32) -> State {
        self.records.at(index).state
    }

    /// Changes what a block that is in no list is to another such state.
    pub(super) fn set_state(&mut self, index: u32, state: State) {
        debug_assert!(matches!(self.state(index), State::Used | State::Parked));
        debug_assert!(matches!(state, State::Used | State::Parked));
        self.records.at_mut(index).state = state;
    }

    /// Where a block lies in the part.
    #[inline]
    pub(super) fn piece(&self, index: u32) -> Piece {
        let Record { at, units, .. } = *self.records.at(index);
        Piece { at, units }
    }

    /// The neighbour with higher addresses.
    pub(super) fn next(&self, index: u32) -> Option<u32> {
        let next = self.records.at(index).near.after;
        (next != NONE).then_some(next)
    }

    /// The neighbour with lower addresses.
    pub(super) fn previous(&self, index: u32) -> Option<u32> {
        let previous = self.records.at(index).near.before;
        (previous != NONE).then_some(previous)
    }

    /// Where a block begins, in bytes of the range.
    #[inline]
    pub(super) fn at(&self, index: u32) -> u64 {
        self.place_of(self.records.at(index).at)
    }

    /// Where a unit begins, in bytes of the range.
    #[inline]
    pub(super) fn place_of(&self, unit: u32) -> u64 {
        self.measure.base + (u64::from(unit) << self.measure.unit_log2)
    }

    /// The bytes of a block.
    pub(super) fn bytes(&self, index: u32) -> u64 {
        self.bytes_of(self.units(index))
    }

    /// This many units in bytes.
    pub(super) fn bytes_of(&self, units: u32) -> u64 {
        u64::from(units) << self.measure.unit_log2
    }

    /// How many whole units are in this many bytes.
    #[inline]
    pub(super) fn units_in(&self, bytes: u64) -> u64 {
        bytes >> self.measure.unit_log2
    }

    /// How many units hold this many bytes; `None` if no part could.
    #[inline]
    pub(super) fn units_for(&self, bytes: u64) -> Option<u32> {
        let unit = 1_u64 << self.measure.unit_log2;
        u32::try_from(bytes.max(1).checked_add(unit - 1)? >> self.measure.unit_log2).ok()
    }

    /// Bytes of the range as a piece of this part, which they begin and end with units of.
    pub(super) fn piece_of(&self, at: u64, bytes: u64) -> Piece {
        let units = |bytes: u64| {
            debug_assert_eq!(bytes & ((1 << self.measure.unit_log2) - 1), 0, "not whole units");
            u32::try_from(bytes >> self.measure.unit_log2).unwrap_or_else(|_| unreachable!("within the part"))
        };
        Piece { at: units(at - self.measure.base), units: units(bytes) }
    }

    /// Every block by address, for tests: where, how many units, what.
    #[cfg(test)]
    pub(super) fn walk(&self) -> Vec<(u64, u64, State)> {
        let mut index = (0..self.records.0.len() as u32)
            .find(|index| self.state(*index) != State::Vacant && self.records.at(*index).at == 0)
            .unwrap();
        let mut blocks = Vec::new();
        loop {
            blocks.push((self.at(index), self.bytes(index), self.state(index)));
            match self.next(index) {
                Some(next) => {
                    assert_eq!(self.records.at(next).near.before, index);
                    index = next;
                }
                None => return blocks,
            }
        }
    }

    #[inline]
    fn units(&self, index: u32) -> u32 {
        self.records.units(index)
    }

    /// Gives an unlisted block a state, joins it with neighbours of the same state and lists it.
    #[inline]
    fn become_one(&mut self, index: u32, state: State) -> u32 {
        self.records.at_mut(index).state = state;
        if !matches!(state, State::Free | State::Hole) {
            return index;
        }
        let mut index = index;
        let Links { before, after } = self.records.at(index).near;
        if after != NONE && self.state(after) == state {
            self.unlist(after);
            self.swallow_next(index, after);
        }
        if before != NONE && self.state(before) == state {
            self.unlist(before);
            self.swallow_next(before, index);
            index = before;
        }
        self.list(index);
        index
    }

    /// Cuts an unlisted block; the second piece, unlisted too, has the same state.
    #[inline]
    fn split(&mut self, index: u32, units: u32) -> u32 {
        let whole = *self.records.at(index);
        debug_assert!(units > 0 && units < whole.units);
        let rest = self.vacant_record();
        *self.records.at_mut(rest) = Record {
            at: whole.at + units,
            units: whole.units - units,
            near: Links { before: index, after: whole.near.after },
            ..whole
        };
        if whole.near.after != NONE {
            self.records.at_mut(whole.near.after).near.before = rest;
        }
        let first = self.records.at_mut(index);
        first.units = units;
        first.near.after = rest;
        rest
    }

    /// Joins two unlisted neighbours; the first keeps its index.
    #[inline]
    fn swallow_next(&mut self, index: u32, next: u32) {
        let Record { units, near, .. } = *self.records.at(next);
        let first = self.records.at_mut(index);
        first.units += units;
        first.near.after = near.after;
        if near.after != NONE {
            self.records.at_mut(near.after).near.before = index;
        }
        let gone = self.records.at_mut(next);
        gone.state = State::Vacant;
        gone.near.after = std::mem::replace(&mut self.vacant, next);
    }

    #[inline]
    fn vacant_record(&mut self) -> u32 {
        if self.vacant != NONE {
            let index = self.vacant;
            self.vacant = self.records.at(index).near.after;
            return index;
        }
        let near = Links { before: NONE, after: NONE };
        let index = u32::try_from(self.records.0.len()).unwrap_or_else(|_| unreachable!("a block is a unit at least"));
        self.records.0.push(Record { at: 0, units: 0, near, list: near, state: State::Vacant, slot: 0 });
        index
    }

    /// Puts a block into the list that its state has, if any.
    #[inline]
    fn list(&mut self, index: u32) {
        match self.state(index) {
            State::Free => self.free.insert(&mut self.records, index),
            State::Hole => self.holes.insert(&mut self.records, index),
            State::Resting => {
                let slot = self.records.at(index).slot;
                self.resting[usize::from(slot)].sizes.insert(&mut self.records, index);
            }
            State::Used | State::Parked | State::Vacant => {}
        }
    }

    #[inline]
    fn unlist(&mut self, index: u32) {
        match self.state(index) {
            State::Free => self.free.remove(&mut self.records, index),
            State::Hole => self.holes.remove(&mut self.records, index),
            State::Resting => {
                let slot = self.records.at(index).slot;
                self.resting[usize::from(slot)].sizes.remove(&mut self.records, index);
            }
            State::Used | State::Parked | State::Vacant => {}
        }
    }

    /// The rest of a resting block that is taken goes on resting, in its place of the queue.
    fn queue_up_behind(&mut self, rest: u32, index: u32) {
        let QueuePosition { queue, point } = self.turns[index as usize];
        self.set_turn(rest, QueuePosition { queue: Links { before: index, after: queue.after }, point });
        self.turns[index as usize].queue.after = rest;
        match queue.after {
            NONE => self.resting[usize::from(self.records.at(index).slot)].last = rest,
            after => self.turns[after as usize].queue.before = rest,
        }
    }

    fn leave_queue(&mut self, index: u32) {
        let Links { before, after } = self.turns[index as usize].queue;
        let resting = &mut self.resting[usize::from(self.records.at(index).slot)];
        match before {
            NONE => resting.first = after,
            before => self.turns[before as usize].queue.after = after,
        }
        match after {
            NONE => resting.last = before,
            after => self.turns[after as usize].queue.before = before,
        }
    }

    fn set_turn(&mut self, index: u32, turn: QueuePosition) {
        let needed = index as usize + 1;
        if self.turns.len() < needed {
            self.turns.resize(needed, QueuePosition { queue: Links { before: NONE, after: NONE }, point: 0 });
        }
        self.turns[index as usize] = turn;
    }
}
