//! The v2 protocol of Triton and KServe: metadata, texts in JSON and in bytes, and what is refused.

use serde_json::{Value, json};

use crate::{
    http::Reply,
    rig::{Server, Setup},
};

const TEXTS: [&str; 2] = ["river", "the cat sat on the river"];

fn tensor(name: &str, texts: &[&str]) -> Value {
    json!({"name": name, "datatype": "BYTES", "shape": [texts.len()], "data": texts})
}

/// A tensor whose texts follow the JSON, and these bytes.
fn packed(name: &str, texts: &[&str]) -> (Value, Vec<u8>) {
    let bytes: Vec<u8> =
        texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()).collect();
    let parameters = json!({"binary_data_size": bytes.len()});
    (json!({"name": name, "datatype": "BYTES", "shape": [texts.len(), 1], "parameters": parameters}), bytes)
}

fn send(server: &Server, model: &str, json: &Value, bytes: &[u8]) -> Reply {
    let json = json.to_string();
    let request = server.request("POST", &format!("/v2/models/{model}/infer"));
    let request = request.header("inference-header-content-length", &json.len().to_string());
    request.body([json.as_bytes(), bytes].concat()).send()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn numbers(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn is_near(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4)
}

#[test]
fn texts_become_the_vectors_that_other_apis_give() {
    let server = Setup::all_kinds().start();
    let expected = server.post("/embed", &json!({"inputs": TEXTS}).to_string()).ok().json();
    let expected: Vec<f32> = expected.as_array().unwrap().iter().flat_map(numbers).collect();
    let ask = json!({"id": "7", "inputs": [tensor("text", &TEXTS)]});
    for path in ["/v2/models/bert/infer", "/v2/models/bert/versions/1/infer", "/v2/models/some/bert/infer"] {
        let found = server.post(path, &ask.to_string()).ok().json();
        let output = &found["outputs"][0];
        assert_eq!(
            (&found["id"], &output["name"], &output["datatype"]),
            (&json!("7"), &json!("embedding"), &json!("FP32"))
        );
        assert_eq!(output["shape"], json!([2, expected.len() / 2]));
        assert!(is_near(&numbers(&output["data"]), &expected), "{path}");
    }
    // Bytes in and out.
    let (text, bytes) = packed("text", &TEXTS);
    let ask = json!({"inputs": [text], "parameters": {"binary_data_output": true}});
    let reply = send(&server, "bert", &ask, &bytes).ok();
    let length: usize = reply.header("inference-header-content-length").unwrap().parse().unwrap();
    let head: Value = serde_json::from_slice(&reply.body[..length]).unwrap();
    assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], json!(reply.body.len() - length));
    assert!(is_near(&floats(&reply.body[length..]), &expected));
}

#[test]
fn dimensions_prompts_and_lengths_are_those_that_are_asked_for() {
    let server = Setup::embedder().start();
    let ask = |parameters: Value| {
        let ask = json!({"inputs": [tensor("text", &["river"])], "parameters": parameters});
        server.post("/v2/models/bert/infer", &ask.to_string()).ok().json()["outputs"][0].clone()
    };
    let cut = ask(json!({"dimensions": 3}));
    assert_eq!((cut["shape"].clone(), numbers(&cut["data"]).len()), (json!([1, 3]), 3));
    assert_ne!(ask(json!({"prompt_name": "query"}))["data"], ask(json!({}))["data"]);
    let raw = numbers(&ask(json!({"normalize": false}))["data"]);
    assert!((raw.iter().map(|number| number * number).sum::<f32>().sqrt() - 1.0).abs() > 0.1);
}

#[test]
fn texts_are_ranked_and_classified() {
    let server = Setup::all_kinds().start();
    let expected = json!({"query": "cat", "texts": TEXTS, "model": "xlm-roberta-classify"});
    let expected = server.post("/rerank", &expected.to_string()).ok().json();
    let ask = json!({"inputs": [tensor("query", &["cat"]), tensor("text", &TEXTS)]});
    let found = server.post("/v2/models/xlm-roberta-classify/infer", &ask.to_string()).ok().json();
    let scores = numbers(&found["outputs"][0]["data"]);
    assert_eq!((&found["outputs"][0]["name"], &found["outputs"][0]["shape"]), (&json!("score"), &json!([2])));
    for rank in expected.as_array().unwrap() {
        let score = scores[rank["index"].as_u64().unwrap() as usize];
        assert!((f64::from(score) - rank["score"].as_f64().unwrap()).abs() < 1e-4);
    }
    let ask = json!({"inputs": [tensor("text", &TEXTS)], "outputs": [{"name": "score", "parameters": {"binary_data": false}}]});
    let found = server.post("/v2/models/bert-classify/infer", &ask.to_string()).ok().json();
    let output = &found["outputs"][0];
    let classes = output["shape"][1].as_u64().unwrap() as usize;
    for row in numbers(&output["data"]).chunks(classes) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-4, "{row:?}");
    }
}

#[test]
fn models_are_described() {
    let server = Setup::every_kind().start();
    let bert = server.get("/v2/models/bert").ok().json();
    assert_eq!(bert["versions"], json!(["1"]));
    assert_eq!(bert["outputs"][0]["name"], "embedding");
    assert_eq!(server.get("/v2/models/bert/versions/1").ok().json(), bert);
    assert_eq!(server.get("/v2/models/bert/config").ok().json()["output"][0]["data_type"], "TYPE_FP32");
    assert_eq!(server.get("/v2/models/bert/ready").ok().text(), "");
    let index = server.post("/v2/repository/index", "{}").ok().json();
    assert_eq!((index.as_array().unwrap().len(), &index[0]["state"]), (4, &json!("READY")));
    assert_eq!(server.get("/v2").ok().json()["name"], "magray");
    server.get("/v2/health/live").ok();
    server.get("/v2/health/ready").ok();
    let missing = server.get("/v2/models/none");
    assert_eq!(missing.status, 404, "{}", missing.text());
    assert_eq!(server.get("/v2/models/bert/versions/2/ready").status, 404);
    let generator = server.get("/v2/models/tiny");
    assert!(generator.status == 422 && generator.text().contains("/v1/chat/completions"), "{}", generator.text());
}

#[test]
fn what_does_not_fit_is_refused_with_a_reason() {
    let server = Setup::embedder().start();
    let text = || tensor("text", &["river"]);
    let with = |key: &str, value: Value| {
        let mut text = text();
        text[key] = value;
        json!({"inputs": [text]})
    };
    for (ask, message) in [
        (json!({"inputs": []}), "there is no input 'text'"),
        (json!({"inputs": [text(), text()]}), "is there twice"),
        (json!({"inputs": [tensor("input-0", &["river"])]}), "there is no input 'input-0'"),
        (json!({"inputs": [tensor("query", &["a", "b"]), text()]}), "'query' is one text, and not 2"),
        (with("datatype", json!("FP32")), "texts are BYTES"),
        (with("shape", json!([2])), "has 1 texts, and 2 by its shape"),
        (with("shape", json!([1, 2])), "texts are [n] or [n, 1]"),
        (with("data", Value::Null), "neither data nor binary_data_size"),
        (with("parameters", json!({"binary_data_size": 4})), "both data and binary_data_size"),
        (json!({"inputs": [text()], "outputs": [{"name": "logits"}]}), "this request has the output 'embedding'"),
        (json!({"inputs": [text()], "parameters": {"dimensions": 100_000}}), "dimensions, not 100000"),
    ] {
        server.check_refused("/v2/models/bert/infer", &ask.to_string(), 422, message);
    }
    let (text, bytes) = packed("text", &["river"]);
    let ask = json!({"inputs": [text]});
    for (bytes, message) in [
        (&bytes[..5], "has 9 bytes by its binary_data_size, and 5 follow"),
        (&[&bytes[..], b"more"].concat()[..], "4 bytes follow that belong to no input"),
        (&[255; 9][..], "no texts in UTF-8 with their lengths"),
    ] {
        let reply = send(&server, "bert", &ask, bytes);
        assert!(reply.status == 422 && reply.text().contains(message), "{}: {}", reply.status, reply.text());
    }
    let wrong =
        server.request("POST", "/v2/models/bert/infer").header("inference-header-content-length", "999").body("{}");
    assert_eq!(wrong.send().status, 400);
    server.check_refused(
        "/v2/models/none/infer",
        &json!({"inputs": [tensor("text", &["a"])]}).to_string(),
        404,
        "bert",
    );
}
