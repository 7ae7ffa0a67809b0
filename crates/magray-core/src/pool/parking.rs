//! Parking: the memory under a block goes, its addresses stay the caller's, and later there is memory again.
//! Saves nothing of what was in the memory: that is the caller's.

use super::{
    AllocateError, Block, Pool, Upstream,
    allocate::Kind,
    part::{Piece, State},
};

impl<U: Upstream> Pool<U> {
    /// Takes the memory from under a large block that nobody uses, and tells how many bytes were given back: all, if the
    /// block has handles of its own.
    ///
    /// # Panics
    /// If the block is small or parked already.
    pub fn park(&mut self, block: &Block) -> u64 {
        let (kind, index) = self.find_block(block);
        assert_eq!(kind, Kind::Large, "a small block has no handles of its own");
        assert!(!self.is_parked(block), "the block is parked already");
        let (from, to) = self.place(index);
        let places: Vec<u64> = self.handles.within(from, to).map(|(at, _)| at).collect();
        let before = self.handles.reserved;
        for at in places {
            let loose = self.handles.unmap(at);
            self.handles.release(loose);
        }
        self.part_mut(Kind::Large).set_state(index, State::Parked);
        self.parked += self.parked_bytes(block);
        if block.is_apart {
            self.apart -= to - from;
        }
        before - self.handles.reserved
    }

    /// Maps memory under a parked block again, at the same addresses; what is in it is nobody's promise. Where it fails,
    /// the block is parked as before.
    ///
    /// # Panics
    /// If the block is not parked.
    pub fn restore(&mut self, block: &Block) -> Result<(), AllocateError<U::Error>> {
        assert!(self.is_parked(block), "the block is not parked");
        let (_, index) = self.find_block(block);
        let (from, to) = self.place(index);
        let (start, end) = self.handles.own_stretch(from, to);
        let parked = self.parked_bytes(block);
        if start < end {
            let gathered = self.gather_exactly(end - start)?;
            let mut at = start;
            let mut rest = gathered.loose.into_iter();
            while let Some(loose) = rest.next() {
                let bytes = loose.bytes;
                if let Err(error) = self.handles.map(at, loose) {
                    rest.for_each(|loose| self.handles.release(loose));
                    let landed: Vec<u64> = self.handles.within(start, end).map(|(at, _)| at).collect();
                    for at in landed {
                        let loose = self.handles.unmap(at);
                        self.handles.release(loose);
                    }
                    return Err(AllocateError::Upstream(error));
                }
                at += bytes;
            }
        }
        self.part_mut(Kind::Large).set_state(index, State::Used);
        self.parked -= parked;
        if block.is_apart {
            self.apart += to - from;
        }
        self.note_peak();
        Ok(())
    }

    /// Whether a block's memory was taken away.
    pub fn is_parked(&self, block: &Block) -> bool {
        let (kind, index) = self.find_block(block);
        self.part(kind).state(index) == State::Parked
    }

    /// Of what the caller of a parked block asked for, the part that is not there.
    pub(super) fn parked_bytes(&self, block: &Block) -> u64 {
        let (_, index) = self.find_block(block);
        let (from, to) = self.place(index);
        let (start, end) = self.handles.own_stretch(from, to);
        (end - start).min(block.bytes)
    }

    /// The addresses of a parked block are free again: a hole where nothing is mapped, free memory where a neighbour's
    /// handle reaches into it.
    pub(super) fn free_parked(&mut self, index: u32) {
        let (from, to) = self.place(index);
        let (start, end) = self.handles.own_stretch(from, to);
        let epoch = self.epoch;
        let part = self.part_mut(Kind::Large);
        if start == end {
            part.give_back(index, epoch);
            return;
        }
        let gap = part.piece_of(start, end - start);
        let hole = part.carve(index, gap, State::Hole);
        if end < to {
            let right = part.next(hole).unwrap_or_else(|| unreachable!("the block's end"));
            part.give_back(right, epoch);
        }
        if from < start {
            part.give_back(index, epoch);
        }
    }

    /// Where a large block begins and ends.
    fn place(&self, index: u32) -> (u64, u64) {
        let part = self.part(Kind::Large);
        let Piece { units, .. } = part.piece(index);
        (part.at(index), part.at(index) + part.bytes_of(units))
    }
}
