//! Limits of a request: bytes, texts, tokens; and what is too much for all requests together.

use std::io::{Read, Write};

use serde_json::json;

use crate::{
    http::{Reply, connect},
    rig::{Setup, wait_for},
};

#[test]
fn what_is_too_large_is_refused_with_413() {
    let setup = Setup::embedder();
    let server = setup
        .settings("[server]\nbody_bytes_max = 4096\ntexts_max = 3\ntext_bytes_max = 100\ntokens_max = 40\n")
        .start();
    let inputs = |texts: &[&str]| json!({"inputs": texts}).to_string();
    server.check_refused("/embed", &inputs(&["a"; 4]), 413, "4 texts; 3 are allowed");
    server.check_refused("/embed", &inputs(&["a", &"b".repeat(101)]), 413, "text 1 has 101 bytes; 100 are allowed");
    let wordy = "a b c d e f g h i j k l m n o p q r s t";
    server.check_refused("/embed", &inputs(&[wordy, wordy]), 413, "tokens; 40 are allowed");
    server.check_refused("/embed", &inputs(&["a".repeat(5000).as_str()]), 413, "larger than 4096 bytes");
    server.check_refused("/rerank", &json!({"query": "b".repeat(101), "texts": ["a"]}).to_string(), 413, "101 bytes");
    server.check_refused("/tokenize", &inputs(&["a"; 4]), 413, "4 texts");
    server.post("/embed", &inputs(&["a"; 3])).ok();
}

#[test]
fn a_body_of_unknown_length_is_cut_off_at_the_limit() {
    let server = Setup::embedder().settings("[server]\nbody_bytes_max = 4096\n").start();
    let mut stream = connect(server.address);
    let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("400\r\n{}\r\n", "a".repeat(1024));
    for _ in 0..64 {
        stream.write_all(chunk.as_bytes()).unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    let mut stream = connect(server.address);
    let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(format!("{head}12\r\n{}\r\n0\r\n\r\n", r#"{"inputs":"river"}"#).as_bytes()).unwrap();
    Reply::read(&mut stream).unwrap().ok();
}

#[test]
fn more_work_than_there_is_room_for_gets_429_at_once_and_the_rest_is_answered() {
    // The device hangs with its first batch, so that what comes waits.
    let setup = Setup::on_gpu("hang@batch=1");
    let server = setup.settings("[queue]\ntokens_max = 100\n").start();
    let request = json!({"inputs": vec!["river"; 10]}).to_string();
    let mut waiting = server.request("POST", "/embed").body(&request).begin();
    wait_for("the request", || server.get("/gpu/status").ok().json()["requests"] == json!(1));
    let refused = server.post("/embed", &request);
    assert_eq!((refused.status, &refused.json()["error_type"]), (429, &json!("overloaded")), "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    wait_for("a line in the log", || {
        server.said().contains("requests were refused with 429") && server.said().contains("overloaded=1")
    });
    let openai = server.post("/v1/embeddings", &json!({"input": vec!["river"; 10]}).to_string());
    assert_eq!((openai.status, &openai.json()["error"]["code"]), (429, &json!("overloaded")));
    Reply::read(&mut waiting).unwrap().ok();
    server.check_refused("/embed", &json!({"inputs": vec!["river"; 100]}).to_string(), 413, "fewer texts");
}

#[test]
fn one_caller_does_not_fill_the_queue() {
    let setup = Setup::on_gpu("hang@batch=1").env("MAGRAY_API_KEYS", "one,two");
    let server = setup.settings("[queue]\nrequests_max = 64\n").start();
    let post = |key: &str| server.request("POST", "/embed").key(key).body(r#"{"inputs":"river"}"#);
    let requests = || server.request("GET", "/gpu/status").key("one").send().ok().json()["requests"].as_u64().unwrap();
    let mut waiting: Vec<_> = (1..=48)
        .map(|count| {
            let stream = post("one").begin();
            wait_for("the request", || requests() == count);
            stream
        })
        .collect();
    assert_eq!(post("one").send().status, 429, "a quarter is left to others");
    waiting.push(post("two").begin());
    wait_for("the request of another", || requests() == 49);
    for stream in &mut waiting {
        Reply::read(stream).unwrap().ok();
    }
}

#[test]
fn a_full_queue_says_429_only_to_those_who_would_be_taken() {
    let setup = Setup::on_gpu("hang@batch=1").env("MAGRAY_API_KEYS", "one");
    let server = setup.settings("[queue]\nrequests_max = 1\n[server]\nbody_bytes_max = 4096\n").start();
    let post = |key: &str, body: &str| server.request("POST", "/embed").key(key).body(body).send();
    let small = r#"{"inputs":"river"}"#;
    let mut waiting = server.request("POST", "/embed").key("one").body(small).begin();
    let status = || server.request("GET", "/gpu/status").key("one").send().ok().json();
    wait_for("the request", || status()["requests"] == json!(1));
    let refused = post("one", small);
    assert_eq!((refused.status, &refused.json()["error_type"]), (429, &json!("overloaded")));
    assert!(refused.header("x-request-id").is_some());
    assert_eq!(post("two", small).status, 401);
    assert_eq!(post("one", &json!({"inputs": "a".repeat(5000)}).to_string()).status, 413);
    assert_eq!(server.request("GET", "/embed").key("one").send().status, 405);
    Reply::read(&mut waiting).unwrap().ok();
    let metrics = server.request("GET", "/metrics").key("one").send().ok();
    let counted = metrics.text();
    for line in
        [r#"magray_http_refusals_total{reason="overloaded"} 1"#, r#"route="/embed",method="POST",status="429"} 1"#]
    {
        assert!(counted.contains(line), "{line} in {counted}");
    }
}

#[test]
fn small_requests_starved_a_large_one() {
    let setup = Setup::on_gpu("hang@batch=1");
    let server = setup.settings("[queue]\ntokens_max = 200\n").start();
    let texts = |texts: usize| json!({"inputs": vec!["river"; texts]}).to_string();
    let requests = |count: u64| server.get("/gpu/status").ok().json()["requests"] == json!(count);
    let text = server.post("/tokenize", &texts(1)).ok().json()[0].as_array().unwrap().len();
    let mut first = server.request("POST", "/embed").body(texts(1)).begin();
    wait_for("the first request", || requests(1));
    // Most of the room is taken; what is left is enough for small requests.
    let mut many = server.request("POST", "/embed").body(texts(140 / text)).begin();
    wait_for("the second request", || requests(2));
    let large = texts(80 / text);
    // Room is kept for a second: where this thread sleeps longer, it is asked again.
    wait_for("the small ones to wait for it", || {
        assert_eq!(server.post("/embed", &large).status, 429);
        let mut small = server.request("POST", "/embed").body(texts(1)).begin();
        small.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
        Reply::read(&mut small).is_some_and(|reply| reply.status == 429)
    });
    for waiting in [&mut first, &mut many] {
        Reply::read(waiting).unwrap().ok();
    }
    server.post("/embed", &large).ok();
    server.post("/embed", &texts(1)).ok();
}

#[test]
fn a_full_queue_refused_routes_that_compute_nothing() {
    let setup = Setup::on_gpu("hang@batch=1");
    let server = setup.settings("[queue]\nrequests_max = 1\n").start();
    let mut waiting = server.request("POST", "/embed").body(r#"{"inputs":"river"}"#).begin();
    wait_for("the request", || server.get("/gpu/status").ok().json()["requests"] == json!(1));
    assert_eq!(server.post("/embed", r#"{"inputs":"river"}"#).status, 429);
    server.post("/tokenize", r#"{"inputs":"river"}"#).ok();
    server.post("/api/show", r#"{"model":"bert"}"#).ok();
    Reply::read(&mut waiting).unwrap().ok();
}

#[test]
fn a_client_that_leaves_takes_its_work_back() {
    let server = Setup::on_gpu("hang@batch=1").start();
    let status = || server.get("/gpu/status").ok().json();
    let mut first = server.request("POST", "/embed").body(r#"{"inputs":"river"}"#).begin();
    wait_for("the first request", || status()["requests"] == json!(1));
    let many = json!({"inputs": vec!["river"; 100]}).to_string();
    let second = server.request("POST", "/embed").body(many).begin();
    wait_for("the second request", || status()["requests"] == json!(2));
    drop(second);
    wait_for("its end", || status()["requests"].as_u64().unwrap() < 2);
    Reply::read(&mut first).unwrap().ok();
    let finished: u64 =
        status()["devices"].as_array().unwrap().iter().map(|d| d["texts_finished"].as_u64().unwrap()).sum();
    assert!(finished < 100, "cancelled work was computed: {finished} texts");
}

#[test]
fn a_request_that_is_not_computed_in_time_gets_503() {
    let server = Setup::on_gpu("hang@batch=1, hang@batch=2").settings("[server]\nrequest_timeout_s = 1\n").start();
    let reply = server.post("/v1/embeddings", r#"{"input":"river"}"#);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("timeout")), "{}", reply.text());
}
