//! Work as a future: what comes of it is awaited, and whoever stops waiting takes the work back.
//! Needs no runtime: any executor will do.

use super::slot::Slot;
use super::{Answer, Engine, EngineError, RequestId, Work};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// An answer that is awaited. Dropped before it came, its work is cancelled: what waits is not computed any more.
#[must_use = "work that nobody awaits is cancelled"]
pub struct Asking {
    engine: Engine,
    /// `None` where the work was refused at once.
    id: Option<RequestId>,
    slot: Arc<Slot<Result<Answer, EngineError>>>,
}

impl Engine {
    /// Takes work; the answer is awaited.
    pub fn ask(&self, work: Work) -> Asking {
        let slot = Slot::new();
        let own = Arc::clone(&slot);
        let id = self.submit(work, move |answer| own.fill(answer));
        Asking { engine: self.clone(), id, slot }
    }
}

impl Future for Asking {
    type Output = Result<Answer, EngineError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.slot.poll(context)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let is_waiting = self.slot.close();
        if let Some(id) = self.id.filter(|_| is_waiting) {
            self.engine.cancel(id);
        }
    }
}
