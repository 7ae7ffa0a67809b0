//! OpenAI's routes: every form of input, both encodings, dimensions, models, reranking, and their errors.

use magray_engine::engine::{Engine, EngineOptions, ModelSource};
use serde_json::{Value, json};

use crate::rig::{Server, Setup, fixture};

fn vectors(reply: &Value) -> Vec<Vec<f32>> {
    let vector = |item: &Value| serde_json::from_value(item["embedding"].clone()).unwrap();
    reply["data"].as_array().unwrap().iter().map(vector).collect()
}

#[track_caller]
fn embed(server: &Server, request: Value) -> Value {
    server.post("/v1/embeddings", &request.to_string()).ok().json()
}

/// What the model gives without a server.
fn expected(texts: &[&str]) -> Vec<Vec<f32>> {
    let engine =
        Engine::start(EngineOptions::on_cpu(vec![ModelSource::Folder(fixture("bert").into()).into()])).unwrap();
    let answer = engine.process(engine.read(0, texts, None).unwrap()).unwrap();
    answer.rows().map(<[f32]>::to_vec).collect()
}

#[track_caller]
fn assert_near(a: &[Vec<f32>], b: &[Vec<f32>]) {
    assert_eq!(a.len(), b.len());
    let worst = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 0.01, "{worst}");
}

#[test]
fn vectors_are_those_of_the_model_in_every_form() {
    let server = Setup::embedder().start();
    let texts = ["river", "the cat sat"];
    let expected = expected(&texts);
    let many = embed(&server, json!({"input": texts, "model": "bert"}));
    assert_near(&vectors(&many), &expected);
    assert_eq!(
        (&many["object"], &many["model"], &many["data"][1]["index"]),
        (&json!("list"), &json!("bert"), &json!(1))
    );
    let one = embed(&server, json!({"input": texts[0]}));
    assert_near(&vectors(&one), &expected[..1]);

    // The same as token ids, with and without the special ones.
    let tokens = server.post("/tokenize", &json!({"inputs": texts[0]}).to_string()).ok().json();
    let ids: Vec<u64> = tokens[0].as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap()).collect();
    let bare = &ids[1..ids.len() - 1];
    for input in [json!(ids), json!(bare), json!([ids]), json!([bare])] {
        let reply = embed(&server, json!({"input": input}));
        assert_near(&vectors(&reply), &expected[..1]);
        assert_eq!(reply["usage"]["total_tokens"], json!(ids.len()));
    }
}

#[test]
fn ids_of_openais_tokens_become_texts_where_their_file_is_given() {
    let setup = Setup::embedder();
    // "riv" and "er", as ids that the model does not have.
    let file = setup.file("tokens", "cml2 70000\nZXI= 70001\n");
    let server = setup.settings(&format!("[server]\nopenai_token_file = {file:?}\n")).start();
    let by_ids = embed(&server, json!({"input": [[70000, 70001]]}));
    assert_near(&vectors(&by_ids), &expected(&["river"]));
    server.check_refused("/v1/embeddings", r#"{"input":[1]}"#, 400, "no token of the file");
}

#[test]
fn base64_holds_the_same_numbers() {
    let server = Setup::embedder().start();
    let floats = vectors(&embed(&server, json!({"input": "river"})));
    let coded = embed(&server, json!({"input": "river", "encoding_format": "base64"}));
    let bytes = base64_simd::STANDARD.decode_to_vec(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let decoded: Vec<f32> = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(decoded, floats[0]);
}

#[test]
fn fewer_dimensions_are_the_first_ones_with_length_one() {
    let server = Setup::embedder().start();
    let whole = &vectors(&embed(&server, json!({"input": "river"})))[0];
    let cut = &vectors(&embed(&server, json!({"input": "river", "dimensions": 5})))[0];
    assert_eq!(cut.len(), 5);
    let length: f32 = cut.iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-5);
    let factor = cut[0] / whole[0];
    assert!(cut.iter().zip(whole).all(|(cut, whole)| (cut - whole * factor).abs() < 1e-5));
    let message = "dimensions";
    server.check_refused("/v1/embeddings", r#"{"input":"a","dimensions":0}"#, 400, message);
    server.check_refused("/v1/embeddings", r#"{"input":"a","dimensions":100000}"#, 400, message);
}

#[test]
fn an_answer_says_what_computed_it() {
    let server = Setup::embedder().start();
    let reply = server.post("/v1/embeddings", r#"{"input":"river"}"#).ok();
    assert_eq!(reply.header("x-magray-device"), Some("cpu"));
    assert_eq!(reply.header("x-magray-fallback"), None);
    assert!(reply.header("server-timing").unwrap().contains("compute;dur="));
    assert!(reply.header("x-request-id").is_some());
    let named =
        server.request("POST", "/v1/embeddings").header("x-request-id", "mine-1").body(r#"{"input":"a"}"#).send();
    assert_eq!(named.header("x-request-id"), Some("mine-1"));
}

#[test]
fn models_are_listed_and_found_by_alias() {
    let setup = Setup::all_kinds().settings("[server]\naliases = \"text-embedding-3-small=bert, gpt=bert-classify\"\n");
    let server = setup.start();
    let list = server.get("/v1/models").ok().json();
    let does: Vec<(&str, &str)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), model["does"].as_str().unwrap()))
        .collect();
    let (models, aliases) = does.split_at(3);
    assert_eq!(models, [("bert", "embed"), ("xlm-roberta-classify", "rank"), ("bert-classify", "classify")]);
    assert_eq!(aliases, [("text-embedding-3-small", "embed"), ("gpt", "classify")]);
    assert_eq!(server.get("/v1/models/BERT").ok().json()["id"], json!("bert"));
    let reply = embed(&server, json!({"input": "river", "model": "text-embedding-3-small"}));
    assert_eq!(reply["model"], json!("bert"));
    assert_eq!(server.get("/v1/models/nothing").status, 404);
    let reply = server.post("/v1/embeddings", r#"{"input":"a","model":"nothing"}"#);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    // Names of the hub, and what is no name.
    assert_eq!(server.get("/v1/models/sentence-transformers/bert").ok().json()["id"], json!("bert"));
    let reply = server.get("/v1/models/%ff");
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("malformed")));
}

#[test]
fn scores_of_a_ranker_are_not_given_out_as_vectors() {
    let server = Setup::all_kinds().start();
    for model in ["xlm-roberta-classify", "bert-classify"] {
        for input in [json!("a"), json!([5, 6])] {
            let request = json!({"input": input, "model": model}).to_string();
            server.check_refused("/v1/embeddings", &request, 400, "makes no vectors");
        }
        let request = json!({"inputs": [[5, 6]], "model": model}).to_string();
        server.check_refused("/embed", &request, 422, "makes no vectors");
    }
}

#[test]
fn documents_are_put_in_order_by_a_ranker() {
    let server = Setup::all_kinds().start();
    let documents = json!(["one", {"text": "two"}, "three three"]);
    let request = json!({"query": "three", "documents": documents, "return_documents": true});
    let reply = server.post("/v1/rerank", &request.to_string()).ok().json();
    assert_eq!(reply["model"], json!("xlm-roberta-classify"));
    let results = reply["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|score| (0.0..=1.0).contains(score)), "{scores:?}");
    for result in results {
        let place = result["index"].as_u64().unwrap() as usize;
        assert_eq!(result["document"]["text"], json!(["one", "two", "three three"][place]));
    }
    let best = server.post("/v1/rerank", r#"{"query":"a","documents":["a","b","c"],"top_n":2}"#).ok().json();
    assert_eq!(best["results"].as_array().unwrap().len(), 2);
    assert!(best["results"][0]["document"].is_null());
    server.check_refused("/v1/rerank", r#"{"query":"a","documents":[]}"#, 400, "no text");
    server.check_refused("/v1/rerank", r#"{"query":"a","documents":["b"],"top_n":0}"#, 400, "top_n");
    server.check_refused("/v1/rerank", r#"{"query":"a","documents":["b"],"model":"bert-classify"}"#, 400, "labels");
}

#[test]
fn without_a_ranker_vectors_are_compared() {
    let server = Setup::embedder().start();
    let reply = server.post("/v1/rerank", r#"{"query":"river","documents":["cat","river"]}"#).ok().json();
    assert_eq!(reply["results"][0]["index"], json!(1));
    assert!((reply["results"][0]["relevance_score"].as_f64().unwrap() - 1.0).abs() < 0.01);
}

#[test]
fn errors_have_the_shape_that_clients_know() {
    let server = Setup::embedder().start();
    let too_many = json!({"input": vec!["a"; 2049]}).to_string();
    for (body, code, param) in [
        ("{", "malformed", None),
        ("", "malformed", None),
        ("null", "invalid", None),
        // Not the fields one after the other.
        (r#"["river"]"#, "invalid", None),
        ("{}", "invalid", Some("input")),
        (r#"{"input":1}"#, "invalid", Some("input")),
        (r#"{"input":null}"#, "invalid", Some("input")),
        (r#"{"input":{}}"#, "invalid", Some("input")),
        (r#"{"input":["a",1]}"#, "invalid", Some("input")),
        (r#"{"input":[]}"#, "empty", Some("input")),
        (r#"{"input":[[]]}"#, "invalid", Some("input")),
        (r#"{"input":[4000000]}"#, "invalid", Some("input")),
        (r#"{"model":7,"input":"a"}"#, "invalid", Some("model")),
        (r#"{"input":"a","encoding_format":"hex"}"#, "invalid", Some("encoding_format")),
        (r#"{"input":"a","dimensions":-1}"#, "invalid", Some("dimensions")),
        (r#"{"input":"a","dimensions":100000}"#, "invalid", Some("dimensions")),
        (r#"{"input":"a","prompt_name":"none such"}"#, "invalid", Some("prompt_name")),
        (r#"{"input":[5],"prompt_name":"query"}"#, "invalid", Some("prompt_name")),
        (too_many.as_str(), "too_large", Some("input")),
    ] {
        let reply = server.post("/v1/embeddings", body);
        let error = &reply.json()["error"];
        assert_eq!((reply.status, error["code"].as_str()), (400, Some(code)), "{body}: {}", reply.text());
        assert_eq!((error["param"].as_str(), &error["type"]), (param, &json!("invalid_request_error")), "{body}");
        assert!(error["message"].is_string(), "{body}");
    }
    for (body, param) in [
        (r#"{"query":"a"}"#, "documents"),
        (r#"{"documents":["a"]}"#, "query"),
        (r#"{"query":"a","documents":["b"],"top_n":"all"}"#, "top_n"),
    ] {
        let reply = server.post("/v1/rerank", body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}: {}", reply.text());
    }
    let wrong_method = server.get("/v1/embeddings");
    assert_eq!((wrong_method.status, &wrong_method.json()["error"]["code"]), (405, &json!("method_not_allowed")));
    assert_eq!(wrong_method.header("allow"), Some("post"), "this client reads headers in small letters");
    let nowhere = server.post("/v1/images", "{}");
    assert_eq!((nowhere.status, &nowhere.json()["error"]["code"]), (404, &json!("not_found")));
}
