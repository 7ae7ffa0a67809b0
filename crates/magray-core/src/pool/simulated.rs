//! Memory without memory: an upstream that checks every call, for tests and for measuring the pool alone.
//! Panics where a driver would be misused; fails only when told to.

use std::collections::BTreeMap;

use super::Upstream;

/// An upstream that only keeps books.
#[derive(Debug, Default)]
pub struct SimulatedMemory {
    /// Bytes of every handle that was created and not released, and where it is mapped.
    handles: BTreeMap<u64, (u64, Option<u64>)>,
    /// What is mapped: bytes and handle, by place.
    mapped: BTreeMap<u64, (u64, u64)>,
    next: u64,
    capacity: Option<u64>,
    created: u64,
    fails_after: Option<u64>,
}

/// A handle of simulated memory.
#[derive(Debug)]
pub struct SimulatedHandle(u64);

/// The simulated driver was told to fail, or has no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedFailure;

impl std::fmt::Display for SimulatedFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the simulated driver has no more memory")
    }
}

impl std::error::Error for SimulatedFailure {}

impl SimulatedMemory {
    /// Memory without end that never fails.
    pub fn new() -> Self {
        Self::default()
    }

    /// No more than so many bytes can be created.
    pub fn with_capacity(bytes: u64) -> Self {
        Self { capacity: Some(bytes), ..Self::default() }
    }

    /// After so many more calls that can fail, one does; `None`: none.
    pub fn fail_after(&mut self, calls: Option<u64>) {
        self.fails_after = calls;
    }

    /// Bytes of all handles.
    pub fn created_bytes(&self) -> u64 {
        self.created
    }

    /// Handles that exist.
    pub fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Whether memory lies under every byte of a place.
    pub fn is_mapped(&self, at: u64, bytes: u64) -> bool {
        let mut from = at;
        while from < at + bytes {
            match self.mapped.range(..=from).next_back() {
                Some((start, (length, _))) if start + length > from => from = start + length,
                _ => return false,
            }
        }
        true
    }

    /// Whether memory lies under any byte of a place.
    pub fn is_touched(&self, at: u64, bytes: u64) -> bool {
        self.mapped.range(..at + bytes).next_back().is_some_and(|(start, (length, _))| start + length > at)
    }

    fn may_fail(&mut self) -> Result<(), SimulatedFailure> {
        match &mut self.fails_after {
            Some(0) => {
                self.fails_after = None;
                Err(SimulatedFailure)
            }
            Some(calls) => {
                *calls -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Upstream for SimulatedMemory {
    type Handle = SimulatedHandle;
    type Error = SimulatedFailure;

    fn create(&mut self, bytes: u64) -> Result<SimulatedHandle, SimulatedFailure> {
        self.may_fail()?;
        assert!(bytes > 0, "a handle of no bytes");
        if self.capacity.is_some_and(|capacity| self.created + bytes > capacity) {
            return Err(SimulatedFailure);
        }
        self.created += bytes;
        self.next += 1;
        self.handles.insert(self.next, (bytes, None));
        Ok(SimulatedHandle(self.next))
    }

    fn map(&mut self, at: u64, bytes: u64, handle: &SimulatedHandle) -> Result<(), SimulatedFailure> {
        self.may_fail()?;
        assert!(!self.is_touched(at, bytes), "something is mapped at {at} already");
        let Some((size, place)) = self.handles.get_mut(&handle.0) else { panic!("a handle that was released") };
        assert_eq!((*size, *place), (bytes, None), "a whole handle is mapped, and once");
        *place = Some(at);
        self.mapped.insert(at, (bytes, handle.0));
        Ok(())
    }

    fn unmap(&mut self, at: u64, bytes: u64) {
        let Some((size, handle)) = self.mapped.remove(&at) else { panic!("nothing is mapped at {at}") };
        assert_eq!(size, bytes, "a whole handle is unmapped");
        if let Some((_, place)) = self.handles.get_mut(&handle) {
            *place = None;
        }
    }

    fn release(&mut self, handle: SimulatedHandle) {
        let Some((bytes, place)) = self.handles.remove(&handle.0) else { panic!("a handle is released twice") };
        assert_eq!(place, None, "a handle is unmapped before it is released");
        self.created -= bytes;
    }
}
