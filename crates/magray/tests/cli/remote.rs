//! `--server` against a server of the test's own: retries, order, keys and what is said when it refuses.
//! A real server answers in the tests of the server.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use expect_test::expect;
use serde_json::{Value, json};

use crate::runner::Home;

/// What a request had.
#[derive(Clone, Debug)]
struct Request {
    head: String,
    body: Value,
}

struct Fake {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// A server that answers the request of each number (from 0) as this says: a status line with headers, and a body.
fn fake(answer: impl Fn(usize, &Request) -> (String, String) + Send + Sync + 'static) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (seen, count, answer) = (Arc::clone(&requests), Arc::new(AtomicUsize::new(0)), Arc::new(answer));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, seen, count, answer) = (stream.unwrap(), seen.clone(), count.clone(), answer.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                while reader.read_line(&mut head).unwrap() > 2 {
                    let last = head.lines().last().unwrap().to_ascii_lowercase();
                    if let Some(bytes) = last.strip_prefix("content-length: ") {
                        length = bytes.parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let request = Request { head, body: serde_json::from_slice(&body).unwrap() };
                seen.lock().unwrap().push(request.clone());
                let (status, body) = answer(count.fetch_add(1, Ordering::SeqCst), &request);
                let length = body.len();
                let text = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
                stream.write_all(text.as_bytes()).unwrap();
            });
        }
    });
    Fake { url, requests }
}

/// A vector for each text: the number at its end, and a one.
fn vectors(request: &Request) -> (String, String) {
    let number = |text: &Value| text.as_str().unwrap().rsplit(' ').next().unwrap().parse::<f32>().unwrap();
    let base64 = |text| base64_of(&[number(text).to_le_bytes(), 1.0_f32.to_le_bytes()].concat());
    let inputs = request.body["input"].as_array().unwrap();
    // In another order than asked: the index counts.
    let data: Vec<Value> =
        inputs.iter().enumerate().rev().map(|(at, text)| json!({"index": at, "embedding": base64(text)})).collect();
    let body = json!({"data": data, "usage": {"prompt_tokens": inputs.len()}}).to_string();
    ("200 OK\r\nx-magray-device: cuda:0".to_owned(), body)
}

fn base64_of(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let padded = [three[0], *three.get(1).unwrap_or(&0), *three.get(2).unwrap_or(&0)];
        let all = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for at in 0..4 {
            let is_there = at <= three.len();
            text.push(if is_there { LETTERS[(all >> (18 - 6 * at)) as usize & 63] as char } else { '=' });
        }
    }
    text
}

#[test]
fn refusals_are_waited_out_and_the_order_is_kept() {
    let server = fake(|count, request| match count % 3 {
        0 => ("429 Too Many Requests\r\nretry-after-ms: 1".to_owned(), "{\"error\": \"full\"}".to_owned()),
        1 => ("503 Service Unavailable\r\nretry-after: 0".to_owned(), String::new()),
        _ => vectors(request),
    });
    let home = Home::new();
    home.write("texts.txt", (0..1000).map(|at| format!("text {at}\n")).collect::<String>());
    let args = ["embed", "-f", "texts.txt", "--server", &server.url, "--parallel", "8", "--output", "out.txt"];
    let answer = home.call(&[&args[..], &["-m", "mine", "--priority", "low"]].concat());
    let answer = answer.env("MAGRAY_API_KEY", "secret").run().success();
    assert!(answer.stderr.starts_with("1000 texts, 1000 tokens in "), "{}", answer.stderr);
    assert!(answer.stderr.contains(" on cuda:0 of http://127.0.0.1:"), "{}", answer.stderr);
    let rows = std::fs::read_to_string(home.path("out.txt")).unwrap();
    let expected: String = (0..1000).map(|at| format!("{at}.0 1.0\n")).collect();
    assert_eq!(rows, expected);
    for Request { head, body } in server.requests.lock().unwrap().iter() {
        let head = head.to_ascii_lowercase();
        assert!(head.contains("authorization: bearer secret") && head.contains("x-magray-priority: low"), "{head}");
        assert_eq!((&body["model"], &body["encoding_format"]), (&"mine".into(), &"base64".into()));
    }
}

#[test]
fn refusals_that_last_are_told_at_once() {
    let server = fake(|_, _| {
        let message = json!({"error": {"message": "the prompt is wrong", "type": "invalid_request_error"}});
        ("422 Unprocessable Entity".to_owned(), message.to_string())
    });
    let home = Home::new();
    let answer = home.call(&["embed", "x 1", "--server", &server.url]).run();
    assert_eq!((answer.code, answer.stdout.as_str()), (9, ""));
    assert!(answer.stderr.ends_with(" refused it (422): the prompt is wrong\n"), "{}", answer.stderr);
    assert_eq!(server.requests.lock().unwrap().len(), 1);
    // No model or server was named beside it: the server decides.
    assert_eq!(server.requests.lock().unwrap()[0].body["model"], Value::Null);
    let half = fake(|_, _| ("200 OK".to_owned(), json!({"data": [], "usage": {"prompt_tokens": 0}}).to_string()));
    let answer = home.call(&["embed", "x 1", "--server", &half.url]).run();
    assert!(answer.stderr.ends_with("gave an answer that is none: 0 vectors for 1 texts\n"), "{}", answer.stderr);
    home.check_refused(
        &["embed", "x", "--server", "http://127.0.0.1:1"],
        8,
        expect![[r#"
            error: no answer from http://127.0.0.1:1: io: Connection refused (os error 111)
        "#]],
    );
}
