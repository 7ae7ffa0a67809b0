//! Models that come and go: by hand, by idleness, by each other's need, and with a worker that dies.

use super::{LONG, assert_right, options, start, text};
use magray_engine::engine::{
    Allowed, Answer, DeviceState, Engine, EngineError, EngineModel, EngineOptions, Keeping, ModelPlan, ModelSource,
    Options, Priority, Residency, Work,
};
use magray_engine::testing::SimulatedGpu;
use magray_engine::{DeviceChoice, DeviceName, EncoderOptions, Precision, PrecisionChoice};
use std::time::{Duration, Instant};

pub(super) const GPU: usize = 1;

pub(super) fn on_gpu(engine: &Engine, model: usize, seed: u32) -> Answer {
    let work = Work { allowed: Allowed::Gpu, ..Work::from_ids(model, vec![text(seed, 9), text(seed + 1, 3)]) };
    let answer = engine.process(work).unwrap();
    assert_eq!(answer.device, DeviceName::Simulated(0));
    answer
}

fn residency(engine: &Engine, model: usize, device: usize) -> Residency {
    engine.status().models[model].view.residency[device]
}

pub(super) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn models(count: usize, plan: ModelPlan) -> Vec<EngineModel> {
    let model = |at| EngineModel {
        name: format!("model {at}"),
        plan,
        ..ModelSource::Synthetic("tiny".parse().unwrap()).into()
    };
    (0..count).map(model).collect()
}

/// Memory for this many of the tiny models, and for their batches.
fn room_for(models: u64) -> u64 {
    let shape: magray_engine::EncoderShape = "tiny".parse().unwrap();
    let weights = shape.weight_bytes(Precision::F32);
    weights * models + weights / 2
}

#[test]
fn after_an_offload_the_memory_is_free_and_the_next_answer_has_the_same_bits() {
    let engine = start(options(1, ""));
    let before = on_gpu(&engine, 0, 1);
    assert_eq!(residency(&engine, 0, GPU), Residency::OnDevice);
    engine.offload(0, LONG).unwrap();
    wait_for("an image in the host's memory", || residency(&engine, 0, GPU) == Residency::OnCpu);
    wait_for("the worker's word of free memory", || {
        engine.status().devices[GPU].memory.is_some_and(|memory| memory.allocated < 100_000)
    });
    let pid = engine.status().devices[GPU].pid;
    assert_eq!(on_gpu(&engine, 0, 1).values, before.values);
    assert_eq!(residency(&engine, 0, GPU), Residency::OnDevice);
    assert_eq!(engine.status().devices[GPU].pid, pid, "the worker stays");
    engine.shut_down();
}

#[test]
fn after_a_release_there_is_no_worker_and_the_next_request_brings_everything_back() {
    let engine = start(options(1, ""));
    let before = on_gpu(&engine, 0, 1);
    let moved = engine.release(0, LONG).unwrap();
    assert!(moved.residency.iter().all(|(_, residency)| *residency == Residency::Unloaded), "{moved:?}");
    wait_for("rest", || engine.status().devices[GPU].schedule.state == DeviceState::Resting);
    wait_for("the end of the worker", || engine.status().devices[GPU].pid.is_none());
    assert_eq!(on_gpu(&engine, 0, 1).values, before.values);
    assert_eq!(engine.status().devices[GPU].schedule.failures_total, 0, "to rest is no failure");
    engine.shut_down();
}

#[test]
fn a_model_that_is_not_preloaded_comes_with_its_first_request() {
    let plan = ModelPlan { is_preloaded: false, ..ModelPlan::default() };
    let engine = start(EngineOptions { models: models(2, plan), ..options(1, "") });
    let residencies = |engine: &Engine| engine.status().models[1].view.residency.clone();
    assert!(residencies(&engine).iter().all(|residency| *residency == Residency::Unloaded));
    let texts = vec![text(1, 9), text(2, 3)];
    assert_right(&on_gpu(&engine, 1, 1), &texts);
    assert_eq!(residency(&engine, 1, GPU), Residency::OnDevice);
    assert_eq!(residency(&engine, 0, GPU), Residency::Unloaded, "the other was not requested");
    let on_cpu = Work { allowed: Allowed::Cpu, ..Work::from_ids(0, texts.clone()) };
    assert_right(&engine.process(on_cpu).unwrap(), &texts);
    assert_eq!(residency(&engine, 0, 0), Residency::OnDevice);
    engine.shut_down();
}

#[test]
fn an_idle_model_leaves_and_an_idle_worker_rests() {
    let keeping = Keeping { worker: Some(Duration::from_millis(50)), ..Keeping::default() };
    let schedule = Options { keeping, ..Options::default() };
    let engine = start(EngineOptions { schedule, ..options(1, "") });
    on_gpu(&engine, 0, 1);
    engine.set_idle_timeout(0, Some(Duration::from_millis(20))).unwrap();
    wait_for("cold", || residency(&engine, 0, GPU) == Residency::OnCpuCold);
    wait_for("the end of the worker", || engine.status().devices[GPU].pid.is_none());
    let texts = vec![text(5, 9), text(6, 3)];
    assert_right(&on_gpu(&engine, 0, 5), &texts);
    engine.shut_down();
}

#[test]
fn six_models_share_the_room_of_three_and_every_request_is_answered_on_the_gpu() {
    let encoder = EncoderOptions { precision: PrecisionChoice::Exactly(Precision::F32), ..options(1, "").encoder };
    let gpu = SimulatedGpu { memory_bytes: room_for(3), ..SimulatedGpu::default() };
    let plan = ModelPlan { is_preloaded: false, ..ModelPlan::default() };
    let engine = start(EngineOptions { encoder, models: models(6, plan), simulated_gpus: vec![gpu], ..options(1, "") });
    let texts = vec![text(7, 9), text(8, 3)];
    for round in 0..4 {
        for model in 0..6 {
            assert_right(&on_gpu(&engine, (model * (round + 1)) % 6, 7), &texts);
        }
    }
    let held = (0..6).filter(|model| residency(&engine, *model, GPU) == Residency::OnDevice).count();
    assert!((1..=3).contains(&held), "{held} models where there is room for three");
    engine.shut_down();
}

#[test]
fn a_high_request_brings_its_model_where_a_plain_one_could_not() {
    let encoder = EncoderOptions { precision: PrecisionChoice::Exactly(Precision::F32), ..options(1, "").encoder };
    let gpu = SimulatedGpu { memory_bytes: room_for(1), ..SimulatedGpu::default() };
    let plan = ModelPlan { is_preloaded: false, ..ModelPlan::default() };
    let mut models = models(2, plan);
    models[1].plan.priority = Priority::Low;
    let engine = start(EngineOptions { encoder, models, simulated_gpus: vec![gpu], ..options(1, "") });
    on_gpu(&engine, 0, 7);
    let plain = Work { allowed: Allowed::Gpu, ..Work::from_ids(1, vec![text(7, 9)]) };
    let refused = engine.process(Work { deadline: Some(Duration::from_millis(100)), ..plain.clone() });
    assert!(matches!(refused, Err(EngineError::Expired)), "{refused:?}");
    let answer = engine.process(Work { priority: Priority::High, ..plain }).unwrap();
    assert_right(&answer, &[text(7, 9)]);
    assert_eq!((residency(&engine, 0, GPU), residency(&engine, 1, GPU)), (Residency::OnCpu, Residency::OnDevice));
    engine.shut_down();
}

#[test]
fn a_pinned_model_is_not_pushed_out() {
    let encoder = EncoderOptions { precision: PrecisionChoice::Exactly(Precision::F32), ..options(1, "").encoder };
    let gpu = SimulatedGpu { memory_bytes: room_for(2), ..SimulatedGpu::default() };
    let plan = ModelPlan { is_preloaded: false, ..ModelPlan::default() };
    let engine = start(EngineOptions { encoder, models: models(3, plan), simulated_gpus: vec![gpu], ..options(1, "") });
    engine.preheat(0, LONG).unwrap();
    engine.set_pinned(0, true).unwrap();
    for round in 0..3 {
        for model in [1, 2] {
            on_gpu(&engine, model, round);
            assert_eq!(residency(&engine, 0, GPU), Residency::OnDevice);
        }
    }
    engine.shut_down();
}

#[test]
fn without_a_gpu_the_same_calls_move_the_models_of_the_cpu() {
    let cpu = EncoderOptions { device: DeviceChoice::Cpu, threads: Some(1), ..EncoderOptions::default() };
    let engine = start(EngineOptions { encoder: cpu, ..options(0, "") });
    assert_eq!(engine.offload(0, LONG).unwrap().residency, [(DeviceName::Cpu, Residency::OnDevice)]);
    assert_eq!(engine.release(0, LONG).unwrap().residency, [(DeviceName::Cpu, Residency::Unloaded)]);
    assert_eq!(engine.preheat(0, LONG).unwrap().residency, [(DeviceName::Cpu, Residency::OnDevice)]);
    let texts = vec![text(3, 9)];
    assert_right(&engine.process(Work::from_ids(0, texts.clone())).unwrap(), &texts);
    assert!(engine.offload(9, LONG).is_err());
    engine.shut_down();
}
