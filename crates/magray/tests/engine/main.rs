//! The engine with workers that are real processes: simulated GPUs that answer, fail, hang and die.
//! Times nothing: what must happen is waited for, up to a limit far beyond what it takes.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

mod constrained;
mod forgetting;
mod generating;
mod groups;
mod large_models;
mod residency;
mod split;
mod streaming;

use magray_engine::engine::{
    Allowed, Answer, DeviceState, Engine, EngineError, EngineOptions, Gpus, ModelSource, Options, Output, Strategy,
    Work,
};
use magray_engine::health::AlertOptions;
use magray_engine::testing::{FaultPlan, SimulatedGpu};
use magray_engine::{DeviceChoice, DeviceName, EncoderOptions, EncoderShape, GpuSelector, LoadError, SingleDevice};
use std::time::Duration;

/// Longer than anything here takes on any machine.
const LONG: Duration = Duration::from_secs(60);

fn shape() -> EncoderShape {
    "tiny".parse().unwrap()
}

fn options(gpus: usize, faults: &str) -> EngineOptions {
    let plan: FaultPlan = faults.parse().unwrap();
    EngineOptions {
        encoder: EncoderOptions { threads: Some(1), ..EncoderOptions::default() },
        models: vec![ModelSource::Synthetic(shape()).into()],
        models_folder: None,
        gpus: Gpus::One,
        strategy: Strategy::Auto,
        schedule: Options::default(),
        speculate: 0,
        in_process: None,
        worker_exe: env!("CARGO_BIN_EXE_magray").into(),
        simulated_gpus: (0..gpus).map(|index| SimulatedGpu { index, ..SimulatedGpu::default() }).collect(),
        host_bytes: None,
        faults: (!plan.is_empty()).then_some(plan),
        alerts: AlertOptions::default(),
        monitor_interval: Some(Duration::from_millis(50)),
        profile: None,
    }
}

fn start(options: EngineOptions) -> Engine {
    let engine = Engine::start(options).unwrap();
    assert!(engine.wait_until_settled(LONG), "{:?}", engine.status());
    engine
}

fn text(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (seed * 31 + at * 7) % 900 + 1).collect()
}

/// What the CPU makes of it, without an engine.
fn expected(texts: &[Vec<u32>]) -> Vec<f32> {
    on_cpu(&ModelSource::Synthetic(shape()), &Work::from_ids(0, texts.to_vec()))
}

fn on_cpu(source: &ModelSource, work: &Work) -> Vec<f32> {
    let options = EncoderOptions { threads: Some(1), ..EncoderOptions::default() };
    SingleDevice::open(source, DeviceName::Cpu, &options).unwrap().run(work).unwrap()
}

fn assert_right(answer: &Answer, texts: &[Vec<u32>]) {
    let expected = expected(texts);
    assert_eq!(answer.values.len(), expected.len());
    let worst = answer.values.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 0.02, "{worst}");
}

#[test]
fn a_request_is_answered_by_the_gpu_and_says_so() {
    let engine = start(options(1, ""));
    let texts = vec![text(1, 5), text(2, 17)];
    let answer = engine.process(Work::from_ids(0, texts.clone())).unwrap();
    assert_right(&answer, &texts);
    assert_eq!((answer.device, answer.replays, answer.batch_texts), (DeviceName::Simulated(0), 0, 2));
    assert_eq!(answer.fallback, None);
    let status = engine.status();
    assert_eq!(status.devices[1].schedule.state, DeviceState::InRotation);
    assert!(status.devices[1].pid.is_some() && status.devices[1].memory.is_some_and(|memory| memory.total > 0));
    engine.shut_down();
}

#[test]
fn the_rows_of_tokens_come_from_the_gpu_and_are_those_of_the_cpu() {
    let engine = start(options(1, ""));
    let texts: Vec<_> = (0..700).map(|seed| text(seed, 1 + seed % 30)).collect();
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let asked = |allowed| Work { output: Output::Tokens, allowed, ..Work::from_ids(0, texts.clone()) };
    let gpu = engine.process(asked(Allowed::Gpu)).unwrap();
    let cpu = engine.process(asked(Allowed::Cpu)).unwrap();
    assert_eq!((gpu.device, cpu.device), (DeviceName::Simulated(0), DeviceName::Cpu));
    assert_eq!((gpu.rows().len(), gpu.dimensions), (tokens, shape().hidden));
    let worst = gpu.values.iter().zip(&cpu.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(gpu.values.len() == cpu.values.len() && worst < 0.02, "{worst}");
    assert_eq!(engine.process(asked(Allowed::Any)).unwrap().values.len(), gpu.values.len());
}

#[test]
fn wrong_rows_of_tokens_do_not_leave() {
    let engine = start(options(1, "wrong@every=1"));
    let texts = vec![text(1, 9), text(2, 5)];
    let asked = |allowed| Work { output: Output::Tokens, allowed, ..Work::from_ids(0, texts.clone()) };
    let (any, cpu) = (engine.process(asked(Allowed::Any)).unwrap(), engine.process(asked(Allowed::Cpu)).unwrap());
    assert_eq!((any.device, &any.values), (DeviceName::Cpu, &cpu.values));
}

#[test]
fn without_gpus_the_cpu_answers_and_it_is_no_fallback() {
    let cpu = EncoderOptions { device: DeviceChoice::Cpu, threads: Some(1), ..EncoderOptions::default() };
    let engine = start(EngineOptions { encoder: cpu, ..options(0, "") });
    let texts = vec![text(3, 9)];
    let answer = engine.process(Work::from_ids(0, texts.clone())).unwrap();
    assert_right(&answer, &texts);
    assert_eq!((answer.device, answer.fallback), (DeviceName::Cpu, None));
}

#[test]
fn a_request_larger_than_any_batch_is_answered_in_its_order() {
    let engine = start(options(2, ""));
    let texts: Vec<_> = (0..1500).map(|seed| text(seed, 3 + seed % 20)).collect();
    let answer = engine.process(Work::from_ids(0, texts.clone())).unwrap();
    assert_right(&answer, &texts);
}

#[test]
fn what_a_model_cannot_read_is_refused_at_once() {
    let engine = start(options(0, ""));
    let refused = |work: Work| engine.process(work).unwrap_err().to_string();
    assert!(refused(Work::from_ids(0, vec![vec![1_000_000]])).contains("1000000"));
    assert!(refused(Work::from_ids(0, vec![vec![]])).contains("0 tokens"));
    assert!(refused(Work::from_ids(0, vec![])).contains("no text"));
    assert!(refused(Work::from_ids(7, vec![vec![1]])).contains("7"));
}

#[test]
fn a_request_that_requires_a_gpu_is_refused_where_there_is_none() {
    let device = DeviceChoice::Cuda(GpuSelector::Any);
    let encoder = EncoderOptions { device, threads: Some(1), ..EncoderOptions::default() };
    // On a machine with a GPU this engine starts, and there is nothing to see.
    match Engine::start(EngineOptions { encoder, ..options(0, "") }) {
        Err(LoadError::Device(refusal)) => assert!(refusal.to_string().contains("cuda"), "{refusal}"),
        Err(other) => panic!("{other}"),
        Ok(_) => magray_skip::test(magray_skip::Need::NoGpu, "this machine has a GPU"),
    }
}

#[test]
fn who_must_have_a_gpu_that_never_works_is_refused_and_others_are_told() {
    // Every batch fails, so that the device is given up.
    let engine = start(options(1, "transient@every=1"));
    let must = Work { allowed: Allowed::Gpu, ..Work::from_ids(0, vec![text(1, 4)]) };
    match engine.process(must) {
        Err(EngineError::NoDevice { code, .. }) => assert_eq!(code, "unhealthy"),
        other => panic!("{other:?}"),
    }
    let texts = vec![text(2, 6)];
    let answer = engine.process(Work::from_ids(0, texts.clone())).unwrap();
    assert_right(&answer, &texts);
    assert_eq!(answer.device, DeviceName::Cpu);
    assert_eq!(answer.fallback.map(|reason| reason.code()), Some("unhealthy"));
}

#[test]
fn poison_ends_two_workers_and_is_refused_and_its_neighbours_are_answered() {
    let engine = start(options(1, "poison@id=999"));
    let (sender, answers) = std::sync::mpsc::channel();
    // One after the other and without waiting, so that poison and others share batches.
    for seed in 0..60u32 {
        let mut ids = text(seed, 4 + seed % 5);
        if seed == 17 {
            ids[2] = 999;
        }
        let sender = sender.clone();
        engine.submit(Work::from_ids(0, vec![ids.clone()]), move |answer| sender.send((seed, ids, answer)).unwrap());
    }
    for _ in 0..60 {
        let (seed, ids, answer) = answers.recv_timeout(LONG).unwrap();
        match answer {
            Err(EngineError::Poison) => assert_eq!(seed, 17),
            Err(other) => panic!("{seed}: {other}"),
            // Were the CPU to compute it, nothing would be wrong with it; it may be sooner.
            Ok(answer) => assert_right(&answer, &[ids]),
        }
    }
    let restarts = engine.status().devices[1].schedule.restarts;
    assert!(restarts <= 2, "{restarts} workers were replaced");
    engine.shut_down();
}

#[test]
fn an_answer_can_be_awaited_and_a_dropped_one_is_not_computed() {
    use std::pin::Pin;
    use std::task::{Context, Poll, Wake, Waker};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let engine = start(options(1, ""));
    let texts = vec![text(1, 5)];
    let mut asking = engine.ask(Work::from_ids(0, texts.clone()));
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let answer = loop {
        match Pin::new(&mut asking).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => break answer.unwrap(),
            Poll::Pending => std::thread::park_timeout(LONG),
        }
    };
    assert_right(&answer, &texts);
    for seed in 0..200 {
        drop(engine.ask(Work::from_ids(0, vec![text(seed, 40)])));
    }
    assert!(engine.process(Work::from_ids(0, texts)).is_ok());
    // One that was begun before it was dropped is still computed, perhaps by the other device.
    residency::wait_for("nothing to be left", || engine.status().requests == 0);
    engine.shut_down();
}

/// A tiny model of the engine's fixtures, copied so that it can be changed.
fn fixture(name: &str) -> tempfile::TempDir {
    let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../magray-engine/tests/fixtures").join(name);
    let to = tempfile::tempdir().unwrap();
    copy(&from, to.path());
    to
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, to) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        match path.is_dir() {
            true => copy(&path, &to),
            false => assert!(std::fs::copy(&path, &to).is_ok()),
        }
    }
}

fn with_model(folder: &std::path::Path) -> EngineOptions {
    EngineOptions { models: vec![ModelSource::Folder(folder.to_owned()).into()], ..options(1, "") }
}

#[test]
fn a_prompt_that_is_not_pooled_does_not_make_the_gpu_look_wrong() {
    let model = fixture("bert");
    let prompts = r#"{"prompts": {"query": "what is this and that: "}, "default_prompt_name": null}"#;
    std::fs::write(model.path().join("config_sentence_transformers.json"), prompts).unwrap();
    let pooling = model.path().join("1_Pooling/config.json");
    let mut settings: serde_json::Value = serde_json::from_slice(&std::fs::read(&pooling).unwrap()).unwrap();
    settings["include_prompt"] = false.into();
    std::fs::write(&pooling, settings.to_string()).unwrap();
    let engine = start(with_model(model.path()));
    let source = ModelSource::Folder(model.path().to_owned());
    for prompt in [Some("query"), None] {
        let work = engine.read(0, &["the cat", "a dog and a mat"], prompt).unwrap();
        let answer = engine.process(work.clone()).unwrap();
        assert_eq!((answer.device, answer.replays), (DeviceName::Simulated(0), 0), "{prompt:?}");
        let expected = on_cpu(&source, &work);
        assert!(answer.values.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.02), "{prompt:?}");
    }
    assert_eq!(engine.incidents(), []);
}

#[test]
fn a_classifier_scores_pairs_on_the_gpu() {
    let model = fixture("bert-classify");
    let engine = start(with_model(model.path()));
    let pairs = [("the cat", "a dog"), ("a mat", "the cat sat on the mat")];
    let work = engine.read_pairs(0, &pairs).unwrap();
    let answer = engine.process(work.clone()).unwrap();
    assert_eq!((answer.device, answer.replays), (DeviceName::Simulated(0), 0));
    let expected = on_cpu(&ModelSource::Folder(model.path().to_owned()), &work);
    assert!(answer.values.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.05), "{:?} {expected:?}", answer.values);
}

#[test]
fn work_for_an_engine_that_has_ended_is_refused() {
    let engine = start(options(0, ""));
    let other = engine.clone();
    engine.shut_down();
    assert!(matches!(other.process(Work::from_ids(0, vec![text(1, 3)])), Err(EngineError::Draining)));
}

#[test]
fn a_caller_that_panics_over_its_answer_harms_no_other() {
    let engine = start(options(1, ""));
    for allowed in [Allowed::Cpu, Allowed::Gpu] {
        let work = || Work { allowed, ..Work::from_ids(0, vec![text(1, 3)]) };
        engine.submit(work(), |_| panic!("a caller's own business"));
        assert!(engine.process(work()).is_ok(), "{allowed:?}");
    }
}

#[test]
fn an_engine_that_is_let_go_of_by_its_own_thread_ends() {
    for allowed in [Allowed::Cpu, Allowed::Gpu] {
        let engine = start(options(1, ""));
        let pid = engine.status().devices[1].pid.unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let own = engine.clone();
        engine.submit(Work { allowed, ..Work::from_ids(0, vec![text(1, 3)]) }, move |answer| {
            drop(own);
            sender.send(answer.is_ok()).unwrap();
        });
        drop(engine);
        // Which of the two went last is chance; the worker is gone after either.
        let _ = receiver.recv_timeout(LONG);
        let ended = (0..6000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !std::path::Path::new(&format!("/proc/{pid}")).exists()
        });
        assert!(ended || !cfg!(target_os = "linux"), "the worker {pid} is still there");
    }
}
