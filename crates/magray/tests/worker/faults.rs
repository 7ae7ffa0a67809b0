//! Faults by plan are reported as what they are.

use crate::rig::{Rig, WIDTH, expected, spec, spec_with_faults, texts};
use magray_core::schedule::{Ending, Failure};
use magray_engine::internals::{ExecutorDevice, Exit, FaultOrder, FromWorker, Offer, SimulatedGpu, WorkerSpec};
use std::time::Duration;

/// How the batch under way failed.
fn failure(rig: &mut Rig) -> Failure {
    match rig.hear().unwrap() {
        FromWorker::Failed { problem, .. } => problem.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn out_of_memory_and_a_transient_error_pass() {
    let mut rig = Rig::start(&spec_with_faults("oom@0s*2, transient@batch=4"));
    let texts = texts(3, 1);
    for wanted in [Failure::OutOfMemory, Failure::OutOfMemory] {
        rig.submit(1, 0, &texts);
        assert_eq!(failure(&mut rig), wanted);
    }
    assert_eq!(rig.compute(3, &texts).unwrap(), expected(&texts));
    rig.submit(4, 0, &texts);
    assert_eq!(failure(&mut rig), Failure::Transient);
    assert_eq!(rig.compute(5, &texts).unwrap(), expected(&texts));
}

#[test]
fn memory_that_is_full_is_flow_control() {
    let tiny: magray_engine::EncoderShape = "tiny".parse().unwrap();
    let precision = Rig::open(&spec()).load(0, Offer::None).unwrap().precision;
    let memory_bytes = tiny.weight_bytes(precision) + tiny.activation_bytes(precision, 100);
    let device = ExecutorDevice::Simulated(SimulatedGpu { memory_bytes, ..SimulatedGpu::default() });
    let mut rig = Rig::start(&WorkerSpec { device, ..spec() });
    let (large, half) = (vec![vec![5; 60], vec![6; 60]], vec![vec![5; 60]]);
    assert_eq!(rig.compute(1, &large), Err("out_of_memory".to_owned()));
    assert_eq!(rig.compute(2, &half).unwrap(), expected(&half));
    let more = vec![vec![5; 90]];
    assert_eq!(rig.compute(3, &more), Err("out_of_memory".to_owned()), "what the last batch took is in the way");
    rig.handle.trim().unwrap();
    assert!(matches!(rig.hear(), Ok(FromWorker::Trimmed { freed, .. }) if freed > 0));
    assert_eq!(rig.compute(4, &more).unwrap(), expected(&more));
}

#[test]
fn after_an_illegal_address_nothing_works_until_the_worker_is_replaced() {
    let mut rig = Rig::start(&spec_with_faults("illegal_address@batch=2"));
    let texts = texts(2, 1);
    assert!(rig.compute(1, &texts).is_ok());
    for batch in 2..5 {
        rig.submit(batch, 0, &texts);
        assert_eq!(failure(&mut rig), Failure::Sticky);
    }
    rig.handle.kill();
    assert_eq!(rig.end(), Exit::Ordered);
    // The next worker is told what has passed.
    let order = FaultOrder {
        plan: "illegal_address@batch=2".to_owned(),
        from: Duration::ZERO,
        now: Duration::ZERO,
        batches: 4,
    };
    let mut next = Rig::start(&WorkerSpec { faults: Some(order), ..spec() });
    assert_eq!(next.compute(1, &texts).unwrap(), expected(&texts));
}

#[test]
fn a_batch_that_hangs_keeps_the_heart_beating_and_can_be_killed() {
    let mut rig = Rig::start(&spec_with_faults("hang@batch=1"));
    rig.submit(1, 0, &texts(2, 1));
    for _ in 0..3 {
        assert!(matches!(rig.receiver.next().unwrap(), FromWorker::Heartbeat { .. }));
    }
    rig.handle.kill();
    assert_eq!(rig.end().ending(), Ending::Ordered);
}

#[test]
fn a_worker_that_freezes_computes_and_does_not_beat() {
    let mut rig = Rig::start(&spec_with_faults("freeze@0s+60m"));
    for batch in 0..50 {
        rig.submit(batch, 0, &texts(16, 1));
        assert!(matches!(rig.receiver.next().unwrap(), FromWorker::Finished { .. }), "no heartbeat came");
    }
}

#[test]
fn poison_and_a_crash_end_the_worker_by_its_own_fault() {
    let mut rig = Rig::start(&spec_with_faults("poison@id=777"));
    assert!(rig.compute(1, &[vec![1, 776, 3]]).is_ok());
    rig.submit(2, 0, &[vec![1, 2], vec![3, 777]]);
    let exit = rig.end();
    assert!(matches!(&exit, Exit::Crashed { how } if how.contains("SIGABRT")), "{exit}");
    assert_eq!(exit.ending(), Ending::Crashed);
    let mut rig = Rig::start(&spec_with_faults("crash@batch=1"));
    rig.submit(1, 0, &texts(1, 1));
    assert_eq!(rig.end().ending(), Ending::Crashed);
}

#[test]
fn wrong_answers_are_wrong_and_still_of_length_one() {
    let mut rig = Rig::start(&spec_with_faults("wrong@batch=1"));
    let texts = texts(3, 2);
    let right = expected(&texts);
    let wrong = rig.compute(1, &texts).unwrap();
    for (wrong, right) in wrong.chunks(WIDTH).zip(right.chunks(WIDTH)) {
        let cosine: f32 = wrong.iter().zip(right).map(|(a, b)| a * b).sum();
        let length: f32 = wrong.iter().map(|x| x * x).sum();
        assert!(cosine < 0.9 && (length - 1.0).abs() < 1e-3, "{cosine} {length}");
    }
    assert_eq!(rig.compute(2, &texts).unwrap(), right);
}

#[test]
fn loads_fail_by_plan_and_the_next_ones_do_not() {
    let mut rig = Rig::open(&spec_with_faults("load_oom@0s*2, load_fails@0s"));
    let mut failure = || rig.load(0, Offer::None).map_err(|problem| (problem.kind, problem.code));
    for _ in 0..2 {
        assert_eq!(failure(), Err((Failure::OutOfMemory, "out_of_memory".to_owned())));
    }
    assert_eq!(failure(), Err((Failure::Transient, "load_failed".to_owned())));
    assert!(failure().is_ok());
    let texts = texts(2, 1);
    assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
}

#[test]
fn a_load_that_crashes_or_hangs_is_known_by_its_worker() {
    let mut rig = Rig::open(&spec_with_faults("load_crash@0s"));
    rig.handle.load(0, Offer::None).unwrap();
    assert_eq!(rig.end().ending(), Ending::Crashed);
    let mut rig = Rig::open(&spec_with_faults("load_hang@0s"));
    rig.handle.load(0, Offer::None).unwrap();
    for _ in 0..3 {
        assert!(matches!(rig.receiver.next().unwrap(), FromWorker::Heartbeat { .. }));
    }
    rig.handle.kill();
    assert_eq!(rig.end().ending(), Ending::Ordered);
}

#[test]
fn a_slow_device_says_that_it_took_longer() {
    let device = ExecutorDevice::Simulated(SimulatedGpu { batch_us: 2000, ..SimulatedGpu::default() });
    let mut rig = Rig::start(&WorkerSpec { device, ..spec_with_faults("slow@batch=2") });
    let took = |rig: &mut Rig| {
        rig.submit(1, 0, &texts(1, 1));
        match rig.hear().unwrap() {
            FromWorker::Finished { compute, .. } => compute,
            other => panic!("{other:?}"),
        }
    };
    // Waiting is never shorter than it was asked to be, so these hold on the slowest machine.
    assert!(took(&mut rig) >= Duration::from_millis(2));
    assert!(took(&mut rig) >= Duration::from_millis(16));
}
