//! What a worker cannot do once it reads files that strangers made: tried from inside the worker.
#![cfg(target_os = "linux")]

use crate::rig::{EXE, LONG, Rig, expected, spec, texts};
use magray_engine::gpu::SandboxMode;
use magray_engine::internals::{
    Attempt, ExecutorModel, Exit, ModelSource, Offer, Outcome, Sandbox, WorkerSpec, try_sandbox,
};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../magray-engine/tests/fixtures/bert");

/// A folder with a copy of a small model.
struct ModelFolder {
    root: tempfile::TempDir,
    folder: PathBuf,
}

impl ModelFolder {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("model");
        copy(Path::new(FIXTURE), &folder);
        Self { root, folder }
    }

    fn spec(&self, sandbox: SandboxMode) -> WorkerSpec {
        let source = ModelSource::Folder(self.folder.clone());
        let model = ExecutorModel::new(source, spec().models[0].precision);
        WorkerSpec { models: vec![model], sandbox, outputs_max: 1024, ..spec() }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

fn attempts(model: &ModelFolder, mode: SandboxMode) -> (Sandbox, Vec<Attempt>) {
    try_sandbox(Path::new(EXE), &model.spec(mode), LONG).unwrap()
}

/// Whether this kernel can confine a worker; the test is skipped where it cannot.
fn can_confine() -> bool {
    let sandbox = Rig::open(&spec()).ready.sandbox;
    if !sandbox.is_whole() {
        let need = if sandbox.has_seccomp { magray_skip::Need::Landlock } else { magray_skip::Need::Seccomp };
        magray_skip::test(need, format!("{sandbox}: {:?}", sandbox.missing));
    }
    sandbox.is_whole()
}

fn those(attempts: &[Attempt], outcome: &Outcome) -> BTreeSet<String> {
    attempts.iter().filter(|attempt| attempt.outcome == *outcome).map(|attempt| attempt.what.clone()).collect()
}

#[test]
fn a_worker_that_tries_to_exec_connect_and_read_other_files_is_refused_each() {
    if !can_confine() {
        return;
    }
    let model = ModelFolder::new();
    let (sandbox, tried) = attempts(&model, SandboxMode::Require);
    assert!(sandbox.is_whole(), "{sandbox:?}");
    let all: BTreeSet<String> = tried.iter().map(|attempt| attempt.what.clone()).collect();
    // Signals are Landlock's since Linux 6.12.
    let may_pass = |what: &String| what == "signal the supervisor" && sandbox.landlock < Some(6);
    let refused = those(&tried, &Outcome::Refused);
    let escaped: Vec<_> = all.difference(&refused).filter(|what| !may_pass(what)).collect();
    assert!(escaped.is_empty(), "not refused: {escaped:?} in {tried:?}");
    for what in ["run a program", "connect to a TCP port", "read /etc/shadow", "write into a model's folder"] {
        assert!(all.contains(what), "'{what}' was not tried: {all:?}");
    }
    assert_eq!(fs::read_dir(&model.folder).unwrap().count(), fs::read_dir(FIXTURE).unwrap().count());
}

#[test]
fn the_same_attempts_succeed_without_the_sandbox() {
    let (sandbox, tried) = attempts(&ModelFolder::new(), SandboxMode::Off);
    assert_eq!(sandbox, Sandbox::default());
    let done = those(&tried, &Outcome::Done);
    let all: BTreeSet<String> = tried.iter().map(|attempt| attempt.what.clone()).collect();
    // Only root may read it.
    let not_done: Vec<_> = all.difference(&done).filter(|what| *what != "read /etc/shadow").collect();
    assert!(not_done.is_empty(), "{tried:?}");
}

#[test]
fn every_thread_of_a_worker_that_computes_is_confined() {
    if !can_confine() {
        return;
    }
    let mut rig = Rig::start(&WorkerSpec { sandbox: SandboxMode::Require, ..spec() });
    let texts = texts(3, 1);
    assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
    let tasks = fs::read_dir(format!("/proc/{}/task", rig.handle.pid())).unwrap();
    let threads: Vec<String> =
        tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap()).collect();
    // Those that watch, beat, tend, load and compute.
    assert!(threads.len() >= 4, "{}", threads.len());
    for thread in &threads {
        let has = |field: &str, value: &str| {
            thread.lines().any(|line| line.strip_prefix(field).is_some_and(|rest| rest.trim() == value))
        };
        assert!(has("Seccomp:", "2") && has("NoNewPrivs:", "1"), "{thread}");
    }
    assert_eq!(rig.stop(), Exit::Stopped);
}

#[test]
fn a_model_is_read_from_its_folder_and_from_the_hubs_cache() {
    let plain = ModelFolder::new();
    Rig::open(&plain.spec(SandboxMode::Auto)).load(0, Offer::None).unwrap();
    // As the hub's own client keeps it: links to files beside.
    let root = plain.root.path().join("models--a--b");
    let (blobs, snapshot) = (root.join("blobs"), root.join("snapshots/0123"));
    fs::create_dir_all(&blobs).unwrap();
    copy(&plain.folder, &snapshot);
    for name in ["config.json", "model.safetensors"] {
        fs::rename(snapshot.join(name), blobs.join(name)).unwrap();
        symlink(Path::new("../../blobs").join(name), snapshot.join(name)).unwrap();
    }
    let cached = ModelFolder { folder: snapshot, ..plain };
    Rig::open(&cached.spec(SandboxMode::Auto)).load(0, Offer::None).unwrap();
}

#[test]
fn a_link_out_of_a_model_folder_is_not_followed_and_the_error_says_why() {
    if !can_confine() {
        return;
    }
    let model = ModelFolder::new();
    let elsewhere = model.root.path().join("weights");
    fs::rename(model.folder.join("model.safetensors"), &elsewhere).unwrap();
    symlink(&elsewhere, model.folder.join("model.safetensors")).unwrap();
    let problem = Rig::open(&model.spec(SandboxMode::Auto)).load(0, Offer::None).unwrap_err();
    assert_eq!(problem.code, "model_unreadable", "{problem:?}");
    assert!(problem.message.contains("gpu.sandbox"), "{problem:?}");
    Rig::open(&model.spec(SandboxMode::Off)).load(0, Offer::None).unwrap();
}
