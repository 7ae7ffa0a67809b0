//! Speeds of a device that is slow, regains its speed, or is not measured.
//! Times are made up.

use super::*;
use crate::ledger::ModelId;

const GROUP: Group = Group { model: ModelId(0), key: 0 };

/// A device that computes batches one after the other.
struct Rig {
    speed: SpeedMeter,
    watch: SpeedWatch,
    now: Moment,
}

fn computed(load: Load, time: Duration) -> Computed {
    // A batch of 640 tokens and 32 texts takes 1 ms.
    let learnt = Learnt { cost: Cost::GPU.scaled(1e3 / 131.2), largest: Load { tokens: 640, texts: 32 } };
    Computed { group: GROUP, load, company: Company::Queued, time, learnt }
}

impl Rig {
    fn new() -> Self {
        Self { speed: SpeedMeter::default(), watch: SpeedWatch::default(), now: Moment::START }
    }

    /// Computes batches of 32 texts, which take 1 ms at full speed, for some seconds; says what changed, and after how
    /// many seconds.
    fn compute(&mut self, seconds: u64, slower: f64) -> Vec<(SpeedChange, u64)> {
        self.compute_these(seconds, Load { tokens: 640, texts: 32 }, Duration::from_millis(1).mul_f64(slower))
    }

    fn compute_these(&mut self, seconds: u64, load: Load, time: Duration) -> Vec<(SpeedChange, u64)> {
        let (began, mut changes) = (self.now, Vec::new());
        while self.now.since(began) < Duration::from_secs(seconds) {
            self.now = self.now + time;
            let batch = computed(load, time);
            self.speed.note_busy(time, &self.watch, self.now);
            let change = self.speed.compare(&batch, &self.watch, self.now);
            let change = change.or_else(|| self.speed.tend(&self.watch, self.now));
            changes.extend(change.map(|change| (change, self.now.since(began).as_secs())));
        }
        changes
    }
}

#[test]
fn half_the_speed_for_ten_seconds_is_told_once_and_so_is_the_return() {
    let mut rig = Rig::new();
    assert_eq!(rig.compute(20, 1.0), []);
    let slowed = rig.compute(60, 2.0);
    assert!(matches!(slowed[..], [(SpeedChange::Slowed { .. }, 10..=12)]), "{slowed:?}");
    let SpeedChange::Slowed { figures, .. } = slowed[0].0 else { panic!("{slowed:?}") };
    assert_eq!(figures, SpeedFigures { measured: 320_000, usual: 640_000 });
    assert!((rig.speed.weight() - 0.5).abs() < 0.01, "{}", rig.speed.weight());
    let back = rig.compute(60, 1.0);
    assert!(matches!(back[..], [(SpeedChange::Regained { .. }, 1..=4)]), "{back:?}");
    assert!((rig.speed.weight() - 1.0).abs() < 1e-9);
    assert!(rig.speed.lately().is_some_and(|speed| (speed - 1.0).abs() < 0.01));
}

#[test]
fn a_little_slower_or_slow_for_a_moment_is_not_told() {
    let mut rig = Rig::new();
    rig.compute(20, 1.0);
    assert_eq!(rig.compute(60, 1.3), []);
    for _ in 0..10 {
        assert_eq!(rig.compute(8, 3.0), []);
        assert_eq!(rig.compute(2, 1.0), []);
    }
}

#[test]
fn batches_of_another_size_are_not_slow_because_a_token_of_them_takes_longer() {
    let mut rig = Rig::new();
    rig.compute(20, 1.0);
    for (tokens, texts, micros) in [(20, 1, 700), (6_400, 320, 20_000), (20, 1, 700)] {
        assert_eq!(rig.compute_these(60, Load { tokens, texts }, Duration::from_micros(micros)), []);
        assert_eq!(rig.compute(20, 1.0), []);
    }
}

#[test]
fn a_slow_device_that_gets_smaller_batches_than_ever_is_slow_all_the_same() {
    let mut rig = Rig::new();
    rig.compute(20, 1.0);
    assert_eq!(rig.compute(2, 2.0), []);
    let smaller = Load { tokens: 80, texts: 4 };
    let changes = rig.compute_these(30, smaller, Duration::from_micros(1_320));
    assert!(matches!(changes[..], [(SpeedChange::Slowed { .. }, 6..=12)]), "{changes:?}");
    let changes = rig.compute_these(10, smaller, Duration::from_micros(660));
    assert!(matches!(changes[..], [(SpeedChange::Regained { .. }, 1..=4)]), "{changes:?}");
}

#[test]
fn a_wrong_prediction_does_not_keep_a_device_slow() {
    let mut rig = Rig::new();
    rig.compute(20, 1.0);
    rig.compute(2, 2.0);
    let changes = rig.compute_these(300, Load { tokens: 80, texts: 4 }, Duration::from_micros(1_320));
    let kinds: Vec<_> = changes.iter().map(|(change, _)| matches!(change, SpeedChange::Untested { .. })).collect();
    assert_eq!(kinds, [false, true], "{changes:?}");
}

#[test]
fn now_and_then_a_slow_batch_says_nothing() {
    let mut rig = Rig::new();
    rig.compute(20, 1.0);
    for _ in 0..100 {
        // The clock of a GPU that has nothing to do is low.
        rig.now = rig.now + Duration::from_millis(500);
        assert_eq!(rig.compute(0, 1.0), []);
        rig.now = rig.now + Duration::from_millis(2);
        let batch = computed(Load { tokens: 640, texts: 32 }, Duration::from_millis(2));
        rig.speed.note_busy(batch.time, &rig.watch, rig.now);
        assert_eq!(rig.speed.compare(&batch, &rig.watch, rig.now), None);
    }
}

#[test]
fn a_slow_device_that_gets_no_work_is_tried_at_full_weight() {
    let mut rig = Rig::new();
    rig.compute(20, 1.0);
    rig.compute(20, 4.0);
    assert!(rig.speed.weight() < 0.3);
    let wake = rig.speed.wake(&rig.watch).unwrap();
    assert_eq!(rig.speed.tend(&rig.watch, wake.before(Duration::from_nanos(1))), None);
    assert!(matches!(rig.speed.tend(&rig.watch, wake), Some(SpeedChange::Untested { .. })));
    assert!((rig.speed.weight() - 1.0).abs() < 1e-9 && rig.speed.wake(&rig.watch).is_none());
}

#[test]
fn a_device_that_lost_its_work_before_it_was_known_as_slow_is_tried_again() {
    let mut rig = Rig::new();
    rig.compute(20, 1.0);
    assert_eq!(rig.compute(3, 20.0), []);
    let change = rig.speed.tend(&rig.watch, rig.now + rig.watch.window);
    assert!(matches!(change, Some(SpeedChange::Untested { was_told: false, .. })), "{change:?}");
    rig.now = rig.now + rig.watch.window;
    rig.compute(3, 1.0);
    assert_eq!(rig.speed.wake(&rig.watch), None);
}

#[test]
fn what_is_not_watched_is_never_slow() {
    let mut rig = Rig::new();
    rig.watch.is_on = false;
    rig.compute(20, 1.0);
    assert_eq!(rig.compute(60, 9.0), []);
    assert_eq!(rig.speed.lately(), None);
}
