//! Gives back memory that nobody used for a while, and joins what is scattered. Both for times when nobody waits.
//! Never touches memory of which a caller or a stream uses a byte.

use super::{
    Pool, Upstream,
    allocate::Kind,
    growth::{Gathered, Spare},
    part::State,
};

impl<U: Upstream> Pool<U> {
    /// Releases handles that nobody used for so many epochs, those unused for longest first, but keeps what history
    /// says is needed. Tells how many bytes were given back.
    pub fn trim(&mut self, keep_epochs: u32) -> u64 {
        self.join_kept();
        let epoch = self.epoch;
        let mut spares = self.spares(|spare| epoch.wrapping_sub(spare.touched) >= keep_epochs);
        spares.sort_unstable_by_key(|spare| std::cmp::Reverse(epoch.wrapping_sub(spare.touched)));
        // History speaks of workspaces: what has handles of its own comes on top.
        let floor = self.forecast.predicted() + self.apart;
        let mut left = self.handles.reserved;
        spares.retain(|spare| {
            let may_go = left - spare.bytes >= floor;
            if may_go {
                left -= spare.bytes;
            }
            may_go
        });
        self.release_spares(&spares)
    }

    /// Releases every handle that nobody uses: for when memory is short. Tells how many bytes were given back.
    pub fn trim_all(&mut self) -> u64 {
        self.join_kept();
        let spares = self.spares(|_| true);
        self.release_spares(&spares)
    }

    /// Joins handles of the large part that nobody used for so many epochs (0: nobody uses now) in one place, so that
    /// the next large block finds it. Tells how many were moved. Where the driver fails, what could not be mapped is
    /// given back.
    pub fn stitch(&mut self, idle_epochs: u32) -> Result<u64, U::Error> {
        let epoch = self.epoch;
        let mut spares =
            self.spares(|spare| spare.kind == Kind::Large && epoch.wrapping_sub(spare.touched) >= idle_epochs);
        // Behind the largest free block that has a hole behind it: its own handles stay.
        let part = self.part(Kind::Large);
        let total: u64 = spares.iter().map(|spare| spare.bytes).sum();
        let has_room = |block: &u32| {
            part.next(*block).is_some_and(|next| part.state(next) == State::Hole && part.bytes(next) >= total)
        };
        let target = part.free_from(1).into_iter().filter(has_room).max_by_key(|block| part.bytes(*block));
        if let Some(target) = target {
            spares.retain(|spare| spare.block != target);
        }
        let is_scattered = target.is_some() || spares.iter().any(|spare| spare.block != spares[0].block);
        if spares.is_empty() || !is_scattered || (target.is_none() && self.lowest_hole(Kind::Large, total).is_none()) {
            return Ok(0);
        }
        let moved = spares.len() as u64;
        let loose = spares.iter().map(|spare| self.pull(spare)).collect();
        let hole = match target {
            Some(target) => self.part(Kind::Large).next(target),
            None => self.lowest_hole(Kind::Large, total),
        };
        let hole = hole.unwrap_or_else(|| unreachable!("holes only grew"));
        self.stitches += moved;
        self.land(Kind::Large, hole, Gathered::of_moved(loose))?;
        Ok(moved)
    }

    fn release_spares(&mut self, spares: &[Spare]) -> u64 {
        for spare in spares {
            let loose = self.pull(spare);
            self.handles.release(loose);
        }
        self.trims += spares.len() as u64;
        spares.iter().map(|spare| spare.bytes).sum()
    }
}
