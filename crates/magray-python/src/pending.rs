//! Work under way: waited for by a thread, polled by an event loop, cancelled by whoever has it.
//! Gives its result once.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use pyo3::prelude::*;

use crate::failure::Failure;
use crate::leaving::{Home, is_left_alone};
use crate::numbers::Numbers;
use crate::waiting::{Wakeups, wait};

type Task = Pin<Box<dyn Future<Output = Result<Table, Failure>> + Send>>;

/// What comes of work: rows of numbers, and by text how many of them, where that is not one.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) values: Vec<f32>,
    pub(crate) columns: usize,
    pub(crate) rows_of_texts: Vec<usize>,
}

type Result3 = (Numbers, Vec<usize>);

#[pyclass(frozen, module = "magray._magray")]
pub(crate) struct Pending {
    task: Mutex<Option<Task>>,
    done: Arc<AtomicUsize>,
    home: Home,
}

impl Pending {
    /// Work that counts in `done` the texts that are done.
    pub(crate) fn new(
        done: Arc<AtomicUsize>,
        task: impl Future<Output = Result<Table, Failure>> + Send + 'static,
    ) -> Self {
        Self { task: Mutex::new(Some(Box::pin(task))), done, home: Home::here() }
    }

    fn poll_task(&self, context: &mut Context<'_>) -> Poll<Result<Table, Failure>> {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(under_way) = task.as_mut() else { return Poll::Ready(Err(Failure::Cancelled)) };
        let polled = under_way.as_mut().poll(context);
        if polled.is_ready() {
            *task = None;
        }
        polled
    }
}

#[pymethods]
impl Pending {
    /// Waits for the result, at most so many seconds; `None`: it is not there yet. An interrupt cancels the work.
    #[pyo3(signature = (seconds = None))]
    fn wait(&self, python: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Result3>> {
        self.home.check()?;
        match wait(python, seconds, |context| self.poll_task(context)) {
            Ok(ready) => Ok(ready.transpose()?.map(shown)),
            Err(interrupt) => {
                self.cancel();
                Err(interrupt)
            }
        }
    }

    /// The result, if it is there; else the event loop is told this key when it may be.
    fn poll(&self, wakeups: &Wakeups, key: u64) -> PyResult<Option<Result3>> {
        self.home.check()?;
        match self.poll_task(&mut Context::from_waker(&wakeups.waker(key))) {
            Poll::Ready(result) => Ok(Some(shown(result?))),
            Poll::Pending => Ok(None),
        }
    }

    /// What waits is not computed any more.
    fn cancel(&self) {
        if self.home.is_here() {
            *self.task.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Texts that are done.
    #[getter]
    fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if is_left_alone(self.home) {
            std::mem::forget(self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

fn shown(table: Table) -> Result3 {
    (Numbers::table(table.values, table.columns), table.rows_of_texts)
}
