//! A place for one result that is awaited: filled by any thread, taken by a future in any runtime.
//! Never waits itself, and holds one result only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The place; both sides share it.
pub(super) struct Slot<T>(Mutex<State<T>>);

enum State<T> {
    Waiting(Option<Waker>),
    Filled(T),
    /// The result was taken, or nobody wants it any more.
    Closed,
}

impl<T> Slot<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Waiting(None))))
    }

    /// Puts the result there and wakes whoever waits. What nobody wants any more is dropped.
    pub(super) fn fill(&self, value: T) {
        let mut state = self.lock();
        let State::Waiting(waker) = &mut *state else { return };
        let waker = waker.take();
        *state = State::Filled(value);
        drop(state);
        // Called with the lock open: a waker may poll at once.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The result, if it is there; else whoever asks is woken when it is.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Filled(value) => Poll::Ready(value),
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Closed => unreachable!("a future is not polled after its end"),
        }
    }

    /// Nobody wants the result any more; tells whether it was still missing.
    pub(super) fn close(&self) -> bool {
        matches!(std::mem::replace(&mut *self.lock(), State::Closed), State::Waiting(_))
    }

    /// Whether somebody still waits for the result.
    pub(super) fn is_wanted(&self) -> bool {
        matches!(*self.lock(), State::Waiting(_))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
