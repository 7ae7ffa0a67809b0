//! The rules about weights, broken by hand.

use super::*;
use magray_core::schedule::{Residency, ResidencyRequest};

fn load(model: ModelId) -> Action {
    Action::Load { device: GPU, model }
}

fn offload(device: DeviceId, model: ModelId) -> Action {
    Action::Offload { device, model }
}

#[test]
fn a_batch_without_weights_is_found() {
    let mut books = Books::with_worker();
    books.submit(0, &[10]);
    assert_eq!(books.told(offload(GPU, MODEL)), Ok(()));
    breaks(books.start(0, GPU, 0..1), Rule::HasWeights);
}

#[test]
fn weights_that_cannot_come_or_go_are_found() {
    let mut books = Books::with_worker();
    breaks(books.told(load(MODEL)), Rule::WeightsOrder);
    breaks(books.told(offload(GPU, OTHER)), Rule::WeightsOrder);
    assert_eq!(books.told(load(OTHER)), Ok(()));
    breaks(books.told(offload(GPU, OTHER)), Rule::WeightsOrder);
    let mut books = Books::new();
    breaks(books.told(load(MODEL)), Rule::WeightsOrder);
}

#[test]
fn weights_that_leave_under_a_batch_are_found() {
    let mut books = Books::with_worker();
    books.submit(0, &[10]);
    assert_eq!(books.start(0, GPU, 0..1), Ok(()));
    breaks(books.told(offload(GPU, MODEL)), Rule::NotUnderBatch);
    books.finish(0);
    assert_eq!(books.told(offload(GPU, MODEL)), Ok(()));
}

#[test]
fn a_rest_with_weights_and_weights_forgotten_while_in_use_are_found() {
    let mut books = Books::with_worker();
    breaks(books.told(Action::Rest { device: GPU }), Rule::NotUnderBatch);
    breaks(books.told(Action::Forget { model: MODEL }), Rule::NotUnderBatch);
    assert_eq!(books.told(offload(GPU, MODEL)), Ok(()));
    breaks(books.told(Action::Rest { device: GPU }), Rule::NotUnderBatch);
    books.hear(Event::Offloaded { device: GPU, model: MODEL });
    assert_eq!(books.told(Action::Rest { device: GPU }), Ok(()));
    breaks(books.told(Action::Rest { device: GPU }), Rule::WorkerOrder);
}

#[test]
fn weights_that_come_back_before_they_are_forgotten_are_found() {
    let mut books = Books::with_worker();
    books.hear(Event::ResidencyRequested { model: OTHER, request: ResidencyRequest::Release });
    assert_eq!(books.told(offload(CPU, OTHER)), Ok(()));
    books.hear(Event::Offloaded { device: CPU, model: OTHER });
    assert_eq!(books.told(Action::Forget { model: OTHER }), Ok(()));
    breaks(books.told(load(OTHER)), Rule::WeightsOrder);
    books.hear(Event::Forgotten { model: OTHER });
    assert_eq!(books.told(load(OTHER)), Ok(()));
}

#[test]
fn more_weights_than_there_is_room_for_are_found() {
    let mut books = Books::with_worker();
    books.hear(room(100));
    breaks(books.told(load(OTHER)), Rule::Room);
    assert_eq!(books.told(offload(GPU, MODEL)), Ok(()));
    // What leaves is not gone.
    breaks(books.told(load(OTHER)), Rule::Room);
    books.hear(Event::Offloaded { device: GPU, model: MODEL });
    assert_eq!(books.told(load(OTHER)), Ok(()));
}

#[test]
fn a_pinned_model_that_leaves_without_being_asked_is_found() {
    let mut books = Books::with_worker();
    books.hear(Event::ResidencyRequested { model: MODEL, request: ResidencyRequest::Pin(true) });
    breaks(books.told(offload(GPU, MODEL)), Rule::Pinned);
    breaks(books.told(offload(CPU, OTHER)), Rule::Pinned);
    books.hear(Event::ResidencyRequested { model: MODEL, request: ResidencyRequest::Offload });
    assert_eq!(books.told(offload(GPU, MODEL)), Ok(()));
}

#[test]
fn a_model_that_leaves_before_it_computed_for_who_waits_is_found() {
    let mut books = Books::with_worker();
    books.ask(0, &[10], Allowed::Gpu);
    breaks(books.told(offload(GPU, MODEL)), Rule::TakesTurns);
    books.hear(Event::ResidencyRequested { model: MODEL, request: ResidencyRequest::Offload });
    assert_eq!(books.told(offload(GPU, MODEL)), Ok(()));
}

#[test]
fn a_model_that_stays_unused_is_found() {
    let mut books = Books::with_worker();
    assert_eq!(books.settle(DeviceState::InRotation), Ok(()));
    books.live_on(Duration::from_secs(61));
    breaks(books.settle(DeviceState::InRotation), Rule::Idles);
}

#[test]
fn a_worker_that_does_not_rest_or_only_says_so_is_found() {
    let mut books = Books::with_worker();
    breaks(books.settle(DeviceState::Resting), Rule::Rests);
    assert_eq!(books.told(offload(GPU, MODEL)), Ok(()));
    books.hear(Event::Offloaded { device: GPU, model: MODEL });
    books.live_on(Duration::from_secs(301));
    breaks(books.settle(DeviceState::InRotation), Rule::Rests);
}

#[test]
fn weights_that_are_never_heard_of_again_are_found() {
    let mut books = Books::with_worker();
    assert_eq!(books.told(load(OTHER)), Ok(()));
    let kill = || Action::Kill { device: GPU, cause: KillCause::LoadOverdue };
    breaks(books.told(kill()), Rule::HonestKill);
    books.hear(Event::ResidencyRequested { model: MODEL, request: ResidencyRequest::Pin(true) });
    books.live_on(Duration::from_secs(121));
    breaks(books.settle(DeviceState::InRotation), Rule::HangsEnd);
    assert_eq!(books.told(kill()), Ok(()));
}

#[test]
fn a_preheat_that_is_forgotten_is_found() {
    let mut books = Books::with_room(100);
    books.told(Action::Spawn { device: GPU }).expect("a first worker is in order");
    books.hear(Event::Up { device: GPU });
    assert!(!books.checks.weights.is_awaited());
    books.hear(Event::ResidencyRequested { model: OTHER, request: ResidencyRequest::Preheat(Priority::Normal) });
    assert!(books.checks.weights.is_awaited());
    books.hear(room(50));
    assert!(!books.checks.weights.is_awaited(), "it does not fit");
    books.hear(room(100));
    books.bring(OTHER);
    assert!(!books.checks.weights.is_awaited());
}

#[test]
fn a_view_that_has_weights_where_they_are_not_is_found() {
    let mut books = Books::with_worker();
    let mut view = books.view(DeviceState::InRotation);
    view.models[0].residency[1] = Residency::OnCpu;
    breaks(books.checks.settle(&view, Moment::START), Rule::HonestView);
}

#[test]
fn a_residency_request_that_is_lost_with_the_end_of_a_batch_is_found() {
    let mut books = Books::with_worker();
    books.submit(0, &[10]);
    assert_eq!(books.start(0, GPU, 0..1), Ok(()));
    books.hear(Event::ResidencyRequested { model: MODEL, request: ResidencyRequest::Offload });
    assert_eq!(books.settle(DeviceState::InRotation), Ok(()));
    books.finish(0);
    books.told(Action::Complete { request: RequestId(0), report: report(GPU) }).expect("all of it is computed");
    breaks(books.settle(DeviceState::InRotation), Rule::Granted);
    assert_eq!(books.told(offload(GPU, MODEL)), Ok(()));
    assert_eq!(books.settle(DeviceState::InRotation), Ok(()));
}

#[test]
fn a_release_that_is_told_too_soon_too_late_or_never_is_found() {
    let settle = |books: &mut Books, releases: u64| {
        let mut view = books.view(DeviceState::InRotation);
        view.models[1].releases = releases;
        books.checks.settle(&view, Moment::START)
    };
    let requested = || {
        let mut books = Books::with_worker();
        books.hear(Event::ResidencyRequested { model: OTHER, request: ResidencyRequest::Release });
        assert_eq!(books.told(offload(CPU, OTHER)), Ok(()));
        assert_eq!(settle(&mut books, 0), Ok(()));
        books
    };
    breaks(settle(&mut requested(), 1), Rule::Granted);
    let forgetting = || {
        let mut books = requested();
        books.hear(Event::Offloaded { device: CPU, model: OTHER });
        assert_eq!(books.told(Action::Forget { model: OTHER }), Ok(()));
        books
    };
    breaks(settle(&mut forgetting(), 1), Rule::Granted);
    let mut books = forgetting();
    books.hear(Event::Forgotten { model: OTHER });
    breaks(settle(&mut books, 0), Rule::Granted);
    let forgotten = || {
        let mut books = forgetting();
        books.hear(Event::Forgotten { model: OTHER });
        assert_eq!(books.told(load(OTHER)), Ok(()));
        books
    };
    breaks(settle(&mut forgotten(), 0), Rule::Granted);
    assert_eq!(settle(&mut forgotten(), 1), Ok(()), "it may come back in the same step");
}

#[test]
fn a_worker_that_is_said_to_end_and_does_not_is_found() {
    let mut books = Books::with_worker();
    assert_eq!(books.told(offload(GPU, MODEL)), Ok(()));
    books.hear(Event::Offloaded { device: GPU, model: MODEL });
    books.live_on(Duration::from_secs(1));
    let mut view = books.view(DeviceState::InRotation);
    assert_eq!(books.checks.settle(&view, books.now), Ok(()));
    view.devices[1].is_ending = true;
    breaks(books.checks.settle(&view, books.now), Rule::Rests);
}
