//! Chats that are answered from a collection: the passages are found, put before the question, and cited by every API.

use serde_json::{Value, json};

use super::Chat;
use crate::rig::fixture;

fn with_notes() -> Chat {
    let chat = Chat::with(&["--device", "cpu", "--model", &fixture("bert")], |setup| setup);
    let documents = json!([
        {"text": "The river is wide.", "id": "1", "fields": {"author": "Ann"}},
        {"text": "A cat sleeps.", "id": "2", "fields": {"author": "Bob"}},
        {"text": "The river is cold.", "id": "3", "fields": {"author": "Bob"}},
    ]);
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "add_documents", "arguments": {"collection": "notes", "documents": documents}},
    });
    let request = chat.server.request("POST", "/mcp").header("content-type", "application/json");
    let added = request.header("accept", "application/json").body(call.to_string()).send().ok().json();
    assert_eq!(added["result"]["structuredContent"]["documents"], 3, "{added}");
    chat
}

fn messages() -> Value {
    json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "The river is wide."}])
}

#[track_caller]
fn assert_cites(citations: &Value) {
    let citations = citations.as_array().unwrap_or_else(|| panic!("{citations}"));
    assert_eq!(citations.len(), 2, "{citations:?}");
    // A model of random weights may like any of them best.
    for (number, one) in (1..).zip(citations) {
        let texts = ["The river is wide.", "A cat sleeps.", "The river is cold."].map(Value::from);
        assert_eq!((&one["number"], &one["text"]), (&json!(number), &texts[one["id"].as_u64().unwrap() as usize - 1]));
        assert!(one["score"].is_number() && one["payload"]["author"].is_string(), "{one}");
    }
}

#[test]
fn every_chat_api_answers_from_a_collection() {
    let chat = with_notes();
    let wanted = json!({"name": "notes", "limit": 2});
    let asked = json!({"model": "tiny", "messages": messages(), "max_tokens": 8, "magray_collection": wanted});
    let plain = chat.ok("/v1/chat/completions", json!({"model": "tiny", "messages": messages(), "max_tokens": 8}));
    assert!(plain.get("magray_citations").is_none());
    let whole = chat.ok("/v1/chat/completions", asked.clone());
    assert_cites(&whole["magray_citations"]);
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    // Tokens are bytes: the passages stand in the prompt.
    assert!(tokens(&whole) > tokens(&plain) + 100, "{whole}");
    let with = |more: Value| {
        let mut body = asked.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let events = chat.events("/v1/chat/completions", with(json!({"stream": true})));
    assert_cites(&events[0]["magray_citations"]);
    assert!(events[1..].iter().all(|event| event.get("magray_citations").is_none()));
    let question = json!({"system": "be brief", "messages": [{"role": "user", "content": "The river is wide."}]});
    assert_cites(&chat.ok("/v1/messages", with(question.clone()))["magray_citations"]);
    let mut streamed = with(question);
    streamed["stream"] = true.into();
    assert_cites(&chat.events("/v1/messages", streamed)[0]["message"]["magray_citations"]);
    let input = json!({"model": "tiny", "input": messages(), "max_output_tokens": 8, "magray_collection": wanted});
    assert_cites(&chat.ok("/v1/responses", input)["magray_citations"]);
    let ollama = json!({"stream": false, "options": {"num_predict": 8}});
    assert_cites(&chat.ok("/api/chat", with(ollama))["magray_citations"]);
    let lines = chat.lines("/api/chat", with(json!({"options": {"num_predict": 8}})));
    assert_cites(&lines.last().unwrap()["magray_citations"]);
}

#[test]
fn a_collection_is_searched_as_the_request_says() {
    let chat = with_notes();
    let ask = |wanted: Value| {
        let body = json!({"model": "tiny", "messages": messages(), "max_tokens": 4, "magray_collection": wanted});
        chat.server.post("/v1/chat/completions", &body.to_string())
    };
    let named = ask(json!("notes")).ok().json();
    assert_eq!(named["magray_citations"].as_array().unwrap().len(), 3);
    let filter = json!({"must": [{"key": "author", "match": {"value": "Bob"}}]});
    let filtered =
        ask(json!({"name": "notes", "filter": filter, "hybrid": false, "rerank": true, "limit": 1})).ok().json();
    assert_eq!(filtered["magray_citations"][0]["payload"]["author"], "Bob", "{filtered}");
    for (wanted, status) in [(json!("nothing"), 404), (json!(7), 400), (json!({"limit": 1}), 400)] {
        let refused = ask(wanted.clone());
        assert_eq!(refused.status, status, "{wanted}: {}", refused.text());
        assert_eq!(refused.json()["error"]["param"], "magray_collection", "{}", refused.text());
    }
    let silent = json!({
        "model": "tiny", "messages": [{"role": "system", "content": "a"}], "max_tokens": 4, "magray_collection": "notes",
    });
    chat.server.check_refused("/v1/chat/completions", &silent.to_string(), 400, "no question");
}
