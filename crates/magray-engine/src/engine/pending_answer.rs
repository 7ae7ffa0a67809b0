//! An answer as a future; dropping it cancels the work.
//! Needs no runtime: any executor will do.

use super::{Answer, Engine, EngineError, RequestId, Work};
use futures_channel::oneshot::{self, Receiver};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// An answer that is awaited. Dropped before it came, its work is cancelled: what waits is not computed any more.
#[must_use = "work that is not awaited is cancelled"]
pub struct PendingAnswer {
    engine: Engine,
    /// `None` where the work was refused at once.
    id: Option<RequestId>,
    answer: Receiver<Result<Answer, EngineError>>,
}

impl PendingAnswer {
    pub(super) fn of(engine: &Engine, work: Work) -> Self {
        let (sender, answer) = oneshot::channel();
        // Fails where the future was dropped.
        let id = engine.submit(work, move |answer| drop(sender.send(answer)));
        Self { engine: engine.clone(), id, answer }
    }
}

impl Future for PendingAnswer {
    type Output = Result<Answer, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Every request is answered; an engine that lets go of one has ended.
        Pin::new(&mut self.answer).poll(context).map(|answer| answer.unwrap_or(Err(EngineError::Draining)))
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let is_waiting = matches!(self.answer.try_recv(), Ok(None));
        if let Some(id) = self.id.filter(|_| is_waiting) {
            self.engine.cancel(id);
        }
    }
}
