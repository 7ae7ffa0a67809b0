//! The open connections and what each is doing: where there are too many, the one that is idle for longest is closed.
//! Never closes a connection that waits for an answer, or that takes one in the time for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::unread_bytes::UnreadBytes;

#[derive(Default)]
pub(crate) struct Connections {
    all: Vec<Weak<Connection>>,
}

pub(crate) struct Connection {
    activity: Mutex<Activity>,
    unread: Arc<UnreadBytes>,
    /// Another connection needs its place.
    close: Notify,
}

struct Activity {
    requests: usize,
    /// Large answers that the client has not taken whole: until when it has to.
    answers: BTreeMap<u64, Instant>,
    answers_ever: u64,
    idle_since: Instant,
    /// When the connection opened, or was last refused for want of room.
    last_refused: Instant,
    is_closing: bool,
}

pub(crate) struct ActiveRequest(Arc<Connection>);

pub(crate) struct PendingAnswer {
    connection: Arc<Connection>,
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CloseReason {
    #[error("it was idle, and another connection needed its slot")]
    Evicted,
    #[error("it was idle for too long")]
    Idle,
    #[error("its client did not take an answer in time")]
    Overdue,
}

/// Refusals for want of room leave at least this long after the connection opened, and after each other: a client that
/// retries at once would take the cores that compute.
const REFUSAL_SPACING: Duration = Duration::from_millis(2);
const CHECK_EVERY: Duration = Duration::from_secs(5);

impl Connections {
    /// A new connection. It ends when what is returned is dropped.
    pub(crate) fn add(&mut self, unread: Arc<UnreadBytes>) -> Arc<Connection> {
        // Those that have ended are removed before the list has to grow.
        if self.all.len() == self.all.capacity() {
            self.all.retain(|connection| connection.strong_count() > 0);
        }
        let now = Instant::now();
        let activity = Activity {
            requests: 0,
            answers: BTreeMap::new(),
            answers_ever: 0,
            idle_since: now,
            last_refused: now,
            is_closing: false,
        };
        let connection = Arc::new(Connection { activity: Mutex::new(activity), unread, close: Notify::new() });
        self.all.push(Arc::downgrade(&connection));
        connection
    }

    /// Closes the one that is idle for longest; `false` if all are busy.
    pub(crate) fn close_longest_idle(&self) -> bool {
        let idle = self.all.iter().filter_map(|connection| {
            let connection = connection.upgrade()?;
            let since = {
                let activity = connection.lock();
                activity.idle_since().filter(|_| !activity.is_closing)?
            };
            Some((since, connection))
        });
        let Some((_, longest)) = idle.min_by_key(|(since, _)| *since) else { return false };
        longest.lock().is_closing = true;
        longest.close.notify_one();
        true
    }
}

impl Connection {
    pub(crate) fn begin_request(self: &Arc<Self>) -> ActiveRequest {
        self.lock().requests += 1;
        ActiveRequest(Arc::clone(self))
    }

    /// A large answer is sent to it, and has to be taken within this time.
    pub(crate) fn begin_answer(self: &Arc<Self>, within: Duration) -> PendingAnswer {
        let mut activity = self.lock();
        activity.answers_ever += 1;
        let number = activity.answers_ever;
        activity.answers.insert(number, Instant::now() + within);
        drop(activity);
        PendingAnswer { connection: Arc::clone(self), number }
    }

    pub(crate) async fn space_refusals(&self) {
        let due = self.lock().last_refused + REFUSAL_SPACING;
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        self.lock().last_refused = Instant::now();
    }

    pub(crate) async fn closed(&self, idle_max: Duration) -> CloseReason {
        loop {
            let evicted = tokio::time::timeout(CHECK_EVERY.min(idle_max), self.close.notified()).await.is_ok();
            let (now, mut activity) = (Instant::now(), self.lock());
            let idle_for = activity.idle_since().map(|since| now.duration_since(since));
            if evicted {
                if idle_for.is_some() {
                    return CloseReason::Evicted;
                }
                // A request has arrived meanwhile.
                activity.is_closing = false;
            }
            if activity.answers.values().any(|due| *due <= now) {
                return CloseReason::Overdue;
            }
            if idle_for.is_some_and(|idle_for| idle_for >= idle_max) {
                return CloseReason::Idle;
            }
        }
    }

    pub(crate) fn unread(&self) -> &Arc<UnreadBytes> {
        &self.unread
    }

    fn lock(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Activity {
    /// `None` while it has requests or answers.
    fn idle_since(&self) -> Option<Instant> {
        (self.requests == 0 && self.answers.is_empty()).then_some(self.idle_since)
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut activity = self.0.lock();
        activity.requests -= 1;
        if activity.requests == 0 {
            self.0.unread.clear();
        }
        activity.idle_since = Instant::now();
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let mut activity = self.connection.lock();
        activity.answers.remove(&self.number);
        activity.idle_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::admission::Admission, *};

    const LONG: Duration = Duration::from_secs(3_600);

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(future)
    }

    fn add(connections: &mut Connections) -> Arc<Connection> {
        connections.add(Arc::new(UnreadBytes::new(&Arc::new(Admission::new(0)))))
    }

    #[test]
    fn the_one_that_is_idle_for_longest_is_closed_first() {
        block_on(async {
            let mut connections = Connections::default();
            let all: Vec<_> = (0..3).map(|_| add(&mut connections)).collect();
            // The first has had a request since.
            drop(all[0].begin_request());
            let busy = all[1].begin_request();
            assert!(connections.close_longest_idle());
            let are_closing: Vec<bool> = all.iter().map(|connection| connection.lock().is_closing).collect();
            assert_eq!(are_closing, [false, false, true]);
            assert_eq!(all[2].closed(LONG).await, CloseReason::Evicted);
            assert!(connections.close_longest_idle());
            assert!(all[0].lock().is_closing);
            assert!(!connections.close_longest_idle(), "one is busy, and two are closing");
            drop(busy);
            assert!(connections.close_longest_idle());
        });
    }

    #[test]
    fn a_connection_with_a_request_is_not_closed() {
        block_on(async {
            let mut connections = Connections::default();
            let connection = add(&mut connections);
            assert!(connections.close_longest_idle());
            let _busy = connection.begin_request();
            let stays = tokio::time::timeout(Duration::from_millis(1), connection.closed(LONG)).await;
            assert!(stays.is_err() && !connection.lock().is_closing);
        });
    }

    #[test]
    fn an_answer_that_is_not_taken_ends_the_connection() {
        block_on(async {
            let connection = add(&mut Connections::default());
            let within = Duration::from_millis(1);
            let answer = connection.begin_answer(Duration::ZERO);
            assert_eq!(connection.closed(within).await, CloseReason::Overdue);
            drop(answer);
            assert_eq!(connection.closed(within).await, CloseReason::Idle);
        });
    }

    #[test]
    fn refusals_of_a_client_that_retries_at_once_are_spaced() {
        let connection = add(&mut Connections::default());
        for _ in 0..3 {
            let before = connection.lock().last_refused;
            block_on(connection.space_refusals());
            assert!(connection.lock().last_refused >= before + REFUSAL_SPACING);
        }
    }

    #[test]
    fn connections_that_have_ended_are_forgotten() {
        let mut connections = Connections::default();
        let _open = add(&mut connections);
        for _ in 0..10_000 {
            add(&mut connections);
        }
        assert!(connections.all.len() < 100, "{}", connections.all.len());
    }
}
