//! A client of HTTP/1.1 that does what it is told, also what no client should.
//! Knows no keep-alive and no compression: one request a connection.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Longer than any answer takes on any machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// Reads what comes until the server closes; `None` if it closes without an answer.
    pub(crate) fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut bytes = Vec::new();
        // A connection that is reset after its answer has still answered.
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1)?.parse().unwrap();
        Some(Self { status, head: head.to_ascii_lowercase(), body: bytes[end + 4..].to_vec() })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The answer of a request that must succeed.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{}", self.text());
        self
    }
}

/// A request that is about to be sent.
pub(crate) struct Request {
    address: SocketAddr,
    text: String,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(address: SocketAddr, method: &str, path: &str) -> Self {
        let text = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
        Self { address, text, body: Vec::new() }
    }

    /// Calls the server by this name and not by its address.
    pub(crate) fn host(mut self, host: &str) -> Self {
        self.text = self.text.replacen(&format!("host: {}\r\n", self.address), &format!("host: {host}\r\n"), 1);
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.text.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("authorization", &format!("Bearer {key}"))
    }

    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        let length = self.body.len().to_string();
        self.header("content-length", &length)
    }

    /// Sends it and leaves the answer to be read.
    pub(crate) fn begin(&self) -> TcpStream {
        let mut stream = connect(self.address);
        // A server that refuses early closes before it has read everything, which is its right.
        let _ = stream.write_all(format!("{}\r\n", self.text).as_bytes()).and_then(|()| stream.write_all(&self.body));
        stream
    }

    #[track_caller]
    pub(crate) fn send(&self) -> Reply {
        Reply::read(&mut self.begin()).expect("the server answers")
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}
