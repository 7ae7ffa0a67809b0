//! Points at which a long job on a read thread lets short ones pass.
//! Does nothing on other threads.

use std::cell::RefCell;

thread_local! {
    static BETWEEN: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Does this at every point of jobs on this thread.
pub(crate) fn on_this_thread(between: impl FnMut() + 'static) {
    BETWEEN.set(Some(Box::new(between)));
}

/// A job could wait here. What is done meanwhile has no such points.
pub(crate) fn point() {
    if let Some(mut between) = BETWEEN.take() {
        between();
        BETWEEN.set(Some(between));
    }
}
