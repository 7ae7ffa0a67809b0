//! The sentences that tell what came of a move, and what the flags mean.

use super::*;
use crate::commands::gpu::status::tests::{engine, without_gpu};
use expect_test::{Expect, expect};

fn check(status: EngineReport, request: Request, expected: Expect) {
    let model = &status.models[0];
    let residency = model.residency.clone();
    let done = Done {
        models: vec![ModelDone { model: model.name.clone(), took_ms: 12.3, residency }],
        status: status.clone(),
    };
    expected.assert_eq(&Told { model: &done.models[0], done: &done }.sentence(&request));
}

fn offload() -> Request {
    Request::Offload { model: None, within_ms: 0 }
}

fn release() -> Request {
    Request::Release { model: None, within_ms: 0 }
}

fn preheat() -> Request {
    Request::Preheat { model: None, within_ms: 0, priority: Priority::Normal }
}

fn timeout() -> Request {
    Request::Timeout { model: None, idle: Idle::Never }
}

#[test]
fn one_sentence_says_what_happened_how_long_it_took_and_what_is_left() {
    let mut moved = engine();
    moved.models[0].residency[1].place = "on_cpu".to_owned();
    check(
        moved.clone(),
        offload(),
        expect![
            "'all-MiniLM-L6-v2' is off the GPU after 12.3 ms (cpu ready, cuda:0 on_cpu); cuda:0 holds 99.0 MB, 7.9 GB left"
        ],
    );
    moved.models[0].residency[1].place = "unloaded".to_owned();
    check(
        moved,
        release(),
        expect![
            "'all-MiniLM-L6-v2' is out of all memory after 12.3 ms (cpu ready, cuda:0 unloaded); cuda:0 holds 99.0 MB, 7.9 GB left"
        ],
    );
    check(
        engine(),
        preheat(),
        expect![
            "'all-MiniLM-L6-v2' is on cuda:0 after 12.3 ms (cpu ready, cuda:0 on_gpu); cuda:0 holds 99.0 MB, 7.9 GB left"
        ],
    );
}

#[test]
fn without_a_gpu_the_sentences_say_so() {
    check(
        without_gpu(),
        offload(),
        expect!["there is no GPU to take 'all-MiniLM-L6-v2' off: it stays in the memory of the host (cpu ready)"],
    );
    check(without_gpu(), release(), expect!["'all-MiniLM-L6-v2' is out of all memory after 12.3 ms (cpu ready)"]);
    check(
        without_gpu(),
        preheat(),
        expect!["'all-MiniLM-L6-v2' is in the memory of the host, as there is no GPU, after 12.3 ms (cpu ready)"],
    );
    check(
        without_gpu(),
        timeout(),
        expect!["'all-MiniLM-L6-v2' leaves the GPU after 60 s without work; there is no GPU now"],
    );
}

#[test]
fn the_idle_timeout_is_printed_in_words() {
    let with = |change: fn(&mut crate::control::ModelReport)| {
        let mut engine = engine();
        change(&mut engine.models[0]);
        engine
    };
    check(with(|_| {}), timeout(), expect!["'all-MiniLM-L6-v2' leaves the GPU after 60 s without work"]);
    check(
        with(|model| model.idle_timeout_s = None),
        timeout(),
        expect!["'all-MiniLM-L6-v2' leaves the GPU only when others need the room"],
    );
    check(
        with(|model| model.offload_after_use = true),
        timeout(),
        expect!["'all-MiniLM-L6-v2' leaves the GPU as soon as nothing of it waits or runs"],
    );
    check(
        with(|model| model.pinned = true),
        timeout(),
        expect!["'all-MiniLM-L6-v2' stays on its GPU, also when others need the memory"],
    );
}

#[test]
fn seconds_are_a_number_or_never() {
    assert_eq!(idle("0"), Ok(Idle::AfterMs(0)));
    assert_eq!(idle("0.0001"), Ok(Idle::AfterMs(1)), "a little is not nothing");
    assert_eq!((idle("90"), idle("Never")), (Ok(Idle::AfterMs(90_000)), Ok(Idle::Never)));
    for bad in ["", "-1", "nan", "inf", "soon", "1e10"] {
        assert!(idle(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_model_need_not_be_named_where_there_is_only_one() {
    let pick = |model: Option<&str>, all, engine: &EngineReport| {
        SomeOrAll { model: model.map(str::to_owned), all }.pick(engine).map_err(|failure| failure.to_string())
    };
    assert_eq!(pick(None, false, &without_gpu()), Ok(Some("all-MiniLM-L6-v2".to_owned())));
    assert_eq!(pick(Some("x"), false, &engine()), Ok(Some("x".to_owned())));
    assert_eq!(pick(None, true, &engine()), Ok(None));
    let refused = pick(None, false, &engine()).unwrap_err();
    assert_eq!(refused, "name a model, or give --all: this engine has all-MiniLM-L6-v2, org/other");
}
