//! Keys: who may compute, who may administer, how often; and what clients of each API are told.

use serde_json::json;

use crate::rig::{Setup, said_soon, wait_for};

const EMBED: &str = r#"{"input":"river"}"#;

#[test]
fn a_key_is_needed_where_keys_are_set() {
    let setup = Setup::embedder().env("MAGRAY_API_KEYS", "one,two");
    let file = setup.file("admins", "# those who may\nboss\n");
    let server = setup.arg("--admin-keys-file").arg(file).start();
    let post = |path: &str, key: &str| server.request("POST", path).key(key).body(EMBED).send().status;
    for key in ["one", "two", "boss"] {
        assert_eq!(post("/v1/embeddings", key), 200, "{key}");
    }
    for key in ["", "on", "one,two", "boss2"] {
        assert_eq!(post("/v1/embeddings", key), 401, "{key}");
    }
    let by_header = server.request("POST", "/v1/embeddings").header("x-api-key", "two").body(EMBED).send();
    assert_eq!(by_header.status, 200);
    // Those who compute may look, and those who administer may change.
    let get = |path: &str, key: &str| server.request("GET", path).key(key).send().status;
    assert_eq!((get("/gpu/status", "one"), get("/metrics", "one"), get("/gpu/status", "no")), (200, 200, 401));
    for path in ["/gpu/offload", "/gpu/release", "/gpu/preheat", "/gpu/timeout", "/gpu/cache/clear", "/admin/reload"] {
        assert_eq!((post(path, "one"), post(path, "no")), (403, 401), "{path}");
        assert_ne!(post(path, "boss"), 403, "{path}");
    }
    // What tells nothing needs no key.
    for path in ["/health", "/health/live", "/ping"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}

#[test]
fn every_path_but_those_of_health_and_of_pages_needs_a_key() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "one").start();
    let document = server.get("/openapi.json").ok().json();
    let mut paths: Vec<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    assert!(paths.len() > 30, "{paths:?}");
    paths.extend(["/v1/models/any".to_owned(), "/v1/models/anybody/any".to_owned()]);
    let asked: Vec<String> = paths.into_iter().filter(|path| !path.contains('{')).collect();
    for path in asked {
        let is_open = matches!(
            path.as_str(),
            "/health" | "/health/live" | "/healthz" | "/ping" | "/v2/health/live" | "/v2/health/ready"
        );
        for method in ["GET", "POST", "HEAD", "PUT"] {
            let status = server.request(method, &path).send().status;
            assert_eq!(status == 401, !is_open, "{method} {path}: {status}");
        }
    }
    assert_eq!(server.get("/nowhere").status, 404);
    let head = server.request("HEAD", "/metrics").send();
    assert!(head.body.is_empty() && head.header("content-length").is_some_and(|length| length != "0"));
    let metrics = || server.request("GET", "/metrics").key("one").send();
    for (open, route) in
        [("/docs/", "/docs/"), ("/docs/index.html", "/docs/{*rest}"), ("/openapi.json", "/openapi.json")]
    {
        server.get(open).ok();
        assert!(metrics().text().contains(&format!("route=\"{route}\",method=\"GET\",status=\"200\"")), "{route}");
    }
}

#[test]
fn a_client_without_a_key_that_sends_much_still_hears_why() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "one").start();
    let much = format!("{{\"inputs\":\"{}\"}}", "a".repeat(900_000));
    let reply = server.post("/embed", &much);
    assert_eq!(reply.status, 401, "{}", reply.text());
}

#[test]
fn each_api_says_in_its_own_way_that_a_key_is_missing() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "one").start();
    let openai = server.post("/v1/embeddings", EMBED);
    assert_eq!((openai.status, openai.header("www-authenticate")), (401, Some("bearer")));
    assert_eq!(openai.json()["error"]["type"], json!("authentication_error"));
    let tei = server.post("/embed", r#"{"inputs":"a"}"#);
    assert_eq!((tei.status, &tei.json()["error_type"]), (401, &json!("validation")));
    let plain = server.get("/gpu/status");
    assert_eq!((plain.status, &plain.json()["code"]), (401, &json!("invalid_api_key")));
}

#[test]
fn a_key_that_has_spent_its_rate_gets_429_with_retry_after() {
    let setup = Setup::embedder().env("MAGRAY_API_KEYS", "one,two");
    let server = setup.settings("[server]\nrequests_per_minute = 6\n").start();
    let ask = |key: &str| server.request("GET", "/v1/models").key(key).send();
    assert_eq!(ask("one").status, 200);
    let refused = ask("one");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=10).contains(&seconds), "{seconds}");
    assert_eq!(ask("two").status, 200);
}

#[test]
fn keys_could_be_guessed_without_end() {
    let setup = Setup::embedder().env("MAGRAY_API_KEYS", "one,right-0,right-1,right-2,right-3");
    let server = setup.env("MAGRAY_ADMIN_KEYS", "boss").start();
    let ask = |key: &str| server.request("GET", "/v1/models").key(key).send();
    assert_eq!(ask("one").status, 200);
    let is_refused_unseen = |number: &u32| ask(&format!("guess-{number}")).status == 429;
    let examined = (0..1_000).find(is_refused_unseen).expect("an end to the guesses");
    assert!((10..100).contains(&examined), "{examined}");
    let limited = ask("guess");
    assert!(limited.header("retry-after").is_some() && limited.text().contains("wrong keys"), "{}", limited.text());
    // One that is right is not looked at either: else the guesses could go on. There is a try again every few seconds.
    let is_refused_though_right = |number: u32| {
        while ask("guess").status != 429 {}
        ask(&format!("right-{number}")).status == 429
    };
    assert!((0..4).any(is_refused_though_right));
    // Clients that share the address and have a right key go on.
    assert_eq!(ask("one").status, 200);
    wait_for("the next try", || ask("boss").status == 200);
    assert!(said_soon(&server, "wrong keys were sent"), "{}", server.said());
    let said = server.said();
    assert!(said.contains("address=127.0.0.1") && !said.contains("guess-"), "{said}");
    assert!(said.lines().filter(|line| line.contains("wrong keys")).count() < 10, "{said}");
}

#[test]
fn a_client_without_a_key_has_guessed_nothing() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "one").start();
    assert!((0..100).all(|_| server.get("/v1/models").status == 401));
    assert_eq!(server.request("GET", "/v1/models").key("one").send().status, 200);
}

#[test]
fn an_administrators_key_could_be_guessed_through_a_tool() {
    let server = Setup::embedder().env("MAGRAY_ADMIN_KEYS", "boss").start();
    let call =
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "offload_gpu", "arguments": {}}});
    let guess = |number: u32| {
        let request = server.request("POST", "/mcp").key(&format!("guess-{number}"));
        let request = request.header("content-type", "application/json");
        let request = request.header("accept", "application/json, text/event-stream");
        request.body(call.to_string()).send().ok().text().contains("too many wrong keys")
    };
    assert!((0..100).any(guess));
    // Who only computes needs no key, and may send any.
    server.request("POST", "/v1/embeddings").key("any").body(EMBED).send().ok();
}

#[test]
fn an_open_server_warns_and_one_on_loopback_does_not() {
    let open = Setup::embedder().arg("--host").arg("0.0.0.0").start();
    assert!(said_soon(&open, "everyone who reaches this address may compute"), "{}", open.said());
    let home = Setup::embedder().start();
    home.get("/health/live").ok();
    assert!(!home.said().contains("warning"), "{}", home.said());
}

#[test]
fn a_file_without_keys_does_not_leave_the_server_open() {
    let setup = Setup::embedder();
    let file = setup.file("keys", "# nothing\n");
    let (code, said) = setup.arg("--api-keys-file").arg(file).refused();
    assert!(code == 2 && said.contains("holds no key"), "{code}: {said}");
    let (code, said) = Setup::embedder().arg("--api-keys-file").arg("absent").refused();
    assert!(code == 2 && said.contains("cannot read"), "{code}: {said}");
}

#[test]
fn keys_are_not_shown() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "open-sesame").env("MAGRAY_LOG", "debug").start();
    server.request("POST", "/v1/embeddings").key("open-sesame").body(EMBED).send().ok();
    server.request("POST", "/v1/embeddings").key("guess-me").body(EMBED).send();
    let said = server.said();
    assert!(!said.contains("open-sesame") && !said.contains("guess-me"), "{said}");
}

#[test]
fn a_rate_without_keys_limited_nothing() {
    let server = Setup::embedder().settings("[server]\nrequests_per_minute = 6\n").start();
    let statuses: Vec<u16> = (0..3).map(|_| server.get("/v1/models").status).collect();
    assert_eq!(statuses, [200, 429, 429]);
    let refused = server.post("/v1/embeddings", EMBED);
    assert!(refused.status == 429 && refused.text().contains("this address has sent too many"), "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    server.get("/health/live").ok();
}

#[test]
fn a_wrong_file_of_keys_is_told_as_such() {
    let setup = Setup::embedder();
    let file = setup.file("keys", "good # Ann\nopen sesame\n");
    let (code, said) = setup.arg("--admin-keys-file").arg(&file).refused();
    let expected = format!("{file}:2: a key has no blanks and only characters of ASCII; a file of keys");
    assert!(code == 2 && said.contains(&expected), "{code}: {said}");
    assert!(said.contains("server.admin_keys_file, flag --admin-keys-file") && !said.contains("sesame"), "{said}");
    let (code, said) = Setup::embedder().arg("--api-keys-file").arg("/").refused();
    assert!(code == 2 && said.contains("cannot read the file of keys / (server.api_keys_file"), "{code}: {said}");
}
