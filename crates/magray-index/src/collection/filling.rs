//! A dense index as it is filled: vectors are set by a thread of their own while the next ones are read.
//! Reads nothing itself.

use super::dense::Dense;
use crate::store::floats_into;
use crate::{Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Vectors that are set at once, and the most numbers of them.
const SET_AT_ONCE: usize = 1 << 16;
const VALUES_AT_ONCE: usize = 1 << 25;

/// Vectors by their slots, which ascend.
#[derive(Default)]
struct Batch {
    slots: Vec<u32>,
    values: Vec<f32>,
}

/// Takes vectors as they are read.
pub(super) struct Filling {
    batch: Batch,
    dims: usize,
    full: SyncSender<Batch>,
    /// Batches that were set, to be filled again.
    emptied: Receiver<Batch>,
}

/// An index with all vectors that `read` adds. Those that cannot be searched are told to `refuse`.
pub(super) fn filled(
    mut index: Dense,
    dims: usize,
    refuse: &(dyn Fn(u32) + Sync),
    read: impl FnOnce(&mut Filling) -> Result<()>,
) -> Result<Dense> {
    let (full, batches) = sync_channel::<Batch>(0);
    let (empty, emptied) = sync_channel(1);
    thread::scope(|scope| {
        let set = move || {
            for mut batch in batches {
                index.set_all(&batch.slots, &batch.values).into_iter().for_each(refuse);
                batch.slots.clear();
                batch.values.clear();
                // The receiver is gone after the last one.
                let _ = empty.send(batch);
            }
            index
        };
        let setting = thread::Builder::new().name("index".to_owned()).spawn_scoped(scope, set);
        let setting = setting.map_err(|reason| Error::Store(format!("cannot start a thread: {reason}")))?;
        let mut filling = Filling { batch: Batch::default(), dims, full, emptied };
        let read = read(&mut filling);
        filling.hand_over();
        drop(filling);
        let index = setting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        read.map(|()| index)
    })
}

impl Filling {
    /// Adds the vector of a slot; `false` if it has another length.
    pub(super) fn add(&mut self, slot: u32, bytes: &[u8]) -> bool {
        let is_many = self.batch.slots.len() == SET_AT_ONCE || self.batch.values.len() >= VALUES_AT_ONCE;
        // Damaged pages may bring slots out of order.
        if is_many || self.batch.slots.last().is_some_and(|last| *last >= slot) {
            self.hand_over();
        }
        let Batch { slots, values } = &mut self.batch;
        values.resize(values.len() + self.dims, 0.0);
        let is_whole = floats_into(bytes, &mut values[slots.len() * self.dims..]);
        match is_whole {
            true => slots.push(slot),
            false => values.truncate(slots.len() * self.dims),
        }
        is_whole
    }

    fn hand_over(&mut self) {
        let full = std::mem::take(&mut self.batch);
        // Only a thread that panicked takes none: its panic goes on when it is joined.
        if self.full.send(full).is_ok() {
            self.batch = self.emptied.try_recv().unwrap_or_default();
        }
    }
}
