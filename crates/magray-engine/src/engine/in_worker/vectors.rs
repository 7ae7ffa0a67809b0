//! The vectors of a worker: orders for them, and what comes of these.
//! Reports vectors that have left to the dispatcher, also where it did not order it.

use super::super::dispatcher::Dispatcher;
use super::super::executor_handle::OrderVectors;
use super::Inner;
use crate::worker::VectorReply;
use magray_core::ledger::CollectionId;
use std::sync::mpsc::{Receiver, channel};

impl Inner {
    /// Hands an order to a worker. Nothing is received where the worker ends before it is done.
    pub(super) fn order_vectors(&self, order: OrderVectors<'_>) -> Option<Receiver<VectorReply>> {
        let OrderVectors { worker, collection, order, memory } = order;
        let mut state = self.lock();
        let handle = state.handle_of(worker)?;
        state.last_call += 1;
        let (call, (caller, reply)) = (state.last_call, channel());
        state.calls.insert(call, caller);
        drop(state);
        // One that is gone says so by its end.
        let _ = handle.order_vectors(call, collection.0, order, memory);
        Some(reply)
    }

    pub(super) fn hear_of_vectors(
        &self,
        dispatcher: &Dispatcher,
        call: u64,
        collection: CollectionId,
        reply: VectorReply,
    ) {
        if reply == VectorReply::Dropped {
            dispatcher.vectors_dropped(self.spec.id, collection);
        }
        if let Some(caller) = self.lock().calls.remove(&call) {
            // It may wait no more.
            let _ = caller.send(reply);
        }
    }
}
