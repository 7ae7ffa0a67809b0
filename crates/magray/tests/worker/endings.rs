//! How workers end: stopped, killed by whomever, with their supervisor.

use crate::rig::{Rig, expected, spec, spec_with_faults, texts};
use magray_core::schedule::Ending;
use magray_engine::internals::{Exit, FromWorker};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

#[test]
fn a_worker_that_is_stopped_answers_everything_first() {
    let mut rig = Rig::start(&spec());
    let batches: Vec<Vec<Vec<u32>>> = (0..4).map(|slot| texts(16, slot)).collect();
    for (slot, texts) in batches.iter().enumerate() {
        rig.submit(slot as u64, slot, texts);
    }
    rig.handle.stop();
    for slot in 0..4 {
        assert!(matches!(rig.hear(), Ok(FromWorker::Finished { batch, .. }) if batch == slot));
    }
    assert_eq!(rig.hear(), Err(Exit::Stopped));
    assert_eq!(rig.hear(), Err(Exit::Stopped), "asked again it says the same");
    for (slot, texts) in batches.iter().enumerate() {
        assert_eq!(rig.rows(slot, 16), expected(texts), "the answers outlive the worker");
    }
    let texts = [magray_engine::internals::Tokens { ids: &[1], types: &[] }];
    let work = magray_engine::internals::Work { batch: 9, slot: 0, model: 0, skip: 0, texts: &texts };
    assert!(rig.handle.submit(work).is_err(), "no worker is there to take it");
}

#[test]
fn a_stranger_s_kill_is_told_apart_from_an_order() {
    let mut rig = Rig::start(&spec());
    rig.handle.strike();
    assert_eq!(rig.end().ending(), Ending::Killed);
    let mut rig = Rig::start(&spec());
    rig.handle.kill();
    rig.handle.kill();
    assert_eq!(rig.end().ending(), Ending::Ordered);
    rig.handle.kill();
}

#[test]
fn signals_that_ask_politely_are_left_to_the_supervisor() {
    let mut rig = Rig::start(&spec());
    for signal in ["-TERM", "-INT", "-HUP"] {
        assert!(Command::new("kill").args([signal, &rig.handle.pid().to_string()]).status().unwrap().success());
    }
    let texts = texts(2, 1);
    assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
    assert_eq!(rig.stop(), Exit::Stopped);
}

#[test]
fn a_worker_is_gone_when_its_handle_or_its_receiver_is() {
    let Rig { handle, mut receiver, .. } = Rig::open(&spec());
    let other = handle.clone();
    drop(handle);
    assert!(matches!(receiver.next(), Ok(FromWorker::Heartbeat { .. })), "a clone of the handle is left");
    drop(other);
    let exit = loop {
        if let Err(exit) = receiver.next() {
            break exit;
        }
    };
    assert_eq!(exit, Exit::Ordered);
    let Rig { handle, receiver, .. } = Rig::start(&spec());
    drop(receiver);
    assert!(handle.trim().is_err());
}

/// Runs as a process of its own, started by the test below: supervises a worker until it is killed.
#[test]
#[ignore = "a part that another test plays"]
fn a_supervisor() {
    let plan = std::env::var("PLAN").unwrap_or_default();
    let mut rig = Rig::start(&spec_with_faults(&plan));
    if !plan.is_empty() {
        rig.submit(1, 0, &texts(2, 1));
    }
    println!("worker {}", rig.handle.pid());
    // Until the test has gone away at the latest.
    rig.end();
}

fn worker_dies_with_its_supervisor(plan: &str) {
    let mut supervisor = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "endings::a_supervisor", "--ignored", "--nocapture"])
        .env("PLAN", plan)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The worker has the same stderr: it ends when both of them have.
    let mut both = supervisor.stderr.take().unwrap();
    let mut lines = BufReader::new(supervisor.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("worker ")), "the worker is ready");
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    let mut rest = Vec::new();
    both.read_to_end(&mut rest).unwrap();
}

#[test]
fn a_supervisor_killed_takes_its_idle_worker_along() {
    worker_dies_with_its_supervisor("");
}

#[test]
fn a_supervisor_killed_takes_a_worker_along_that_hangs() {
    worker_dies_with_its_supervisor("hang@0s");
}
