//! Language models on groups of simulated GPUs: a worker has all GPUs of a group, and what ends one of them ends the group.
//! What the ranks of a group compute together differs from one GPU within rounding, so that groups are compared with a group.

use super::residency::{GPU, wait_for};
use super::streaming::{KV_TOKENS, ON_GPUS, ask, generator, generator_with, kill_after, read};
use super::{LONG, assert_right, options, start, text};
use magray_core::schedule::Residency;
use magray_engine::engine::{DeviceState, Engine, EngineOptions, Strategy, TokenStream, Work};
use magray_engine::testing::tiny_decoder;
use magray_engine::{DeviceChoice, DeviceName};
use std::time::Duration;

/// The model that generates.
const MODEL: usize = 1;
/// Has room for less than the whole model beside keys and values, and for more than half of it.
const TOO_SMALL: u64 = 150 << 10;

fn group(gpus: usize, strategy: Strategy, device: DeviceChoice, faults: &str) -> (tempfile::TempDir, Engine) {
    generator_with(gpus, device, faults, |how| how.strategy = strategy)
}

/// Groups of two, since the model does not fit one GPU.
fn groups_of_two(gpus: usize, device: DeviceChoice, faults: &str) -> (tempfile::TempDir, Engine) {
    generator_with(gpus, device, faults, |how| {
        how.models.remove(0);
        how.simulated_gpus.iter_mut().for_each(|gpu| gpu.memory_bytes = TOO_SMALL);
    })
}

fn told(engine: &Engine, model: usize) -> String {
    engine.status().models[model].layers.clone().map_or_else(String::new, |layers| layers.to_string())
}

fn answers(engine: &Engine, seeds: u32) -> Vec<Vec<u32>> {
    let streams: Vec<TokenStream> = (0..seeds).map(|seed| ask(engine, seed)).collect();
    streams.into_iter().map(|stream| read(stream, |_| {})).collect()
}

#[test]
fn stages_have_the_tokens_of_one_gpu_and_every_group_the_same_each_time() {
    let (_folder, one) = generator(1, ON_GPUS, "");
    let alone = answers(&one, 8);
    one.shut_down();
    let (_folder, stages) = group(2, Strategy::Pipeline, ON_GPUS, "");
    assert_eq!(answers(&stages, 8), alone);
    let status = stages.status();
    assert_eq!(status.devices.len(), 2, "the CPU and the group");
    assert_eq!(status.devices[1].schedule.kv_max, 2 * KV_TOKENS * tiny_decoder::KV_TOKEN_BYTES);
    assert!(
        told(&stages, MODEL).starts_with("2 GPUs have layers one after the other: gpu.multi_gpu.strategy is pipeline")
    );
    assert!(!told(&stages, MODEL).contains("add up"), "no layer is shared");
    stages.shut_down();
    for gpus in [2, 4] {
        let (_folder, ranks) = group(gpus, Strategy::Tensor, ON_GPUS, "");
        let first = answers(&ranks, 8);
        assert_eq!(answers(&ranks, 8), first);
        let layers = told(&ranks, MODEL);
        assert!(layers.starts_with(&format!("{gpus} GPUs share each layer")), "{layers}");
        assert!(layers.ends_with("; they add up their parts on the device"), "{layers}");
        ranks.shut_down();
        let (_folder, again) = group(gpus, Strategy::Tensor, ON_GPUS, "");
        assert_eq!(answers(&again, 8), first);
        again.shut_down();
    }
}

#[test]
fn a_rank_that_dies_hangs_or_breaks_under_load_loses_doubles_and_changes_no_token() {
    for (gpus, strategy) in [(2, Strategy::Tensor), (4, Strategy::Tensor), (2, Strategy::Pipeline)] {
        let (_folder, calm) = group(gpus, strategy, ON_GPUS, "");
        let expected = answers(&calm, 4);
        calm.shut_down();
        for faults in ["crash@every=10", "illegal_address@every=15", "hang@batch=12", ""] {
            let (_folder, engine) = group(gpus, strategy, ON_GPUS, faults);
            let streams: Vec<TokenStream> = (0..4).map(|seed| ask(&engine, seed)).collect();
            for (stream, expected) in streams.into_iter().zip(&expected) {
                let found = read(stream, |count| {
                    if faults.is_empty() {
                        kill_after(count, &engine);
                    }
                });
                assert_eq!(&found, expected, "{gpus} GPUs, {strategy:?}, {faults}");
            }
            assert!(engine.status().devices[1].schedule.restarts > 0, "{gpus} GPUs, {strategy:?}, {faults}");
            assert!(engine.wait_until_settled(LONG));
            assert_eq!(engine.status().devices[1].schedule.kv_bytes(), 0);
            engine.shut_down();
        }
    }
}

#[test]
fn whichever_rank_breaks_or_hangs_under_load_loses_no_request_and_changes_no_answer() {
    for (gpus, strategy) in [(2, Strategy::Tensor), (4, Strategy::Tensor), (2, Strategy::Pipeline)] {
        let (_folder, calm) = group(gpus, strategy, ON_GPUS, "");
        let expected = answers(&calm, 8);
        calm.shut_down();
        for rank in 0..gpus {
            for fault in ["illegal_address", "hang"] {
                let what = format!("sim:{rank}/{fault}@batch=9");
                let (_folder, engine) = group(gpus, strategy, ON_GPUS, &what);
                let streams: Vec<TokenStream> = (0..8).map(|seed| ask(&engine, seed)).collect();
                for (stream, expected) in streams.into_iter().zip(&expected) {
                    assert_eq!(&read(stream, |_| {}), expected, "{gpus} GPUs, {strategy:?}, {what}");
                }
                assert!(engine.wait_until_settled(LONG));
                let group = &engine.status().devices[1];
                assert_eq!((group.schedule.restarts, group.schedule.kv_bytes()), (1, 0), "{what}");
                assert_eq!(group.schedule.state, DeviceState::InRotation, "{what}");
                engine.shut_down();
            }
        }
    }
}

#[test]
fn a_model_on_a_group_comes_back_from_its_image_also_to_a_new_worker() {
    for (gpus, strategy) in [(4, Strategy::Tensor), (2, Strategy::Pipeline)] {
        let (_folder, engine) = generator_with(gpus, ON_GPUS, "", |how| {
            how.strategy = strategy;
            how.schedule.keeping.worker = Some(Duration::from_millis(50));
        });
        let residency = || engine.status().models[MODEL].view.residency[GPU];
        let expected = answers(&engine, 2);
        for _ in 0..2 {
            engine.offload(MODEL, LONG).unwrap();
            wait_for("an image in the host's memory", || {
                matches!(residency(), Residency::OnCpu | Residency::OnCpuCold)
            });
            assert_eq!(answers(&engine, 2), expected, "{gpus} GPUs, {strategy:?}");
        }
        engine.offload(0, LONG).unwrap();
        engine.offload(MODEL, LONG).unwrap();
        wait_for("an image without a worker", || residency() == Residency::OnCpuCold);
        assert_eq!(answers(&engine, 2), expected, "{gpus} GPUs, {strategy:?}");
        engine.shut_down();
    }
}

#[test]
fn another_group_goes_on_where_one_is_lost() {
    let (_folder, calm) = groups_of_two(2, ON_GPUS, "");
    let asked = |engine: &Engine, seed: u32| {
        let ids = text(seed, 20 + seed).into_iter().map(|id| id % 256).collect();
        let prompt = magray_engine::engine::Prompt { ids, new_tokens_max: 60, ..Default::default() };
        engine.generate(prompt).unwrap()
    };
    let expected: Vec<Vec<u32>> = (0..4).map(|seed| read(asked(&calm, seed), |_| {})).collect();
    assert!(told(&calm, 0).contains("do not fit one GPU"), "{}", told(&calm, 0));
    calm.shut_down();
    let (_folder, engine) = groups_of_two(4, ON_GPUS, "");
    assert_eq!(engine.status().devices.len(), 3, "the CPU and two groups");
    let streams: Vec<TokenStream> = (0..4).map(|seed| asked(&engine, seed)).collect();
    for (stream, expected) in streams.into_iter().zip(&expected) {
        assert_eq!(&read(stream, |count| kill_after(count, &engine)), expected);
    }
    assert!(engine.status().devices.iter().any(|device| device.schedule.restarts > 0));
    engine.shut_down();
}

#[test]
fn the_cpu_goes_on_where_the_only_group_is_lost() {
    let (_folder, one) = generator(1, ON_GPUS, "");
    let expected = answers(&one, 4);
    one.shut_down();
    let (_folder, engine) = group(2, Strategy::Pipeline, DeviceChoice::Auto, "crash@every=7");
    assert_eq!(answers(&engine, 4), expected);
    engine.shut_down();
}

#[test]
fn other_models_are_on_one_gpu_of_a_group() {
    let (_folder, engine) = group(2, Strategy::Tensor, ON_GPUS, "");
    let texts = vec![text(1, 5), text(2, 17)];
    let answer = engine.process(Work::from_ids(0, texts.clone())).unwrap();
    assert_right(&answer, &texts);
    assert_eq!(answer.device, DeviceName::Simulated(0));
    engine.shut_down();
}

#[test]
fn gpus_that_are_not_enough_for_a_group_are_left_out() {
    let (_folder, engine) = groups_of_two(3, ON_GPUS, "");
    assert_eq!(engine.status().devices.len(), 2, "the CPU and one group");
    engine.shut_down();
}

#[test]
fn what_fits_one_gpu_stays_on_each_and_what_no_group_can_compute_is_refused_with_the_reason() {
    let (_folder, engine) = generator(2, ON_GPUS, "");
    assert_eq!((engine.status().devices.len(), told(&engine, MODEL)), (3, String::new()));
    engine.shut_down();
    let folder = tempfile::tempdir().unwrap();
    tiny_decoder::write(folder.path(), 5).unwrap();
    let refused = |gpus: usize, strategy| {
        let source = magray_engine::engine::ModelSource::Decoder(magray_engine::spec::decoder::DecoderSource::Path(
            folder.path().to_owned(),
        ));
        let mut how = EngineOptions { models: vec![source.into()], strategy, ..options(gpus, "") };
        how.simulated_gpus.iter_mut().for_each(|gpu| gpu.kv_bytes = 1 << 16);
        match Engine::start(how) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{gpus} GPUs, {strategy:?}"),
        }
    };
    let heads = refused(8, Strategy::Tensor);
    assert!(heads.contains("8 GPUs cannot share layers of 4 heads"), "{heads}");
    let layers = refused(3, Strategy::Pipeline);
    assert!(layers.contains("2 layers cannot be on 3 GPUs"), "{layers}");
    let calm = start(options(2, ""));
    assert_eq!(calm.status().devices.len(), 3, "encoders need no group");
    calm.shut_down();
}

#[test]
fn a_model_is_on_the_group_of_the_gpu_that_it_is_assigned_to() {
    for (named, found) in [(0, 1), (1, 1), (2, 2), (3, 2)] {
        let (_folder, engine) = generator_with(4, ON_GPUS, "", |how| {
            how.models.remove(0);
            how.simulated_gpus.iter_mut().for_each(|gpu| gpu.memory_bytes = TOO_SMALL);
            how.models[0].assigned = Some(DeviceName::Simulated(named));
        });
        assert!(told(&engine, 0).contains("do not fit one GPU"), "sim:{named}: {}", told(&engine, 0));
        let prompt = magray_engine::engine::Prompt { ids: vec![1, 2, 3], new_tokens_max: 5, ..Default::default() };
        (0..4).for_each(|_| assert!(!read(engine.generate(prompt.clone()).unwrap(), |_| {}).is_empty()));
        let status = engine.status();
        let finished = |device: usize| status.devices[device].schedule.texts_finished;
        assert_eq!((finished(found), finished(3 - found)), (4, 0), "sim:{named}");
        engine.shut_down();
    }
}

#[test]
fn a_gpu_that_is_left_over_or_not_there_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    tiny_decoder::write(folder.path(), 5).unwrap();
    let refused = |named| {
        let source = magray_engine::engine::ModelSource::Decoder(magray_engine::spec::decoder::DecoderSource::Path(
            folder.path().to_owned(),
        ));
        let mut how = EngineOptions { models: vec![source.into()], ..options(3, "") };
        how.models[0].assigned = Some(DeviceName::Simulated(named));
        for gpu in &mut how.simulated_gpus {
            (gpu.memory_bytes, gpu.kv_bytes) = (TOO_SMALL, KV_TOKENS * tiny_decoder::KV_TOKEN_BYTES);
        }
        match Engine::start(how) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("sim:{named}"),
        }
    };
    let left = refused(2);
    assert!(left.contains("a model is assigned to sim:2, which is left over: the GPUs are in groups"), "{left}");
    let unknown = refused(7);
    assert!(unknown.contains("assigned to sim:7, which is not there or not used; there are sim:0, sim:1"), "{unknown}");
}

#[test]
fn one_gpu_computes_by_itself_whatever_the_strategy_and_says_so() {
    let (_folder, calm) = generator(1, ON_GPUS, "");
    let expected = answers(&calm, 2);
    calm.shut_down();
    for (strategy, word) in [(Strategy::Tensor, "tensor"), (Strategy::Pipeline, "pipeline")] {
        let (_folder, engine) = group(1, strategy, ON_GPUS, "");
        let reason = format!("gpu.multi_gpu.strategy is {word}, and sim:0 is the only GPU: it computes by itself");
        assert_eq!(told(&engine, MODEL), format!("all 2 layers are for a GPU: {reason}"));
        assert_eq!(answers(&engine, 2), expected);
        engine.shut_down();
    }
}

#[test]
fn heads_that_ranks_cannot_share_evenly_are_shared_unevenly_and_that_is_told() {
    let (_folder, engine) = group(3, Strategy::Tensor, ON_GPUS, "");
    let layers = told(&engine, MODEL);
    assert!(layers.starts_with("3 GPUs share each layer: gpu.multi_gpu.strategy is tensor"), "{layers}");
    assert!(layers.contains("fit 3 GPUs, of which the fullest has 2 of 4 heads"), "{layers}");
    let first = answers(&engine, 4);
    assert_eq!(answers(&engine, 4), first);
    engine.shut_down();
}
