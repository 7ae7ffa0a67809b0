//! Work as a future: what comes of it is awaited, and whoever stops waiting takes the work back.
//! Needs no runtime: any executor will do.

use super::{Answer, Engine, EngineError, RequestId, Work};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// An answer that is awaited. Dropped before it came, its work is cancelled: what waits is not computed any more.
#[must_use = "work that nobody awaits is cancelled"]
pub struct Asking {
    engine: Engine,
    /// `None` where the work was refused at once.
    id: Option<RequestId>,
    slot: Arc<Mutex<Slot>>,
}

/// Where the answer is put.
enum Slot {
    Waiting(Option<Waker>),
    Answered(Result<Answer, EngineError>),
    Taken,
}

impl Engine {
    /// Takes work; the answer is awaited.
    pub fn ask(&self, work: Work) -> Asking {
        let slot = Arc::new(Mutex::new(Slot::Waiting(None)));
        let own = Arc::clone(&slot);
        let id = self.submit(work, move |answer| {
            let before = std::mem::replace(&mut *lock(&own), Slot::Answered(answer));
            if let Slot::Waiting(Some(waker)) = before {
                waker.wake();
            }
        });
        Asking { engine: self.clone(), id, slot }
    }
}

impl Future for Asking {
    type Output = Result<Answer, EngineError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.slot);
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Answered(answer) => Poll::Ready(answer),
            Slot::Waiting(_) => {
                *slot = Slot::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            Slot::Taken => unreachable!("a future is not polled after its end"),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let is_waiting = matches!(*lock(&self.slot), Slot::Waiting(_));
        if let Some(id) = self.id.filter(|_| is_waiting) {
            self.engine.cancel(id);
        }
    }
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}
