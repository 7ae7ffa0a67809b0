//! Clients that are broken, slow, greedy or hostile: each gets a clear answer or a closed connection.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use crate::{
    http::{Reply, connect},
    rig::{Server, Setup, wait_for},
};

/// Sends these bytes and reads what comes until the server closes.
fn raw(server: &Server, bytes: &[u8]) -> Option<Reply> {
    let mut stream = connect(server.address);
    let _ = stream.write_all(bytes);
    Reply::read(&mut stream)
}

/// The server is as well as before.
#[track_caller]
fn assert_well(server: &Server) {
    server.post("/embed", r#"{"inputs":"river"}"#).ok();
}

#[test]
fn bytes_that_are_no_http_get_400_or_a_closed_connection() {
    let server = Setup::embedder().start();
    let long_line = [b"GET /".to_vec(), vec![b'a'; 100_000], b" HTTP/1.1\r\n\r\n".to_vec()].concat();
    let cases: [&[u8]; 7] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nhost\x00: a\r\n\r\n",
        &long_line,
    ];
    for bytes in cases {
        let reply = raw(&server, &[bytes, b"\r\n\r\n"].concat());
        let status = reply.map_or(400, |reply| reply.status);
        assert!(
            (400..500).contains(&status),
            "{status} for {:?}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(60)])
        );
    }
    assert_well(&server);
}

#[test]
fn bodies_that_are_no_texts_are_refused() {
    let server = Setup::embedder().start();
    let deep = "[".repeat(100_000);
    let cases: [(&[u8], u16); 6] = [
        (b"{\"inputs\":\"\xff\xfe\"}", 400),
        (b"{\"inputs\":\"\\ud800\"}", 400),
        (b"\x00\x01\x02", 400),
        (deep.as_bytes(), 400),
        (b"{\"inputs\":\"a\",\"inputs\":\"b\"}", 422),
        (b"{\"inputs\":1e999}", 400),
    ];
    for (body, status) in cases {
        let reply = server.request("POST", "/embed").body(body).send();
        assert!((400..500).contains(&reply.status), "{}", reply.text());
        assert_eq!(reply.status, status, "{}", reply.text());
    }
    let nested = format!("{{\"inputs\":{}", "[".repeat(100_000));
    let reply = server.request("POST", "/embed").body(nested).send();
    assert!(matches!(reply.status, 400 | 422), "{}", reply.text());
    assert_well(&server);
}

#[test]
fn a_body_that_is_far_too_large_is_refused_before_it_is_read() {
    let server = Setup::embedder().start();
    let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1073741824\r\nconnection: close\r\n\r\n";
    let reply = raw(&server, head.as_bytes()).expect("an answer");
    assert_eq!(reply.status, 413, "{}", reply.text());
    assert_well(&server);
}

#[test]
fn a_flood_of_headers_is_refused() {
    let server = Setup::embedder().start();
    let many: String = (0..5_000).map(|number| format!("x-{number}: a\r\n")).collect();
    let large = format!("x-large: {}\r\n", "a".repeat(1 << 20));
    for headers in [many, large] {
        let reply = raw(&server, format!("GET /health/live HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes());
        assert!(reply.is_none_or(|reply| (400..500).contains(&reply.status)));
    }
    assert_well(&server);
}

#[test]
fn clients_that_are_too_slow_are_disconnected() {
    let server = Setup::embedder().settings("[server]\nhead_timeout_s = 1\nbody_timeout_s = 1\n").start();
    let beginnings: [&[u8]; 4] =
        [b"", b"GET /hea", b"PRI * HT", b"POST /embed HTTP/1.1\r\nhost: localhost\r\nx-slow: "];
    let mut slow: Vec<TcpStream> = beginnings
        .iter()
        .map(|bytes| {
            let mut stream = connect(server.address);
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    for stream in &mut slow {
        let mut rest = Vec::new();
        // Reads to the end: the test would fail by its own limit if the server waited for ever.
        let ended = stream.read_to_end(&mut rest);
        assert!(ended.is_ok() || rest.is_empty(), "{ended:?}");
    }
    let body =
        b"POST /embed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 100\r\n\r\n{\"inputs\":";
    let reply = raw(&server, body).expect("an answer");
    assert_eq!(reply.status, 408, "{}", reply.text());
    assert_well(&server);
}

#[test]
fn clients_that_leave_within_their_first_bytes_are_forgotten_at_once() {
    // Longer than the test may take.
    let server = Setup::embedder().settings("[server]\nhead_timeout_s = 3600\n").start();
    for words in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n", b"GET / HT"] {
        let mut stream = connect(server.address);
        stream.write_all(words).unwrap();
    }
    // The one that asks is there itself.
    let is_alone = || server.get("/metrics").ok().text().contains("magray_http_connections 1\n");
    wait_for("a server without connections", is_alone);
}

#[test]
fn first_bytes_may_arrive_in_pieces() {
    let server = Setup::embedder().start();
    let mut stream = connect(server.address);
    stream.set_nodelay(true).unwrap();
    for piece in [
        "P",
        "OST /emb",
        "ed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 18\r\n\r\n{",
        r#""inputs":"river"}"#,
    ] {
        stream.write_all(piece.as_bytes()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Reply::read(&mut stream).expect("an answer").ok();
}

#[test]
fn one_connection_too_many_is_closed_and_the_others_go_on() {
    let server = Setup::embedder().settings("[server]\nconnections_max = 2\n").start();
    let body = r#"{"inputs":"river"}"#;
    let mut busy: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = connect(server.address);
            let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\n";
            stream.write_all(format!("{head}content-length: {}\r\n\r\n", body.len()).as_bytes()).unwrap();
            // Asked for its body, it is sure to be one that counts.
            let mut asked = [0; 25];
            stream.read_exact(&mut asked).unwrap();
            assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
            stream
        })
        .collect();
    let mut rest = Vec::new();
    let mut extra = connect(server.address);
    let _ = extra.read_to_end(&mut rest);
    assert_eq!(rest, b"");
    for stream in &mut busy {
        stream.write_all(body.as_bytes()).unwrap();
        Reply::read(stream).expect("an answer").ok();
    }
    wait_for("a free place", || {
        let mut stream = connect(server.address);
        let _ = stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        Reply::read(&mut stream).is_some_and(|reply| reply.status == 200)
    });
}

#[test]
fn idle_connections_kept_new_clients_out() {
    let server = Setup::embedder().settings("[server]\nconnections_max = 8\n").start();
    let ask = |stream: &mut TcpStream| {
        stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).map(|()| answer)
    };
    let mut all: Vec<TcpStream> = Vec::new();
    for _ in 0..40 {
        let mut stream = connect(server.address);
        assert_eq!(&ask(&mut stream).unwrap(), b"HTTP/1.1 200");
        all.push(stream);
    }
    // Those that have asked last are still there, the first are not.
    let mut rest = Vec::new();
    let _ = all[0].read_to_end(&mut rest);
    assert!(rest.ends_with(b"\r\n\r\n"), "it was closed after its answer");
    assert_well(&server);
}

#[test]
fn announced_bodies_kept_other_clients_out() {
    let server = Setup::embedder().start();
    let head = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16777216\r\n\r\n{";
    let _promising: Vec<TcpStream> = (0..9)
        .map(|_| {
            let mut stream = connect(server.address);
            stream.write_all(head).unwrap();
            stream
        })
        .collect();
    wait_for("all of them", || held_bytes(&server) >= 9 * 512);
    assert!(held_bytes(&server) < 1 << 20, "what has not come takes no room");
    assert_well(&server);
}

#[test]
fn a_client_that_waits_to_be_asked_for_its_body_is_not_asked_in_vain() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "secret").start();
    let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 100000\r\n";
    let refused = raw(&server, format!("{head}connection: close\r\n\r\n").as_bytes()).expect("an answer");
    assert_eq!(refused.status, 401);
}

/// Bytes of requests and answers that the server holds, as it says.
pub(crate) fn held_bytes(server: &Server) -> u64 {
    let metrics = server.get("/metrics").ok();
    let line = metrics.text().lines().find(|line| line.starts_with("magray_http_held_bytes ")).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn silent_connections_do_not_keep_new_clients_out() {
    let server = Setup::embedder().settings("[server]\nconnections_max = 2\n").start();
    let mut silent: Vec<TcpStream> = (0..2).map(|_| connect(server.address)).collect();
    server.get("/health/live").ok();
    // The oldest had to go for it.
    let mut rest = Vec::new();
    let _ = silent[0].read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

#[test]
fn paths_lead_nowhere_but_where_they_should() {
    let server = Setup::embedder().start();
    for path in [
        "/../../etc/passwd",
        "/docs/../../etc/passwd",
        "/docs/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//v1/models",
        "/v1/models/../../gpu/status",
        "/v1/%00",
        "/embed/",
    ] {
        let reply = server.get(path);
        assert!(matches!(reply.status, 400 | 404), "{path}: {} {}", reply.status, reply.text());
    }
    assert_eq!(server.get("*").status, 404);
    assert_well(&server);
}
