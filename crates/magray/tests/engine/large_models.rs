//! A language model that is larger than all GPUs together: stages of simulated GPUs behind layers of the CPU, at a 250,000th of the true size.
//! What it needs and what there is decides; nothing is asked for by hand.

use super::streaming::{KV_TOKENS, ON_GPUS, block_on, kill_after, read};
use super::{LONG, options, start, text};
use magray_engine::decoder::Sampling;
use magray_engine::engine::{Engine, EngineOptions, Generation, ModelSource, Options, Prompt, TokenStream};
use magray_engine::spec::decoder::DecoderSource;
use magray_engine::testing::{SimulatedGpu, tiny_decoder};
use magray_engine::{CpuPath, DeviceChoice, DeviceName};

/// With this many layers it has 404 kB, as a model of 100 GB would have 10 of 9.3 GB each.
const LAYERS: usize = 10;
/// What weights have room for on a GPU: four layers, or three and the head.
const ROOM: u64 = 150_000;
const KV_BYTES: u64 = KV_TOKENS * tiny_decoder::kv_token_bytes(LAYERS);

fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny_decoder::write_layers(folder.path(), 7, LAYERS).unwrap();
    folder
}

/// An engine with the model alone, on GPUs with this much room for weights.
fn how(folder: &tempfile::TempDir, gpus: &[u64], device: DeviceChoice, faults: &str) -> EngineOptions {
    let gpu = |(index, room): (usize, &u64)| {
        // A sixteenth of all is for passes.
        let memory_bytes = (KV_BYTES + room) * 16 / 15 + 1;
        SimulatedGpu { index, memory_bytes, kv_bytes: KV_BYTES, ..SimulatedGpu::default() }
    };
    let source = ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned()));
    // Few tokens are ahead of their reader: what happens while it reads happens in the middle.
    let generation = Generation { unread_max: 4, ..Generation::default() };
    let mut how = EngineOptions {
        models: vec![source.into()],
        schedule: Options { generation, ..Options::default() },
        simulated_gpus: gpus.iter().enumerate().map(gpu).collect(),
        ..options(0, faults)
    };
    how.models[0].name = "large".to_owned();
    how.encoder.cpu_path = Some(CpuPath::Portable);
    how.encoder.device = device;
    how
}

fn ask(engine: &Engine, seed: u32) -> TokenStream {
    let ids = text(seed, 20 + seed).into_iter().map(|id| id % 256).collect();
    let sampling = Sampling { ignores_end: true, ..Sampling::default() };
    engine.generate(Prompt { ids, new_tokens_max: 40, sampling, ..Prompt::default() }).unwrap()
}

fn answers(engine: &Engine) -> Vec<Vec<u32>> {
    let streams: Vec<TokenStream> = (0..4).map(|seed| ask(engine, seed)).collect();
    streams.into_iter().map(|stream| read(stream, |_| {})).collect()
}

fn told(engine: &Engine) -> String {
    engine.status().models[0].layers.clone().map_or_else(String::new, |layers| layers.to_string())
}

#[test]
fn a_model_larger_than_all_gpus_is_served_by_the_cpu_and_stages_of_gpus_with_the_tokens_of_one_large_gpu() {
    let folder = model();
    let one = start(how(&folder, &[1 << 30], ON_GPUS, ""));
    let expected = answers(&one);
    assert_eq!(told(&one), "", "all of it is on one GPU");
    one.shut_down();
    for (gpus, layout, cpu_layers) in [
        (&[ROOM, ROOM][..], "2 GPUs have layers one after the other, and the CPU the first 3: the model needs", 3),
        (&[ROOM; 1], "3 of 10 layers are on a GPU, the CPU computes the others: all of it needs", 7),
        // Parts are equal, so that the larger one counts as the smaller.
        (&[ROOM, 2 * ROOM], "2 GPUs have layers one after the other, and the CPU the first 3: the model needs", 3),
    ] {
        let engine = start(how(&folder, gpus, ON_GPUS, ""));
        assert!(told(&engine).starts_with(layout), "{}", told(&engine));
        assert_eq!(answers(&engine), expected, "{layout}");
        let status = engine.status();
        let layers = status.models[0].layers.clone().unwrap();
        assert_eq!((layers.on_gpu, layers.of, status.devices.len()), (LAYERS - cpu_layers, LAYERS, 2), "{layers}");
        assert_eq!(status.devices[1].schedule.texts_finished, 4);
        let peak = status.devices[1].memory.map(|memory| memory.peak_allocated).unwrap();
        assert!(peak > 0 && peak <= gpus.len() as u64 * ROOM, "{peak}");
        engine.shut_down();
    }
}

#[test]
fn kills_and_broken_ranks_behind_the_cpu_change_no_token() {
    let folder = model();
    let calm = start(how(&folder, &[ROOM, ROOM], ON_GPUS, ""));
    let expected = answers(&calm);
    calm.shut_down();
    for faults in
        ["crash@every=10", "sim:0/illegal_address@batch=9", "sim:1/illegal_address@batch=9", "sim:1/hang@batch=9", ""]
    {
        let engine = start(how(&folder, &[ROOM, ROOM], ON_GPUS, faults));
        let streams: Vec<TokenStream> = (0..4).map(|seed| ask(&engine, seed)).collect();
        for (stream, expected) in streams.into_iter().zip(&expected) {
            let found = read(stream, |count| {
                if faults.is_empty() {
                    kill_after(count, &engine);
                }
            });
            assert_eq!(&found, expected, "{faults}");
        }
        assert!(engine.status().devices[1].schedule.restarts > 0, "{faults}");
        assert!(engine.wait_until_settled(LONG));
        assert_eq!(engine.status().devices[1].schedule.kv_bytes(), 0);
        engine.shut_down();
    }
}

#[test]
fn a_model_that_neither_gpus_nor_host_have_room_for_is_refused_and_says_what_is_missing() {
    let folder = model();
    for (gpus, on_gpu) in [(&[ROOM, ROOM][..], 3), (&[ROOM; 1], 3), (&[1_000], 0), (&[], 0)] {
        let options = EngineOptions { host_bytes: Some(100_000), ..how(&folder, gpus, DeviceChoice::Auto, "") };
        let error = match Engine::start(options) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{gpus:?}"),
        };
        let whole = if on_gpu == 0 { "no layer of 10 is on a GPU" } else { "3 of 10 layers are on a GPU" };
        assert!(error.starts_with(&format!("there is no place for large: {whole}")), "{error}");
        assert!(
            error.contains("to the CPU, and its memory has 1 MB available: 1 MB are missing; take files"),
            "{error}"
        );
    }
}

#[test]
fn a_model_that_only_the_cpu_can_compute_is_served_where_it_takes_nearly_all_memory() {
    let folder = model();
    let one = start(how(&folder, &[1 << 30], ON_GPUS, ""));
    let expected = answers(&one);
    one.shut_down();
    // More than three quarters, and less than all. The GPU has no room for a layer.
    for (gpus, device) in [(&[][..], DeviceChoice::Cpu), (&[1_000], DeviceChoice::Auto)] {
        let engine = start(EngineOptions { host_bytes: Some(450_000), ..how(&folder, gpus, device, "") });
        assert_eq!(answers(&engine), expected, "{gpus:?}");
        engine.shut_down();
    }
}

#[test]
fn the_cpu_stands_in_for_no_group_whose_model_the_host_has_no_room_for() {
    let folder = model();
    let calm = start(how(&folder, &[ROOM, ROOM], ON_GPUS, ""));
    let expected = answers(&calm);
    calm.shut_down();
    // Room for the three layers that the CPU has beside the GPUs, and not for all ten; and for all ten, but not beside the seven that it
    // has with one GPU.
    for (gpus, host_bytes) in [(&[ROOM, ROOM][..], 300_000), (&[ROOM], 800_000)] {
        let little = how(&folder, gpus, DeviceChoice::Auto, "crash@every=10");
        let engine = start(EngineOptions { host_bytes: Some(host_bytes), ..little });
        for (seed, expected) in (0..).zip(&expected) {
            let mut stream = ask(&engine, seed);
            let mut found = Vec::new();
            while let Some(token) = block_on(stream.next()) {
                found.push(token.unwrap().id);
            }
            let device = stream.answer().map(|answer| (answer.device, answer.fallback));
            assert_eq!((&found, device), (expected, Some((DeviceName::Simulated(0), None))), "{gpus:?}");
        }
        assert!(engine.status().devices[1].schedule.restarts > 0);
        engine.shut_down();
    }
}
