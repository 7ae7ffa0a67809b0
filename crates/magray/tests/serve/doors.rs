//! What is not of any one API: health, metrics, the document, the page, CORS.

use crate::rig::Setup;

#[test]
fn health_is_proved_by_a_pass_through_the_device() {
    let server = Setup::on_gpu("").start();
    assert_eq!(server.get("/health/live").ok().text(), "");
    let before = server.get("/gpu/status").ok().json();
    assert_eq!(before["devices"][1]["texts_finished"], 0);
    let healthy = server.get("/health").ok().json();
    assert_eq!((healthy["status"].as_str(), healthy["device"].as_str()), (Some("ok"), Some("sim:0")));
    let finished = || server.get("/gpu/status").ok().json()["devices"][1]["texts_finished"].clone();
    let after = finished();
    assert!(after.as_u64().unwrap() >= 1);
    // What is proved is not proved again: nobody would be idle otherwise.
    server.get("/health").ok();
    server.get("/ping").ok();
    assert_eq!(finished(), after);
}

#[test]
fn a_server_whose_device_cannot_compute_is_not_healthy() {
    // Every worker ends with its first batch.
    let server = Setup::on_gpu("crash@every=1").start();
    let reply = server.get("/health");
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.json()["error"].as_str().unwrap().contains("no device computes"));
    server.get("/health/live").ok();
}

#[test]
fn metrics_count_what_happened() {
    let server = Setup::embedder().start();
    server.post("/embed", r#"{"inputs":["river","cat"]}"#).ok();
    assert_eq!(server.post("/embed", "{").status, 400);
    let reply = server.get("/metrics").ok();
    assert!(reply.header("content-type").unwrap().starts_with("text/plain"));
    let text = reply.text();
    for line in [
        r#"magray_texts_total{model="bert"} 2"#,
        r#"magray_http_requests_total{route="/embed",method="POST",status="200"} 1"#,
        r#"magray_http_requests_total{route="/embed",method="POST",status="400"} 1"#,
        r#"magray_http_refusals_total{reason="malformed"} 1"#,
        r#"magray_device_up{device="cpu"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn the_document_in_the_repository_is_the_one_that_is_served() {
    let server = Setup::embedder().start();
    let served = server.get("/openapi.json").ok().json();
    let mut text = serde_json::to_string_pretty(&served).unwrap();
    text.push('\n');
    expect_test::expect_file!["../../../../docs/openapi.json"].assert_eq(&text);
}

#[test]
fn the_page_of_the_document_loads_nothing_from_elsewhere() {
    let server = Setup::embedder().start();
    let page = server.get("/docs/").ok();
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    let text = page.text();
    assert!(!text.contains("http://") && !text.contains("https://"), "{text}");
    for file in ["/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/swagger-initializer.js"] {
        assert!(!server.get(file).ok().body.is_empty(), "{file}");
    }
}

#[test]
fn web_pages_of_other_origins_may_ask_only_where_that_is_wanted() {
    let origin = |server: &crate::rig::Server| {
        let request = server.request("GET", "/v1/models").header("origin", "https://page.example");
        request.send().ok().header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(origin(&Setup::embedder().start()), None);
    let setup = Setup::embedder().settings("[server]\ncors_origins = \"https://page.example\"\n");
    assert_eq!(origin(&setup.start()).as_deref(), Some("https://page.example"));
}
