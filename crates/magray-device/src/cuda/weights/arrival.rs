//! How far a model's weights have come to the GPU, for streams that want to begin before all are there.
//! Copies nothing.

use crate::cuda::device_error::DeviceError;
use crate::cuda::stream::{Mark, Stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The state of weights that are copied in the order in which they are used.
#[derive(Debug)]
pub(super) struct Arrival {
    /// Whether all are there: asked before every layer.
    is_there: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Everything before each of these bytes is copied when its mark is reached; in order.
    marks: Vec<(usize, Mark)>,
    failure: Option<DeviceError>,
}

impl Arrival {
    /// Of weights whose copy has not begun.
    pub(super) fn new() -> Self {
        Self { is_there: AtomicBool::new(false), state: Mutex::default(), changed: Condvar::new() }
    }

    /// The copy begins.
    pub(super) fn begin(&self) {
        self.is_there.store(false, Ordering::Release);
        *self.state() = State::default();
    }

    /// The weights are offloaded: waiting is void until they are copied again.
    pub(super) fn leave(&self) {
        self.is_there.store(false, Ordering::Release);
        *self.state() = State { marks: Vec::new(), failure: Some(DeviceError::Away) };
    }

    /// The copies of the first `end` bytes stand before this mark.
    pub(super) fn pass(&self, end: usize, mark: Mark) {
        self.state().marks.push((end, mark));
        self.changed.notify_all();
    }

    /// All are copied, or the copy failed.
    pub(super) fn end(&self, result: Result<(), DeviceError>) {
        let mut state = self.state();
        match result {
            Ok(()) => {
                self.is_there.store(true, Ordering::Release);
                state.marks.clear();
            }
            Err(error) => state.failure = Some(error),
        }
        self.changed.notify_all();
    }

    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// Lets a stream wait for the first `end` bytes; waits itself until they are on their way.
    pub(super) fn hold(&self, stream: &Stream, end: usize) -> Result<(), DeviceError> {
        let mut state = self.state();
        loop {
            if self.is_there() {
                return Ok(());
            }
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            if let Some((_, mark)) = state.marks.iter().find(|(to, _)| *to >= end) {
                return Ok(stream.wait_for(mark)?);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        let mut state = self.state();
        loop {
            match &state.failure {
                _ if self.is_there() => return Ok(()),
                Some(error) => return Err(error.clone()),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
