//! `magray embed --server` and `magray rerank --server` beside a real server.

use serde_json::Value;

use crate::rig::{Setup, fixture};

fn values(lines: &str, field: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()[field].clone()).collect()
}

#[test]
fn a_command_gets_the_same_from_a_server_as_from_its_own_engine() {
    let server = Setup::all_kinds().env("MAGRAY_PRECISION", "f32").start();
    let url = format!("http://{}", server.address);
    let texts: Vec<String> = (0..200).map(|at| format!("river {at}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let there = server.beside(&[&["embed", "--json", "--server", &url], &texts[..]].concat());
    let embedder = fixture("bert");
    let own = ["embed", "--json", "--device", "cpu", "--precision", "f32", "--model", &embedder];
    let here = server.beside(&[&own[..], &texts].concat());
    assert_eq!(values(&there, "embedding"), values(&here, "embedding"));
    assert_eq!(values(&there, "device")[0], "cpu");

    let ranker = fixture("xlm-roberta-classify");
    let there = server.beside(&[&["rerank", "--json", "--server", &url, "river 7"], &texts[..]].concat());
    let own = ["rerank", "--json", "--device", "cpu", "--precision", "f32", "--model", &ranker, "river 7"];
    let here = server.beside(&[&own[..], &texts].concat());
    assert_eq!(values(&there, "index"), values(&here, "index"));
    let near = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-6;
    assert!(values(&there, "score").iter().zip(&values(&here, "score")).all(|(a, b)| near(a, b)));
}

#[test]
fn an_alias_of_the_command_line_names_a_model() {
    let server = Setup::all_kinds().arg("--alias").arg("small=bert").arg("--alias=judge=xlm-roberta-classify").start();
    let embedded = server.post("/v1/embeddings", r#"{"input": "river", "model": "small"}"#).ok().json();
    assert_eq!(embedded["model"], "bert");
    server.post("/rerank", r#"{"query": "river", "texts": ["stone"], "model": "judge"}"#).ok();
    let url = format!("http://{}", server.address);
    assert!(server.beside(&["embed", "-q", "--server", &url, "-m", "small", "river"]).ends_with('\n'));
    let (code, said) = Setup::embedder().arg("--alias").arg("small=nothing").refused();
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("the alias 'small' means 'nothing', which is no model"), "{said}");
}

#[test]
fn a_key_is_taken_from_the_variable() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "secret").start();
    let url = format!("http://{}", server.address);
    server.settings("client.api_key = \"secret\"\n");
    assert_eq!(server.beside(&["embed", "-q", "--json", "--server", &url, "river"]).lines().count(), 1);
}
