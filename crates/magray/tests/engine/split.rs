//! A language model whose layers the CPU and a GPU share: the tokens of a whole one, whatever becomes of its worker.
//! Simulated GPUs and the CPU compute bit by bit alike here.

use super::LONG;
use super::streaming::{KV_TOKENS, ON_GPUS, ask, generator, generator_with, kill_after, read};
use magray_core::ledger::Owner;
use magray_core::schedule::ModelId;
use magray_engine::engine::{Engine, TokenStream};
use magray_engine::executors::{GpuLayers, LayersOnGpu};
use magray_engine::testing::tiny_decoder;
use magray_engine::{DeviceChoice, DeviceName};

/// The model that generates.
const MODEL: usize = 1;

fn parted(gpus: usize, device: DeviceChoice, faults: &str) -> (tempfile::TempDir, Engine) {
    generator_with(gpus, device, faults, |how| how.encoder.gpu_layers = GpuLayers::Number(1))
}

fn layers(engine: &Engine) -> Option<LayersOnGpu> {
    engine.status().models[MODEL].layers.clone()
}

/// What the only GPU has granted for the weights of the model.
fn weights(engine: &Engine) -> u64 {
    let model = Owner::Weights(ModelId(MODEL as u32));
    let accounts = &engine.status().devices[1].schedule.accounts;
    accounts.iter().find(|(owner, _)| *owner == model).map_or(0, |(_, bytes)| *bytes)
}

#[test]
fn tokens_are_those_of_the_whole_model_and_the_gpu_counts_its_part() {
    let (_folder, whole) = generator(1, ON_GPUS, "");
    let expected: Vec<Vec<u32>> = (0..8).map(|seed| read(ask(&whole, seed), |_| {})).collect();
    let all = weights(&whole);
    assert_eq!(layers(&whole), None);
    whole.shut_down();
    let (_folder, engine) = parted(1, ON_GPUS, "");
    let streams: Vec<TokenStream> = (0..8).map(|seed| ask(&engine, seed)).collect();
    let mut kept = 0;
    for (stream, expected) in streams.into_iter().zip(&expected) {
        let tokens = read(stream, |_| kept = kept.max(engine.status().devices[1].schedule.kv_bytes()));
        assert_eq!(&tokens, expected);
    }
    let part = weights(&engine);
    assert!(0 < part && part < all, "{part} of {all}");
    // Half of the layers, so that half a token's keys and values are there.
    assert!(kept > 0 && kept.is_multiple_of(tiny_decoder::KV_TOKEN_BYTES / 2), "{kept}");
    assert_eq!(engine.status().devices[1].schedule.texts_finished, 8);
    let told = layers(&engine).unwrap().to_string();
    assert_eq!(told, "1 of 2 layers are on a GPU, the CPU computes the others: chat.gpu_layers is 1");
    engine.shut_down();
}

#[test]
fn a_worker_that_dies_with_a_part_loses_doubles_and_changes_no_token() {
    let (_folder, calm) = generator(1, ON_GPUS, "");
    let expected: Vec<Vec<u32>> = (0..4).map(|seed| read(ask(&calm, seed), |_| {})).collect();
    calm.shut_down();
    let cases = [
        (1, ON_GPUS, "crash@every=10"),
        (1, ON_GPUS, "illegal_address@every=15"),
        (2, ON_GPUS, ""),
        (1, DeviceChoice::Auto, "crash@every=7"),
    ];
    for (gpus, device, faults) in cases {
        let (_folder, engine) = parted(gpus, device.clone(), faults);
        let streams: Vec<TokenStream> = (0..4).map(|seed| ask(&engine, seed)).collect();
        for (stream, expected) in streams.into_iter().zip(&expected) {
            assert_eq!(&read(stream, |count| kill_after(count, &engine)), expected, "{device:?} {faults}");
        }
        assert!(engine.status().devices.iter().any(|device| device.schedule.restarts > 0), "{device:?} {faults}");
        assert!(engine.wait_until_settled(LONG));
        assert!(engine.status().devices.iter().all(|device| device.schedule.kv_bytes() == 0));
        engine.shut_down();
    }
}

#[test]
fn more_sequences_than_the_gpu_has_room_for_give_way_and_lose_nothing() {
    let (_folder, calm) = generator(1, ON_GPUS, "");
    let expected: Vec<Vec<u32>> = (0..12).map(|seed| read(ask(&calm, seed), |_| {})).collect();
    calm.shut_down();
    let (_folder, engine) = parted(1, ON_GPUS, "");
    // 12 sequences of about 90 tokens; 900 have room, where each takes half of what a whole model's does.
    assert_eq!(engine.status().devices[1].schedule.kv_max, KV_TOKENS * tiny_decoder::KV_TOKEN_BYTES);
    let streams: Vec<TokenStream> = (0..12).map(|seed| ask(&engine, seed)).collect();
    for (stream, expected) in streams.into_iter().zip(&expected) {
        assert_eq!(&read(stream, |_| {}), expected);
    }
    engine.shut_down();
}

#[test]
fn what_does_not_fit_a_gpu_is_divided_by_itself_and_says_why() {
    // Beside keys and values there is room for the head and one layer, not for both.
    let (_folder, engine) = generator_with(1, ON_GPUS, "", |how| {
        how.models.remove(0);
        how.simulated_gpus[0].memory_bytes = 150 << 10;
    });
    let told = engine.status().models[0].layers.clone().unwrap();
    assert_eq!((told.on_gpu, told.of), (1, 2), "{told}");
    assert!(told.reason.starts_with("all of it needs 1 MB of the GPU's memory"), "{told}");
    let prompt = magray_engine::engine::Prompt { ids: vec![1, 2, 3], new_tokens_max: 5, ..Default::default() };
    assert!(!read(engine.generate(prompt).unwrap(), |_| {}).is_empty());
    let gpu = &engine.status().devices[1];
    assert_eq!(gpu.schedule.texts_finished, 1);
    assert!(gpu.memory.is_some_and(|memory| memory.peak_allocated <= 150 << 10));
    engine.shut_down();
}

#[test]
fn no_layer_on_a_gpu_leaves_the_model_to_the_cpu_also_where_a_gpu_is_required() {
    for device in [DeviceChoice::Auto, ON_GPUS] {
        let (_folder, engine) = generator_with(1, device, "", |how| how.encoder.gpu_layers = GpuLayers::Number(0));
        let mut stream = ask(&engine, 2);
        while let Some(token) = super::streaming::block_on(stream.next()) {
            token.unwrap();
        }
        assert_eq!(stream.answer().map(|answer| (answer.device, answer.fallback)), Some((DeviceName::Cpu, None)));
        assert_eq!(layers(&engine).unwrap().to_string(), "no layer of 2 is on a GPU: chat.gpu_layers is 0");
        engine.shut_down();
    }
}
