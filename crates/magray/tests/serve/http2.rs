//! A client of HTTP/2 that speaks just enough of it by hand, and the ways in which such clients can be a burden.
//! Reads the status of an answer only where it is 200, which is one byte.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
};

use serde_json::json;

use crate::{
    http::connect,
    rig::{Server, Setup, wait_for},
    rough::held_bytes,
};

/// Kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// The last frame of a message; the last of its head; an answer to settings and pings.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
/// Methods, as heads begin with them.
const GET: u8 = 0x82;
const POST: u8 = 0x83;
/// The head of an answer with status 200 begins so.
const OK: u8 = 0x88;

struct Client {
    stream: TcpStream,
    last_stream: u32,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

fn literal(text: &str) -> Vec<u8> {
    [&[text.len() as u8][..], text.as_bytes()].concat()
}

impl Client {
    /// Connects, and lets the server send so much of each answer before it is asked for more.
    fn connect(server: &Server, window: u32) -> Self {
        let mut stream = connect(server.address);
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let mut client = Self { stream, last_stream: 0 };
        let setting = [&[0, 4][..], &window.to_be_bytes()].concat();
        client.send(SETTINGS, 0, 0, &setting);
        client
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = &(payload.len() as u32).to_be_bytes()[1..];
        let frame = [length, &[kind, flags], &stream.to_be_bytes(), payload].concat();
        self.stream.write_all(&frame).unwrap();
    }

    /// Begins a request; its number.
    fn ask(&mut self, path: &str, body: &str) -> u32 {
        self.ask_as("localhost", path, body)
    }

    /// Begins a request that calls the server by this name.
    fn ask_as(&mut self, host: &str, path: &str, body: &str) -> u32 {
        let length = [&[0x00][..], &literal("content-length"), &literal(&body.len().to_string())].concat();
        let stream = self.begin(POST, host, path, &length);
        self.send(DATA, END_STREAM, stream, body.as_bytes());
        stream
    }

    /// Sends the head of a request with this method, and with these headers as they are written.
    fn begin(&mut self, method: u8, host: &str, path: &str, headers: &[u8]) -> u32 {
        // The method, http, then a path and a host by their names.
        let head = [&[method, 0x86, 0x04][..], &literal(path), &[0x01], &literal(host), headers];
        self.last_stream = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        let stream = self.last_stream;
        self.send(HEADERS, END_HEADERS, stream, &head.concat());
        stream
    }

    /// The next frame.
    fn next_of_any_kind(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.stream.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Ok(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// The next frame that is not about the connection itself.
    fn next(&mut self) -> io::Result<Frame> {
        loop {
            let frame = self.next_of_any_kind()?;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]),
                PING if frame.flags & ACK == 0 => self.send(PING, ACK, 0, &frame.payload),
                DATA | HEADERS => return Ok(frame),
                _ => {}
            }
        }
    }

    /// The body of the answer to a request that must succeed.
    fn answer(&mut self, stream: u32) -> Vec<u8> {
        let head = self.next().unwrap();
        assert_eq!((head.kind, head.stream, head.payload[0]), (HEADERS, stream, OK));
        let mut body = Vec::new();
        loop {
            let frame = self.next().unwrap();
            body.extend(frame.payload);
            if frame.flags & END_STREAM != 0 {
                return body;
            }
        }
    }
}

#[test]
fn requests_are_answered_by_http_2() {
    let server = Setup::embedder().start();
    let mut client = Client::connect(&server, 65_535);
    let body = r#"{"inputs":["river","cat"]}"#;
    let expected = server.post("/embed", body).ok();
    for _ in 0..3 {
        let stream = client.ask("/embed", body);
        assert_eq!(client.answer(stream), expected.body);
    }
}

#[test]
fn answers_that_a_client_of_http_2_did_not_take_were_held_for_ever() {
    let server = Setup::embedder().settings("[server]\nbody_timeout_s = 1\nhead_timeout_s = 1\n").start();
    let mut client = Client::connect(&server, 0);
    let body = json!({"inputs": vec!["river"; 200]}).to_string();
    for _ in 0..4 {
        let stream = client.ask("/embed", &body);
        let head = client.next().unwrap();
        assert_eq!((head.kind, head.stream, head.payload[0]), (HEADERS, stream, OK));
    }
    assert!(held_bytes(&server) > 4 * 200 * 48, "answers count while they are in memory");
    // Pings are answered, and nothing is read: the server has to end it.
    while client.next().is_ok() {}
    wait_for("the end of the answers", || held_bytes(&server) == 0);
}

#[test]
fn an_idle_connection_of_http_2_is_closed() {
    let server = Setup::embedder().settings("[server]\nhead_timeout_s = 1\n").start();
    let mut client = Client::connect(&server, 65_535);
    let stream = client.ask("/embed", r#"{"inputs":"river"}"#);
    client.answer(stream);
    assert!(client.next().is_err());
}

#[test]
fn a_name_that_was_rebound_is_refused_by_http_2_too() {
    let server = Setup::embedder().start();
    let mut client = Client::connect(&server, 65_535);
    let stream = client.ask_as("evil.example", "/embed", r#"{"inputs":"river"}"#);
    let head = client.next().unwrap();
    assert_eq!((head.kind, head.stream), (HEADERS, stream));
    assert_ne!(head.payload[0], OK);
}

#[test]
fn a_connection_of_http_2_could_leave_a_megabyte_unread() {
    let server = Setup::embedder().start();
    let mut client = Client::connect(&server, 65_535);
    let settings = client.next_of_any_kind().unwrap();
    assert_eq!(settings.kind, SETTINGS);
    let setting = |wanted: u16| {
        let values = settings
            .payload
            .chunks(6)
            .map(|row| (u16::from_be_bytes([row[0], row[1]]), u32::from_be_bytes([row[2], row[3], row[4], row[5]])));
        values.into_iter().find(|(name, _)| *name == wanted).map(|(_, value)| value).expect("it is told")
    };
    let (streams, stream_window, head_bytes) = (setting(3), setting(4), setting(6));
    assert!(streams <= 100 && stream_window <= 256 << 10 && head_bytes <= 16 << 10);
    // The window of the connection begins with 65,535 bytes, and is told by how much it is larger.
    let opened = loop {
        let frame = client.next_of_any_kind().unwrap();
        if (frame.kind, frame.stream) == (WINDOW_UPDATE, 0) {
            break frame;
        }
    };
    let more = u32::from_be_bytes(opened.payload[..4].try_into().unwrap());
    assert!(65_535 + more <= 256 << 10, "{more}");
}

#[test]
fn bodies_that_no_handler_reads_did_not_count() {
    // Health is proved by a batch, which hangs; its request waits and does not read its body.
    let server = Setup::on_gpu("hang@batch=1").start();
    let mut client = Client::connect(&server, 65_535);
    let stream = client.begin(GET, "localhost", "/health", &[]);
    let frame = [b'a'; 16 << 10];
    // No more than the smallest window that a server may have.
    for _ in 0..3 {
        client.send(DATA, 0, stream, &frame);
    }
    wait_for("the bytes", || held_bytes(&server) >= 3 * frame.len() as u64);
    drop(client);
    wait_for("the end of the connection", || held_bytes(&server) == 0);
}
