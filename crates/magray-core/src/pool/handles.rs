//! The handles of a pool: what memory is there and where it is mapped, and every call to the driver.
//! Does not know what the memory is used for, and decides nothing.

use std::collections::BTreeMap;

use super::Upstream;

/// Memory that is mapped nowhere at the moment.
#[derive(Debug)]
#[must_use = "memory that is dropped is lost: map or release it"]
pub(super) struct Loose<H> {
    pub(super) bytes: u64,
    handle: H,
}

/// The memory of a pool.
pub(super) struct Handles<U: Upstream> {
    pub(super) upstream: U,
    /// By where they are mapped.
    mapped: BTreeMap<u64, Loose<U::Handle>>,
    pub(super) reserved: u64,
    pub(super) peak_reserved: u64,
    pub(super) driver_calls: u64,
    limit: u64,
}

impl<U: Upstream> Handles<U> {
    pub(super) fn new(upstream: U, limit: u64) -> Self {
        Self { upstream, mapped: BTreeMap::new(), reserved: 0, peak_reserved: 0, driver_calls: 0, limit }
    }

    /// Memory that may still be created.
    pub(super) fn budget(&self) -> u64 {
        self.limit - self.reserved
    }

    /// New memory; the caller has seen that the limit allows it.
    pub(super) fn create(&mut self, bytes: u64) -> Result<Loose<U::Handle>, U::Error> {
        assert!(bytes > 0 && bytes <= self.budget(), "{bytes} bytes of {} that may be created", self.budget());
        self.driver_calls += 1;
        let handle = self.upstream.create(bytes)?;
        self.reserved += bytes;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
        Ok(Loose { bytes, handle })
    }

    /// Maps memory; where that fails, it is released, for it is of no use.
    pub(super) fn map(&mut self, at: u64, loose: Loose<U::Handle>) -> Result<(), U::Error> {
        self.driver_calls += 1;
        match self.upstream.map(at, loose.bytes, &loose.handle) {
            Ok(()) => {
                let before = self.mapped.insert(at, loose);
                assert!(before.is_none(), "two handles at {at}");
                Ok(())
            }
            Err(error) => {
                self.release(loose);
                Err(error)
            }
        }
    }

    /// Takes the handle from this place.
    pub(super) fn unmap(&mut self, at: u64) -> Loose<U::Handle> {
        let loose = self.mapped.remove(&at).unwrap_or_else(|| unreachable!("no handle is mapped at {at}"));
        self.driver_calls += 1;
        self.upstream.unmap(at, loose.bytes);
        loose
    }

    /// Gives memory back.
    pub(super) fn release(&mut self, loose: Loose<U::Handle>) {
        self.driver_calls += 1;
        self.reserved -= loose.bytes;
        self.upstream.release(loose.handle);
    }

    /// Where the handles lie that are wholly within a stretch of the range, and their bytes.
    pub(super) fn within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        self.mapped
            .range(from..to)
            .map(|(at, loose)| (*at, loose.bytes))
            .take_while(move |(at, bytes)| at + bytes <= to)
    }

    /// The stretch of a block that no handle reaches into from outside, and which the block's own handles fill.
    pub(super) fn own_stretch(&self, from: u64, to: u64) -> (u64, u64) {
        let last_before =
            |place: u64| self.mapped.range(..place).next_back().map(|(at, loose)| (*at, at + loose.bytes));
        let start = last_before(from).map_or(from, |(_, end)| end.max(from)).min(to);
        let end = last_before(to).filter(|(_, end)| *end > to).map_or(to, |(at, _)| at);
        (start, end.max(start))
    }

    /// Unmaps and releases everything.
    pub(super) fn clear(&mut self) {
        while let Some((at, _)) = self.mapped.first_key_value() {
            let loose = self.unmap(*at);
            self.release(loose);
        }
    }
}
