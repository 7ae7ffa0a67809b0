//! Chats through every API: the same tiny language model, whose answers are constrained where they have to make sense.

mod agents;
mod anthropic;
mod breaking;
mod collections;
mod failover;
mod hostile;
mod ollama;
mod openai;
mod responses;
mod slots;
mod streams;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::{
    http::Reply,
    rig::{Server, Setup},
};

/// A server with a language model named `tiny`.
pub(super) struct Chat {
    pub(super) server: Server,
}

impl Chat {
    pub(super) fn start() -> Self {
        Self::with(&["--device", "cpu"], |setup| setup)
    }

    pub(super) fn with(args: &[&str], more: impl FnOnce(Setup) -> Setup) -> Self {
        let setup = Setup::new(args).with_generator();
        // Portable code computes a token the same whatever is beside it.
        let setup = setup.settings("[cpu]\npath = \"portable\"\n");
        Self { server: more(setup).start() }
    }

    #[track_caller]
    pub(super) fn ok(&self, path: &str, body: Value) -> Value {
        self.server.post(path, &body.to_string()).ok().json()
    }

    /// The events of a stream, without the last word of OpenAI's.
    #[track_caller]
    pub(super) fn events(&self, path: &str, body: Value) -> Vec<Value> {
        let reply = self.server.post(path, &body.to_string()).ok();
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        let text = unchunked(&reply);
        let data = text.split("\n\n").filter(|event| !event.is_empty()).map(|event| {
            let line = event.lines().find(|line| line.starts_with("data: ")).unwrap();
            line["data: ".len()..].to_owned()
        });
        let read = |data: String| serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {data}"));
        data.filter(|data| data != "[DONE]").map(read).collect()
    }

    /// The lines of a stream.
    #[track_caller]
    pub(super) fn lines(&self, path: &str, body: Value) -> Vec<Value> {
        let reply = self.server.post(path, &body.to_string()).ok();
        assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
        unchunked(&reply).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The body of an answer that came in chunks. Each of them is whole characters.
pub(super) fn unchunked(reply: &Reply) -> String {
    assert_eq!(reply.header("transfer-encoding"), Some("chunked"));
    let (mut rest, mut text) = (&reply.body[..], String::new());
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return text;
        }
        text += std::str::from_utf8(&rest[end + 2..][..size]).unwrap();
        rest = &rest[end + 2 + size + 2..];
    }
}

/// Reads a stream chunk by chunk.
pub(super) struct Chunks(BufReader<TcpStream>);

impl Chunks {
    /// After the head of the answer.
    pub(super) fn of(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line == "\r\n" {
                return Self(reader);
            }
        }
    }

    /// `None` at the end.
    pub(super) fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk).unwrap();
        chunk.truncate(size);
        (size > 0).then(|| String::from_utf8(chunk).unwrap())
    }
}

/// A schema that leaves little to say.
pub(super) fn schema() -> Value {
    json!({
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"], "additionalProperties": false,
    })
}

#[track_caller]
pub(super) fn assert_fits(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!((0..10).contains(&value["n"].as_i64().unwrap()) && value["ok"].is_boolean(), "{text}");
}
