//! Cohere's routes: every encoding, ranks, what is refused, and the shape of errors.

use serde_json::{Value, json};

use crate::rig::Setup;

fn floats(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn texts_become_vectors_in_every_encoding() {
    let server = Setup::embedder().start();
    let request = json!({
        "model": "bert", "texts": ["river", "cat"], "input_type": "search_document", "truncate": "END",
        "embedding_types": ["float", "base64", "int8", "uint8", "binary", "ubinary", "float"], "priority": 0,
    });
    let reply = server.post("/v2/embed", &request.to_string()).ok();
    assert_eq!(reply.header("x-magray-device"), Some("cpu"));
    let reply = reply.json();
    assert_eq!(reply["response_type"], json!("embeddings_by_type"));
    assert!(reply["id"].is_string() && reply["meta"]["billed_units"]["input_tokens"].as_u64().unwrap() >= 6);
    assert_eq!(reply["meta"]["api_version"]["version"], json!("2"));
    let by_type = &reply["embeddings"];
    // The model calls its prompt for documents so.
    let same = server.post("/embed", r#"{"inputs":["river","cat"],"prompt_name":"passage"}"#).ok().json();
    for at in 0..2 {
        let row = floats(&by_type["float"][at]);
        assert_eq!(row, floats(&same[at]));
        let coded = base64_of(&row);
        assert_eq!(by_type["base64"][at], json!(coded));
        let bits: Vec<u8> = row
            .chunks(8)
            .map(|eight| eight.iter().enumerate().map(|(at, number)| u8::from(*number > 0.0) << (7 - at)).sum())
            .collect();
        assert_eq!(by_type["ubinary"][at], json!(bits));
        let bytes: Vec<i32> = row.iter().map(|number| (number * 127.0).round() as i32).collect();
        assert!(bytes.iter().any(|byte| *byte < -9) && bytes.iter().any(|byte| *byte > 9), "{bytes:?}");
        assert_eq!(by_type["int8"][at], json!(bytes));
        assert_eq!(by_type["uint8"][at], json!(bytes.iter().map(|byte| byte + 128).collect::<Vec<_>>()));
        let signed: Vec<i16> = bits.iter().map(|byte| i16::from(*byte) - 128).collect();
        assert_eq!(by_type["binary"][at], json!(signed));
    }
}

/// Base64 of 32-bit floats, by hand.
fn base64_of(row: &[f32]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = row.iter().flat_map(|number| number.to_le_bytes()).collect();
    let digits = |three: &[u8]| {
        let whole = three.iter().fold(0_u32, |whole, byte| whole << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let digit = move |at: usize| match at <= three.len() {
            true => char::from(DIGITS[(whole >> (18 - 6 * at) & 63) as usize]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

#[test]
fn version_1_has_bare_vectors_unless_encodings_are_named() {
    let server = Setup::embedder().start();
    let post = |path: &str, body: Value| server.post(path, &body.to_string()).ok().json();
    let bare = post("/v1/embed", json!({"texts": ["river", "ca\"t"], "input_type": "search_query"}));
    let types = json!(["float", "int8"]);
    let request = json!({"texts": ["river", "ca\"t"], "input_type": "search_query", "embedding_types": types});
    let (named, v2) = (post("/v1/embed", request.clone()), post("/v2/embed", request));
    assert_eq!(bare["response_type"], json!("embeddings_floats"));
    assert_eq!(bare["embeddings"], v2["embeddings"]["float"]);
    assert_eq!(named["response_type"], json!("embeddings_by_type"));
    assert_eq!(named["embeddings"], v2["embeddings"]);
    for reply in [&bare, &named] {
        assert_eq!(reply["texts"], json!(["river", "ca\"t"]));
        assert_eq!(reply["meta"]["api_version"]["version"], json!("1"));
        assert_eq!(reply["meta"]["billed_units"], v2["meta"]["billed_units"]);
        assert!(reply["id"].is_string());
    }
    assert_eq!(
        post("/v1/embed", json!({"texts": ["river"], "embedding_types": []}))["response_type"],
        bare["response_type"]
    );
    server.check_refused("/v1/embed", r#"{"model":"bert"}"#, 422, "no text");
    let error = server.post("/v1/embed", r#"{"texts":["a"],"embedding_types":["other"]}"#);
    assert!(error.status == 422 && error.json()["message"].as_str().unwrap().contains("other"), "{}", error.text());
}

#[test]
fn texts_in_parts_are_joined_and_vectors_are_cut_to_what_is_wanted() {
    let server = Setup::embedder().start();
    let parts =
        json!({"inputs": [{"content": [{"type": "text", "text": "river"}, {"text": "cat"}]}], "output_dimension": 4});
    let reply = server.post("/v2/embed", &parts.to_string()).ok().json();
    let row = floats(&reply["embeddings"]["float"][0]);
    let length: f32 = row.iter().map(|number| number * number).sum();
    assert!(row.len() == 4 && (length - 1.0).abs() < 1e-5, "{row:?}");
    let whole = server.post("/v2/embed", r#"{"texts":["river\ncat"],"output_dimension":4}"#).ok().json();
    assert_eq!(row, floats(&whole["embeddings"]["float"][0]));
}

#[test]
fn what_cannot_be_done_is_refused_in_the_shape_that_clients_know() {
    let server = Setup::embedder().start();
    for (body, status, message) in [
        ("{", 400, "not JSON"),
        ("{}", 422, "no text"),
        (r#"{"texts":[]}"#, 422, "no text"),
        (r#"{"texts":["a"],"inputs":[]}"#, 422, "not both"),
        (r#"{"texts":["a"],"embedding_types":["other"]}"#, 422, "other"),
        (r#"{"texts":["a"],"truncate":"START"}"#, 422, "END"),
        (r#"{"images":["data:"]}"#, 422, "images are not supported"),
        (r#"{"texts":["a"],"input_type":"image"}"#, 422, "images are not supported"),
        (r#"{"inputs":[{"content":[{"type":"image_url","image_url":{}}]}]}"#, 422, "images are not supported"),
        (r#"{"inputs":[{"content":[]}]}"#, 422, "no part"),
        (r#"{"texts":["a"],"output_dimension":0}"#, 422, "dimensions"),
        (r#"{"texts":["a"],"model":"embed-v4.0"}"#, 404, "no model 'embed-v4.0'"),
    ] {
        server.check_refused("/v2/embed", body, status, message);
        let error = server.post("/v2/embed", body).json();
        assert!(error["message"].is_string() && error.as_object().unwrap().len() == 1, "{body}: {error}");
    }
    let long = format!(r#"{{"texts":["{}"],"truncate":"NONE"}}"#, "river ".repeat(2000));
    server.check_refused("/v2/embed", &long, 413, "tokens that the model reads");
}

#[test]
fn documents_are_ranked_at_both_versions() {
    let server = Setup::all_kinds().start();
    let request =
        json!({"model": "xlm-roberta-classify", "query": "a", "documents": ["one", "two", "three"], "top_n": 2});
    for path in ["/v1/rerank", "/v2/rerank"] {
        let reply = server.post(path, &request.to_string()).ok().json();
        let results = reply["results"].as_array().unwrap();
        let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
        assert!(scores.len() == 2 && scores[0] >= scores[1], "{path}: {scores:?}");
        assert!(results.iter().all(|result| result["index"].as_u64().unwrap() < 3), "{path}");
    }
    let reply = server.post("/v2/rerank", r#"{"query":"a","documents":["b"],"return_documents":true}"#).ok().json();
    assert_eq!(reply["results"][0]["document"], json!({"text": "b"}));
    assert_eq!(reply["meta"]["billed_units"], json!({"search_units": 1}));
    assert!(reply["id"].is_string());
    server.check_refused("/v2/rerank", r#"{"query":"a","documents":["b"],"top_n":0}"#, 422, "top_n");
    server.check_refused("/v2/rerank", r#"{"query":"a","documents":[]}"#, 422, "no text");
    server.check_refused("/v2/rerank", r#"{"query":"a"}"#, 422, "documents");
}
