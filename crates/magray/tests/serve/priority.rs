//! The priority of requests: by header, by tool argument and by command; who may ask for a high one, and what it gets.

use serde_json::{Value, json};

use crate::{
    http::Reply,
    rig::{Server, Setup, said_soon, wait_for},
};

const HEADER: &str = "x-magray-priority";

/// Every route that computes, with a body for it.
fn computing() -> [(&'static str, Value); 34] {
    let texts = json!(["river", "hill"]);
    let (asked, grouped) = (json!({"query": {"text": "river", "model": "bert"}}), json!({"group_by": "a"}));
    let older = json!({"vector": {"text": "river", "model": "bert"}});
    let like = json!({"positive": [{"text": "river", "model": "bert"}]});
    let near = json!({"target": {"text": "river", "model": "bert"}, "context": []});
    let both = |one: &Value, other: &Value| {
        let fields = [one, other].into_iter().flat_map(|part| part.as_object().unwrap().clone());
        Value::Object(fields.collect())
    };
    let said = json!([{"role": "user", "content": "a"}]);
    let several = |one: &Value| json!({ "searches": [one] });
    let tensor = json!({"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["river"]}]});
    let ranking = json!({"query": "river", "documents": texts, "model": "bert"});
    [
        ("/v1/embeddings", json!({"input": texts})),
        ("/v1/rerank", ranking.clone()),
        ("/v1/vector_stores/texts/search", json!({"query": "river"})),
        ("/", json!({"inputs": texts})),
        ("/embed", json!({"inputs": texts})),
        ("/embed_all", json!({"inputs": texts})),
        ("/rerank", json!({"query": "river", "texts": texts})),
        ("/predict", json!({"inputs": "river", "model": "bert-classify"})),
        ("/similarity", json!({"inputs": {"source_sentence": "river", "sentences": texts}})),
        ("/v1/embed", json!({"texts": texts, "model": "bert"})),
        ("/v2/embed", json!({"texts": texts, "model": "bert"})),
        ("/v2/rerank", ranking),
        ("/v2/models/bert/infer", tensor.clone()),
        ("/v2/models/bert/versions/1/infer", tensor),
        ("/v1/evaluate", json!({"text": "a", "critics": ["safety"]})),
        ("/api/embed", json!({"input": texts, "model": "bert"})),
        ("/api/embeddings", json!({"prompt": "river", "model": "bert"})),
        ("/v1/chat/completions", json!({"messages": said, "max_tokens": 1})),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 1})),
        ("/v1/messages", json!({"messages": said, "max_tokens": 1})),
        ("/api/chat", json!({"messages": said, "stream": false, "options": {"num_predict": 1}})),
        ("/api/generate", json!({"prompt": "a", "stream": false, "options": {"num_predict": 1}})),
        ("/collections/texts/points/query", asked.clone()),
        ("/collections/texts/points/query/batch", several(&asked)),
        ("/collections/texts/points/query/groups", both(&asked, &grouped)),
        ("/collections/texts/points/search", older.clone()),
        ("/collections/texts/points/search/batch", several(&older)),
        ("/collections/texts/points/search/groups", both(&older, &grouped)),
        ("/collections/texts/points/recommend", like.clone()),
        ("/collections/texts/points/recommend/batch", several(&like)),
        ("/collections/texts/points/recommend/groups", both(&like, &grouped)),
        ("/collections/texts/points/discover", near.clone()),
        ("/collections/texts/points/discover/batch", several(&near)),
    ]
}

fn send(server: &Server, (path, body): (&str, &Value), key: &str, priority: &str) -> Reply {
    server.request("POST", path).key(key).header(HEADER, priority).body(body.to_string()).send()
}

#[test]
fn every_route_that_computes_takes_a_priority_and_refuses_words_that_are_none() {
    let server = Setup::every_kind().arg("--log-level").arg("info").start();
    let dimensions = server.post("/embed", r#"{"inputs":"river"}"#).ok().json()[0].as_array().unwrap().len();
    let settings = json!({"vectors": {"size": dimensions, "distance": "Cosine"}}).to_string();
    server.request("PUT", "/collections/texts").body(settings).send().ok();
    let document = server.get("/openapi.json").ok().json();
    let described = document["paths"].as_object().unwrap().iter();
    // That of a model with its organisation is the same route by another name.
    let takes = |(path, asked): &(&String, &Value)| {
        asked["post"]["parameters"].to_string().contains(HEADER) && !path.contains("{organisation}")
    };
    assert_eq!(described.filter(takes).count(), computing().len(), "as many as the document says");
    for (path, body) in computing() {
        for priority in ["high", "normal", "low"] {
            send(&server, (path, &body), "", priority).ok();
        }
        for wrong in ["urgent", "HIGH", "", "1"] {
            let refused = send(&server, (path, &body), "", wrong);
            assert_eq!(refused.status, 400, "{path} {wrong}: {}", refused.text());
            assert!(refused.text().contains("high, normal or low"), "{path}: {}", refused.text());
        }
    }
    assert!(said_soon(&server, "priority=\"high\"") && said_soon(&server, "priority=\"low\""), "{}", server.said());
    assert!(!server.said().contains("priority=\"normal\""), "only what is uncommon is told");
}

#[test]
fn a_key_of_a_user_asks_for_a_high_priority_only_where_the_settings_name_it() {
    let setup = Setup::embedder();
    let (users, admins) = (setup.file("users", "one # batch jobs\ntwo # search\n"), setup.file("admins", "boss\n"));
    let setup = setup.arg("--api-keys-file").arg(users).arg("--admin-keys-file").arg(admins);
    let server = setup.settings("[server]\nhigh_priority_keys = \"search\"\n").start();
    let body = json!({"input": "river"});
    let status = |key: &str, priority: &str| send(&server, ("/v1/embeddings", &body), key, priority).status;
    assert_eq!((status("one", "low"), status("one", "normal"), status("one", "high")), (200, 200, 403));
    assert_eq!((status("two", "high"), status("boss", "high"), status("none", "high")), (200, 200, 401));
    server.settings("[server]\nhigh_priority_keys = \"*\"\n");
    let reloaded = server.request("POST", "/admin/reload").key("boss").send().ok().json();
    assert_eq!(reloaded["changed"], json!(["server.high_priority_keys"]));
    assert_eq!(status("one", "high"), 200);
}

#[test]
fn under_pressure_low_requests_are_refused_before_others() {
    // The device hangs with its first batch, so that what comes waits.
    let server = Setup::on_gpu("hang@batch=1").settings("[queue]\nrequests_max = 4\n").start();
    let body = json!({"inputs": "river"});
    let mut waiting = Vec::new();
    for priority in ["normal", "normal"] {
        let request = server.request("POST", "/embed").header(HEADER, priority).body(body.to_string());
        waiting.push(request.begin());
        let count = json!(waiting.len());
        wait_for("the request", || server.get("/gpu/status").ok().json()["requests"] == count);
    }
    let refused = send(&server, ("/embed", &body), "", "low");
    assert_eq!(refused.status, 429, "half of the queue is full: {}", refused.text());
    for priority in ["normal", "high"] {
        waiting.push(server.request("POST", "/embed").header(HEADER, priority).body(body.to_string()).begin());
    }
    for stream in &mut waiting {
        Reply::read(stream).unwrap().ok();
    }
    send(&server, ("/embed", &body), "", "low").ok();
}

#[test]
fn tools_take_a_priority_and_say_which_there_are() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "one").env("MAGRAY_ADMIN_KEYS", "boss").start();
    let call = |key: &str, name: &str, arguments: Value| {
        let params = json!({"name": name, "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        let request = server.request("POST", "/mcp").key(key).header("content-type", "application/json");
        let request = request.header("accept", "application/json, text/event-stream");
        let reply = request.header("mcp-protocol-version", "2025-06-18").body(message.to_string()).send().ok().json();
        let result = &reply["result"];
        (result["isError"] != json!(true), result["content"][0]["text"].as_str().unwrap().to_owned())
    };
    let arguments = |priority: &str| {
        [
            ("embed_texts", json!({"texts": ["river"], "priority": priority})),
            ("similarity", json!({"source_sentence": "river", "sentences": ["hill"], "priority": priority})),
            ("rerank", json!({"query": "river", "documents": ["hill"], "priority": priority})),
        ]
    };
    for (name, low) in arguments("low") {
        assert!(call("one", name, low).0, "{name}");
    }
    for (name, high) in arguments("high") {
        assert!(call("boss", name, high.clone()).0, "{name}");
        let (is_done, text) = call("one", name, high);
        assert!(!is_done && text.contains("high_priority_keys"), "{name}: {text}");
    }
    for (name, wrong) in arguments("soon") {
        let (is_done, text) = call("one", name, wrong);
        assert!(!is_done && text.contains("high, normal or low"), "{name}: {text}");
    }
    assert!(call("boss", "update_gpu_priority", json!({"priority": "high"})).0);
    let (is_done, text) = call("boss", "preheat_gpu", json!({"priority": "soon"}));
    assert!(!is_done && text.contains("high, normal or low"), "{text}");
    let status = server.request("GET", "/gpu/status").key("one").send().ok().json();
    assert_eq!(status["models"][0]["priority"], json!("high"));
}

#[test]
fn the_priority_of_a_model_is_changed_by_request_and_by_command() {
    let server = Setup::on_gpu("").start();
    let priority = || server.get("/gpu/status").ok().json()["models"][0]["priority"].clone();
    let changed = server.post("/gpu/priority", r#"{"priority":"high","model":"bert"}"#).ok().json();
    assert_eq!(
        (&changed["models"], &changed["priority"], priority()),
        (&json!(["bert"]), &json!("high"), json!("high"))
    );
    server.check_refused("/gpu/priority", r#"{"priority":"most"}"#, 400, "high, normal or low");
    server.check_refused("/gpu/preheat", r#"{"priority":"most"}"#, 400, "high, normal or low");
    assert_eq!(server.beside(&["gpu", "priority", "low", "bert"]), "'bert' has low priority\n");
    assert_eq!(priority(), json!("low"));
    assert!(server.beside(&["gpu", "preheat", "bert", "--priority", "high"]).contains("on sim:0"));
    server.post("/gpu/preheat", r#"{"priority":"high"}"#).ok();
}
