//! Ollama's chats and texts: lines, formats, tools, thoughts, and models that are loaded and unloaded.

use serde_json::{Value, json};

use super::{Chat, assert_fits, schema};

fn ask(more: Value) -> Value {
    let mut body = json!({
        "model": "tiny:latest", "messages": [{"role": "user", "content": "hello"}],
        "options": {"num_predict": 24, "temperature": 0, "num_ctx": 4096, "stop": null},
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_chat_is_the_same_in_lines_and_in_one_piece() {
    let chat = Chat::start();
    let whole = chat.ok("/api/chat", ask(json!({"stream": false})));
    assert_eq!((&whole["done"], &whole["message"]["role"]), (&json!(true), &json!("assistant")));
    assert!(["stop", "length"].contains(&whole["done_reason"].as_str().unwrap()));
    for duration in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(whole[duration].is_u64(), "{whole}");
    }
    assert!(whole["prompt_eval_count"].as_u64().unwrap() > 5 && whole["eval_count"].as_u64().unwrap() > 0);
    let lines = chat.lines("/api/chat", ask(json!({})));
    let (last, rest) = lines.split_last().unwrap();
    assert!(rest.iter().all(|line| line["done"] == false) && last["done"] == true);
    let text: String = lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["message"]["content"].as_str().unwrap());
    assert_eq!(last["eval_count"], whole["eval_count"]);
}

#[test]
fn a_text_goes_on_with_its_template_and_without() {
    let chat = Chat::start();
    let ask = |more: Value| {
        let mut body = json!({"model": "tiny", "prompt": "hello", "stream": false, "options": {"num_predict": 12, "temperature": 0}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let with = chat.ok("/api/generate", ask(json!({"system": "be brief"})));
    let raw = chat.ok("/api/generate", ask(json!({"raw": true})));
    assert!(with["prompt_eval_count"].as_u64().unwrap() > raw["prompt_eval_count"].as_u64().unwrap());
    let plain =
        chat.ok("/v1/completions", json!({"model": "tiny", "prompt": "hello", "max_tokens": 12, "temperature": 0}));
    let plain_text = &plain["choices"][0]["text"];
    assert_eq!(raw["response"].as_str().unwrap(), plain_text.as_str().unwrap());
    let lines = chat.lines("/api/generate", ask(json!({"raw": true, "stream": true})));
    let text: String = lines.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(text, raw["response"].as_str().unwrap());
}

#[test]
fn formats_are_kept_and_thoughts_stand_apart() {
    let chat = Chat::start();
    let options = json!({"num_predict": 200});
    let found = chat.ok("/api/chat", ask(json!({"format": schema(), "stream": false, "options": options})));
    assert_fits(found["message"]["content"].as_str().unwrap());
    let found = chat.ok(
        "/api/generate",
        json!({"model": "tiny", "prompt": "x", "format": schema(), "stream": false, "options": options}),
    );
    assert_fits(found["response"].as_str().unwrap());
    let object = chat.ok("/api/chat", ask(json!({"format": "json", "stream": false})));
    assert!(object["message"]["content"].as_str().unwrap().trim_start().starts_with('{'));
    let thinking = chat.ok("/api/chat", ask(json!({"think": true, "stream": false})));
    assert!(!thinking["message"]["thinking"].as_str().unwrap().is_empty() && thinking["message"]["content"] == "");
    let tools = json!([{"type": "function", "function": {"name": "find", "parameters": schema()}}]);
    let messages = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "find", "arguments": {"n": 1, "ok": true}}}]},
        {"role": "tool", "content": "42", "tool_name": "find"},
    ]);
    chat.ok("/api/chat", ask(json!({"tools": tools, "messages": messages, "stream": false})));
}

#[test]
fn a_model_is_loaded_and_unloaded_without_a_question() {
    let chat = Chat::start();
    let loaded = chat.ok("/api/chat", json!({"model": "tiny", "messages": []}));
    assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
    assert_eq!(chat.server.get("/api/ps").ok().json()["models"][0]["name"], "tiny");
    let gone = chat.ok("/api/generate", json!({"model": "tiny", "keep_alive": 0}));
    assert_eq!((&gone["done_reason"], &gone["response"]), (&json!("unload"), &json!("")));
    assert_eq!(chat.server.get("/api/ps").ok().json(), json!({"models": []}));
    chat.ok("/api/chat", ask(json!({"keep_alive": "5m", "stream": false})));
    let shown = chat.server.post("/api/show", r#"{"model":"tiny"}"#).ok().json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    assert!(shown["model_info"]["llama.context_length"].is_u64(), "{shown}");
    assert!(shown["template"].as_str().unwrap().contains("<|tools|>"));
    let version = chat.server.get("/api/version").ok().json()["version"].as_str().unwrap().to_owned();
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(numbers >= vec![0, 6, 4], "{version}");
}

#[test]
fn errors_are_one_text() {
    let chat = Chat::start();
    for (path, body, status, message) in [
        ("/api/chat", ask(json!({"model": "llama3"})), 404, "no model 'llama3'"),
        ("/api/chat", ask(json!({"format": "xml"})), 422, "format is json"),
        ("/api/chat", ask(json!({"think": 7})), 422, "think is true"),
        ("/api/chat", ask(json!({"keep_alive": "soon"})), 422, "keep_alive is"),
        (
            "/api/chat",
            ask(json!({"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]})),
            422,
            "images are not read",
        ),
        ("/api/generate", json!({"model": "tiny", "prompt": "a", "suffix": "b"}), 422, "suffix"),
        ("/api/generate", json!({"model": "tiny", "prompt": "a", "options": {"top_p": 7}}), 422, "top_p must be"),
    ] {
        chat.server.check_refused(path, &body.to_string(), status, message);
        assert!(chat.server.post(path, &body.to_string()).json()["error"].is_string());
    }
}
