//! The connections and what each is about: where there is no place left, the one that is idle for longest goes for a new one.
//! Never ends a connection that waits for an answer, or that takes one in the time for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::unread::Unread;

/// All connections.
#[derive(Default)]
pub(crate) struct Connections {
    all: Vec<Weak<Connection>>,
}

/// A connection.
pub(crate) struct Connection {
    doing: Mutex<Doing>,
    /// What it has sent and no request of it has taken yet.
    unread: Unread,
    /// It is asked to go.
    leave: Notify,
}

/// What a connection is about.
struct Doing {
    /// Requests that are being answered.
    requests: usize,
    /// Large answers that it has not taken whole: until when each has to be.
    answers: BTreeMap<u64, Instant>,
    answers_ever: u64,
    idle_since: Instant,
    /// When it came, or was last told that there is too much to do.
    turned_away: Instant,
    /// How often it asked again at once and was told so again, less what its waiting makes up for.
    in_vain: u32,
    /// Whether it was asked to go.
    is_leaving: bool,
}

/// A request of a connection, until it is dropped.
pub(crate) struct Busy(Arc<Connection>);

/// A large answer that is on its way to a connection, until it is dropped.
pub(crate) struct Delivery {
    connection: Arc<Connection>,
    number: u64,
}

/// How long a connection may do nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Idle {
    /// Somebody else looks after that.
    Any,
    /// Then it has to go.
    Within(Duration),
}

/// Why a connection has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Leave {
    #[error("it was idle, and its place was needed")]
    MadeWay,
    #[error("it was idle for too long")]
    Idle,
    #[error("it did not take its answer in time")]
    Overdue,
}

/// Whoever asks again in less time has not waited.
const HASTE: Duration = Duration::from_millis(5);
/// So often a connection may ask again at once. One that many clients share, each of whom asks once, is taken again and again
/// too, but at several times the load that can be carried one of so many requests finds room, and waits for its answer.
const PATIENCE: u32 = 16;
/// No more than so often counts.
const IN_VAIN_MOST: u32 = 4 * PATIENCE;
/// What each such time of waiting makes up for. A busy server takes a request some milliseconds late at times, and its client
/// has not waited then.
const MADE_UP: u32 = PATIENCE / 2;
/// How much later those hear it who ask again at once, so that they do so less often: each time takes cores that the others'
/// work is computed on. Timers and cores that are busy add a millisecond or two, and within five a refusal should be there.
const HELD_BACK: Duration = Duration::from_millis(2);
/// How often connections are looked at.
const LOOK: Duration = Duration::from_secs(5);

impl Connections {
    /// A new connection. It leaves by dropping what it is given.
    pub(crate) fn enter(&mut self, unread: Unread) -> Arc<Connection> {
        // Those who have left are forgotten before the list has to grow.
        if self.all.len() == self.all.capacity() {
            self.all.retain(|connection| connection.strong_count() > 0);
        }
        let now = Instant::now();
        let doing = Doing {
            requests: 0,
            answers: BTreeMap::new(),
            answers_ever: 0,
            idle_since: now,
            turned_away: now,
            // It may be that of a client who takes a new one each time.
            in_vain: PATIENCE,
            is_leaving: false,
        };
        let connection = Arc::new(Connection { doing: Mutex::new(doing), unread, leave: Notify::new() });
        self.all.push(Arc::downgrade(&connection));
        connection
    }

    /// Asks the one that is idle for longest to go; `false` if all are busy.
    pub(crate) fn show_out(&self) -> bool {
        let idle = self.all.iter().filter_map(|connection| {
            let connection = connection.upgrade()?;
            let since = {
                let doing = connection.lock();
                doing.idle_since().filter(|_| !doing.is_leaving)?
            };
            Some((since, connection))
        });
        let Some((_, longest)) = idle.min_by_key(|(since, _)| *since) else { return false };
        longest.lock().is_leaving = true;
        longest.leave.notify_one();
        true
    }
}

impl Connection {
    /// It has asked something.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.lock().requests += 1;
        Busy(Arc::clone(self))
    }

    /// It is given a large answer, and has this long to take it.
    pub(crate) fn give(self: &Arc<Self>, within: Duration) -> Delivery {
        let mut doing = self.lock();
        doing.answers_ever += 1;
        let number = doing.answers_ever;
        doing.answers.insert(number, Instant::now() + within);
        drop(doing);
        Delivery { connection: Arc::clone(self), number }
    }

    /// It is about to be told that there is too much to do: waits if it came only just, or was told so again and again and
    /// never waited.
    pub(crate) async fn turn_away(&self) {
        let is_in_haste = self.lock().asks_in_vain(Instant::now());
        if is_in_haste {
            tokio::time::sleep(HELD_BACK).await;
        }
        self.lock().turned_away = Instant::now();
    }

    /// Waits until it has to go.
    pub(crate) async fn has_to_go(&self, idle: Idle) -> Leave {
        let look = match idle {
            Idle::Within(most) => LOOK.min(most),
            Idle::Any => LOOK,
        };
        loop {
            let asked = tokio::time::timeout(look, self.leave.notified()).await;
            let (now, mut doing) = (Instant::now(), self.lock());
            let idle_for = doing.idle_since().map(|since| now.duration_since(since));
            if asked.is_ok() {
                if idle_for.is_some() {
                    return Leave::MadeWay;
                }
                // It has asked something in the last moment.
                doing.is_leaving = false;
            }
            if doing.answers.values().any(|due| *due <= now) {
                return Leave::Overdue;
            }
            if let (Idle::Within(most), Some(idle_for)) = (idle, idle_for)
                && idle_for >= most
            {
                return Leave::Idle;
            }
        }
    }

    pub(crate) fn unread(&self) -> &Unread {
        &self.unread
    }

    fn lock(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Doing {
    /// Counts one more refusal; whether it asks again and again without waiting.
    fn asks_in_vain(&mut self, now: Instant) -> bool {
        let waited = now.duration_since(self.turned_away).as_micros() / HASTE.as_micros();
        let made_up = u32::try_from(waited).unwrap_or(u32::MAX).saturating_mul(MADE_UP);
        self.in_vain = (self.in_vain + 1).min(IN_VAIN_MOST).saturating_sub(made_up);
        waited == 0 && self.in_vain > PATIENCE
    }

    /// Since when it does nothing.
    fn idle_since(&self) -> Option<Instant> {
        (self.requests == 0 && self.answers.is_empty()).then_some(self.idle_since)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut doing = self.0.lock();
        doing.requests -= 1;
        if doing.requests == 0 {
            self.0.unread.clear();
        }
        doing.idle_since = Instant::now();
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let mut doing = self.connection.lock();
        doing.answers.remove(&self.number);
        doing.idle_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::admission::Admission, *};

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(future)
    }

    fn enter(connections: &mut Connections) -> Arc<Connection> {
        connections.enter(Unread::new(&Arc::new(Admission::new(0))))
    }

    fn is_asked(connection: &Connection) -> bool {
        connection.lock().is_leaving
    }

    #[test]
    fn the_one_that_is_idle_for_longest_goes_first() {
        block_on(async {
            let mut connections = Connections::default();
            let all: Vec<_> = (0..3).map(|_| enter(&mut connections)).collect();
            // The first has asked something since.
            drop(all[0].begin());
            let busy = all[1].begin();
            assert!(connections.show_out());
            assert_eq!(all.iter().map(|connection| is_asked(connection)).collect::<Vec<_>>(), [false, false, true]);
            assert_eq!(all[2].has_to_go(Idle::Any).await, Leave::MadeWay);
            assert!(connections.show_out());
            assert!(is_asked(&all[0]));
            assert!(!connections.show_out(), "one is busy, and two are on their way out");
            drop(busy);
            assert!(connections.show_out());
        });
    }

    #[test]
    fn one_that_asks_in_the_last_moment_stays() {
        block_on(async {
            let mut connections = Connections::default();
            let connection = enter(&mut connections);
            assert!(connections.show_out());
            let _busy = connection.begin();
            let stays = tokio::time::timeout(Duration::from_millis(1), connection.has_to_go(Idle::Any)).await;
            assert!(stays.is_err() && !is_asked(&connection));
        });
    }

    #[test]
    fn an_answer_that_is_not_taken_ends_the_connection() {
        block_on(async {
            let connection = enter(&mut Connections::default());
            let within = Duration::from_millis(1);
            let delivery = connection.give(Duration::ZERO);
            assert_eq!(connection.has_to_go(Idle::Within(within)).await, Leave::Overdue);
            drop(delivery);
            assert_eq!(connection.has_to_go(Idle::Within(within)).await, Leave::Idle);
        });
    }

    #[test]
    fn only_those_are_held_back_who_ask_again_and_again() {
        let connection = enter(&mut Connections::default());
        let came = connection.lock().turned_away;
        assert!(connection.lock().asks_in_vain(came), "it came with this request");
        assert!(!connection.lock().asks_in_vain(came + HASTE), "it has waited");
        let asks_at_once = |_| connection.lock().asks_in_vain(came);
        assert!(!(0..MADE_UP - 2).any(asks_at_once), "others may ask by the same connection");
        assert!((0..2 * IN_VAIN_MOST).fold(false, |_, nth| asks_at_once(nth)));
        assert!(!connection.lock().asks_in_vain(came + HASTE) && asks_at_once(0), "a moment makes up for little");
        assert!(!connection.lock().asks_in_vain(came + 10 * HASTE));
        assert!(!(0..PATIENCE).any(asks_at_once), "it was answered, or waited");
        assert!(asks_at_once(0));
        // A test may be stopped now and then for so long that it has waited.
        let is_held_back = |_: &_| {
            let before = Instant::now();
            connection.lock().turned_away = before;
            block_on(connection.turn_away());
            connection.lock().turned_away.duration_since(before) >= HELD_BACK
        };
        assert!((0..20).filter(is_held_back).count() > 10);
    }

    #[test]
    fn those_who_have_left_are_forgotten() {
        let mut connections = Connections::default();
        let _slow = enter(&mut connections);
        for _ in 0..10_000 {
            enter(&mut connections);
        }
        assert!(connections.all.len() < 100, "{}", connections.all.len());
    }
}
