//! Tiny models of every architecture against the answers that `transformers` gives for them, in every placement.
//!
//! The compiled binary runs without the sources where `REFERENCE_MODELS` names the folder of the tiny models.

#![expect(clippy::unwrap_used, reason = "a test: what fails to unwrap fails the test")]

use magray_engine::engine::{Engine, EngineOptions, ModelSource, Work};
use magray_engine::gpu::{SearchPath, Visible};
use magray_engine::spec::Task;
use magray_engine::{CpuPath, DeviceName, EncoderOptions, Precision, PrecisionChoice, SingleDevice};
use magray_skip::Need;
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    pair: Option<String>,
    prompt: Option<String>,
    #[serde(default, alias = "logits")]
    vector: Vec<f32>,
}

const EMBED: [&str; 5] = ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet"];

fn folder(name: &str) -> PathBuf {
    let models = std::env::var_os("REFERENCE_MODELS").map(PathBuf::from);
    models.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")).join(name)
}

fn cases(name: &str) -> Vec<Case> {
    let json = std::fs::read(folder(name).join("reference.json")).unwrap();
    serde_json::from_slice::<Reference>(&json).unwrap().cases
}

/// Everything that computes in this precision here, by name.
fn placements(precision: Precision) -> Vec<(String, DeviceName, EncoderOptions)> {
    let precision = PrecisionChoice::Exactly(precision);
    let on_cpu = |path: CpuPath, threads| {
        let cpu_path = Some(path);
        let options = EncoderOptions { precision, threads: Some(threads), cpu_path, ..EncoderOptions::default() };
        (format!("{path} x{threads}"), DeviceName::Cpu, options)
    };
    let paths = magray_device::cpu::available_paths();
    for path in CpuPath::ALL.into_iter().filter(|path| !paths.contains(path)) {
        magray_skip::part(Need::CpuPath(path.to_string()), "the CPU has no such path");
    }
    let mut placements: Vec<_> = paths.into_iter().flat_map(|path| [on_cpu(path, 1), on_cpu(path, 3)]).collect();
    match magray_device::cuda::probe(&SearchPath::system(), &Visible::all()) {
        Ok(_) => {
            let options = EncoderOptions { precision, ..EncoderOptions::default() };
            placements.push(("cuda".to_owned(), DeviceName::Cuda(0), options));
        }
        Err(declined) => magray_skip::part(Need::Gpu, format_args!("no GPU ({})", declined.code())),
    }
    placements
}

/// Every case as the model reads it, each text on its own.
fn works(source: &ModelSource, cases: &[Case]) -> Vec<Work> {
    let engine = Engine::start(EngineOptions::on_cpu(vec![source.clone().into()])).unwrap();
    let one = |case: &Case| match (&engine.spec(0).unwrap().task, &case.pair) {
        (Task::Embed(_), _) => engine.read(0, &[&case.text], case.prompt.as_deref()).unwrap(),
        (Task::Classify(_), None) => engine.read_scored(0, &[&case.text]).unwrap(),
        (Task::Generate(_), _) => unreachable!("no reference generates"),
        (Task::Classify(_), Some(pair)) => engine.read_pairs(0, &[(&case.text, pair)]).unwrap(),
    };
    cases.iter().map(one).collect()
}

/// The largest difference, relative to the length of the reference.
fn distance(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let length = want.iter().map(|x| x * x).sum::<f32>().sqrt();
    let difference = got.iter().zip(want).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
    difference / length
}

fn check(name: &str, precision: Precision, tolerance: f32) {
    let (cases, source) = (cases(name), ModelSource::Folder(folder(name)));
    let works = works(&source, &cases);
    for (placement, device, options) in placements(precision) {
        let mut model = SingleDevice::open(&source, device, &options).unwrap();
        for (work, case) in works.iter().zip(&cases) {
            let off = distance(&model.run(work).unwrap(), &case.vector);
            assert!(off < tolerance, "{name} {precision} {placement} {:?}: off by {off}", case.text);
        }
    }
}

#[test]
fn every_architecture_embeds_as_its_reference_in_f32() {
    EMBED.iter().for_each(|name| check(name, Precision::F32, 2e-5));
}

#[test]
fn every_architecture_classifies_as_its_reference_in_f32() {
    EMBED.iter().for_each(|name| check(&format!("{name}-classify"), Precision::F32, 5e-5));
}

// The random weights of the fixtures are far larger than trained ones, so roundings grow more than in a real model;
// what a real model loses is measured on the default model by the quality test.
#[test]
fn every_architecture_is_near_its_reference_in_bf16() {
    EMBED.iter().for_each(|name| check(name, Precision::Bf16, 0.08));
}

#[test]
fn every_architecture_is_near_its_reference_in_int8() {
    EMBED.iter().for_each(|name| check(name, Precision::Int8, 0.25));
}
