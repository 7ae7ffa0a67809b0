//! `magray gpu ...` beside a server that computes on a simulated GPU: what the commands do, and what they cost callers.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::rig::{Server, Setup};

fn json_of(server: &Server, args: &[&str]) -> Value {
    serde_json::from_str(&server.beside(args)).unwrap()
}

fn vector(server: &Server) -> Vec<f64> {
    let reply = server.post("/v1/embeddings", r#"{"input":"a river in the hills"}"#).ok().json();
    reply["data"][0]["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn models_that_are_moved_under_load_lose_no_request() {
    let server = Setup::on_gpu("").start();
    let first = vector(&server);
    let is_over = AtomicBool::new(false);
    let call = || {
        let mut answered = 0;
        while !is_over.load(Ordering::Relaxed) {
            let near = vector(&server).iter().zip(&first).all(|(now, then)| (now - then).abs() < 0.02);
            assert!(near, "another vector than at first");
            answered += 1;
        }
        answered
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..3).map(|_| scope.spawn(call)).collect();
        for _ in 0..3 {
            assert_eq!(json_of(&server, &["gpu", "offload", "--json"])["models"][0]["model"], "bert");
            json_of(&server, &["gpu", "preheat", "bert", "--json"]);
            json_of(&server, &["gpu", "release", "--all", "--json"]);
            json_of(&server, &["gpu", "timeout", "0", "--json"]);
            json_of(&server, &["gpu", "timeout", "never", "--json"]);
        }
        is_over.store(true, Ordering::Relaxed);
        let answered: Vec<u64> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        assert!(answered.iter().all(|count| *count > 0), "{answered:?}");
    });
    let status = json_of(&server, &["gpu", "status", "--json"]);
    let model = &status["engines"][0]["models"][0];
    assert!(model["offloads"].as_u64().unwrap() >= 3 && model["loads"].as_u64().unwrap() >= 3, "{status:#}");
}

#[test]
fn sentences_tell_what_was_done_and_what_memory_is_left() {
    let server = Setup::on_gpu("").start();
    vector(&server);
    let offload = server.beside(&["gpu", "offload"]);
    assert!(offload.starts_with("'bert' is off the GPU after "), "{offload}");
    assert!(offload.contains("sim:0 holds ") && offload.ends_with(" left\n"), "{offload}");
    let preheat = server.beside(&["gpu", "preheat", "bert"]);
    assert!(preheat.starts_with("'bert' is on sim:0 after "), "{preheat}");
    assert_eq!(server.beside(&["gpu", "timeout", "45"]), "'bert' leaves the GPU after 45 s without work\n");
    assert_eq!(server.beside(&["gpu", "pin", "bert"]), "'bert' stays on its GPU, also when others need the memory\n");
    let status = json_of(&server, &["gpu", "status", "--json"]);
    let model = &status["engines"][0]["models"][0];
    assert_eq!((&model["idle_timeout_s"], &model["pinned"]), (&json!(45.0), &json!(true)));
    let table = server.beside(&["gpu", "status"]);
    assert!(table.contains("sim:0") && table.contains("pinned") && !table.contains("there is no GPU"), "{table}");
}
