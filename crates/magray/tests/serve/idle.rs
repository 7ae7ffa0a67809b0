//! Ten thousand connections that have asked something and are kept, as clients keep them.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream},
};

use rustix::{
    net::{AddressFamily, SocketType, bind, connect, socket},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::{
    http::LONG,
    rig::{Setup, wait_for},
    rough::held_bytes,
};

const CONNECTIONS: usize = 10_000;
/// Files that a process needs for its connections and beside them.
const FILES: u64 = CONNECTIONS as u64 + 500;
/// Connections from one source address: its ports run short, the more so as other tests use them.
const FROM_ONE_ADDRESS: usize = 2_500;

/// Whether this process, and so the server that it starts, may have that many files.
fn may_open_enough_files() -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= FILES) {
        return true;
    }
    maximum.is_none_or(|maximum| maximum >= FILES)
        && setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum }).is_ok()
}

/// The connection of this number, each few thousand from another address of loopback.
fn connected(server: SocketAddr, number: usize) -> TcpStream {
    let from = Ipv4Addr::new(127, 0, 0, 2 + (number / FROM_ONE_ADDRESS) as u8);
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&stream, &SocketAddrV4::new(from, 0)).unwrap();
    connect(&stream, &server).unwrap();
    let stream = TcpStream::from(stream);
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream) {
    stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
}

/// Reads the head of an answer, which has no body.
fn answered(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut part = [0; 512];
    while !head.ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut part).unwrap();
        assert_ne!(read, 0, "closed after {:?}", String::from_utf8_lossy(&head));
        head.extend_from_slice(&part[..read]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn ten_thousand_idle_connections_are_kept_and_new_ones_are_answered() {
    if !may_open_enough_files() {
        let reason = format!("{CONNECTIONS} connections need a limit of open files (ulimit -Hn) of {FILES}");
        return magray_skip::test(magray_skip::Need::OpenFiles(FILES), reason);
    }
    let settings = "[server]\nconnections_max = 10100\nhead_timeout_s = 3600\n";
    let server = Setup::embedder().settings(settings).start();
    let mut idle: Vec<TcpStream> = Vec::with_capacity(CONNECTIONS);
    for number in 0..CONNECTIONS {
        let mut stream = connected(server.address, number);
        ask(&mut stream);
        assert!(answered(&mut stream).starts_with("HTTP/1.1 200"));
        idle.push(stream);
    }
    server.post("/embed", r#"{"inputs":"river"}"#).ok();
    // Those and the one that asks.
    let counted = format!("magray_http_connections {}\n", CONNECTIONS + 1);
    wait_for("all connections", || server.get("/metrics").ok().text().contains(&counted));
    assert_eq!(held_bytes(&server), 0, "who is idle holds nothing");
    // All of them are still there.
    idle.iter_mut().for_each(ask);
    assert!(idle.iter_mut().all(|stream| answered(stream).starts_with("HTTP/1.1 200")));
}
