//! Token ids that come in, and vectors of single tokens that go out.

use serde_json::{Value, json};

use crate::rig::Setup;

#[test]
fn token_ids_sent_to_a_reranker_came_back_as_embeddings() {
    let server = Setup::all_kinds().start();
    for model in ["xlm-roberta-classify", "bert-classify"] {
        let openai = json!({"model": model, "input": [5, 6]}).to_string();
        assert_eq!(server.post("/v1/embeddings", &openai).status, 400, "{model}");
        let tei = json!({"model": model, "inputs": [[5, 6], [7]]}).to_string();
        assert_eq!(server.post("/embed", &tei).status, 422, "{model}");
        assert_eq!(server.post("/embed_all", &tei).status, 422, "{model}");
    }
}

#[test]
fn a_prompt_named_beside_token_ids_was_passed_over() {
    let server = Setup::embedder().start();
    server.check_refused("/v1/embeddings", r#"{"input":[5,6],"prompt_name":"query"}"#, 400, "prompt");
    server.check_refused("/embed", r#"{"inputs":[5,6],"prompt_name":"query"}"#, 422, "prompt");
    server.post("/embed", r#"{"inputs":[5,6]}"#).ok();
}

#[test]
fn every_token_has_a_vector() {
    let server = Setup::embedder().start();
    let post = |path: &str, body: Value| server.post(path, &body.to_string()).ok().json();
    let all = post("/embed_all", json!({"inputs": ["river", "the cat"]}));
    let tokens = post("/tokenize", json!({"inputs": ["river", "the cat"]}));
    let lengths = |texts: &Value| -> Vec<usize> {
        texts.as_array().unwrap().iter().map(|text| text.as_array().unwrap().len()).collect()
    };
    assert_eq!(lengths(&all), lengths(&tokens));
    let numbers =
        |row: &Value| -> Vec<f64> { row.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect() };
    // The model means over the tokens and scales to length 1: so do the vectors of its tokens.
    let text = post("/embed", json!({"inputs": "river"}));
    let rows: Vec<_> = all[0].as_array().unwrap().iter().map(numbers).collect();
    let sums: Vec<f64> = (0..rows[0].len()).map(|at| rows.iter().map(|row| row[at]).sum()).collect();
    let length = sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt();
    let worst = sums.iter().zip(numbers(&text[0])).map(|(sum, number)| (sum / length - number).abs());
    assert!(worst.fold(0.0, f64::max) < 0.02, "{all} {text}");
    assert_eq!(post("/embed_all", json!({"inputs": "river"}))[0], all[0]);
}

#[test]
fn vectors_of_tokens_come_from_the_gpu_where_there_is_one() {
    let server = Setup::on_gpu("").start();
    let text = server.post("/embed", r#"{"inputs":"river"}"#).ok();
    assert_eq!(text.header("x-magray-device"), Some("sim:0"));
    let tokens = server.post("/embed_all", r#"{"inputs":"river"}"#).ok();
    assert_eq!(tokens.header("x-magray-device"), Some("sim:0"));
}

#[test]
fn more_vectors_than_one_answer_holds_are_refused() {
    let server = Setup::embedder().settings("[server]\ntokens_max = 8\n").start();
    server.check_refused("/embed_all", r#"{"inputs":["river river river","river river river"]}"#, 413, "tokens");
    server.check_refused("/embed_all", r#"{"inputs":"a","truncation_direction":"Left"}"#, 422, "Right");
}
