//! Starts that do not succeed: each says why, and leaves nothing behind.

use crate::rig::{EXE, LONG, Rig, spec, spec_with_faults, try_start};
use magray_core::schedule::Ending;
use magray_engine::internals::{Exit, SpawnError, spawn};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A program that behaves like a bad worker.
struct Impostor {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Impostor {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("impostor");
        // Another process writes the file: one that a test forks meanwhile would keep it open, and it could not be run.
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod 700 "$2""#;
        let written = Command::new("sh").args(["-c", write, "sh", script]).arg(&path).status().unwrap();
        assert!(written.success());
        Self { _folder: folder, path }
    }

    fn spawn(&self, within: Duration) -> SpawnError {
        spawn(&self.path, &spec(), within, |_| ()).map(|_| ()).unwrap_err()
    }
}

#[test]
fn another_version_is_refused() {
    // A greeting of the next protocol, from a program that speaks through its stdin as workers do.
    let error = Impostor::new(r"printf '\004\000\000\000\004\101\001\000\000\000' >&0; exec sleep 1000").spawn(LONG);
    assert!(error.to_string().contains("protocol 4"), "{error}");
    assert_eq!(error.ending(), Ending::NotStarted);
}

#[test]
fn garbage_and_the_greeting_of_another_program_are_refused() {
    for script in [
        r"printf 'GET / HTTP/1.1\r\n' >&0; exec sleep 1000",
        r"printf '\004\0\0\0\003\101\001\0\0\0' >&0; exec sleep 1000",
    ] {
        let error = Impostor::new(script).spawn(LONG);
        assert!(matches!(error, SpawnError::Channel(_)), "{error}");
    }
}

#[test]
fn a_program_that_ends_or_hangs_or_is_not_there_is_told_apart() {
    let ended = Impostor::new("exit 7").spawn(LONG);
    assert!(matches!(&ended, SpawnError::Ended(Exit::Crashed { how }) if how.contains('7')), "{ended}");
    let overdue = Impostor::new("exec sleep 1000").spawn(Duration::from_millis(20));
    assert!(matches!(overdue, SpawnError::Overdue(_)), "{overdue}");
    let missing = spawn(Path::new("/none/such"), &spec(), LONG, |_| ()).map(|_| ()).unwrap_err();
    assert!(missing.to_string().contains("/none/such"), "{missing}");
}

#[test]
fn a_start_that_hangs_can_be_ended_from_another_thread() {
    let impostor = Impostor::new("exec sleep 1000");
    let (tell, told) = std::sync::mpsc::channel();
    let killer = std::thread::spawn(move || {
        let switch: magray_engine::internals::KillSwitch = told.recv().unwrap();
        switch.kill();
        switch.kill();
    });
    let error = spawn(&impostor.path, &spec(), LONG, |switch| tell.send(switch).unwrap()).map(|_| ()).unwrap_err();
    assert!(matches!(error, SpawnError::Ended(Exit::Ordered)), "{error}");
    assert_eq!(error.ending(), Ending::NotStarted);
    killer.join().unwrap();
}

#[test]
fn a_plan_that_makes_no_sense_is_refused() {
    let error = try_start(&spec_with_faults("fire@2s")).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("illegal_address"), "{error}");
}

#[test]
fn a_worker_started_by_hand_says_so() {
    let answer = Command::new(EXE).arg("worker").stdin(Stdio::null()).output().unwrap();
    let message = String::from_utf8(answer.stderr).unwrap();
    assert_eq!(answer.status.code(), Some(2), "{message}");
    assert!(message.contains("started by magray itself"), "{message}");
    assert!(answer.stdout.is_empty());
}

#[test]
fn people_do_not_see_the_command() {
    let help = Command::new(EXE).arg("--help").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("worker"));
    assert_eq!(Rig::start(&spec()).stop(), Exit::Stopped);
}
