//! Those who look at the page: what they are shown is made once for all of them, and only while there are any.
//! Knows nothing of what is shown; there is a bound on how many look at once.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// Clients that look at once.
const VIEWERS_MAX: usize = 64;

pub(crate) struct Viewers {
    shown: watch::Sender<Shown>,
    came: Notify,
    places: Arc<Semaphore>,
}

#[derive(Clone, Default)]
struct Shown {
    event: Bytes,
    is_last: bool,
}

/// One that looks.
pub(crate) struct Viewer {
    shown: watch::Receiver<Shown>,
    _place: OwnedSemaphorePermit,
}

impl Default for Viewers {
    fn default() -> Self {
        Self { shown: watch::Sender::default(), came: Notify::new(), places: Arc::new(Semaphore::new(VIEWERS_MAX)) }
    }
}

impl Viewers {
    /// `None`: as many look as may.
    pub(crate) fn enter(&self) -> Option<Viewer> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let viewer = Viewer { shown: self.shown.subscribe(), _place: place };
        self.came.notify_one();
        Some(viewer)
    }

    /// Waits until one looks.
    pub(crate) async fn wait(&self) {
        while self.shown.receiver_count() == 0 {
            self.came.notified().await;
        }
    }

    pub(crate) fn show(&self, event: Bytes) {
        self.shown.send_replace(Shown { event, is_last: false });
    }

    /// There will be nothing more to see.
    pub(crate) fn end(&self) {
        self.shown.send_modify(|shown| shown.is_last = true);
    }
}

impl Viewer {
    /// What is shown next: the latest, where some was missed; `None`: there is nothing more.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if self.shown.borrow().is_last {
            return None;
        }
        self.shown.changed().await.ok()?;
        let shown = self.shown.borrow_and_update();
        (!shown.is_last).then(|| shown.event.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_slow_viewer_sees_the_latest_and_all_see_the_end() {
        block_on(async {
            let viewers = Viewers::default();
            let mut viewer = viewers.enter().unwrap();
            viewers.wait().await;
            viewers.show("1".into());
            viewers.show("2".into());
            assert_eq!(viewer.next().await.unwrap(), "2");
            viewers.end();
            assert_eq!(viewer.next().await, None);
            assert_eq!(viewers.enter().unwrap().next().await, None, "one that comes later does not wait");
        });
    }

    #[test]
    fn only_so_many_look_at_once() {
        let viewers = Viewers::default();
        let all: Vec<Viewer> = (0..VIEWERS_MAX).filter_map(|_| viewers.enter()).collect();
        assert!(all.len() == VIEWERS_MAX && viewers.enter().is_none());
        drop(all);
        assert!(viewers.enter().is_some());
    }
}
