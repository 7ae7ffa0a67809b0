//! A server that leaves its load balancer: it says so before it stops to accept, and no request of any client fails.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use rustix::process::Signal;

use crate::{
    http::{LONG, connect},
    rig::{Server, Setup, wait_for},
};

/// Long enough for clients that are in the middle of something to hear of it, on a slow machine too.
const DELAY: (&str, &str) = ("MAGRAY_DRAIN_DELAY", "5");

/// A connection that is kept.
struct Kept {
    stream: BufReader<TcpStream>,
    to: usize,
    is_closing: bool,
}

impl Kept {
    fn open(addresses: &[SocketAddr], to: usize) -> Self {
        Self { stream: BufReader::new(connect(addresses[to])), to, is_closing: false }
    }

    /// Sends a request and reads its answer; the status, or what went wrong.
    fn ask(&mut self, body: &str) -> Result<u16, String> {
        let head = format!("POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        self.stream.get_mut().write_all(head.as_bytes()).map_err(|error| error.to_string())?;
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
                return Err("the connection was closed without an answer".to_owned());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            } else if line.starts_with("http/1.1 ") {
                status = line.split(' ').nth(1).unwrap().parse().unwrap();
            }
            self.is_closing |= line == "connection: close";
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).map_err(|error| error.to_string())?;
        Ok(status)
    }
}

#[test]
fn no_request_fails_when_a_server_is_told_to_stop_under_load() {
    const CLIENTS: usize = 8;
    let mut leaving = Setup::embedder().env(DELAY.0, DELAY.1).start();
    let staying = Setup::embedder().start();
    let addresses = [leaving.address, staying.address];
    // What a load balancer does: new connections go to a server that is ready.
    let routed = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let answered = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let answered_by = |server: usize| answered[server].load(Ordering::Relaxed);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (addresses, routed, is_over, answered) = (&addresses, &routed, &is_over, &answered);
                scope.spawn(move || {
                    let mut kept = Kept::open(addresses, routed.load(Ordering::Relaxed));
                    for round in 0_usize.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        // Some clients never keep a connection.
                        if kept.is_closing || client % 4 == 0 {
                            kept = Kept::open(addresses, routed.load(Ordering::Relaxed));
                        }
                        let body = format!(r#"{{"inputs":"river {client} {round}"}}"#);
                        assert_eq!(kept.ask(&body), Ok(200), "client {client}, round {round}, server {}", kept.to);
                        answered[kept.to].fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        wait_for("load", || answered_by(0) > 10 * CLIENTS);
        leaving.signal(Signal::TERM);
        wait_for("the server not to be ready", || leaving.get("/health").status == 503);
        routed.store(1, Ordering::Relaxed);
        assert_eq!(leaving.wait().code(), Some(0), "{}", leaving.said());
        wait_for("load on the other", || answered_by(1) > 10 * CLIENTS);
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    });
}

fn is_ready(server: &Server, path: &str) -> bool {
    server.get(path).status == 200
}

#[test]
fn a_server_that_is_told_to_stop_is_alive_and_not_ready_and_still_answers() {
    let mut server = Setup::embedder().env(DELAY.0, DELAY.1).start();
    let mut kept = Kept::open(&[server.address], 0);
    assert_eq!(kept.ask(r#"{"inputs":"river"}"#), Ok(200));
    assert!(!kept.is_closing && is_ready(&server, "/health") && is_ready(&server, "/v2/health/ready"));
    server.signal(Signal::TERM);
    wait_for("it to be heard", || !is_ready(&server, "/health"));
    assert!(!is_ready(&server, "/v2/health/ready") && !is_ready(&server, "/v2/models/bert/ready"));
    assert!(is_ready(&server, "/health/live") && is_ready(&server, "/v2/health/live"));
    assert_eq!(kept.ask(r#"{"inputs":"river"}"#), Ok(200));
    assert!(kept.is_closing, "its client is told to connect anew");
    let mut rest = Vec::new();
    kept.stream.get_ref().set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(kept.stream.read_to_end(&mut rest).unwrap(), 0);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_second_signal_does_not_wait_for_load_balancers() {
    let mut server = Setup::embedder().env(DELAY.0, "3600").start();
    server.signal(Signal::TERM);
    wait_for("it to be heard", || !is_ready(&server, "/health"));
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(130));
}
