//! Texts that were computed before are answered at once, with the same numbers, and figures tell of it.

use crate::rig::{Server, Setup};

fn figure(server: &Server, name: &str) -> u64 {
    let page = server.get("/metrics").ok().text().to_owned();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    line.parse().unwrap()
}

#[test]
fn a_text_that_comes_again_is_not_computed_again() {
    let server = Setup::embedder().env("MAGRAY_TEXT_CACHE", "100").start();
    let ask = |inputs: &str| server.post("/embed", &format!(r#"{{"inputs":{inputs}}}"#)).ok().text().to_owned();
    let first = ask(r#"["a river","a cat"]"#);
    assert_eq!(ask(r#"["a river","a cat"]"#), first);
    let [figures, again] = [&ask(r#"["a dog","a cat"]"#), &first].map(|answer| {
        let rows: Vec<Vec<f32>> = serde_json::from_str(answer).unwrap();
        rows
    });
    assert_eq!(figures[1], again[1], "one is known, the other is not");
    let now = |name| figure(&server, &format!("magray_text_cache_{name}"));
    assert_eq!((now("hits_total"), now("misses_total"), now("entries")), (3, 3, 3));
    assert!(now("bytes") > 0);
    // The same text with another prompt, or asked for in another form, is another text.
    server.post("/embed", r#"{"inputs":"a cat","normalize":false}"#).ok();
    assert_eq!((now("hits_total"), now("entries")), (3, 4));
    assert_eq!(figure(&server, r#"magray_texts_total{model="bert"}"#), 7);
    assert_eq!(figure(&server, "magray_batch_texts_count"), 3, "an answer that is known is of no batch");
}

#[test]
fn usage_counts_the_tokens_of_texts_that_are_known() {
    let server = Setup::embedder().env("MAGRAY_TEXT_CACHE", "100").start();
    let ask = || {
        let answer = server.post("/v1/embeddings", r#"{"input":["a river","a river","a cat"],"model":"bert"}"#).ok();
        let answer: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
        answer
    };
    let first = ask();
    assert!(first["usage"]["total_tokens"].as_u64().unwrap() > 3);
    assert_eq!(ask(), first);
}

#[test]
fn without_room_every_text_is_computed() {
    let server = Setup::embedder().arg("--text-cache").arg("0").start();
    for _ in 0..2 {
        server.post("/embed", r#"{"inputs":"a river"}"#).ok();
    }
    assert_eq!(figure(&server, "magray_text_cache_hits_total"), 0);
    assert_eq!(figure(&server, "magray_batch_texts_count"), 2);
}
