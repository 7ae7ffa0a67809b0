//! What is due when, told from a clock of the tests' own.

use super::*;

const ZERO: Duration = Duration::ZERO;

fn script(plan: &str, place: Place, from: Duration) -> Script {
    Script::new(&plan.parse().unwrap(), place, from)
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// What befalls batches that come ten a second, by the number of the batch.
fn lived(script: &mut Script, from: f64, to: f64) -> Vec<(u64, FaultKind)> {
    let batches = (from * 10.0) as u64 + 1..=(to * 10.0) as u64;
    let due =
        |batch: u64| script.next_due(Clock { now: seconds(batch as f64 / 10.0), batch }).map(|kind| (batch, kind));
    batches.filter_map(due).collect()
}

#[test]
fn faults_come_in_their_time_and_once() {
    let mut batches = script("oom@1s*3, hang@2s, transient@batch=25, kill@1s, hot@1s", Place::Batch, ZERO);
    let oom = FaultKind::OutOfMemory;
    assert_eq!(
        lived(&mut batches, 0.0, 9.0),
        [(10, oom), (11, oom), (12, oom), (20, FaultKind::Hang), (25, FaultKind::Transient)]
    );
    assert_eq!(batches.next_at(), None);
}

#[test]
fn a_fault_at_the_very_start_is_not_missed() {
    let mut batches = script("oom@0s", Place::Batch, ZERO);
    assert_eq!(batches.next_due(Clock { now: ZERO, batch: 1 }), Some(FaultKind::OutOfMemory));
}

#[test]
fn a_new_worker_does_not_repeat_what_the_last_one_went_through() {
    let plan = "illegal_address@2s, hang@every=3s, crash@every=25*2, slow@4s+2s";
    let mut all = script(plan, Place::Batch, ZERO);
    let expected = lived(&mut all, 0.0, 12.0);
    let mut pieces = Vec::new();
    for (from, to) in [(0.0, 2.0), (2.0, 2.5), (2.5, 3.0), (3.0, 5.0), (5.0, 6.0), (6.0, 9.0), (9.0, 12.0)] {
        // The worker died of the fault at `from`, a moment later.
        let died = if from == 0.0 { ZERO } else { seconds(from + 0.01) };
        pieces.extend(lived(&mut script(plan, Place::Batch, died), from, to));
    }
    assert_eq!(pieces, expected);
    let mut late = script(plan, Place::Batch, seconds(5.0));
    assert!(late.is_on(FaultKind::Slow(8), seconds(5.5)), "what is left of it goes on");
    assert!(!late.is_on(FaultKind::Slow(8), seconds(6.0)));
}

#[test]
fn a_fault_that_was_due_while_there_was_no_worker_befalls_the_next_one() {
    // The worker before ended at 1 s, this one was ready at 3 s.
    let mut batches = script("transient@2s", Place::Batch, seconds(1.0));
    assert_eq!(batches.next_due(Clock { now: seconds(3.0), batch: 1 }), Some(FaultKind::Transient));
}

#[test]
fn each_place_sees_its_own_faults() {
    let plan = "freeze@1s+2s, kill@every=2s*2, hot@1s+3s, xid79@2s, wrong@5s+1s, wrong@9s";
    let mut heart = script(plan, Place::Heartbeat, ZERO);
    assert!(!heart.is_on(FaultKind::Freeze, seconds(0.9)) && heart.is_on(FaultKind::Freeze, seconds(2.9)));
    assert!(!heart.is_on(FaultKind::Freeze, seconds(3.0)));
    let mut supervisor = script(plan, Place::Supervisor, ZERO);
    assert_eq!(supervisor.next_at(), Some(seconds(2.0)));
    assert_eq!(lived(&mut supervisor, 0.0, 9.0), [(20, FaultKind::Kill), (40, FaultKind::Kill)]);
    let mut telemetry = script(plan, Place::Telemetry, ZERO);
    assert_eq!(telemetry.going_on(seconds(2.5)), [FaultKind::Hot, FaultKind::Xid(79)]);
    assert_eq!(telemetry.going_on(seconds(3.5)), [FaultKind::Hot]);
    let mut batches = script(plan, Place::Batch, ZERO);
    assert_eq!(batches.next_due(Clock { now: seconds(5.5), batch: 1 }), None);
    assert!(batches.is_on(FaultKind::Wrong, seconds(5.5)));
    assert_eq!(batches.next_due(Clock { now: seconds(9.5), batch: 2 }), Some(FaultKind::Wrong));
    assert!(!batches.is_on(FaultKind::Wrong, seconds(9.5)));
}

#[test]
fn poison_is_known_by_its_token() {
    let batches = script("poison@id=7, poison@id=9", Place::Batch, ZERO);
    assert!(batches.is_poison(&[1, 9]) && !batches.is_poison(&[1, 2]) && !batches.is_poison(&[]));
}

#[test]
fn chance_is_the_same_at_all_places_and_after_every_restart() {
    let plan = "seed=5, random@2/s*200";
    let places = [Place::Batch, Place::Heartbeat, Place::Supervisor, Place::Telemetry];
    let mut told = 0;
    for place in places {
        let mut whole = script(plan, place, ZERO);
        let first = lived(&mut whole, 0.0, 150.0);
        assert!(first.iter().all(|(_, kind)| kind.place() == place));
        assert_eq!(lived(&mut script(plan, place, ZERO), 0.0, 150.0), first);
        told += first.len();
    }
    // The rest are of those that go on, and are told by `is_on`.
    assert!((100..200).contains(&told), "{told}");
    let mut whole = script(plan, Place::Supervisor, ZERO);
    let late: Vec<_> = lived(&mut whole, 0.0, 150.0).into_iter().filter(|(batch, _)| *batch > 500).collect();
    assert_eq!(lived(&mut script(plan, Place::Supervisor, seconds(50.05)), 50.0, 150.0), late);
}

#[test]
fn faults_do_not_pile_up_while_there_are_no_batches() {
    let mut batches = script("transient@100/s", Place::Batch, ZERO);
    let due = std::iter::repeat_with(|| batches.next_due(Clock { now: seconds(60.0), batch: 1 }));
    assert_eq!(due.take_while(Option::is_some).count(), DUE_MAX);
}
