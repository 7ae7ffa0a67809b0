//! What a request has been given on its way through the server: room in the queue, and room for its answer.
//! Travels with the task that answers it, so that no handler has to hand it on; ends with the request at the latest.

use std::cell::RefCell;

use super::admission::{Coming, Place};

#[derive(Default)]
struct Reserved {
    coming: Option<Coming>,
    answer: Option<Place>,
}

tokio::task_local! {
    static RESERVED: RefCell<Reserved>;
}

/// Runs a request. Gives what came of it, and the room that was taken for its answer.
pub(crate) async fn run<F: Future>(request: F) -> (F::Output, Option<Place>) {
    let reserved = async {
        let output = request.await;
        (output, RESERVED.with(|reserved| reserved.borrow_mut().answer.take()))
    };
    RESERVED.scope(RefCell::default(), reserved).await
}

/// This request has room in the queue.
pub(crate) fn keep_coming(coming: Coming) {
    // Outside of a request nobody comes: the room is given back at once.
    let _ = RESERVED.try_with(|reserved| reserved.borrow_mut().coming = Some(coming));
}

/// The room in the queue that this request has, if any.
pub(crate) fn take_coming() -> Option<Coming> {
    RESERVED.try_with(|reserved| reserved.borrow_mut().coming.take()).ok().flatten()
}

/// This request has room for its answer; a second one is put beside the first.
pub(crate) fn keep_answer(place: Place) {
    let _ = RESERVED.try_with(|reserved| {
        let answer = &mut reserved.borrow_mut().answer;
        match answer {
            Some(known) => known.absorb(place),
            None => *answer = Some(place),
        }
    });
}
