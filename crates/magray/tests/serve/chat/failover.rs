//! Streams whose worker dies under them: all end complete, without a repeated or missing token.

use std::thread;

use serde_json::{Value, json};

use super::{Chat, Chunks};

fn chat(faults: &str) -> Chat {
    let args = ["--device", "require-gpu", "--simulated-gpus", "1"];
    Chat::with(&args, |setup| setup.env("MAGRAY_FAULTS", faults))
}

fn body(seed: usize) -> String {
    json!({
        "model": "tiny", "prompt": format!("stream number {seed}"), "max_tokens": 180, "stream": true, "seed": seed,
        "temperature": if seed.is_multiple_of(2) { 0.0 } else { 0.9 }, "stream_options": {"include_usage": true},
    })
    .to_string()
}

/// The text of a stream and its number of tokens. `between` is called after each chunk.
fn read(chat: &Chat, seed: usize, mut between: impl FnMut(usize)) -> (String, Value) {
    let request = chat.server.request("POST", "/v1/completions").header("content-type", "application/json");
    let (mut chunks, mut all, mut count) = (Chunks::of(request.body(body(seed)).begin()), String::new(), 0);
    while let Some(chunk) = chunks.next() {
        all += &chunk;
        count += 1;
        between(count);
    }
    assert!(all.ends_with("data: [DONE]\n\n"), "{all}");
    let data = all.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let text = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    (text, events.last().unwrap()["usage"]["completion_tokens"].clone())
}

fn kill_worker(chat: &Chat) {
    let devices = chat.server.get("/gpu/devices").ok().json();
    let pid = devices.as_array().unwrap().iter().find_map(|device| device["worker_pid"].as_u64());
    if let Some(pid) = pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
        // It may just have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

#[test]
fn streams_survive_workers_that_are_killed() {
    let calm = chat("");
    let expected: Vec<(String, Value)> = (0..32).map(|seed| read(&calm, seed, |_| ())).collect();
    drop(calm);
    // A request that ends two workers is given up: where every tenth batch does, few may be in one.
    for (faults, count) in [("", 32), ("crash@every=10", 8)] {
        let chat = &chat(faults);
        let found: Vec<(String, Value)> = thread::scope(|scope| {
            let kill = |seed: usize, count: usize| {
                if faults.is_empty() && seed < 3 && count == 5 + 10 * seed {
                    kill_worker(chat);
                }
            };
            let streams: Vec<_> =
                (0..count).map(|seed| scope.spawn(move || read(chat, seed, |count| kill(seed, count)))).collect();
            streams.into_iter().map(|stream| stream.join().unwrap()).collect()
        });
        assert_eq!(found, expected[..count], "{faults}");
        let page = chat.server.get("/metrics").ok();
        let restarts = page.text().lines().filter(|line| line.starts_with("magray_worker_restarts_total{"));
        assert!(restarts.clone().any(|line| !line.ends_with(" 0")), "{:?}", restarts.collect::<Vec<_>>());
    }
}
