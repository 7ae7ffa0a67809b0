//! Requests and answers in gzip and zstd, and what is refused of them.

use std::io::{Read, Write};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use serde_json::json;

use crate::{
    http::Reply,
    rig::{Server, Setup},
};

fn packed(coding: &str, plain: &[u8]) -> Vec<u8> {
    if coding == "zstd" {
        return zstd::bulk::compress(plain, 3).unwrap();
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn unpacked(reply: &Reply) -> Vec<u8> {
    let mut plain = Vec::new();
    match reply.header("content-encoding") {
        Some("gzip") => drop(GzDecoder::new(&*reply.body).read_to_end(&mut plain).unwrap()),
        Some("zstd") => drop(zstd::stream::read::Decoder::new(&*reply.body).unwrap().read_to_end(&mut plain).unwrap()),
        _ => plain.clone_from(&reply.body),
    }
    plain
}

#[track_caller]
fn post(server: &Server, path: &str, coding: &str, body: &[u8]) -> Reply {
    let request = server.request("POST", path).header("content-type", "application/json");
    request.header("content-encoding", coding).body(body).send()
}

#[test]
fn packed_requests_are_answered_as_plain_ones() {
    let server = Setup::embedder().start();
    // A short one, and one that is unpacked on another thread.
    for texts in [vec!["river"; 2], vec!["the cat sat on the river"; 1500]] {
        let body = json!({"inputs": texts}).to_string();
        let plain = server.post("/tokenize", &body).ok().body;
        for coding in ["gzip", "x-gzip", "GZIP", "zstd", "identity"] {
            let sent = if coding == "identity" { body.clone().into_bytes() } else { packed(coding, body.as_bytes()) };
            assert_eq!(post(&server, "/tokenize", coding, &sent).ok().body, plain, "{coding}");
        }
    }
    let fields = packed("gzip", br#"{"timeout": 7}"#);
    post(&server, "/gpu/timeout", "gzip", &fields).ok();
}

#[test]
fn a_bomb_is_refused_and_a_coding_that_is_not_known_too() {
    let server = Setup::embedder().settings("[server]\nbody_bytes_max = 100000\n").start();
    let bomb = vec![b' '; 64 << 20];
    for coding in ["gzip", "zstd"] {
        let reply = post(&server, "/v1/embeddings", coding, &packed(coding, &bomb));
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (413, &json!("too_large")), "{coding}");
        assert!(reply.text().contains("100000 bytes"), "{}", reply.text());
        let broken = post(&server, "/embed", coding, br#"{"inputs":"a"}"#);
        assert!(broken.status == 400 && broken.text().contains(coding), "{}", broken.text());
    }
    for coding in ["br", "deflate", "gzip, zstd"] {
        let reply = post(&server, "/embed", coding, b"whatever");
        assert_eq!((reply.status, reply.header("accept-encoding")), (415, Some("gzip, zstd")), "{coding}");
        assert!(reply.text().contains("gzip or zstd"), "{}", reply.text());
    }
    server.post("/embed", r#"{"inputs":"river"}"#).ok();
}

#[test]
fn large_answers_are_packed_where_the_client_accepts_that_and_they_get_smaller() {
    let server = Setup::embedder().start();
    let ask = |accepted: &str, body: &serde_json::Value| {
        let request = server.request("POST", "/v1/embeddings").header("content-type", "application/json");
        request.header("accept-encoding", accepted).body(body.to_string()).send().ok()
    };
    let many = json!({"input": vec!["the cat sat on the river"; 200]});
    let plain = server.post("/v1/embeddings", &many.to_string()).ok();
    assert_eq!((plain.header("content-encoding"), plain.header("vary")), (None, None));
    for (accepted, coding) in [("gzip, deflate", "gzip"), ("gzip, deflate, br, zstd", "zstd")] {
        let reply = ask(accepted, &many);
        assert_eq!((reply.header("content-encoding"), reply.header("vary")), (Some(coding), Some("accept-encoding")));
        assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()));
        assert!(reply.body.len() * 3 <= plain.body.len() * 2, "{} of {}", reply.body.len(), plain.body.len());
        let numbers = |json: &[u8]| -> serde_json::Value { serde_json::from_slice(json).unwrap() };
        assert_eq!(numbers(&unpacked(&reply))["data"], numbers(&plain.body)["data"]);
    }
    assert_eq!(ask("br, gzip;q=0", &many).header("content-encoding"), None);
    // A short one.
    assert_eq!(ask("gzip", &json!({"input": "river"})).header("content-encoding"), None);
    let page = server.request("GET", "/docs/swagger-ui-bundle.js").header("accept-encoding", "zstd").send().ok();
    assert_eq!(page.header("content-encoding"), Some("zstd"));
    assert_eq!(unpacked(&page), server.get("/docs/swagger-ui-bundle.js").ok().body);
}
