//! Ollama's routes: both ways to embed, the lists of models, and the shape of errors.

use serde_json::{Value, json};

use crate::rig::Setup;

/// Whether two vectors are the same but for rounding: they were computed in different batches.
#[track_caller]
fn assert_near(a: &Value, b: &Value) {
    let floats = |value: &Value| serde_json::from_value::<Vec<f32>>(value.clone()).unwrap();
    let (a, b) = (floats(a), floats(b));
    let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(a.len() == b.len() && worst < 1e-4, "{worst}");
}

#[test]
fn texts_become_vectors_whatever_options_come_with_them() {
    let server = Setup::embedder().start();
    // What a client sends that fills in every field it knows.
    let request = json!({
        "model": "bert:latest", "input": ["river", "cat"], "truncate": null, "keep_alive": "5m", "dimensions": null,
        "options": {"numa": null, "num_ctx": null, "num_gpu": 1, "temperature": null, "stop": null, "seed": null},
    });
    let reply = server.post("/api/embed", &request.to_string()).ok().json();
    let same = server.post("/embed", r#"{"inputs":["river","cat"]}"#).ok().json();
    assert_eq!((&reply["model"], &reply["embeddings"]), (&json!("bert"), &same));
    assert!(reply["total_duration"].as_u64().unwrap() >= reply["load_duration"].as_u64().unwrap());
    assert!(reply["prompt_eval_count"].as_u64().unwrap() >= 6);
    let one = server.post("/api/embed", r#"{"model":"bert","input":"cat","options":null}"#).ok().json();
    assert_eq!(one["embeddings"].as_array().unwrap().len(), 1);
    assert_near(&one["embeddings"][0], &same[1]);
    let old = server.post("/api/embeddings", r#"{"model":"bert","prompt":"cat","options":{}}"#).ok().json();
    assert_near(&old["embedding"], &same[1]);
    let short = server.post("/api/embed", r#"{"model":"bert","input":"cat","dimensions":4}"#).ok().json();
    assert_eq!(short["embeddings"][0].as_array().unwrap().len(), 4);
}

#[test]
fn a_request_without_a_text_has_an_answer_without_vectors() {
    let server = Setup::embedder().start();
    for body in [r#"{"model":"bert"}"#, r#"{"model":"bert","input":[]}"#, r#"{"model":"bert","input":null}"#] {
        assert_eq!(server.post("/api/embed", body).ok().json(), json!({"model": "bert", "embeddings": []}), "{body}");
    }
    assert_eq!(server.post("/api/embeddings", r#"{"model":"bert","prompt":""}"#).ok().json(), json!({"embedding": []}));
}

#[test]
fn models_are_listed_and_those_in_memory_with_the_time_they_leave() {
    let server = Setup::on_gpu("").start();
    let tags = server.get("/api/tags").ok().json();
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["details"]["family"]), (&json!("bert"), &json!("bert")));
    assert!(model["modified_at"].as_str().unwrap().ends_with('Z') && model["expires_at"].is_null());
    assert_eq!(server.get("/api/ps").ok().json(), json!({"models": []}));
    server.post("/api/embed", r#"{"model":"bert","input":"cat"}"#).ok();
    let ps = server.get("/api/ps").ok().json();
    let model = &ps["models"][0];
    assert!(model["size_vram"].as_u64().unwrap() > 0 && model["size"].as_u64().unwrap() > 0, "{ps}");
    assert!(model["expires_at"].as_str().unwrap().starts_with("20"), "{ps}");
    server.post("/gpu/timeout", r#"{"timeout":"never"}"#).ok();
    assert_eq!(server.get("/api/ps").ok().json()["models"][0]["expires_at"], Value::Null);
}

#[test]
fn a_model_is_shown_by_its_new_and_its_old_field() {
    let server = Setup::all_kinds().start();
    for body in [r#"{"model":"bert"}"#, r#"{"name":"bert:latest","verbose":true}"#] {
        let shown = server.post("/api/show", body).ok().json();
        assert_eq!(shown["capabilities"], json!(["embedding"]), "{body}");
        let info = &shown["model_info"];
        assert_eq!(info["general.architecture"], json!("bert"));
        assert!(
            info["bert.embedding_length"].as_u64().unwrap() > 0 && info["bert.context_length"].as_u64().unwrap() > 0
        );
    }
    let ranker = server.post("/api/show", r#"{"model":"xlm-roberta-classify"}"#).ok().json();
    assert_eq!(ranker["capabilities"], json!(["rank"]));
    assert_eq!(server.get("/api/version").ok().json()["magray"], env!("CARGO_PKG_VERSION"));
    // Ollama's programs first check that the server is there.
    assert_eq!(server.get("/").ok().text(), "magray is running");
    assert_eq!(server.request("HEAD", "/").send().status, 200);
}

#[test]
fn errors_are_one_text() {
    let server = Setup::embedder().start();
    for (path, body, status, message) in [
        ("/api/embed", "{", 400, "not JSON"),
        ("/api/embed", r#"{"model":"bert","input":[1,2]}"#, 422, "token ids"),
        ("/api/embed", r#"{"model":"bert","input":{}}"#, 422, "does not fit"),
        ("/api/embed", r#"{"model":"llama3","input":"a"}"#, 404, "no model 'llama3'"),
        ("/api/embeddings", r#"{"model":"llama3","prompt":"a"}"#, 404, "no model 'llama3'"),
        ("/api/show", r#"{"model":"llama3"}"#, 404, "no model 'llama3'"),
        ("/api/show", "{}", 422, "model"),
        ("/api/chat", "{}", 422, "generates no text"),
        ("/api/copy", "{}", 404, "no such route"),
    ] {
        server.check_refused(path, body, status, message);
        let error = server.post(path, body).json();
        assert!(error["error"].is_string() && error.as_object().unwrap().len() == 1, "{path} {body}: {error}");
    }
    let long = format!(r#"{{"model":"bert","input":"{}","truncate":false}}"#, "river ".repeat(2000));
    server.check_refused("/api/embed", &long, 413, "tokens that the model reads");
    server.post("/api/embed", &long.replace("false", "true")).ok();
}
