//! Requests that no client should send: refused clearly, and the server goes on.

use serde_json::{Value, json};

use super::{Chat, unchunked};

const PATH: &str = "/v1/chat/completions";

fn ask(more: Value) -> String {
    let mut body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({"type": "integer"}), |inner, _| json!({"type": "array", "items": inner}))
}

#[test]
fn hostile_requests_get_a_clear_refusal() {
    let chat = Chat::start();
    let wide: serde_json::Map<String, Value> =
        (0..20_000).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect();
    let schema =
        |schema: Value| ask(json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}));
    let long = "a".repeat(9_000);
    for (body, statuses) in [
        (schema(json!({"type": "object", "properties": wide})), [400, 413]),
        (schema(nested(100)), [200, 400]),
        (
            schema(json!({"type": "string", "pattern": "(((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000})"})),
            [200, 400],
        ),
        (schema(json!({"$ref": "#"})), [200, 400]),
        (ask(json!({"messages": [{"role": "user", "content": long}]})), [400, 413]),
        (ask(json!({"tools": [{"type": "function", "function": {"name": "a\u{0}b"}}]})), [400, 400]),
        (ask(json!({"tools": [{"type": "function", "function": {}}]})), [400, 400]),
        (ask(json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": "x"}}]})), [400, 400]),
        (
            ask(
                json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]}),
            ),
            [200, 400],
        ),
        (
            ask(
                json!({"logit_bias": (0..5000).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>()}),
            ),
            [400, 400],
        ),
        ("[".repeat(100_000), [400, 400]),
        (
            ask(json!({"messages": (0..20_000).map(|_| json!({"role": "user", "content": "a"})).collect::<Vec<_>>()})),
            [400, 413],
        ),
        (ask(json!({"n": u64::MAX})), [400, 400]),
        (ask(json!({"max_tokens": -1})), [400, 400]),
    ] {
        let reply = chat.server.post(PATH, &body);
        let shown: String = body.chars().take(120).collect();
        assert!(statuses.contains(&reply.status), "{shown}: {} {}", reply.status, reply.text());
        if reply.status != 200 {
            assert!(reply.json()["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{shown}");
        }
    }
    chat.server.post(PATH, &ask(json!({}))).ok();
}

#[test]
fn a_message_of_many_megabytes_is_refused_and_leaves_nothing_behind() {
    let chat = Chat::start();
    let body = ask(json!({"messages": [{"role": "user", "content": "a".repeat(100 << 20)}]}));
    let reply = chat.server.post(PATH, &body);
    assert_eq!(reply.status, 413, "{}", reply.text());
    chat.server.post(PATH, &ask(json!({}))).ok();
}

/// The tokens of this model are bytes: most of what it says by chance is no whole character.
#[test]
fn no_half_character_ever_leaves() {
    let chat = Chat::start();
    for seed in 0..8 {
        let drawn = json!({"temperature": 2.0, "seed": seed, "max_tokens": 200});
        let mut streamed = drawn.clone();
        streamed["stream"] = true.into();
        let whole = chat.server.post(PATH, &ask(drawn)).ok().json();
        let reply = chat.server.post(PATH, &ask(streamed)).ok();
        // Checks that each chunk is whole characters.
        let text = unchunked(&reply);
        let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        let content: String = data
            .map(|data| serde_json::from_str::<Value>(data).unwrap())
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(content, whole["choices"][0]["message"]["content"].as_str().unwrap(), "{seed}");
    }
}

#[test]
fn an_endless_template_is_refused() {
    let endless = "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}";
    for (template, message) in
        [(endless, "chat template"), ("{% for %}", "chat template"), ("{{ raise_exception('no') }}", "no")]
    {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("tiny");
        crate::rig::write_generator(&model, true);
        std::fs::write(model.join("tokenizer_config.json"), json!({"chat_template": template}).to_string()).unwrap();
        let server = crate::rig::Setup::new(&["--device", "cpu", "--model", model.to_str().unwrap()]).start();
        server.check_refused(PATH, &ask(json!({})), 400, message);
        server.post("/v1/completions", r#"{"prompt":"a","max_tokens":1}"#).ok();
    }
}
