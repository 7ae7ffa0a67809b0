//! The end of a server: requests that were taken are answered, new ones are not taken, and it goes when it must.

use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::json;

use crate::{
    http::Reply,
    rig::{Setup, wait_for},
};

#[test]
fn all_requests_that_were_taken_are_answered_before_it_ends() {
    for signal in [Signal::TERM, Signal::INT] {
        // The device hangs with its first batch, so that all are there when the signal comes.
        let mut server = Setup::on_gpu("hang@batch=1").start();
        let clients: Vec<_> = (0..16)
            .map(|client| {
                let path = if client % 2 == 0 { "/embed" } else { "/v1/embeddings" };
                let texts = vec!["river"; 5];
                let body = json!({"inputs": texts, "input": texts}).to_string();
                server.request("POST", path).body(body).begin()
            })
            .collect();
        wait_for("all requests", || server.get("/gpu/status").ok().json()["requests"] == json!(16));
        server.signal(signal);
        wait_for("the door to close", || TcpStream::connect(server.address).is_err());
        for mut client in clients {
            Reply::read(&mut client).expect("an answer").ok();
        }
        assert_eq!(server.wait().code(), Some(0), "{}", server.said());
    }
}

#[test]
fn connections_that_ask_nothing_do_not_hold_it_up() {
    let mut server = Setup::embedder().start();
    let _silent = crate::http::connect(server.address);
    server.get("/health/live").ok();
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut server = Setup::on_gpu("hang@batch=1").start();
    let _client = server.request("POST", "/embed").body(r#"{"inputs":"river"}"#).begin();
    wait_for("the request", || server.get("/gpu/status").ok().json()["requests"] == json!(1));
    server.signal(Signal::TERM);
    wait_for("the first signal to be heard", || server.said().contains("stopping"));
    server.signal(Signal::TERM);
    let code = server.wait().code();
    // It may have been done with everything just before.
    assert!(matches!(code, Some(130 | 0)), "{code:?}");
}

#[test]
fn a_port_that_is_in_use_is_a_clear_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, said) = Setup::embedder().port(taken.local_addr().unwrap().port()).refused();
    assert!(code == 2 && said.contains("cannot listen on") && said.contains("--port"), "{code}: {said}");
}
