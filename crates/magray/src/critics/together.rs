//! Futures of one kind that go on side by side in one task, which keeps what belongs to the task, such as its request.
//! Dropped, all of them are.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

/// Waits for all; their results are in their order.
pub(super) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Going<F>> = futures.into_iter().map(|future| Going::On(Box::pin(future))).collect();
    poll_fn(|context| poll_all(&mut futures, context)).await;
    let done = |going: Going<F>| match going {
        Going::Done(output) => output,
        Going::On(_) => unreachable!("all are done"),
    };
    futures.into_iter().map(done).collect()
}

enum Going<F: Future> {
    On(Pin<Box<F>>),
    Done(F::Output),
}

fn poll_all<F: Future>(futures: &mut [Going<F>], context: &mut Context<'_>) -> Poll<()> {
    let mut are_done = true;
    for going in futures {
        let Going::On(future) = going else { continue };
        match future.as_mut().poll(context) {
            Poll::Ready(output) => *going = Going::Done(output),
            Poll::Pending => are_done = false,
        }
    }
    if are_done { Poll::Ready(()) } else { Poll::Pending }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_whoever_ends_first() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (mut sender, mut receiver) = (Some(sender), Some(receiver));
        let one = |place: usize| {
            let (sender, receiver) = match place {
                0 => (None, receiver.take()),
                _ => (sender.take(), None),
            };
            async move {
                if let Some(receiver) = receiver {
                    receiver.await.unwrap();
                }
                if let Some(sender) = sender {
                    sender.send(()).unwrap();
                }
                place
            }
        };
        let futures: Vec<_> = (0..3).map(one).collect();
        assert_eq!(runtime.block_on(all(futures)), [0, 1, 2]);
    }
}
