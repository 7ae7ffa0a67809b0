//! Agents that let a language model answer, what llama.cpp's clients ask, and what is counted.

use serde_json::{Value, json};

use super::{Chat, assert_fits, schema, unchunked};
use crate::http::Reply;

fn call(chat: &Chat, accept: &str, arguments: Value, meta: Value) -> Reply {
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "chat", "arguments": arguments, "_meta": meta},
    });
    let request = chat.server.request("POST", "/mcp").header("content-type", "application/json");
    request.header("accept", accept).body(message.to_string()).send().ok()
}

#[test]
fn an_agent_is_answered_and_told_of_progress() {
    let chat = Chat::start();
    let asked = json!({
        "prompt": "hello", "system": "be brief", "json_schema": schema(), "max_tokens": 200,
        "history": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    });
    let whole = call(&chat, "application/json", asked.clone(), json!({})).json();
    let answer = &whole["result"]["structuredContent"];
    assert_fits(answer["text"].as_str().unwrap_or_else(|| panic!("{whole}")));
    assert_eq!((&answer["model"], &answer["finish_reason"]), (&json!("tiny"), &json!("stop")));
    let reply = call(&chat, "application/json, text/event-stream", asked, json!({"progressToken": "p"}));
    let text = if reply.header("transfer-encoding").is_some() { unchunked(&reply) } else { reply.text().to_owned() };
    let data =
        text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).filter(|data| !data.is_empty());
    let messages: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let told: Vec<&Value> = messages.iter().filter(|message| message["method"] == "notifications/progress").collect();
    assert!(!told.is_empty() && told[0]["params"]["progressToken"] == "p", "{text}");
    assert_fits(messages.last().unwrap()["result"]["structuredContent"]["text"].as_str().unwrap());
    let refused = call(&chat, "application/json", json!({"prompt": "a", "max_tokens": 1000000}), json!({})).json();
    assert_eq!(refused["result"]["isError"], true);
}

#[test]
fn tokens_become_texts_and_a_model_is_described() {
    let chat = Chat::start();
    let ids: Vec<Value> = chat.server.post("/tokenize", r#"{"inputs":"h\u00e9llo","model":"tiny"}"#).ok().json()[0]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token["id"].clone())
        .collect();
    // As the clients of llama.cpp and of vLLM ask.
    for body in [json!({"content": "h\u{e9}llo"}), json!({"prompt": "h\u{e9}llo"})] {
        let found = chat.ok("/tokenize", body);
        assert_eq!((&found["tokens"], &found["count"]), (&json!(ids), &json!(ids.len())));
        assert_eq!(found["max_model_len"], 8192);
    }
    chat.server.check_refused("/tokenize", r#"{"content":null}"#, 422, "inputs, content or prompt");
    let text = chat.ok("/detokenize", json!({"tokens": ids}));
    assert_eq!((&text["content"], &text["prompt"]), (&json!("h\u{e9}llo"), &json!("h\u{e9}llo")));
    chat.server.check_refused("/detokenize", r#"{"tokens":[100000]}"#, 400, "the model knows");
    let props = chat.server.get("/props").ok().json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 8192);
    assert!(props["chat_template"].as_str().unwrap().contains("<|tools|>"));
}

#[test]
fn answers_are_counted() {
    let chat = Chat::start();
    let body = json!({"prompt": "hello", "max_tokens": 9, "logit_bias": {"256": -1000}});
    chat.ok("/v1/completions", body);
    let page = chat.server.get("/metrics").ok();
    for line in [
        r#"magray_generated_tokens_total{model="tiny",device="cpu"} 9"#,
        r#"magray_prompt_tokens_total{model="tiny"} 5"#,
        "magray_speculated_tokens_total 0",
        "magray_first_token_seconds_count 1",
        "magray_token_gap_seconds_count 8",
        r#"magray_device_kv_bytes{device="cpu"}"#,
    ] {
        assert!(page.text().contains(line), "{line} is not in\n{}", page.text());
    }
}
