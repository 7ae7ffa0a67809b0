//! What is generated now, as `/slots` shows it.

use serde_json::{Value, json};

use super::{Chat, Chunks};
use crate::rig::wait_for;

const TOKENS: u64 = 7_000;

/// A stream of more bytes than all buffers between have.
fn asked(seed: usize) -> String {
    json!({
        "messages": [{"role": "user", "content": format!("stream number {seed}")}], "max_tokens": TOKENS, "stream": true,
        "seed": seed, "temperature": 0.5, "ignore_eos": true, "logprobs": true, "top_logprobs": 20,
    })
    .to_string()
}

fn slots(chat: &Chat) -> Vec<Value> {
    chat.server.get("/slots").ok().json().as_array().unwrap().clone()
}

#[test]
fn slots_show_each_sequence_and_none_of_its_text() {
    let args = ["--device", "require-gpu", "--simulated-gpus", "1"];
    // Three answers are as many as there may be.
    let chat = Chat::with(&args, |setup| setup.settings("[cpu]\npath = \"portable\"\n[queue]\nrequests_max = 3\n"));
    let free = slots(&chat);
    assert_eq!(free.len(), 1, "{free:?}");
    assert_eq!((&free[0]["is_processing"], &free[0]["n_ctx"]), (&json!(false), &json!(8192)));
    // Their readers stop after the first token; they are too long to end meanwhile.
    let begin = |seed: usize| {
        let request = chat.server.request("POST", "/v1/chat/completions").header("content-type", "application/json");
        let stream = request.body(asked(seed)).begin();
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4 << 10).unwrap();
        let mut chunks = Chunks::of(stream);
        chunks.next().unwrap();
        chunks
    };
    let streams: Vec<Chunks> = (0..3).map(begin).collect();
    let decoded = |slot: &Value| slot["next_token"][0]["n_decoded"].as_u64();
    wait_for("tokens of all", || {
        let slots = slots(&chat);
        slots.len() == 3 && slots.iter().all(|slot| decoded(slot) > Some(64))
    });
    let busy = slots(&chat);
    let numbers: Vec<u64> = busy.iter().map(|slot| slot["id_task"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers.len() == 3, "{numbers:?}");
    for (id, slot) in busy.iter().enumerate() {
        assert_eq!((&slot["id"], &slot["is_processing"], &slot["model"]), (&json!(id), &json!(true), &json!("tiny")));
        assert_eq!((&slot["device"], &slot["n_prompt_tokens"]), (&json!("sim:0"), &json!(36)), "{slot}");
        assert_eq!((&slot["params"]["seed"], &slot["params"]["n_predict"]), (&json!(id), &json!(TOKENS)));
        assert!(slot["state"] == "generating" || slot["state"] == "paused", "{slot}");
        let left = slot["next_token"][0]["n_remain"].as_u64().unwrap();
        assert_eq!(decoded(slot).unwrap() + left, TOKENS, "{slot}");
        assert!(slot["tokens_per_second"].as_f64().unwrap() > 0.0 && slot["first_token_ms"].as_f64().unwrap() > 0.0);
        assert!(!slot.to_string().contains("stream number"), "{slot}");
    }
    let refused = chat.server.get("/slots?fail_on_no_slot=1");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("unavailable")));
    drop(streams);
    wait_for("the end of the streams", || slots(&chat) == free);
    chat.server.get("/slots?fail_on_no_slot=1").ok();
}
