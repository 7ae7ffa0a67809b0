//! Who is answered where there is no key: names that were rebound, callers on other machines, and those who should be.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr, UdpSocket},
};

use rustix::process::Signal;
use serde_json::json;

use crate::{
    http::{Reply, Request, connect},
    rig::{Server, Setup, said_soon, wait_for},
};

const EVIL: &str = "evil.example:7860";
const LISTENERS: [&str; 2] = ["127.0.0.1", "0.0.0.0"];
/// Requests that change something.
const CHANGES: [(&str, &str); 5] = [
    ("/gpu/offload", ""),
    ("/gpu/release", ""),
    ("/gpu/preheat", ""),
    ("/gpu/timeout", "timeout=5"),
    ("/admin/reload", ""),
];

/// A call of a tool that changes something, by the model context protocol.
fn release_by_mcp(request: Request) -> Reply {
    let call =
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "release_gpu", "arguments": {}}});
    let request = request.header("content-type", "application/json");
    request.header("accept", "application/json, text/event-stream").body(call.to_string()).send()
}

#[test]
fn a_page_whose_name_was_rebound_could_read_vectors_and_release_models() {
    for listener in LISTENERS {
        let server = Setup::embedder().arg("--host").arg(listener).start();
        let check = |reply: Reply, what: &str| {
            assert_eq!(reply.status, 403, "{listener} {what}: {}", reply.text());
            assert!(reply.text().contains("server.allowed_hosts"), "{listener} {what}: {}", reply.text());
        };
        for path in ["/v1/models", "/gpu/status", "/metrics", "/health", "/docs/", "/openapi.json", "/"] {
            check(server.request("GET", path).host(EVIL).send(), path);
        }
        for (path, body) in [("/v1/embeddings", r#"{"input":"river"}"#), ("/embed", r#"{"inputs":"river"}"#)] {
            check(server.request("POST", path).host(EVIL).body(body).send(), path);
        }
        for (path, body) in CHANGES {
            // Its own page is the same origin, so far as a browser can tell.
            let request = server.request("POST", path).host(EVIL).header("origin", &format!("http://{EVIL}"));
            check(request.body(body).send(), path);
        }
        check(release_by_mcp(server.request("POST", "/mcp").host(EVIL)), "/mcp");
        assert_eq!(server.get("/gpu/status").ok().json()["models"][0]["idle_timeout_s"], json!(60.0));
        for own in ["localhost:7860", "127.0.0.1", "[::1]:80"] {
            server.request("GET", "/v1/models").host(own).send().ok();
        }
    }
}

#[test]
fn a_server_with_keys_is_no_less_careful_about_names() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "one").start();
    let ask = |host: &str| server.request("GET", "/v1/models").host(host).key("one").send().status;
    assert_eq!((ask(EVIL), ask("localhost")), (403, 200));
}

#[test]
fn a_request_without_a_name_is_refused() {
    let server = Setup::embedder().start();
    let send = |head: &str| {
        let mut stream = connect(server.address);
        stream.write_all(head.as_bytes()).unwrap();
        Reply::read(&mut stream).unwrap()
    };
    assert_eq!(send("GET /health/live HTTP/1.1\r\nconnection: close\r\n\r\n").status, 400);
    assert_eq!(send("GET /health/live HTTP/1.1\r\nhost: a b\r\nconnection: close\r\n\r\n").status, 400);
    let two = "GET /health/live HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert!((400..500).contains(&send(two).status));
    let target = "GET http://evil.example/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(send(target).status, 403);
    // Some health probes are that old, and no browser is.
    assert_eq!(send("GET /health/live HTTP/1.0\r\n\r\n").status, 200);
}

#[test]
fn a_probe_of_kubernetes_is_answered() {
    let server = Setup::embedder().arg("--host").arg("0.0.0.0").start();
    for path in ["/health", "/health/live"] {
        server.request("GET", path).host("10.42.0.17:7860").send().ok();
    }
}

#[test]
fn names_are_allowed_by_flag_variable_and_file() {
    let ask = |server: &Server, host: &str| server.request("GET", "/v1/models").host(host).send().status;
    let by_flag = Setup::embedder().arg("--allowed-hosts").arg("a.example,*.b.example").start();
    for (host, status) in [("a.example:80", 200), ("A.Example", 200), ("x.b.example", 200), ("b.example", 403)] {
        assert_eq!(ask(&by_flag, host), status, "{host}");
    }
    assert_eq!(ask(&by_flag, "localhost"), 200, "own names stay");
    let by_variable = Setup::embedder().env("MAGRAY_ALLOWED_HOSTS", "*").start();
    assert_eq!(ask(&by_variable, EVIL), 200);
    let by_file = Setup::embedder().settings("[server]\nallowed_hosts = [\"a.example\"]\n").start();
    assert_eq!((ask(&by_file, "a.example"), ask(&by_file, "b.example")), (200, 403));
    by_file.settings("[server]\nallowed_hosts = [\"b.example\"]\n");
    by_file.signal(Signal::HUP);
    wait_for("the other name", || ask(&by_file, "b.example") == 200);
    assert_eq!(ask(&by_file, "a.example"), 403);
    for wrong in ["https://a.example", "a.example:80", "a.*"] {
        let (code, said) = Setup::embedder().arg("--allowed-hosts").arg(wrong).refused();
        assert!(code == 2 && said.contains("server.allowed_hosts"), "{code}: {said}");
    }
}

/// An address of this machine that other machines could reach it by.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing: it only asks which address packets to elsewhere would leave from.
    socket.connect("198.51.100.1:9").ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|address| !address.is_loopback() && !address.is_unspecified())
}

#[test]
fn without_keys_another_machine_could_release_models() {
    let Some(address) = outer_address() else {
        return magray_skip::test(magray_skip::Need::OuterAddress, "this machine has no address but loopback");
    };
    let post =
        |server: &Server, path: &str| Request::new(SocketAddr::new(address, server.address.port()), "POST", path);
    let open = Setup::embedder().arg("--host").arg("0.0.0.0").start();
    for (path, body) in CHANGES {
        let reply = post(&open, path).body(body).send();
        assert_eq!(reply.status, 403, "{path}: {}", reply.text());
        assert!(reply.text().contains("MAGRAY_ADMIN_KEYS"), "{path}: {}", reply.text());
        // What a client says of itself changes nothing.
        let forged = post(&open, path).header("x-forwarded-for", "127.0.0.1").header("forwarded", "for=127.0.0.1");
        assert_eq!(forged.key("any").body(body).send().status, 403, "{path}");
        // On the machine itself it is allowed.
        open.request("POST", path).host("localhost").body(body).send().ok();
    }
    let refused = release_by_mcp(post(&open, "/mcp")).ok().json();
    assert_eq!(refused["result"]["isError"], json!(true), "{refused}");
    assert!(refused["result"]["content"][0]["text"].as_str().unwrap().contains("MAGRAY_ADMIN_KEYS"), "{refused}");
    let released = release_by_mcp(open.request("POST", "/mcp").host("localhost")).ok().json();
    assert_ne!(released["result"]["isError"], json!(true), "{released}");
    // To compute is open, as the server warns.
    post(&open, "/v1/embeddings").body(r#"{"input":"river"}"#).send().ok();
    assert!(said_soon(&open, "everyone who reaches this address may compute"), "{}", open.said());
    let keyed = Setup::embedder().arg("--host").arg("0.0.0.0").env("MAGRAY_ADMIN_KEYS", "boss").start();
    for (path, body) in CHANGES {
        post(&keyed, path).key("boss").body(body).send().ok();
        assert_eq!(post(&keyed, path).key("no").body(body).send().status, 401, "{path}");
    }
}
