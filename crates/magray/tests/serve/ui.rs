//! The page: its files, what it asks, and who may ask.
//! How it looks and behaves in a browser is tested by `tests/browser/page`.

use std::io::Read;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    http::Reply,
    rig::{Server, Setup, wait_for},
};

fn state(server: &Server) -> Value {
    server.get("/ui/state").ok().json()
}

#[test]
fn the_files_of_the_page_come_with_rules_for_the_browser_and_without_a_key() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "reader-key-000").start();
    for file in ["/ui/", "/ui/app.js", "/ui/worker.js", "/ui/style.css", "/ui/icon.svg"] {
        let reply = server.get(file).ok();
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{file}: {policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{file}");
        let tag = reply.header("etag").unwrap().to_owned();
        let again = server.request("GET", file).header("if-none-match", &tag).send();
        assert_eq!((again.status, again.body.len()), (304, 0), "{file}");
        assert_eq!(server.request("GET", file).header("if-none-match", "\"other\"").send().status, 200);
    }
    let moved = server.get("/ui");
    assert_eq!((moved.status, moved.header("location")), (308, Some("ui/")));
    assert_eq!(server.get("/ui/nothing").status, 404);
    assert!(server.get("/ui/").text().contains("app.js"));
}

#[test]
fn a_caller_is_told_what_it_may_do() {
    let keys = |setup: Setup| setup.env("MAGRAY_API_KEYS", "reader-key-000").env("MAGRAY_ADMIN_KEYS", "admin-key-0000");
    let server = keys(Setup::embedder()).start();
    let features = |key: Option<&str>| -> Value {
        let request = server.request("GET", "/ui/features");
        let request = match key {
            Some(key) => request.header("authorization", &format!("Bearer {key}")),
            None => request,
        };
        request.send().ok().json()
    };
    let none = features(None);
    assert_eq!((&none["may_read"], &none["may_change"], &none["models"]), (&json!(false), &json!(false), &json!([])));
    let user = features(Some("reader-key-000"));
    assert_eq!((&user["may_read"], &user["may_change"], &user["faults"]), (&json!(true), &json!(false), &json!(false)));
    assert_eq!((&user["models"][0]["name"], &user["models"][0]["does"]), (&json!("bert"), &json!("embed")));
    assert_eq!(features(Some("admin-key-0000"))["may_change"], json!(true));
    assert_eq!(features(Some("wrong-key-0000"))["may_read"], json!(false));
    for path in ["/ui/state", "/ui/events", "/ui/collections/documents/map"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    let open = Setup::embedder().start().get("/ui/features").ok().json();
    assert_eq!((&open["may_read"], &open["may_change"]), (&json!(true), &json!(true)), "a caller on this machine");
}

#[test]
fn pages_of_other_origins_may_not_look() {
    let server = Setup::embedder().start();
    for path in ["/ui/features", "/ui/state", "/ui/events", "/ui/collections/documents/map"] {
        for site in ["cross-site", "same-site"] {
            let reply = server.request("GET", path).header("sec-fetch-site", site).send();
            assert_eq!(reply.status, 403, "{path}: {}", reply.text());
        }
        let evil = server.request("GET", path).header("origin", "https://evil.example").send();
        assert_eq!(evil.status, 403, "{path}");
    }
    let own = server.request("GET", "/ui/state").header("sec-fetch-site", "same-origin").send();
    assert_eq!(own.status, 200);
    for path in ["/ui/", "/ui/state"] {
        let rebound = server.request("GET", path).host("evil.example").send();
        assert_eq!(rebound.status, 403, "{path}");
    }
}

#[test]
fn the_state_has_the_memory_by_owner_the_last_minute_and_the_moves_with_their_reasons() {
    let server = Setup::on_gpu("").start();
    server.post("/embed", r#"{"inputs":["river","cat"]}"#).ok();
    server.post("/gpu/offload", "").ok();
    server.post("/gpu/preheat", "").ok();
    let state = state(&server);
    assert_eq!(state["engine"]["devices"][1]["name"], json!("sim:0"));
    let map = &state["memory"][1];
    let weights = map["accounts"].as_array().unwrap().iter().find(|account| account["owner"] == "weights").unwrap();
    assert_eq!((&map["device"], &weights["model"]), (&json!("sim:0"), &json!("bert")));
    assert_eq!(weights["bytes"], state["engine"]["models"][0]["bytes"]);
    let second = &state["seconds"][0];
    assert_eq!((&second["requests"], &second["texts"]), (&json!(1), &json!(2)));
    let sum = |name: &str| second[name].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!((sum("latencies"), sum("batches")), (1, 1));
    assert_eq!(second["latencies"].as_array().unwrap().len(), state["latency_bounds_ms"].as_array().unwrap().len() + 1);
    let moves: Vec<_> = state["moves"].as_array().unwrap().iter().filter(|moved| moved["device"] == "sim:0").collect();
    let told: Vec<_> = moves.iter().map(|moved| (moved["kind"].as_str().unwrap(), moved["reason"].as_str())).collect();
    assert_eq!(told, [("load", Some("preheated")), ("offload", Some("requested")), ("load", Some("needed"))]);
    assert!(moves.iter().all(|moved| moved["is_done"] == json!(true) && moved["took_s"].is_f64()), "{moves:?}");
}

#[test]
fn an_incident_says_what_became_of_the_requests() {
    let server = Setup::on_gpu("hang@batch=3").start();
    for number in 0..4 {
        server.post("/embed", &json!({ "inputs": format!("text {number}") }).to_string()).ok();
    }
    wait_for("the worker's return", || !state(&server)["incidents"][0]["back_after_s"].is_null());
    let incident = &state(&server)["incidents"][0];
    assert_eq!((&incident["device"], &incident["code"]), (&json!("sim:0"), &json!("overdue")));
    let count = |name: &str| incident[name].as_u64().unwrap();
    assert_eq!((count("requests"), count("answered"), count("refused"), count("cancelled")), (1, 1, 0, 0));
}

#[test]
fn a_worker_that_is_killed_without_work_lost_nothing() {
    let server = Setup::on_gpu("").start();
    server.post("/embed", r#"{"inputs":"river"}"#).ok();
    let pid = state(&server)["engine"]["devices"][1]["worker_pid"].as_i64().unwrap();
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
    wait_for("the incident", || state(&server)["incidents"][0]["code"] == "killed");
    assert_eq!(state(&server)["incidents"][0]["requests"], json!(0));
}

#[test]
fn events_go_on_until_the_client_leaves_or_the_server_stops() {
    let mut server = Setup::embedder().start();
    let once = server.get("/ui/events").ok();
    assert_eq!(once.header("content-type"), Some("text/event-stream"));
    let event = |text: &str| -> Value {
        let data = text.split("data: ").nth(1).unwrap().split("\n\n").next().unwrap();
        serde_json::from_str(data).unwrap()
    };
    assert_eq!(event(once.text())["engine"]["models"][0]["name"], json!("bert"));
    let mut stream = server.request("GET", "/ui/events").header("accept", "text/event-stream").begin();
    server.signal(Signal::TERM);
    let reply = Reply::read(&mut stream).expect("an answer");
    let events = reply.text().matches("event: state").count();
    assert!(events >= 1, "{}", reply.text());
    assert!(server.wait().success());
}

#[test]
fn only_so_many_pages_are_served_at_once() {
    let server = Setup::embedder().start();
    let begin = || server.request("GET", "/ui/events").header("accept", "text/event-stream").begin();
    let open: Vec<_> = (0..64).map(|_| begin()).collect();
    wait_for("a refusal", || {
        let mut status = [0; 12];
        // One that is let in ends again, and makes room.
        begin().read_exact(&mut status).is_ok() && &status == b"HTTP/1.1 429"
    });
    drop(open);
}

#[test]
fn a_model_is_pinned_over_http() {
    let server = Setup::embedder().start();
    let pinned = || server.get("/gpu/status").ok().json()["models"][0]["pinned"].clone();
    assert_eq!(pinned(), json!(false));
    server.post("/gpu/pin", r#"{"pinned":true}"#).ok();
    assert_eq!(pinned(), json!(true));
    server.request("POST", "/gpu/pin").body("pinned=false&model=bert").send().ok();
    assert_eq!(pinned(), json!(false));
    server.check_refused("/gpu/pin", r#"{"pinned":"perhaps"}"#, 422, "true or false");
    server.check_refused("/gpu/pin", "{}", 422, "pinned");
}

/// The head of a picture, and how many bytes of numbers follow.
fn parts(reply: &Reply) -> (Value, usize) {
    let length = u32::from_le_bytes(reply.body[..4].try_into().unwrap()) as usize;
    assert_eq!(length % 4, 0);
    (serde_json::from_slice(&reply.body[4..4 + length]).unwrap(), reply.body.len() - 4 - length)
}

#[test]
fn a_collection_is_drawn_with_the_values_of_a_field() {
    let server = Setup::embedder().start();
    let put = |path: &str, body: &Value| server.request("PUT", path).body(body.to_string()).send().ok();
    put("/collections/documents", &json!({"vectors": {"size": 4, "distance": "Dot"}}));
    let point = |id: usize| {
        let kind = if id.is_multiple_of(3) { json!("three") } else { json!(id % 3) };
        json!({"id": id, "vector": [id, id % 2, 0, 1], "payload": {"kind": kind}})
    };
    let points: Vec<Value> = (1..=20).map(point).collect();
    put("/collections/documents/points", &json!({ "points": points }));
    let (head, numbers) = parts(&server.get("/ui/collections/documents/map").ok());
    assert_eq!((&head["total"], &head["axes"], head["ids"].as_array().unwrap().len()), (&json!(20), &json!(4), 20));
    assert_eq!(numbers, 20 * 4 * 4);
    assert!(head["shares"][0].as_f64().unwrap() > 0.9, "{head}");
    let (head, numbers) = parts(&server.get("/ui/collections/documents/values?field=kind").ok());
    assert_eq!((&head["names"], &head["count"], numbers), (&json!(["1", "2", "three"]), &json!(20), 40));
    let (head, _) = parts(&server.get("/ui/collections/documents/map?limit=7").ok());
    assert_eq!((&head["total"], head["ids"].as_array().unwrap().len()), (&json!(20), 7));
    for (path, status) in [
        ("/ui/collections/nothing/map", 404),
        ("/ui/collections/documents/map?limit=0", 422),
        ("/ui/collections/documents/map?limit=1000000", 422),
        ("/ui/collections/documents/map?vector=other", 422),
        ("/ui/collections/documents/map?colour=kind", 422),
        ("/ui/collections/documents/values?field=a[", 422),
    ] {
        let reply = server.get(path);
        assert_eq!(reply.status, status, "{path}: {}", reply.text());
    }
}
