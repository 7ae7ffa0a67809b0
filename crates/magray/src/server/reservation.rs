//! What a request holds on its way through the server: room in the queue, and the bytes of its answer.
//! Travels with the task that answers it, so that no handler has to pass it on; ends with the request at the latest.

use std::cell::RefCell;

use super::admission::{HeldBytes, QueueReservation};

#[derive(Default)]
struct Reserved {
    queue: Option<QueueReservation>,
    answer: Option<HeldBytes>,
}

tokio::task_local! {
    static RESERVED: RefCell<Reserved>;
}

/// Runs a request; returns its result and what it holds for its answer.
pub(crate) async fn run<F: Future>(request: F) -> (F::Output, Option<HeldBytes>) {
    let reserved = async {
        let output = request.await;
        (output, RESERVED.with(|reserved| reserved.borrow_mut().answer.take()))
    };
    RESERVED.scope(RefCell::default(), reserved).await
}

pub(crate) fn keep_queue(reservation: QueueReservation) {
    // Outside of a request it is given back at once.
    let _ = RESERVED.try_with(|reserved| reserved.borrow_mut().queue = Some(reservation));
}

pub(crate) fn take_queue() -> Option<QueueReservation> {
    RESERVED.try_with(|reserved| reserved.borrow_mut().queue.take()).ok().flatten()
}

/// Holds bytes for the answer; a second call adds to the first.
pub(crate) fn keep_answer(bytes: HeldBytes) {
    let _ = RESERVED.try_with(|reserved| {
        let answer = &mut reserved.borrow_mut().answer;
        match answer {
            Some(known) => known.absorb(bytes),
            None => *answer = Some(bytes),
        }
    });
}
