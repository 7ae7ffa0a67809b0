//! Connections that have not asked anything yet: where there is no place left, the oldest of them goes for a new one.
//! Never ends a connection that has asked something.

use std::collections::VecDeque;

use tokio::sync::oneshot;

/// Those who have not spoken, the oldest first.
#[derive(Default)]
pub(crate) struct WaitingRoom {
    silent: VecDeque<oneshot::Sender<()>>,
}

impl WaitingRoom {
    /// A new connection; what it is given is done when it has to go. It leaves the room by dropping that.
    pub(crate) fn enter(&mut self) -> oneshot::Receiver<()> {
        while self.silent.front().is_some_and(oneshot::Sender::is_closed) {
            self.silent.pop_front();
        }
        // One that is slow may stand before many that have left.
        if self.silent.len() == self.silent.capacity() {
            self.silent.retain(|sender| !sender.is_closed());
        }
        let (sender, receiver) = oneshot::channel();
        self.silent.push_back(sender);
        receiver
    }

    /// Shows the oldest out; `false` if nobody is there.
    pub(crate) fn show_out(&mut self) -> bool {
        while let Some(oldest) = self.silent.pop_front() {
            if oldest.send(()).is_ok() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_still_there_goes_first() {
        let mut room = WaitingRoom::default();
        let mut all: Vec<_> = (0..3).map(|_| room.enter()).collect();
        drop(all.remove(0));
        assert!(room.show_out());
        assert_eq!((all[0].try_recv(), all[1].try_recv().is_ok()), (Ok(()), false));
        assert!(room.show_out());
        assert!(!room.show_out());
    }

    #[test]
    fn those_who_have_left_are_forgotten() {
        let mut room = WaitingRoom::default();
        let _slow = room.enter();
        for _ in 0..10_000 {
            room.enter();
        }
        assert!(room.silent.len() < 100, "{}", room.silent.len());
    }
}
