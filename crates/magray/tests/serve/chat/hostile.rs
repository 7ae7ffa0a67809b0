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

/// The chat APIs, and what each calls its field for tools and for what the answer has to be.
const APIS: [&str; 4] = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"];

/// A request of each API, with more fields.
fn ask_as(path: &str, more: Value) -> String {
    let messages = json!([{"role": "user", "content": "hello"}]);
    let mut body = match path {
        "/v1/responses" => json!({"input": messages, "max_output_tokens": 8}),
        "/api/chat" => json!({"messages": messages, "stream": false, "options": {"num_predict": 8}}),
        _ => json!({"messages": messages, "max_tokens": 8}),
    };
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// A tool in the shape of each API.
fn tool_as(path: &str, name: Value, parameters: Value) -> Value {
    match path {
        "/v1/messages" => json!({"name": name, "input_schema": parameters}),
        "/v1/responses" => json!({"type": "function", "name": name, "parameters": parameters}),
        _ => json!({"type": "function", "function": {"name": name, "parameters": parameters}}),
    }
}

#[track_caller]
fn assert_refused(chat: &Chat, path: &str, body: impl AsRef<[u8]>) {
    let body = body.as_ref();
    let request = chat.server.request("POST", path).header("content-type", "application/json");
    let reply = request.body(body).send();
    let shown: String = String::from_utf8_lossy(body).chars().take(120).collect();
    assert!((400..500).contains(&reply.status), "{path} {shown}: {} {}", reply.status, reply.text());
    let told = &reply.json()["error"];
    let message = if told.is_string() { told } else { &told["message"] };
    assert!(message.as_str().is_some_and(|message| message.len() > 5), "{path} {shown}: {}", reply.text());
}

#[test]
fn tools_that_are_none_are_refused_by_every_api() {
    let chat = Chat::start();
    for path in APIS {
        let wrong = [
            json!("get_weather"),
            json!({"name": "a"}),
            json!([7]),
            json!([tool_as(path, json!(7), json!({}))]),
            json!([tool_as(path, json!(""), json!({}))]),
            json!([tool_as(path, json!("a\u{0}b"), json!({}))]),
            json!([tool_as(path, json!("a b"), json!({}))]),
            json!([tool_as(path, json!("a".repeat(300)), json!({}))]),
            json!([tool_as(path, json!("a"), json!([1]))]),
            json!([tool_as(path, json!("a"), json!("{}"))]),
            json!(vec![tool_as(path, json!("a"), json!({})); 2_000]),
        ];
        for tools in wrong {
            assert_refused(&chat, path, ask_as(path, json!({"tools": tools})));
        }
        chat.server.post(path, &ask_as(path, json!({}))).ok();
    }
}

#[test]
fn schemas_that_would_take_all_memory_are_refused_by_every_api() {
    let chat = Chat::start();
    let wide: serde_json::Map<String, Value> =
        (0..20_000).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect();
    let repeated = "(((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000})";
    let branches: Vec<Value> = (0..64).map(|_| json!({"$ref": "#/$defs/a"})).collect();
    let doubling = json!({"$defs": {"a": {"anyOf": branches}}, "allOf": [{"$ref": "#/$defs/a"}]});
    for (schema, is_refused) in [
        (json!({"type": "object", "properties": wide}), true),
        (json!({"type": "string", "pattern": "("}), true),
        (json!({"type": "string", "pattern": repeated}), false),
        (doubling, false),
        (json!({"type": 7}), false),
    ] {
        for path in APIS {
            let format = match path {
                "/v1/chat/completions" => {
                    json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
                }
                "/v1/responses" => json!({"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}}),
                "/api/chat" => json!({"format": schema}),
                // Anthropic's API has calls of tools for this.
                _ => json!({
                    "tools": [tool_as(path, json!("a"), schema.clone())], "tool_choice": {"type": "tool", "name": "a"},
                }),
            };
            let body = ask_as(path, format);
            // What is not refused is answered, and takes no longer than others.
            if is_refused || chat.server.post(path, &body).status != 200 {
                assert_refused(&chat, path, body);
            }
        }
    }
    chat.server.post(PATH, &ask(json!({}))).ok();
}

#[test]
fn bodies_that_are_no_text_are_refused_by_every_api() {
    let chat = Chat::start();
    for path in APIS.into_iter().chain(["/v1/completions", "/api/generate"]) {
        // Half a character, half a pair of surrogates, and what does not end.
        assert_refused(
            &chat,
            path,
            b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\"}],\"input\":\"\xc3\",\"prompt\":\"\xc3\"}",
        );
        assert_refused(
            &chat,
            path,
            r#"{"messages":[{"role":"user","content":"\ud800"}],"input":"\ud800","prompt":"\ud800"}"#,
        );
        assert_refused(&chat, path, r#"{"messages":[{"role":"user","content":"a"#);
        assert_refused(&chat, path, "[".repeat(100_000));
        assert_refused(&chat, path, "{\"a\":".repeat(100_000));
        assert_refused(&chat, path, "");
        // Announced, and not even read.
        let request = chat.server.request("POST", path).header("content-length", &(100_u64 << 20).to_string());
        let reply = request.header("expect", "100-continue").send();
        assert_eq!(reply.status, 413, "{path}: {}", reply.text());
    }
    for path in APIS {
        let content = json!("a".repeat(9_000));
        let more = match path {
            "/v1/responses" => json!({"input": content}),
            _ => json!({"messages": [{"role": "user", "content": content}]}),
        };
        assert_refused(&chat, path, ask_as(path, more));
        let role = json!([{"role": "nobody", "content": "a"}]);
        let more = if path == "/v1/responses" { json!({"input": role}) } else { json!({"messages": role}) };
        assert_refused(&chat, path, ask_as(path, more));
    }
}

/// Half characters never leave through the other APIs either; the readers check that each chunk is whole characters.
#[test]
fn no_half_character_leaves_through_any_api() {
    let chat = Chat::start();
    for seed in 0..4 {
        for path in ["/v1/messages", "/v1/responses", "/api/chat", "/api/generate", "/v1/completions"] {
            let body = match path {
                "/v1/responses" => {
                    json!({"input": "hello", "max_output_tokens": 150, "temperature": 2, "stream": true})
                }
                "/api/chat" | "/api/generate" => json!({
                    "messages": [{"role": "user", "content": "hello"}], "prompt": "hello",
                    "options": {"num_predict": 150, "temperature": 2, "seed": seed},
                }),
                _ => json!({
                    "messages": [{"role": "user", "content": "hello"}], "prompt": "hello", "max_tokens": 150,
                    "temperature": 2, "seed": seed, "stream": true,
                }),
            };
            let text = unchunked(&chat.server.post(path, &body.to_string()).ok());
            assert!(text.lines().count() > 2, "{path}: {text}");
        }
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
