//! Models that come and go in a running server: pulled, loaded, named, unloaded, deleted, by request, tool and command; and
//! settings of models that change while it runs.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use serde_json::{Value, json};

use crate::{
    hub::Hub,
    rig::{Server, Setup, fixture, wait_for},
};

const PULL: &str = r#"{"model":"test/bert","stream":false}"#;

fn with_hub(hub: &Hub) -> Setup {
    Setup::on_gpu("").env("HF_ENDPOINT", &hub.endpoint())
}

fn names(server: &Server) -> Vec<String> {
    let list = server.get("/v1/models").ok().json();
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

fn delete(server: &Server, body: &str) -> crate::http::Reply {
    server.request("DELETE", "/api/delete").header("content-type", "application/json").body(body).send()
}

fn embed(server: &Server, model: &str) -> crate::http::Reply {
    server.post("/v1/embeddings", &json!({"input": "a river", "model": model}).to_string())
}

#[test]
fn a_model_is_pulled_served_on_the_gpu_and_deleted() {
    let hub = Hub::start();
    let server = with_hub(&hub).start();
    let reply = embed(&server, "test/other");
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    let lines = server.post("/api/pull", r#"{"model":"test/bert"}"#).ok();
    // The rest are the lengths of chunks.
    let lines = lines.text().lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap(), &json!({"status": "success"}), "{lines:?}");
    assert!(lines.iter().any(|line| line["digest"] == "model.safetensors" && line["total"].is_u64()), "{lines:?}");
    assert_eq!(names(&server), ["bert", "test/bert"]);
    let answer = embed(&server, "test/bert").ok();
    assert_eq!(answer.header("x-magray-device"), Some("sim:0"), "the worker was told of it");
    assert_eq!(answer.json()["data"], embed(&server, "bert").ok().json()["data"], "the same weights");
    // A second time there is nothing to do.
    server.post("/api/pull", PULL).ok();
    assert_eq!(names(&server).len(), 2);

    delete(&server, r#"{"model":"test/bert"}"#).ok();
    let refused = embed(&server, "test/bert");
    assert_eq!(refused.status, 404);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "the model 'test/bert' was deleted or unloaded; there is bert");
    assert_eq!((names(&server), server.beside(&["models"])), (vec!["bert".to_owned()], String::new()));
    let status = server.get("/gpu/status").ok().json();
    assert_eq!(status["models"].as_array().unwrap().len(), 1, "{status}");
    server.post("/api/pull", PULL).ok();
    embed(&server, "test/bert").ok();
}

#[test]
fn what_cannot_be_pulled_loaded_or_deleted_is_refused_with_the_reason() {
    let hub = Hub::start();
    let server = with_hub(&hub).start();
    let no_repo = r#"{"model":"test/nothing","stream":false}"#;
    server.check_refused("/api/pull", no_repo, 404, "no model 'test/nothing' on the hub");
    let streamed = server.post("/api/pull", r#"{"model":"test/nothing"}"#).ok();
    assert!(streamed.text().contains("no model 'test/nothing' on the hub"), "{}", streamed.text());
    let folder = json!({"model": fixture("bert"), "stream": false}).to_string();
    server.check_refused("/api/pull", &folder, 422, "not a folder");
    server.check_refused("/models/load", &json!({"model": fixture("bert")}).to_string(), 422, "not a folder");
    server.check_refused("/models/load", r#"{"model":"test/bert"}"#, 404, "pull it first");
    server.check_refused("/models/unload", r#"{"model":"test/bert"}"#, 404, "there is bert");
    server.check_refused("/models/alias", r#"{"alias":"a=b","model":"bert"}"#, 422, "neither = nor ,");
    server.check_refused("/models/alias", r#"{"alias":"a","model":"nothing"}"#, 404, "there is bert");
    let own = delete(&server, r#"{"model":"bert"}"#);
    assert_eq!(own.status, 422, "{}", own.text());
    assert!(own.text().contains("not in the store"), "{}", own.text());
    assert_eq!(delete(&server, r#"{"model":"test/bert"}"#).status, 404, "it is not 'bert'");
    embed(&server, "bert").ok();
}

#[test]
fn under_load_no_request_fails_but_those_for_the_deleted_model() {
    let hub = Hub::start();
    let server = with_hub(&hub).start();
    let (is_over, answered, refused) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let first = embed(&server, "bert").ok().json()["data"].clone();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(embed(&server, "bert").ok().json()["data"], first);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // One asks for the model that comes and goes.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let reply = embed(&server, "other");
                match reply.status {
                    200 => assert_eq!(reply.json()["data"], first),
                    _ => refused.lock().unwrap().push((reply.status, reply.text().to_owned())),
                }
            }
        });
        for round in 0..3 {
            server.post("/api/pull", PULL).ok();
            server.post("/models/alias", r#"{"alias":"other","model":"test/bert"}"#).ok();
            embed(&server, "other").ok();
            match round {
                0 => drop(server.post("/models/unload", r#"{"model":"other"}"#).ok()),
                _ => drop(delete(&server, r#"{"model":"test/bert"}"#).ok()),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(answered.load(Ordering::Relaxed) > 0);
    for (status, text) in refused.into_inner().unwrap() {
        assert!(status == 404 && text.contains("model_not_found"), "{status}: {text}");
    }
    let status = server.get("/gpu/status").ok().json();
    assert_eq!(status["devices"][1]["worker_restarts"], json!(0), "the worker stays: {status}");
}

#[test]
fn requests_that_a_model_has_taken_are_answered_although_it_is_deleted() {
    let hub = Hub::start();
    // The first batch hangs, is found out after a second, and is computed by the next worker.
    let setup = Setup::on_gpu("hang@batch=1").env("HF_ENDPOINT", &hub.endpoint());
    let server = setup.start();
    server.post("/api/pull", PULL).ok();
    let body = json!({"input": "a river", "model": "test/bert"}).to_string();
    let mut waiting = server.request("POST", "/v1/embeddings").body(&body).begin();
    wait_for("the request", || server.get("/gpu/status").ok().json()["requests"] == json!(1));
    delete(&server, r#"{"model":"test/bert"}"#).ok();
    crate::http::Reply::read(&mut waiting).unwrap().ok();
    assert_eq!(embed(&server, "test/bert").status, 404);
}

#[test]
fn commands_let_models_come_and_go() {
    let hub = Hub::start();
    let server = with_hub(&hub).start();
    server.post("/api/pull", PULL).ok();
    assert_eq!(server.beside(&["models", "unload", "test/bert"]), "serving bert\n");
    assert_eq!(embed(&server, "test/bert").status, 404);
    assert_eq!(server.beside(&["models", "load", "test/bert"]), "serving bert, test/bert\n");
    server.beside(&["models", "alias", "small", "test/bert"]);
    assert_eq!(names(&server), ["bert", "test/bert", "small"]);
    embed(&server, "SMALL").ok();
    server.beside(&["models", "alias", "small"]);
    assert_eq!(embed(&server, "small").status, 404);
    server.beside(&["models", "rm", "test/bert"]);
    assert_eq!((embed(&server, "test/bert").status, names(&server)), (404, vec!["bert".to_owned()]));
}

#[test]
fn tools_let_models_come_and_go() {
    let hub = Hub::start();
    let server = with_hub(&hub).start();
    let call = |name: &str, arguments: Value| {
        let params = json!({"name": name, "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        let request = server.request("POST", "/mcp").header("content-type", "application/json");
        let request = request.header("accept", "application/json, text/event-stream");
        request.header("mcp-protocol-version", "2025-06-18").body(message.to_string()).send().ok().json()["result"]
            .clone()
    };
    let served = call("pull_model", json!({"model": "test/bert"}))["structuredContent"].clone();
    assert_eq!(served, json!({"models": ["bert", "test/bert"], "aliases": []}));
    let named = call("alias_model", json!({"alias": "b", "model": "test/bert"}))["structuredContent"].clone();
    assert_eq!(named["aliases"], json!([{"alias": "b", "model": "test/bert"}]));
    assert_eq!(call("unload_model", json!({"model": "b"}))["structuredContent"]["models"], json!(["bert"]));
    assert_eq!(call("load_model", json!({"model": "test/bert"}))["isError"], json!(false));
    assert_eq!(call("delete_model", json!({"model": "test/bert"}))["structuredContent"]["models"], json!(["bert"]));
    let refused = call("delete_model", json!({"model": "test/bert"}));
    assert_eq!(refused["isError"], json!(true), "{refused}");
}

#[test]
fn lists_tell_when_models_came_how_large_they_are_and_their_digests() {
    let hub = Hub::start();
    let server = with_hub(&hub).start();
    server.post("/api/pull", PULL).ok();
    server.post("/models/alias", r#"{"alias":"small","model":"bert"}"#).ok();
    // The hashes are computed beside, once a model.
    let tags = || server.get("/api/tags").ok().json();
    wait_for("the digests", || tags()["models"].as_array().unwrap().iter().all(|model| model["digest"] != json!("")));
    let tags = tags();
    let digest = || tags["models"][0]["digest"].as_str().unwrap().to_owned();
    let bytes = std::fs::metadata(format!("{}/model.safetensors", fixture("bert"))).unwrap().len();
    for model in tags["models"].as_array().unwrap() {
        assert_eq!((&model["digest"], &model["size"]), (&json!(digest()), &json!(bytes)), "{model}");
        assert_eq!(model["details"]["quantization_level"], json!("F32"));
        assert!(model["modified_at"].as_str().unwrap() > "2020", "{model}");
    }
    let list = server.get("/v1/models").ok().json();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["bert", "test/bert", "small"]);
    for model in list["data"].as_array().unwrap() {
        assert!(model["created"].as_u64().unwrap() > 1_500_000_000, "{model}");
        assert_eq!(
            (&model["sha256"], &model["dtype"], &model["bytes"]),
            (&json!(digest()), &json!("F32"), &json!(bytes))
        );
    }
    assert_eq!(list["data"][2]["root"], json!("bert"));
    let info = server.get("/info").ok().json();
    assert_eq!((&info["model_sha"], &info["model_dtype"]), (&json!(digest()), &json!("float32")));
    let shown = server.post("/api/show", r#"{"model":"small"}"#).ok().json();
    assert_eq!(shown["digest"], json!(digest()));
}

#[test]
fn timeouts_pins_priorities_and_aliases_of_the_settings_change_live() {
    let server = Setup::on_gpu("").settings("[server]\naliases = \"small=bert\"\n").start();
    let model = || server.get("/gpu/status").ok().json()["models"][0].clone();
    embed(&server, "small").ok();
    assert_eq!(model()["idle_timeout_s"], json!(60.0));
    let settings = "[server]\naliases = \"large=bert\"\n[gpu]\nidle_timeout_s = 7\n[gpu.models]\npinned = [\"bert\"]\n";
    server.settings(&format!("{settings}priority = {{ bert = \"high\" }}\n"));
    let reloaded = server.post("/admin/reload", "").ok().json();
    let expected = ["gpu.idle_timeout_s", "gpu.models.pinned", "gpu.models.priority", "server.aliases"];
    let mut changed: Vec<&str> =
        reloaded["changed"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
    changed.sort_unstable();
    assert_eq!((changed, &reloaded["needs_restart"]), (expected.to_vec(), &json!([])));
    let now = model();
    assert_eq!((&now["idle_timeout_s"], &now["pinned"], &now["priority"]), (&json!(7.0), &json!(true), &json!("high")));
    assert_eq!((embed(&server, "small").status, embed(&server, "large").status), (404, 200));
    // What was changed by hand stays where the settings say nothing new.
    server.post("/gpu/timeout", r#"{"timeout":9}"#).ok();
    server.post("/models/alias", r#"{"alias":"mine","model":"bert"}"#).ok();
    server.post("/admin/reload", "").ok();
    assert_eq!(
        (&model()["idle_timeout_s"], names(&server)),
        (&json!(9.0), vec!["bert".into(), "large".into(), "mine".into()])
    );
    server.settings("[server]\naliases = \"small=nothing\"\n");
    let refused = server.post("/admin/reload", "");
    assert!(refused.status == 422 && refused.text().contains("which is no model"), "{}", refused.text());
    assert_eq!(
        (model()["idle_timeout_s"].clone(), embed(&server, "large").status),
        (json!(9.0), 200),
        "nothing changed"
    );
}
