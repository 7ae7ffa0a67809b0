//! Tokens that come through worker processes: the same ones however often a worker dies, and none for those who left.

use super::residency::{GPU, wait_for};
use super::{LONG, options, start, text};
use magray_engine::decoder::Sampling;
use magray_engine::engine::{
    Engine, EngineError, EngineOptions, Generation, ModelSource, Options, Prompt, Residency, TokenStream,
};
use magray_engine::spec::decoder::DecoderSource;
use magray_engine::testing::{SimulatedGpu, tiny_decoder};
use magray_engine::{CpuPath, DeviceChoice, DeviceName, GpuSelector};
use std::future::Future;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const UNREAD_MAX: u32 = 4;
/// The model that generates.
const GENERATOR: usize = 1;

/// Wakes a thread that waits for a token.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = Box::pin(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park();
    }
}

/// Where a model may be computed.
pub(super) const ON_GPUS: DeviceChoice = DeviceChoice::Cuda(GpuSelector::Any);
/// Keys and values of this many tokens have room on a GPU.
pub(super) const KV_TOKENS: u64 = 450;

/// An engine with a model that embeds and one that generates, and the folder of that one.
pub(super) fn generator(gpus: usize, device: DeviceChoice, faults: &str) -> (tempfile::TempDir, Engine) {
    generator_with(gpus, device, faults, |_| {})
}

/// The same, with other options.
pub(super) fn generator_with(
    gpus: usize,
    device: DeviceChoice,
    faults: &str,
    change: impl FnOnce(&mut EngineOptions),
) -> (tempfile::TempDir, Engine) {
    let folder = tempfile::tempdir().unwrap();
    tiny_decoder::write(folder.path(), 5).unwrap();
    let gpu =
        |index| SimulatedGpu { index, kv_bytes: KV_TOKENS * tiny_decoder::KV_TOKEN_BYTES, ..SimulatedGpu::default() };
    // Few tokens are ahead of their reader: what happens while it reads happens in the middle.
    let generation = Generation { unread_max: UNREAD_MAX, ..Generation::default() };
    let schedule = Options { generation, ..Options::default() };
    let mut how = EngineOptions { schedule, simulated_gpus: (0..gpus).map(gpu).collect(), ..options(gpus, faults) };
    how.models.push(ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned())).into());
    // Portable code computes a token the same whatever is beside it.
    how.encoder.cpu_path = Some(CpuPath::Portable);
    how.encoder.device = device;
    change(&mut how);
    (folder, start(how))
}

/// A prompt that goes on by the likeliest tokens, or by drawn ones.
fn prompt(seed: u32) -> Prompt {
    let ids = text(seed, 20 + seed).into_iter().map(|id| id % 256).collect();
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 0.9 };
    let sampling = Sampling { temperature, seed: u64::from(seed), ignores_end: seed > 4, ..Sampling::default() };
    Prompt { model: 1, ids, new_tokens_max: 60, sampling, ..Prompt::default() }
}

pub(super) fn ask(engine: &Engine, seed: u32) -> TokenStream {
    engine.generate(prompt(seed)).unwrap()
}

/// All tokens of a stream; `between` is called after each.
pub(super) fn read(mut stream: TokenStream, mut between: impl FnMut(usize)) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some(token) = block_on(stream.next()) {
        tokens.push(token.unwrap().id);
        between(tokens.len());
    }
    tokens
}

#[test]
fn tokens_come_through_a_worker_up_to_their_limit_or_end() {
    let (_folder, engine) = generator(1, ON_GPUS, "");
    let streams: Vec<Vec<u32>> = (0..8).map(|seed| read(ask(&engine, seed), |_| {})).collect();
    assert!(streams.iter().all(|tokens| (1..=60).contains(&tokens.len())), "{streams:?}");
    assert!(streams.iter().any(|tokens| tokens.len() == 60));
    assert_eq!(read(ask(&engine, 3), |_| {}), streams[3], "the same prompt has the same tokens");
    let status = engine.status();
    assert_eq!((status.devices[1].schedule.kv_bytes(), status.devices[1].schedule.texts_finished), (0, 9));
    engine.shut_down();
}

#[test]
fn a_prompt_goes_to_the_gpu_where_its_tokens_come_first() {
    let (_folder, engine) = generator(1, DeviceChoice::Auto, "");
    let mut stream = ask(&engine, 6);
    while let Some(token) = block_on(stream.next()) {
        token.unwrap();
    }
    assert_eq!(stream.answer().map(|answer| answer.device), Some(DeviceName::Simulated(0)));
    engine.shut_down();
}

#[test]
fn a_worker_that_dies_hangs_or_breaks_in_the_middle_loses_doubles_and_changes_no_token() {
    let (_folder, calm) = generator(1, ON_GPUS, "");
    let expected: Vec<Vec<u32>> = (0..4).map(|seed| read(ask(&calm, seed), |_| {})).collect();
    calm.shut_down();
    // Every tenth batch ends its worker or breaks its GPU; or workers are killed by hand, and another device goes on.
    let cases = [
        (1, ON_GPUS, "crash@every=10"),
        (1, ON_GPUS, "illegal_address@every=15"),
        (2, ON_GPUS, ""),
        (1, DeviceChoice::Auto, ""),
        (1, DeviceChoice::Auto, "crash@every=7"),
    ];
    for (gpus, device, faults) in cases {
        let (_folder, engine) = generator(gpus, device.clone(), faults);
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
fn a_worker_that_dies_while_tokens_are_proposed_changes_none_of_them() {
    // What was there comes again: much of what is proposed is right.
    let repeated = |seed: u32, speculate| {
        let sampling = Sampling {
            repetition_penalty: 0.3,
            ignores_end: true,
            speculate: Some(speculate),
            prompt_tokens: 20 + seed,
            ..prompt(seed).sampling
        };
        Prompt { sampling, ..prompt(seed) }
    };
    let (_folder, calm) = generator(1, ON_GPUS, "");
    let expected: Vec<Vec<u32>> = (0..4).map(|seed| read(calm.generate(repeated(seed, 0)).unwrap(), |_| {})).collect();
    let mut stream = calm.generate(repeated(0, 3)).unwrap();
    while let Some(token) = block_on(stream.next()) {
        token.unwrap();
    }
    let told = stream.speculation();
    assert!(told.accepted > 0 && told.accepted <= told.proposed, "{told:?}");
    calm.shut_down();
    for (gpus, device, faults) in [(1, ON_GPUS, "crash@every=10"), (2, ON_GPUS, ""), (1, DeviceChoice::Auto, "")] {
        let (_folder, engine) = generator(gpus, device.clone(), faults);
        let streams: Vec<TokenStream> = (0..4).map(|seed| engine.generate(repeated(seed, 3)).unwrap()).collect();
        for (stream, expected) in streams.into_iter().zip(&expected) {
            assert_eq!(&read(stream, |count| kill_after(count, &engine)), expected, "{device:?} {faults}");
        }
        assert!(engine.status().devices.iter().any(|device| device.schedule.restarts > 0), "{device:?} {faults}");
        engine.shut_down();
    }
}

#[test]
fn weights_that_leave_in_the_middle_of_streams_change_no_token() {
    let (_folder, calm) = generator(1, ON_GPUS, "");
    let expected: Vec<Vec<u32>> = (0..4).map(|seed| read(ask(&calm, seed), |_| {})).collect();
    calm.shut_down();
    for device in [ON_GPUS, DeviceChoice::Auto] {
        let (_folder, engine) = generator(1, device.clone(), "");
        let mut moved = 0;
        let streams: Vec<TokenStream> = (0..4).map(|seed| ask(&engine, seed)).collect();
        for (stream, expected) in streams.into_iter().zip(&expected) {
            let tokens = read(stream, |count| {
                // A move that other streams overrule is none.
                moved += match count {
                    3 | 9 | 21 => usize::from(engine.offload(GENERATOR, LONG).is_ok()),
                    15 => usize::from(engine.release(GENERATOR, LONG).is_ok()),
                    _ => 0,
                };
            });
            assert_eq!(&tokens, expected, "{device:?}");
        }
        assert!(moved > 0, "{device:?}");
        assert!(engine.wait_until_settled(LONG));
        assert!(engine.status().devices.iter().all(|device| device.schedule.kv_bytes() == 0));
        engine.shut_down();
    }
}

#[test]
fn a_language_model_comes_back_from_its_image() {
    let (_folder, engine) = generator(1, ON_GPUS, "");
    let expected = read(ask(&engine, 6), |_| {});
    let pid = engine.status().devices[GPU].pid;
    for _ in 0..3 {
        engine.offload(GENERATOR, LONG).unwrap();
        let residency = || engine.status().models[GENERATOR].view.residency[GPU];
        wait_for("an image in the host's memory", || residency() == Residency::OnCpu);
        assert_eq!(read(ask(&engine, 6), |_| {}), expected);
        assert_eq!(residency(), Residency::OnDevice);
    }
    assert_eq!(engine.status().devices[GPU].pid, pid, "the worker stays");
    engine.shut_down();
}

/// Kills a worker after this many tokens of a stream.
pub(super) fn kill_after(count: usize, engine: &Engine) {
    let pid = engine.status().devices.iter().find_map(|device| device.pid);
    if let Some(pid) = pid.filter(|_| count == 7) {
        // It may just have ended by itself.
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
    }
}

#[test]
fn a_reader_that_stops_pauses_its_sequence_and_one_that_leaves_frees_its_state() {
    let (_folder, engine) = generator(1, ON_GPUS, "");
    let mut idle = engine.generate(Prompt { new_tokens_max: 400, ..prompt(6) }).unwrap();
    let first = block_on(idle.next()).unwrap().unwrap().id;
    // Others are read to their end meanwhile.
    let other = read(ask(&engine, 2), |_| {});
    let mut seen = vec![first];
    while seen.len() < 3 * UNREAD_MAX as usize {
        match block_on(idle.next()) {
            Some(token) => seen.push(token.unwrap().id),
            None => break,
        }
    }
    assert_eq!(read(ask(&engine, 2), |_| {}), other);
    drop(idle);
    let kept = || engine.status().devices[1].schedule.kv_bytes();
    let until = std::time::Instant::now() + LONG;
    while kept() > 0 && std::time::Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(kept(), 0);
    engine.shut_down();
}

#[test]
fn what_cannot_be_generated_is_refused_with_its_reason() {
    let without = start(options(1, ""));
    assert!(matches!(without.generate(Prompt { model: 0, ..prompt(1) }), Err(EngineError::Text(_))));
    let (_folder, engine) = generator(1, ON_GPUS, "");
    assert!(matches!(engine.generate(Prompt { model: 7, ..prompt(1) }), Err(EngineError::NoModel(7))));
    assert!(engine.generate(Prompt { ids: vec![1_000_000], ..prompt(1) }).is_err());
    let mut long = engine.generate(Prompt { new_tokens_max: 480, ..prompt(6) }).unwrap();
    assert!(
        matches!(block_on(long.next()), Some(Err(EngineError::TooLarge))),
        "the context has room for it, no GPU has"
    );
    assert!(block_on(long.next()).is_none());
    let late = Prompt { deadline: Some(Duration::ZERO), ..prompt(1) };
    assert!(matches!(block_on(engine.generate(late).unwrap().next()), Some(Err(EngineError::Expired))));
}
