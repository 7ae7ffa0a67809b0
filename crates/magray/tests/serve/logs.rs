//! The log of a server: a line for each request, the request's name on whatever is said for it, and no secrets.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{Server, Setup, said_soon, wait_for};

/// A server that logs each request as JSON.
fn in_json(setup: Setup) -> Setup {
    setup.arg("--log-format").arg("json").arg("--log-level").arg("info")
}

/// All lines that a server has written, each of which must be a JSON object.
fn lines(server: &Server) -> Vec<Value> {
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    server.said().lines().map(read).collect()
}

/// The line of the request of this name.
#[track_caller]
fn line_of(server: &Server, id: &str) -> Value {
    let is_it = |line: &Value| line["target"] == "magray::access" && line["span"]["request_id"] == id;
    wait_for(&format!("the line of {id}"), || lines(server).iter().any(is_it));
    lines(server).into_iter().find(is_it).unwrap()
}

#[test]
fn every_request_has_a_line_that_tells_what_was_done_for_whom() {
    let setup = in_json(Setup::embedder());
    let file = setup.file("keys", "sesame-open # Ann's laptop\n");
    let server = setup.arg("--api-keys-file").arg(&file).start();
    let ask = |id: &str, key: &str, body: &str| {
        server.request("POST", "/embed").header("x-request-id", id).key(key).body(body).send().status
    };
    assert_eq!(ask("good", "sesame-open", r#"{"inputs":["river","cat"]}"#), 200);
    let line = line_of(&server, "good");
    for (field, value) in [
        ("level", json!("INFO")),
        ("route", json!("/embed")),
        ("method", json!("POST")),
        ("status", json!(200)),
        ("model", json!("bert")),
        ("texts", json!(2)),
        ("device", json!("cpu")),
        ("key", json!("Ann's laptop")),
        ("address", json!("127.0.0.1")),
    ] {
        assert_eq!(line[field], value, "{field} of {line}");
    }
    assert!(line["tokens"].as_u64().unwrap() >= 4 && line["ms"].as_f64().unwrap() > 0.0, "{line}");

    assert_eq!(ask("bad", "sesame-open", "{"), 400);
    let line = line_of(&server, "bad");
    assert_eq!((&line["status"], &line["code"], &line["texts"]), (&json!(400), &json!("malformed"), &Value::Null));
    assert_eq!(ask("stranger", "wrong-key-of-mine", "{}"), 401);
    assert_eq!(line_of(&server, "stranger")["key"], Value::Null);
    let said = server.said();
    assert!(!said.contains("sesame-open") && !said.contains("wrong-key-of-mine"), "{said}");
}

#[test]
fn what_is_computed_for_an_agent_stands_on_its_requests_line() {
    let server = in_json(Setup::embedder()).start();
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "embed_texts", "arguments": {"texts": ["river"]}}});
    let request = server.request("POST", "/mcp").header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream").header("x-request-id", "agent");
    request.header("mcp-protocol-version", "2025-06-18").body(call.to_string()).send().ok();
    let line = line_of(&server, "agent");
    assert_eq!((&line["route"], &line["texts"]), (&json!("/mcp"), &json!(1)), "{line}");
}

#[test]
fn a_warning_about_a_request_carries_its_name() {
    // The worker ends under the first batch, which is then computed again.
    let server = in_json(Setup::on_gpu("crash@batch=1")).start();
    server.request("POST", "/embed").header("x-request-id", "struck").body(r#"{"inputs":"river"}"#).send().ok();
    let warned = |line: &Value| line["level"] == "WARN" && line["span"]["request_id"] == "struck";
    wait_for("the warning", || lines(&server).iter().any(warned));
    let line = lines(&server).into_iter().find(warned).unwrap();
    assert_eq!(line["replays"], json!(1), "{line}");
}

#[test]
fn a_client_that_leaves_is_logged() {
    let server = in_json(Setup::on_gpu("hang@batch=1")).start();
    let request = server.request("POST", "/embed").header("x-request-id", "gone").body(r#"{"inputs":"river"}"#);
    let stream = request.begin();
    wait_for("the request", || server.get("/gpu/status").ok().json()["requests"] == json!(1));
    drop(stream);
    assert_eq!(line_of(&server, "gone")["status"], json!(499));
    assert!(server.get("/metrics").ok().text().contains(r#"route="/embed",method="POST",status="499"} 1"#));
}

#[test]
fn text_names_the_request_too_and_looks_at_health_are_no_news() {
    let server = Setup::embedder().env("MAGRAY_LOG", "info").start();
    server.get("/health").ok();
    server.request("GET", "/nowhere").header("x-request-id", "lost-one").send();
    assert!(said_soon(&server, "request{request_id=\"lost-one\"}"), "{}", server.said());
    assert!(!server.said().contains("route=\"/health\""), "{}", server.said());
}

#[test]
fn the_level_changes_while_it_runs() {
    let server = Setup::embedder().settings("[log]\nlevel = \"warn\"\n").start();
    server.request("GET", "/v1/models").header("x-request-id", "before").send().ok();
    server.settings("[log]\nlevel = \"info\"\nformat = \"json\"\n");
    let reloaded = server.post("/admin/reload", "").ok().json();
    assert_eq!((&reloaded["changed"], &reloaded["needs_restart"]), (&json!(["log.level"]), &json!(["log.format"])));
    server.request("GET", "/v1/models").header("x-request-id", "after").send().ok();
    assert!(said_soon(&server, "request_id=\"after\""), "{}", server.said());
    assert!(!server.said().contains("request_id=\"before\""), "{}", server.said());
}

#[test]
fn in_json_nothing_on_stderr_is_anything_else() {
    let mut server = in_json(Setup::on_gpu("")).start();
    server.post("/embed", r#"{"inputs":"river"}"#).ok();
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let lines = lines(&server);
    let said = |what: &str| lines.iter().any(|line| line["message"].as_str().is_some_and(|text| text.contains(what)));
    assert!(said("listening on") && said("stopping"), "{lines:?}");
    // Notes to the user and lines of the log: the same time, to the same digit.
    let is_time = |text: &str| text.len() == "2026-03-01T12:00:05.000000Z".len() && text.ends_with('Z');
    let is_line = |line: &Value| line["level"].is_string() && line["timestamp"].as_str().is_some_and(is_time);
    assert!(lines.iter().all(is_line), "{lines:?}");
}

#[test]
fn every_move_of_a_model_is_logged_by_default_with_its_time_and_the_memory_left() {
    let server = Setup::on_gpu("").start();
    server.post("/v1/embeddings", r#"{"input":"river"}"#).ok();
    server.post("/gpu/offload", "").ok();
    server.post("/gpu/release", "").ok();
    for told in ["a model is on its device", "a model has left its device", "a model is in no memory"] {
        wait_for(told, || server.said().contains(told));
        let line = server.said().lines().find(|line| line.contains(told)).unwrap().to_owned();
        let memory = if told.contains("no memory") { "images_left=" } else { "memory_free=" };
        assert!(line.contains("INFO") && line.contains("took_ms=") && line.contains(memory), "{line}");
    }
    assert!(!server.said().contains("magray::access"), "requests are told only where that is asked for");
}

#[test]
fn moves_are_not_logged_where_only_errors_are_wanted() {
    let server = Setup::on_gpu("").arg("--log-level").arg("error").start();
    server.post("/v1/embeddings", r#"{"input":"river"}"#).ok();
    server.post("/gpu/offload", "").ok();
    assert!(!server.said().contains("INFO"), "{}", server.said());
}

#[test]
fn a_403_did_not_say_whose_key_it_was() {
    let setup = in_json(Setup::embedder()).env("MAGRAY_ADMIN_KEYS", "boss");
    let file = setup.file("keys", "sesame-open # Ann's laptop\n");
    let server = setup.arg("--api-keys-file").arg(&file).start();
    let ask = |id: &str, path: &str, priority: &str| {
        let request = server.request("POST", path).header("x-request-id", id).key("sesame-open");
        request.header("x-magray-priority", priority).body(r#"{"inputs":"river"}"#).send()
    };
    for (id, path, priority) in [("change", "/gpu/offload", "low"), ("urgent", "/embed", "high")] {
        let refused = ask(id, path, priority);
        assert!(refused.status == 403 && refused.text().contains("'Ann's laptop'"), "{}", refused.text());
        let line = line_of(&server, id);
        let told = (&line["status"], &line["key"], &line["address"]);
        assert_eq!(told, (&json!(403), &json!("Ann's laptop"), &json!("127.0.0.1")), "{line}");
    }
    assert!(!server.said().contains("sesame-open"), "{}", server.said());
}

#[test]
fn a_worker_that_hung_was_ended_without_a_reason() {
    let server = Setup::on_gpu("hang@batch=4").start();
    for _ in 0..6 {
        server.post("/embed", r#"{"inputs":"river"}"#).ok();
    }
    assert!(said_soon(&server, r#"a worker ended device=sim:0 ending=Ordered why="hung, "#), "{}", server.said());
    let gpu = &server.get("/gpu/status").ok().json()["devices"][1];
    let told = gpu["last_error"].as_str().unwrap();
    assert!(told.starts_with("its worker is gone: it was ended by force (hung, ") && told.ends_with(" s)"), "{told}");
}
