//! Streams among others: readers that stop, clients that leave, and a full queue.

use std::net::TcpStream;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::{Value, json};

use super::{Chat, Chunks, unchunked};
use crate::{
    http::Reply,
    rig::{Setup, wait_for},
};

const PATH: &str = "/v1/completions";
/// The token that ends an answer of the tiny model.
const END: &str = "256";

fn on_gpu(more: impl FnOnce(Setup) -> Setup) -> Chat {
    Chat::with(&["--device", "require-gpu", "--simulated-gpus", "1"], more)
}

/// An answer of just so many tokens.
fn asked(seed: usize, tokens: usize) -> String {
    json!({
        "prompt": format!("stream number {seed}"), "max_tokens": tokens, "stream": true, "seed": seed, "temperature": 0.9,
        "logit_bias": {END: -1000},
    })
    .to_string()
}

fn begin(chat: &Chat, body: &str) -> TcpStream {
    chat.server.request("POST", PATH).header("content-type", "application/json").body(body).begin()
}

fn text_of(events: &str) -> String {
    let data = events.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let events = data.map(|data| serde_json::from_str::<Value>(data).unwrap());
    events.filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned)).collect()
}

fn read(chat: &Chat, seed: usize, tokens: usize) -> String {
    let events = unchunked(&chat.server.post(PATH, &asked(seed, tokens)).ok());
    assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    text_of(&events)
}

fn kv_bytes(chat: &Chat) -> u64 {
    let devices = chat.server.get("/gpu/devices").ok().json();
    devices.as_array().unwrap().iter().map(|device| device["kv_bytes"].as_u64().unwrap()).sum()
}

#[test]
fn readers_that_stop_hold_up_no_others_and_leave_nothing_behind() {
    let chat = on_gpu(|setup| setup);
    let expected: Vec<String> = (0..4).map(|seed| read(&chat, seed, 40)).collect();
    let slow = |seed: usize| {
        // Events with log probabilities are long.
        let mut body: Value = serde_json::from_str(&asked(100 + seed, 1_500)).unwrap();
        body["logprobs"] = 5.into();
        let stream = begin(&chat, &body.to_string());
        // Less than the answer has, so that the server has to wait for its reader.
        set_socket_recv_buffer_size(&stream, 4 << 10).unwrap();
        stream
    };
    let slow: Vec<TcpStream> = (0..24).map(slow).collect();
    let requests = || chat.server.get("/gpu/status").ok().json()["requests"].as_u64().unwrap();
    wait_for("the slow streams", || requests() == 24);
    for (seed, expected) in expected.iter().enumerate() {
        assert_eq!(&read(&chat, seed, 40), expected, "{seed}");
    }
    drop(slow);
    wait_for("the end of the streams", || requests() == 0 && kv_bytes(&chat) == 0);
    assert_eq!(read(&chat, 1, 40), expected[1]);
}

#[test]
fn a_full_queue_refuses_with_a_time_and_cuts_no_stream() {
    // Room for three streams of one caller and not for a fourth: it leaves some to other callers, and to what is not generated.
    let chat = on_gpu(|setup| setup.settings("[cpu]\npath = \"portable\"\n[queue]\ntokens_max = 4000\n"));
    let mut streams: Vec<Chunks> = (0..3).map(|seed| Chunks::of(begin(&chat, &asked(seed, 600)))).collect();
    let firsts: Vec<String> = streams.iter_mut().map(|stream| stream.next().unwrap()).collect();
    let refused = chat.server.post(PATH, &asked(9, 1_500));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("overloaded")), "{}", refused.text());
    let told: u64 = refused.header("retry-after-ms").unwrap().parse().unwrap();
    assert!((10..=60_000).contains(&told), "{told}");
    let whole = streams.into_iter().zip(firsts).map(|(mut stream, mut events)| {
        while let Some(chunk) = stream.next() {
            events += &chunk;
        }
        assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
        text_of(&events)
    });
    let whole: Vec<String> = whole.collect();
    for (seed, text) in whole.iter().enumerate() {
        assert_eq!(text, &read(&chat, seed, 600));
    }
    chat.server.post(PATH, &asked(9, 1_500)).ok();
}

/// Tokens are bytes here: the prompt of this has 27 of them.
fn chat_as(chat: &Chat, key: &str, path: &str, tokens: usize) -> Reply {
    let body = json!({
        "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens, "temperature": 0, "logit_bias": {END: -1000},
    });
    chat.server.request("POST", path).key(key).header("content-type", "application/json").body(body.to_string()).send()
}

#[test]
fn keys_have_tokens_a_minute() {
    let with = |rate: u64| format!("[cpu]\npath = \"portable\"\n[server]\ntokens_per_minute = {rate}\n");
    let chat = Chat::with(&["--device", "cpu"], |setup| {
        setup.settings(&with(300)).env("MAGRAY_API_KEYS", "one,two").env("MAGRAY_ADMIN_KEYS", "boss")
    });
    let left = |reply: &Reply| reply.header("x-ratelimit-remaining-tokens").unwrap().parse::<u64>().unwrap();
    let path = "/v1/chat/completions";
    let first = chat_as(&chat, "one", path, 40).ok();
    assert_eq!(first.header("x-ratelimit-limit-tokens"), Some("300"));
    let usage = first.json()["usage"]["total_tokens"].as_u64().unwrap();
    let after = left(&first);
    assert!(usage >= 60 && after <= 300 - usage + 16 + 5, "{usage} {after}");
    // What is beyond the budget is not cut off, but later requests wait for it.
    let second = chat_as(&chat, "one", path, 500).ok();
    assert_eq!(second.json()["usage"]["completion_tokens"], 500);
    let refused = chat_as(&chat, "one", path, 1);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(refused.text().contains("this key has used too many tokens"), "{}", refused.text());
    let told: u64 = refused.header("retry-after-ms").unwrap().parse().unwrap();
    // At least 250 tokens are owed, at five a second.
    assert!((45_000..90_000).contains(&told), "{told}");
    assert_eq!(refused.header("x-ratelimit-remaining-tokens"), Some("0"));
    let other = chat_as(&chat, "two", "/v1/messages", 8).ok();
    assert!(other.header("anthropic-ratelimit-tokens-remaining").is_some());
    assert!(other.header("anthropic-ratelimit-tokens-reset").unwrap().ends_with('z'), "a time");
    // A higher rate is waited for accordingly.
    chat.server.settings(&with(3_000_000));
    let reloaded = chat.server.request("POST", "/admin/reload").key("boss").body("").send().ok().json();
    assert_eq!(reloaded["changed"], json!(["server.tokens_per_minute"]));
    wait_for("the key", || chat_as(&chat, "one", path, 1).status == 200);
}

#[test]
fn what_a_full_queue_refuses_costs_no_tokens() {
    let settings = "[cpu]\npath = \"portable\"\n[queue]\ntokens_max = 200\n[server]\ntokens_per_minute = 1000\n";
    let chat = Chat::with(&["--device", "cpu"], |setup| setup.settings(settings));
    let refused = chat.server.post(PATH, &asked(1, 1_000));
    assert_eq!(refused.status, 413, "{}", refused.text());
    let reply = chat.server.post(PATH, &json!({"prompt": "a", "max_tokens": 1}).to_string()).ok();
    let left: u64 = reply.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    assert!(left > 950, "{left}");
}
