//! Requests that end workers, and those that were only near.

use super::*;

/// Four requests share a batch of the first GPU, which was busy when they came.
fn shared(bench: &mut Bench) -> (Vec<RequestId>, Start) {
    let request = bench.gpu_request(1);
    let (_, actions) = bench.submit(request);
    let first = only_start(&actions);
    let ids = (0..4)
        .map(|_| {
            let request = bench.gpu_request(1);
            bench.submit(request).0
        })
        .collect();
    let start = only_start(&bench.finish(first.batch));
    assert_eq!(start.texts(), 4);
    (ids, start)
}

/// Ends the worker whenever it computes this request; everything else is computed. Returns workers ended, and answers.
fn play(bench: &mut Bench, poison: RequestId, mut actions: Vec<Action>) -> (u32, Vec<(RequestId, Option<Refused>)>) {
    let (mut ended, mut answers) = (0, Vec::new());
    for _ in 0..100 {
        answers.extend(refusals(&actions).into_iter().map(|(id, refused)| (id, Some(refused))));
        answers.extend(completions(&actions).into_iter().map(|(id, _)| (id, None)));
        let spawned = actions.contains(&Action::Spawn { device: GPU });
        let Some(start) = starts(&actions).into_iter().next() else {
            if !spawned {
                return (ended, answers);
            }
            actions = bench.step(Event::Up { device: GPU });
            continue;
        };
        assert!(starts(&actions).len() == 1, "one device, one at a time: {actions:?}");
        actions = if start.requests().contains(&poison) {
            ended += 1;
            bench.down(GPU, Ending::Crashed)
        } else {
            bench.finish(start.batch)
        };
    }
    panic!("no end of it");
}

#[test]
fn a_request_that_ends_two_workers_is_refused_and_those_near_it_are_answered() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let (ids, _) = shared(&mut bench);
    let actions = bench.down(GPU, Ending::Crashed);
    let (ended, mut answers) = play(&mut bench, ids[2], actions);
    answers.sort_by_key(|(id, _)| *id);
    let wanted: Vec<_> = ids.iter().map(|&id| (id, (id == ids[2]).then_some(Refused::Poison))).collect();
    assert_eq!(answers, wanted);
    assert_eq!(1 + ended, 2, "the first one and one more");
}

#[test]
fn a_worker_killed_from_outside_or_silent_makes_no_suspects() {
    let recovery = Recovery { overdue_least: Duration::from_secs(10), ..Recovery::default() };
    let mut bench = Bench::up(1, Options { recovery, ..Options::default() });
    bench.measure(GPU, 2);
    shared(&mut bench);
    bench.down(GPU, Ending::Killed);
    let start = only_start(&bench.step(Event::Up { device: GPU }));
    assert_eq!(start.texts(), 4, "together again");
    bench.finish(start.batch);
    shared(&mut bench);
    let actions = bench.pass_with(Duration::from_secs(2), false);
    assert!(actions.contains(&Action::Kill { device: GPU, cause: KillCause::Silent }), "{actions:?}");
    bench.down(GPU, Ending::Ordered);
    assert_eq!(only_start(&bench.step(Event::Up { device: GPU })).texts(), 4);
}

#[test]
fn a_batch_that_was_only_at_hand_makes_no_suspects() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let (computing, at_hand) = (bench.gpu_request(512), bench.gpu_request(512));
    let (computing, _) = bench.submit(computing);
    let (at_hand, actions) = bench.submit(at_hand);
    assert_eq!(only_start(&actions).requests(), [at_hand]);
    bench.down(GPU, Ending::Crashed);
    let started = starts(&bench.step(Event::Up { device: GPU }));
    assert_eq!(started[0].requests(), [computing]);
    assert_eq!(refusals(&bench.down(GPU, Ending::Crashed)), [(computing, Refused::Poison)]);
    let again = only_start(&bench.step(Event::Up { device: GPU }));
    assert_eq!(again.requests(), [at_hand]);
    assert!(refusals(&bench.down(GPU, Ending::Crashed)).is_empty(), "it was there once");
}

#[test]
fn a_sticky_failure_and_an_overdue_batch_make_suspects() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let request = bench.gpu_request(1);
    let (id, actions) = bench.submit(request);
    let actions = bench.fail(only_start(&actions).batch, Failure::Sticky);
    assert!(actions.contains(&Action::Kill { device: GPU, cause: KillCause::Sticky }));
    bench.down(GPU, Ending::Ordered);
    assert_eq!(only_start(&bench.step(Event::Up { device: GPU })).requests(), [id]);
    let actions = bench.pass(Duration::from_secs(2));
    assert!(actions.contains(&Action::Kill { device: GPU, cause: KillCause::Overdue }));
    assert_eq!(refusals(&bench.down(GPU, Ending::Ordered)), [(id, Refused::Poison)]);
}

#[test]
fn a_suspect_of_many_texts_has_one_batch_at_a_time() {
    let mut bench = Bench::up(2, Options::default());
    bench.measure(GPU, 20);
    bench.measure(GPU2, 20);
    let request = bench.gpu_request(4_000);
    let (id, actions) = bench.submit(request);
    let started = starts(&actions);
    assert!(started.len() >= 3, "{started:?}");
    bench.down(GPU, Ending::Crashed);
    bench.step(Event::Up { device: GPU });
    let mut open: Vec<Start> = started.into_iter().filter(|start| start.device == GPU2).collect();
    let mut done = false;
    while let Some(start) = open.pop() {
        let actions = bench.finish(start.batch);
        open.extend(starts(&actions));
        assert!(done || open.len() <= 1, "{open:?}");
        done |= !completions(&actions).is_empty();
    }
    assert!(done, "{id:?} is innocent");
    assert_eq!(bench.machine.view().requests, 0);
}

#[test]
fn a_request_on_which_the_cpu_fails_twice_is_refused() {
    let mut bench = Bench::up(0, Options::default());
    let request = bench.request(1);
    let (id, actions) = bench.submit(request);
    let again = only_start(&bench.fail(only_start(&actions).batch, Failure::Transient));
    assert_eq!(refusals(&bench.fail(again.batch, Failure::Transient)), [(id, Refused::Poison)]);
    assert!(bench.machine.is_in_rotation(CPU));
}

#[test]
fn a_large_request_on_two_workers_that_end_at_once_was_refused_though_innocent() {
    let mut bench = Bench::up(2, Options::default());
    bench.measure(GPU, 20);
    bench.measure(GPU2, 20);
    let request = bench.gpu_request(4_000);
    let (id, _) = bench.submit(request);
    assert!(refusals(&bench.down(GPU, Ending::Crashed)).is_empty());
    assert!(refusals(&bench.down(GPU2, Ending::Crashed)).is_empty(), "both were under way before anybody suspected it");
    assert_eq!(only_start(&bench.step(Event::Up { device: GPU })).requests(), [id]);
    assert_eq!(refusals(&bench.down(GPU, Ending::Crashed)), [(id, Refused::Poison)]);
}

#[test]
fn a_large_request_in_whose_time_two_workers_ended_was_refused_though_innocent() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 20);
    let request = bench.gpu_request(4_000);
    bench.submit(request);
    for _ in 0..4 {
        assert!(refusals(&bench.down(GPU, Ending::Crashed)).is_empty(), "no text was there twice");
        let mut open = starts(&bench.step(Event::Up { device: GPU }));
        for _ in 0..2 {
            // What was lost is computed first.
            let start = open.pop().unwrap();
            open = starts(&bench.finish(start.batch));
        }
        assert_eq!(open.len(), 1, "one batch at a time");
    }
}
