//! Anthropic's API: messages whole and as events, tools, counts of tokens, and the shape of errors.

use serde_json::{Value, json};

use super::{Chat, assert_fits, schema};

const PATH: &str = "/v1/messages";

fn ask(more: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "max_tokens": 24, "temperature": 0, "system": "be brief",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

#[test]
fn a_message_is_the_same_whole_and_as_events() {
    let chat = Chat::start();
    let whole = chat.ok(PATH, ask(json!({})));
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(whole["content"][0]["type"], "text");
    assert!(["end_turn", "max_tokens"].contains(&whole["stop_reason"].as_str().unwrap()));
    let count = chat.ok("/v1/messages/count_tokens", ask(json!({})));
    assert_eq!(count["input_tokens"], whole["usage"]["input_tokens"]);

    let events = chat.events(PATH, ask(json!({"stream": true})));
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    let texts: String =
        of_kind(&events, "content_block_delta").iter().map(|event| event["delta"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, whole["content"][0]["text"].as_str().unwrap());
    assert_eq!(of_kind(&events, "content_block_start").len(), of_kind(&events, "content_block_stop").len());
    let delta = of_kind(&events, "message_delta")[0];
    assert_eq!(
        (&delta["delta"]["stop_reason"], &delta["usage"]["output_tokens"]),
        (&whole["stop_reason"], &whole["usage"]["output_tokens"])
    );
    assert_eq!(events.last().unwrap()["type"], "message_stop");

    let text = whole["content"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(2).collect();
    let cut = chat.ok(PATH, ask(json!({"stop_sequences": ["never said", stop]})));
    assert_eq!((&cut["stop_reason"], &cut["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
}

#[test]
fn tools_are_called_and_their_results_are_read() {
    let chat = Chat::start();
    let tools = json!([
        {"name": "find", "description": "Finds it.", "input_schema": schema()},
        {"type": "web_search_20250305", "name": "web_search"},
    ]);
    let called = |more: Value| {
        let mut body = ask(json!({"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 300}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = chat.ok(PATH, called(json!({})));
    let call = &whole["content"][0];
    assert_eq!(
        (&whole["stop_reason"], &call["type"], &call["name"]),
        (&json!("tool_use"), &json!("tool_use"), &json!("find"))
    );
    assert_fits(&call["input"].to_string());
    let events = chat.events(PATH, called(json!({"stream": true, "tool_choice": {"type": "tool", "name": "find"}})));
    let start = &of_kind(&events, "content_block_start")[0]["content_block"];
    assert_eq!((&start["type"], &start["name"], &start["input"]), (&json!("tool_use"), &json!("find"), &json!({})));
    let json: String = of_kind(&events, "content_block_delta")
        .iter()
        .map(|event| event["delta"]["partial_json"].as_str().unwrap())
        .collect();
    assert_fits(&json);
    let messages = json!([
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": whole["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "42"}]}]},
    ]);
    chat.ok(PATH, ask(json!({"messages": messages, "tools": tools})));
}

#[test]
fn thoughts_are_blocks_and_errors_have_their_shape() {
    let chat = Chat::start();
    let whole = chat.ok(PATH, ask(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})));
    assert_eq!(whole["content"][0]["type"], "thinking", "{whole}");
    let events = chat.events(PATH, ask(json!({"thinking": {"type": "enabled"}, "stream": true})));
    let deltas = of_kind(&events, "content_block_delta");
    let thoughts: String = deltas.iter().filter_map(|event| event["delta"]["thinking"].as_str()).collect();
    assert_eq!(thoughts, whole["content"][0]["thinking"].as_str().unwrap());
    for (more, status, kind) in [
        (json!({"messages": []}), 400, "invalid_request_error"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
            400,
            "invalid_request_error",
        ),
        (json!({"model": "claude"}), 404, "not_found_error"),
        (json!({"tool_choice": {"type": "any"}}), 400, "invalid_request_error"),
        (json!({"max_tokens": 1000000}), 400, "invalid_request_error"),
    ] {
        let reply = chat.server.post(PATH, &ask(more).to_string());
        assert_eq!(reply.status, status, "{}", reply.text());
        assert_eq!((&reply.json()["type"], &reply.json()["error"]["type"]), (&json!("error"), &json!(kind)));
    }
}
