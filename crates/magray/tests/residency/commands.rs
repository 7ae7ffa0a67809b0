//! `magray gpu ...` against an engine that computes on a simulated GPU: what the commands do, and what they cost callers.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use crate::{Home, json_of};

/// An engine under load. Its end tells whether anything was lost.
struct Load(Option<Child>);

impl Load {
    /// Starts it and waits until it computes.
    fn start(home: &Home, seconds: &str) -> Self {
        let args = [
            "bench",
            "load",
            "--model",
            "synthetic:tiny",
            "--tokens",
            "8",
            "--simulated-gpus",
            "1",
            "--rate",
            "50",
            "--seconds",
            seconds,
            "--warmup",
            "0",
            "--check",
            "--strict",
            "--json",
        ];
        let mut child = home.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(child.stderr.take().unwrap());
        let mut lines = told.lines().map_while(Result::ok);
        let load = Self(Some(child));
        assert!(lines.by_ref().any(|line| line.contains(" answers")), "it ended");
        // Whoever stops to listen would stop it from talking.
        std::thread::spawn(move || lines.count());
        load
    }

    /// Waits for its end and gives its report.
    fn end(mut self) -> Value {
        json_of(&self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Where the model is, seen from the GPU, and whether that has a worker.
fn seen(home: &Home) -> (String, bool) {
    let status = home.json(&["gpu", "status", "--json"]);
    let engine = &status["engines"][0];
    let place = engine["models"][0]["residency"][1]["where"].as_str().unwrap().to_owned();
    (place, !engine["devices"][1]["worker_pid"].is_null())
}

#[test]
fn models_that_are_moved_under_load_lose_no_request() {
    let home = Home::new();
    let load = Load::start(&home, "12");
    assert_eq!(seen(&home), ("on_gpu".to_owned(), true));
    for _ in 0..3 {
        let done = home.json(&["gpu", "offload", "--json"]);
        assert_eq!(done["models"][0]["model"], "synthetic:tiny");
        home.json(&["gpu", "preheat", "synthetic:tiny", "--json"]);
        home.json(&["gpu", "release", "--all", "--json"]);
        home.json(&["gpu", "timeout", "0", "--json"]);
        home.json(&["gpu", "timeout", "never", "--json"]);
    }
    let status = home.json(&["gpu", "status", "--json"]);
    let model = &status["engines"][0]["models"][0];
    assert!(model["offloads"].as_u64().unwrap() >= 3 && model["loads"].as_u64().unwrap() >= 3, "{status:#}");
    let report = load.end();
    for count in ["lost", "doubled", "wrong", "unexpected"] {
        assert_eq!(report[count], 0, "{count}:\n{report:#}");
    }
    assert!(report["answered"].as_u64().unwrap() > 300, "{report:#}");
}

#[test]
fn sentences_tell_what_was_done_and_what_memory_is_left() {
    let home = Home::new();
    let _load = Load::start(&home, "600");
    let said = |args: &[&str]| {
        let output = home.command(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let offload = said(&["gpu", "offload"]);
    assert!(offload.starts_with("'synthetic:tiny' is off the GPU after "), "{offload}");
    assert!(offload.contains("sim:0 holds ") && offload.ends_with(" left\n"), "{offload}");
    let preheat = said(&["gpu", "preheat", "synthetic:tiny"]);
    assert!(preheat.starts_with("'synthetic:tiny' is on sim:0 after "), "{preheat}");
    assert_eq!(said(&["gpu", "timeout", "45"]), "'synthetic:tiny' leaves the GPU after 45 s without work\n");
    assert_eq!(said(&["gpu", "pin", "synthetic:tiny"]), "'synthetic:tiny' stays on its GPU whatever others need\n");
    let status = home.json(&["gpu", "status", "--json"]);
    let model = &status["engines"][0]["models"][0];
    assert_eq!((&model["idle_timeout_s"], &model["pinned"]), (&json!(45.0), &json!(true)));
    let table = said(&["gpu", "status"]);
    assert!(table.contains("sim:0") && table.contains("pinned") && !table.contains("there is no GPU"), "{table}");
}
