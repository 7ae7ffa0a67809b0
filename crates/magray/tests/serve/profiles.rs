//! What `--profile` writes: every request and batch, as the format of Chrome's traces has it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    rig::{Server, Setup},
    trace_format::check,
};

fn profiled(setup: Setup) -> (Server, PathBuf) {
    let path = PathBuf::from(setup.file("trace.json", "what was there before"));
    (setup.arg("--profile").arg(&path).start(), path)
}

fn ask(server: &Server, requests: usize) {
    for at in 0..requests {
        server.post("/embed", &json!({"inputs": [format!("river {at}"), "cat"]}).to_string()).ok();
    }
}

fn summary(path: &Path) -> Value {
    let done =
        Command::new(env!("CARGO_BIN_EXE_magray")).args(["gpu", "profile", "--json"]).arg(path).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

#[test]
fn a_thousand_requests_are_in_it_and_the_format_is_kept() {
    const REQUESTS: usize = 1_000;
    let (mut server, path) = profiled(Setup::embedder());
    ask(&server, REQUESTS);
    assert_eq!(server.post("/embed", "{").status, 400);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.said());
    let events: Vec<Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let counts = check(&events).unwrap_or_else(|reason| panic!("{reason}"));
    let count = |name: &str, phase: &str| counts.get(&(name.to_owned(), phase.to_owned())).copied().unwrap_or(0);
    assert_eq!((count("request", "b"), count("POST /embed", "b")), (REQUESTS, REQUESTS + 1));
    assert!(count("batch", "X") >= REQUESTS && count("load", "X") == 1, "{counts:?}");
    let texts: u64 = events
        .iter()
        .filter(|event| event["name"] == "batch")
        .map(|event| event["args"]["texts"].as_u64().unwrap())
        .sum();
    assert_eq!(texts, 2 * REQUESTS as u64);
    let summary = summary(&path);
    assert_eq!((&summary["requests"], &summary["lost"]), (&json!(REQUESTS), &json!(0)));
    let rows = summary["rows"].as_array().unwrap();
    let batches = rows.iter().find(|row| row["at"] == "cpu" && row["what"] == "batch").unwrap();
    assert!(batches["p99_ms"].as_f64() >= batches["p50_ms"].as_f64() && batches["share"].as_f64().unwrap() <= 1.0);
}

#[test]
fn what_is_no_profile_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("no.json");
    fs::write(&path, "hello").unwrap();
    for path in [path, dir.path().join("none.json")] {
        let done = Command::new(env!("CARGO_BIN_EXE_magray")).args(["gpu", "profile"]).arg(&path).output().unwrap();
        assert_eq!(done.status.code(), Some(3));
        assert!(String::from_utf8_lossy(&done.stderr).contains("cannot read the profile"));
    }
}
