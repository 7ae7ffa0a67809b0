//! The routes of text-embeddings-inference and their errors.

use serde_json::{Value, json};

use crate::rig::Setup;

#[test]
fn texts_and_ids_are_embedded() {
    let server = Setup::embedder().start();
    let post = |path: &str, body: Value| server.post(path, &body.to_string()).ok().json();
    let one = post("/embed", json!({"inputs": "river"}));
    assert_eq!(one.as_array().unwrap().len(), 1);
    let many = post("/embed", json!({"inputs": ["river", "cat"], "truncate": true, "normalize": true}));
    assert_eq!((many.as_array().unwrap().len(), &many[0]), (2, &one[0]));
    assert_eq!(post("/", json!({"inputs": ["river"]})), one);
    let prompted = post("/embed", json!({"inputs": "river", "prompt_name": "query"}));
    assert_ne!(prompted, one);
    assert_eq!(post("/embed", json!({"inputs": "query: river"})), prompted);
    let cut = post("/embed", json!({"inputs": "river", "dimensions": 3}));
    assert_eq!(cut[0].as_array().unwrap().len(), 3);
    server.check_refused("/embed", r#"{"inputs":"a","truncation_direction":"Left"}"#, 422, "Right");
}

fn numbers(row: &Value) -> Vec<f32> {
    serde_json::from_value(row.clone()).unwrap()
}

#[test]
fn vectors_are_not_scaled_where_that_is_not_wanted() {
    for setup in [Setup::embedder(), Setup::on_gpu("")] {
        let server = setup.start();
        let post = |body: Value| server.post("/embed", &body.to_string()).ok().json();
        let texts = ["river", "the cat sat on the river"];
        let scaled = post(json!({"inputs": texts}));
        let raw = post(json!({"inputs": texts, "normalize": false}));
        let cut = post(json!({"inputs": texts, "normalize": false, "dimensions": 5}));
        for at in 0..texts.len() {
            let (scaled, raw) = (numbers(&scaled[at]), numbers(&raw[at]));
            let length = raw.iter().map(|number| number * number).sum::<f32>().sqrt();
            assert!((length - 1.0).abs() > 0.1, "{length}");
            assert!(raw.iter().zip(&scaled).all(|(raw, scaled)| (raw / length - scaled).abs() < 0.01), "{raw:?}");
            assert_eq!(numbers(&cut[at]), raw[..5]);
        }
        // A prompt that is not pooled, and both kinds at once.
        let prompted = json!({"inputs": texts, "normalize": false, "prompt_name": "query"});
        std::thread::scope(|scope| {
            let asked = [json!({"inputs": texts}), json!({"inputs": texts, "normalize": false}), prompted.clone()];
            let asked = asked.map(|body| scope.spawn(|| post(body)));
            let [again, raw_again, prompted_again] = asked.map(|asking| asking.join().unwrap());
            assert!((numbers(&again[0])[0] - numbers(&scaled[0])[0]).abs() < 0.01);
            assert!((numbers(&raw_again[0])[0] - numbers(&raw[0])[0]).abs() < 0.05);
            assert_ne!(prompted_again, raw_again);
        });
    }
}

#[test]
fn a_text_that_is_too_long_is_cut_with_a_header_or_refused() {
    let server = Setup::embedder().start();
    let long = "river ".repeat(200);
    let cut = server.post("/embed", &json!({"inputs": [long, "a"]}).to_string()).ok();
    assert_eq!(cut.header("x-magray-truncated"), Some("1"));
    let request = json!({"inputs": ["a", long], "truncate": false}).to_string();
    server.check_refused("/embed", &request, 413, "text 1 has more than the 32 tokens");
    let strict = Setup::embedder().settings("[server]\ntruncate = false\n").start();
    strict.check_refused("/embed", &json!({"inputs": [long]}).to_string(), 413, "32 tokens");
    strict.post("/embed", &json!({"inputs": [long], "truncate": true}).to_string()).ok();
}

#[test]
fn texts_are_ranked() {
    let server = Setup::all_kinds().start();
    let request = json!({"query": "cat", "texts": ["a", "b", "c"], "return_text": true});
    let ranks = server.post("/rerank", &request.to_string()).ok().json();
    let scores: Vec<f64> = ranks.as_array().unwrap().iter().map(|rank| rank["score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    let place = ranks[0]["index"].as_u64().unwrap() as usize;
    assert_eq!(ranks[0]["text"], json!(["a", "b", "c"][place]));
    let raw = json!({"query": "cat", "texts": ["a", "b", "c"], "raw_scores": true});
    let raw = server.post("/rerank", &raw.to_string()).ok().json();
    let logit = raw[0]["score"].as_f64().unwrap();
    assert!((1.0 / (1.0 + (-logit).exp()) - scores[0]).abs() < 1e-5);
    assert!(raw[0].get("text").is_none());
}

#[test]
fn texts_and_pairs_are_classified() {
    let server = Setup::all_kinds().start();
    let predict = |inputs: Value| server.post("/predict", &json!({"inputs": inputs}).to_string()).ok().json();
    let one = predict(json!("the cat"));
    assert_eq!(one.as_array().unwrap().len(), 3);
    let sum: f64 = one.as_array().unwrap().iter().map(|class| class["score"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-5 && one[0]["score"].as_f64() >= one[2]["score"].as_f64(), "{one}");
    assert!(["entails", "neutral", "contradicts"].contains(&one[0]["label"].as_str().unwrap()));
    assert_eq!(predict(json!(["the cat"])), one);
    let pair = predict(json!(["the cat", "a dog"]));
    assert_ne!(pair, one);
    assert_eq!(predict(json!([["the cat"], ["the cat", "a dog"]])), json!([one, pair]));
    server.check_refused("/predict", r#"{"inputs":"a","model":"bert"}"#, 422, "no classes");
    server.check_refused("/predict", r#"{"inputs":[["a","b","c"]]}"#, 422, "pair");
}

#[test]
fn sentences_are_compared() {
    let server = Setup::embedder().start();
    let inputs = json!({"inputs": {"source_sentence": "river", "sentences": ["river", "the cat"]}}).to_string();
    let cosines = server.post("/similarity", &inputs).ok().json();
    assert!((cosines[0].as_f64().unwrap() - 1.0).abs() < 0.01, "{cosines}");
    assert!(cosines[1].as_f64().unwrap() < 0.99, "{cosines}");
    // This is how the hub's own client asks.
    assert_eq!(server.post("/", &inputs).ok().json(), cosines);
}

#[test]
fn texts_become_tokens_and_tokens_texts() {
    let server = Setup::embedder().start();
    let tokens = server.post("/tokenize", r#"{"inputs":["river","the cat"]}"#).ok().json();
    assert_eq!(tokens.as_array().unwrap().len(), 2);
    let first = tokens[0].as_array().unwrap();
    assert!(first[0]["special"].as_bool().unwrap() && !first[1]["special"].as_bool().unwrap());
    // Bytes of the text, as text-embeddings-inference counts.
    let places = server.post("/tokenize", r#"{"inputs":"Ein Café, the river"}"#).ok().json();
    let placed = |token: &Value| (token["text"].clone(), token["start"].clone(), token["stop"].clone());
    let placed: Vec<_> = places[0].as_array().unwrap().iter().map(placed).collect();
    assert_eq!(placed[0], (json!("[CLS]"), Value::Null, Value::Null));
    assert!(placed.contains(&(json!("é"), json!(7), json!(9))), "{placed:?}");
    assert!(placed.contains(&(json!("the"), json!(11), json!(14))), "{placed:?}");
    let bare = server.post("/tokenize", r#"{"inputs":"river","add_special_tokens":false}"#).ok().json();
    assert_eq!(bare[0].as_array().unwrap()[..], first[1..first.len() - 1]);
    let prompted = server.post("/tokenize", r#"{"inputs":"river","prompt_name":"query"}"#).ok().json();
    assert_eq!(prompted, server.post("/tokenize", r#"{"inputs":"query: river"}"#).ok().json());
    let ids = |tokens: &Value| -> Vec<u64> {
        tokens.as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap()).collect()
    };
    let decode = |body: Value| server.post("/decode", &body.to_string()).ok().json();
    assert_eq!(decode(json!({"ids": ids(&tokens[0])})), json!(["river"]));
    assert_eq!(decode(json!({"ids": [ids(&tokens[0]), ids(&tokens[1])]})), json!(["river", "the cat"]));
    let with_special = decode(json!({"ids": ids(&tokens[0]), "skip_special_tokens": false}));
    assert!(with_special[0].as_str().unwrap().len() > "river".len());
    server.check_refused("/decode", r#"{"ids":[4000000]}"#, 422, "token id");
    server.check_refused("/decode", r#"{"ids":"river"}"#, 422, "token ids");
}

#[test]
fn info_describes_what_is_served() {
    let server = Setup::embedder().start();
    let info = server.get("/info").ok().json();
    assert_eq!((&info["model_id"], &info["max_input_length"]), (&json!("bert"), &json!(32)));
    assert!(info["model_type"]["embedding"]["pooling"].is_string());
}

#[test]
fn errors_have_the_shape_that_clients_know() {
    let server = Setup::embedder().start();
    for (path, body, status, kind) in [
        ("/embed", "[", 400, "validation"),
        ("/embed", "{}", 422, "validation"),
        ("/embed", r#"{"inputs":[]}"#, 400, "empty"),
        ("/embed", r#"{"inputs":"a","truncate":"yes"}"#, 422, "validation"),
        ("/", r#"{"inputs":7}"#, 422, "validation"),
        ("/rerank", r#"{"query":"a"}"#, 422, "validation"),
        ("/rerank", r#"{"query":"a","texts":[]}"#, 400, "empty"),
        ("/similarity", r#"{"inputs":{"source_sentence":"a","sentences":[]}}"#, 400, "empty"),
        ("/tokenize", r#"{"inputs":[1]}"#, 422, "validation"),
        ("/tokenize", r#"{"inputs":"a","prompt_name":"none such"}"#, 422, "validation"),
        ("/embed", r#"{"inputs":"a","model":"nothing"}"#, 404, "validation"),
    ] {
        let reply = server.post(path, body);
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text());
        let error = reply.json();
        assert!(error["error"].is_string(), "{path} {body}: {error}");
        assert_eq!(error["error_type"], json!(kind), "{path} {body}");
    }
}
