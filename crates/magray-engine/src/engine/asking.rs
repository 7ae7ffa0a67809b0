//! Work as a future: what comes of it is awaited, and whoever stops waiting takes the work back.
//! Needs no runtime: any executor will do.

use super::{Answer, Engine, EngineError, RequestId, Work};
use futures_channel::oneshot::{self, Receiver};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// An answer that is awaited. Dropped before it came, its work is cancelled: what waits is not computed any more.
#[must_use = "work that nobody awaits is cancelled"]
pub struct Asking {
    engine: Engine,
    /// `None` where the work was refused at once.
    id: Option<RequestId>,
    answer: Receiver<Result<Answer, EngineError>>,
}

impl Engine {
    /// Takes work; the answer is awaited.
    pub fn ask(&self, work: Work) -> Asking {
        let (sender, answer) = oneshot::channel();
        // Refused where nobody waits any more.
        let id = self.submit(work, move |answer| drop(sender.send(answer)));
        Asking { engine: self.clone(), id, answer }
    }
}

impl Future for Asking {
    type Output = Result<Answer, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Every request is answered; an engine that lets go of one has ended.
        Pin::new(&mut self.answer).poll(context).map(|answer| answer.unwrap_or(Err(EngineError::Draining)))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let is_waiting = matches!(self.answer.try_recv(), Ok(None));
        if let Some(id) = self.id.filter(|_| is_waiting) {
            self.engine.cancel(id);
        }
    }
}
