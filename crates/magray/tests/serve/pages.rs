//! What is not of any one API: health, metrics, the document, the page, CORS.

use crate::{
    http::Reply,
    rig::{Server, Setup},
};

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
    // What is proved is not proved again: otherwise no model would become idle.
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
    let server = Setup::every_kind().start();
    let served = server.get("/openapi.json").ok().json();
    // Examples name the first model.
    let mut text = serde_json::to_string_pretty(&served).unwrap().replace("\"bert\"", "\"all-MiniLM-L6-v2\"");
    text.push('\n');
    expect_test::expect_file!["../../../../docs/openapi.json"].assert_eq(&text);
}

/// A vector store with a file of a batch: their ids by the names that paths have for them. The server chooses them.
fn store_with_a_file(server: &Server) -> [(&'static str, String); 3] {
    let id = |reply: Reply| reply.ok().json()["id"].as_str().unwrap().to_owned();
    let form =
        "--limit\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nriver\r\n--limit--\r\n";
    let upload = server.request("POST", "/v1/files").header("content-type", "multipart/form-data; boundary=limit");
    let (file, store) = (id(upload.body(form).send()), id(server.post("/v1/vector_stores", "{}")));
    let files = serde_json::json!({ "file_ids": [file] }).to_string();
    let batch = id(server.post(&format!("/v1/vector_stores/{store}/file_batches"), &files));
    [("vector_store_id", store), ("file_id", file), ("batch_id", batch)]
}

/// Sends the example of every operation that changes nothing.
fn send_examples(server: &Server) -> usize {
    // What the examples ask of.
    let dimensions = server.post("/embed", r#"{"inputs":"river"}"#).ok().json()[0].as_array().unwrap().len();
    let collection = serde_json::json!({"vectors": {"size": dimensions, "distance": "Cosine"}, "text_field": "text"});
    server.request("PUT", "/collections/documents").body(collection.to_string()).send().ok();
    let point = r#"{"points": [{"id": 1, "vector": {"text": "A cat sits by the river."}}]}"#;
    server.request("PUT", "/collections/documents/points").body(point).send().ok();
    let own = store_with_a_file(server);
    let document = server.get("/openapi.json").ok().json();
    let mut sent = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let refused = operation["responses"]["403"]["description"].as_str().unwrap_or_default();
            if refused.contains("administrator") {
                continue;
            }
            let mut filled = path.clone();
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                if parameter["in"] == "path" {
                    let (name, example) = (parameter["name"].as_str().unwrap(), parameter["example"].as_str().unwrap());
                    let example = own.iter().find(|(own, _)| *own == name).map_or(example, |(_, id)| id);
                    filled = filled.replace(&format!("{{{name}}}"), example);
                }
            }
            let request = server.request(&method.to_uppercase(), &filled).header("accept", "application/json");
            let body = &operation["requestBody"]["content"]["application/json"]["example"];
            let reply = match body.is_null() {
                true => request.send(),
                false => request.header("content-type", "application/json").body(body.to_string()).send(),
            };
            assert_eq!(reply.status, 200, "{method} {filled} {body}: {}", reply.text());
            assert_eq!(body.is_null(), operation["requestBody"].is_null(), "{method} {filled} has no example");
            sent += 1;
        }
    }
    sent
}

#[test]
fn every_example_of_the_document_is_answered() {
    let (embedder, all) = (send_examples(&Setup::embedder().start()), send_examples(&Setup::all_kinds().start()));
    // Only a model with classes classifies, and only a language model generates.
    assert!(embedder > 25 && all == embedder + 1, "{embedder} and {all}");
    assert_eq!(send_examples(&Setup::every_kind().start()), all + 11);
}

#[test]
fn every_operation_of_the_document_has_a_name_of_its_own() {
    let document = Setup::every_kind().start().get("/openapi.json").ok().json();
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|path| path.as_object().unwrap().values());
    let mut names: Vec<&str> = operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "clients are made from these names: {names:?}");
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
    let page = "https://page.example";
    let closed = Setup::embedder().start();
    // A page needs no permission to send such a request, only to read what comes of it.
    for path in ["/gpu/release", "/gpu/timeout", "/admin/reload", "/v1/embeddings"] {
        let reply = closed.request("POST", path).header("origin", page).body("timeout=0").send();
        assert_eq!(reply.status, 403, "{path}: {}", reply.text());
        assert!(reply.text().contains("server.cors_origins"), "{path}: {}", reply.text());
    }
    let own = format!("http://{}", closed.address);
    closed.request("GET", "/v1/models").header("origin", &own).send().ok();
    let open = Setup::embedder().settings(&format!("[server]\ncors_origins = \"{page}\"\n")).start();
    let reply = open.request("GET", "/v1/models").header("origin", page).send().ok();
    assert_eq!(reply.header("access-control-allow-origin"), Some(page));
    assert!(reply.header("access-control-expose-headers").unwrap().contains("retry-after"));
    let refused = open.request("POST", "/v1/embeddings").header("origin", page).body("{").send();
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (400, Some(page)));
    let asked = open.request("OPTIONS", "/v1/embeddings").header("origin", page);
    let asked = asked.header("access-control-request-method", "POST");
    let allowed = asked.header("access-control-request-headers", "authorization,x-stainless-os").send().ok();
    assert_eq!(allowed.header("access-control-allow-headers"), Some("authorization,x-stainless-os"));
}

#[test]
fn all_origins_beside_others_ended_the_server_with_a_panic() {
    for origins in ["*,https://a.example", "page.example", "https://"] {
        let (code, said) = Setup::embedder().settings(&format!("[server]\ncors_origins = \"{origins}\"\n")).refused();
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("server.cors_origins") && !said.contains("panicked"), "{said}");
    }
}
