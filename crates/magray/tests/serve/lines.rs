//! Texts line by line: more than a request may have, wrong lines among them, and a client that sends before it reads.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use crate::{
    http::connect,
    rig::{Server, Setup},
};

/// A request whose body comes in chunks.
struct Stream {
    stream: TcpStream,
}

impl Stream {
    fn open(server: &Server, path: &str) -> Self {
        let mut stream = connect(server.address);
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n\
             transfer-encoding: chunked\r\n\r\n",
            server.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        Self { stream }
    }

    fn send(&mut self, lines: &str) {
        write!(self.stream, "{:x}\r\n{lines}\r\n", lines.len()).unwrap();
    }

    fn end(&mut self) {
        self.stream.write_all(b"0\r\n\r\n").unwrap();
    }

    /// The answers: lines of JSON, as they come.
    fn answers(&self) -> impl Iterator<Item = Value> + use<> {
        let mut reader = BufReader::new(self.stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        let (mut pending, mut is_ended) = (Vec::new(), false);
        std::iter::from_fn(move || {
            loop {
                if let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = pending.drain(..=end).collect();
                    return Some(serde_json::from_slice(&line).unwrap());
                }
                if is_ended {
                    assert!(pending.is_empty());
                    return None;
                }
                let mut size = String::new();
                reader.read_line(&mut size).unwrap();
                let size = usize::from_str_radix(size.trim(), 16).unwrap();
                let mut chunk = vec![0; size + 2];
                reader.read_exact(&mut chunk).unwrap();
                pending.extend_from_slice(&chunk[..size]);
                is_ended = size == 0;
            }
        })
    }
}

fn numbers(row: &Value) -> Vec<f32> {
    serde_json::from_value(row.clone()).unwrap_or_else(|error| panic!("{error}: {row}"))
}

#[test]
fn more_texts_than_a_request_may_have_are_answered_in_their_order() {
    let server = Setup::embedder().settings("[server]\ntexts_max = 100\n").start();
    let texts: Vec<String> = (0..5_000).map(|at| format!("{} river {}", ["the", "a cat"][at % 2], at % 7)).collect();
    let whole: Vec<Value> = texts[..14]
        .iter()
        .map(|text| server.post("/embed", &json!({"inputs": text}).to_string()).ok().json()[0].clone())
        .collect();
    for path in ["/embed", "/v1/embeddings"] {
        let mut stream = Stream::open(&server, path);
        let mut sends = Stream { stream: stream.stream.try_clone().unwrap() };
        let count = std::thread::scope(|scope| {
            scope.spawn(|| {
                for some in texts.chunks(333) {
                    sends.send(&some.iter().map(|text| json!(text).to_string() + "\n").collect::<String>());
                }
                sends.end();
            });
            let mut count = 0;
            for (at, answer) in stream.answers().enumerate() {
                assert_eq!(answer["index"], json!(at));
                let (row, expected) = (numbers(&answer["embedding"]), numbers(&whole[at % 14]));
                assert!(row.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.01), "{path}: {at}");
                count += 1;
            }
            count
        });
        assert_eq!(count, texts.len(), "{path}");
        stream.stream.flush().unwrap();
    }
}

#[test]
fn an_answer_comes_before_the_next_line_is_sent() {
    let server = Setup::embedder().start();
    let mut stream = Stream::open(&server, "/v1/embeddings?encoding_format=base64&dimensions=4");
    stream.send("\"river\"\n");
    let mut answers = stream.answers();
    let first = answers.next().unwrap();
    assert_eq!(base64_simd::STANDARD.decode_to_vec(first["embedding"].as_str().unwrap()).unwrap().len(), 16);
    stream.send("{\"text\":\"river\"}");
    stream.end();
    let second = answers.next().unwrap();
    assert_eq!((&second["index"], &second["embedding"]), (&json!(1), &first["embedding"]));
    assert!(answers.next().is_none());
}

#[test]
fn a_wrong_line_is_told_by_its_number_and_spoils_no_other() {
    let server = Setup::embedder().settings("[server]\ntext_bytes_max = 2000\n").start();
    let mut stream = Stream::open(&server, "/embed?truncate=false&normalize=false");
    let lines = [
        json!("river").to_string(),
        "{".to_owned(),
        json!({"input": "river"}).to_string(),
        json!({"other": 1}).to_string(),
        json!("river ".repeat(200)).to_string(),
        json!("a".repeat(3_000)).to_string(),
        format!("\"{}\"", "a".repeat(100_000)),
        json!("river").to_string(),
    ];
    stream.send(&lines.join("\n"));
    stream.end();
    let answers: Vec<Value> = stream.answers().collect();
    let codes: Vec<Option<&str>> = answers.iter().map(|answer| answer["error"]["code"].as_str()).collect();
    let too_large = Some("too_large");
    assert_eq!(codes, [None, Some("malformed"), None, Some("invalid"), too_large, too_large, too_large, None]);
    assert!(answers.iter().enumerate().all(|(at, answer)| answer["index"] == json!(at)), "{answers:?}");
    assert!(answers[4]["error"]["message"].as_str().unwrap().contains("32 tokens"), "{}", answers[4]);
    let length: f32 = numbers(&answers[0]["embedding"]).iter().map(|number| number * number).sum();
    assert!((length - 1.0).abs() > 0.1, "{length}");
}

#[test]
fn a_stream_that_cannot_begin_is_refused_as_a_request() {
    let server = Setup::embedder().start();
    let post = |path: &str, coding: Option<&str>| {
        let request = server.request("POST", path).header("content-type", "application/x-ndjson; charset=utf-8");
        let request = if let Some(coding) = coding { request.header("content-encoding", coding) } else { request };
        request.body("\"a\"\n").send()
    };
    assert_eq!(post("/v1/embeddings?model=nothing", None).status, 404);
    assert_eq!(post("/v1/embeddings?dimensions=100000", None).status, 400);
    assert_eq!(post("/embed?dimensions=many", None).status, 422);
    assert_eq!(post("/embed", Some("gzip")).status, 422);
    let reply = post("/embed", None).ok();
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
}

#[test]
fn a_client_that_takes_no_answers_is_not_read_from() {
    let server = Setup::embedder().settings("[server]\nbody_timeout_s = 1\n").start();
    let mut stream = Stream::open(&server, "/embed");
    stream.stream.set_write_timeout(Some(crate::http::LONG)).unwrap();
    let lines = "\"river\"\n".repeat(4_096);
    // The server ends the stream, since nothing is taken: what is sent then fails, long before all of it could be held.
    let mut sent = 0;
    while write!(stream.stream, "{:x}\r\n{lines}\r\n", lines.len()).is_ok() {
        sent += lines.len();
        assert!(sent < 1 << 30, "everything was taken");
    }
    server.post("/embed", r#"{"inputs":"river"}"#).ok();
    let held = server.get("/metrics").ok();
    let held = held.text().lines().find_map(|line| line.strip_prefix("magray_http_held_bytes ")).map(str::to_owned);
    assert!(held.is_some());
}
