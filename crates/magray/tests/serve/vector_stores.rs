//! OpenAI's files and vector stores as its clients meet them: uploads, indexing, searches, batches, errors, keys, kills.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    http::Reply,
    rig::{Server, Setup, wait_for},
};

/// Short: the tiny model reads few tokens, and each of them is to be one chunk.
const RIVER: &str = "the cat sat on the river";
const HILL: &str = "a dog";

/// With collections in a folder that outlives the server.
fn serving(folder: &std::path::Path) -> Setup {
    Setup::embedder().arg("--collections").arg(folder)
}

fn form(filename: &str, content: &[u8]) -> Vec<u8> {
    let head = format!(
        "--limit\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n--limit\r\n\
         content-disposition: form-data; name=\"file\"; filename=\"{filename}\"\r\n\r\n"
    );
    [head.as_bytes(), content, b"\r\n--limit--\r\n"].concat()
}

fn send_file(server: &Server, filename: &str, content: &[u8]) -> Reply {
    let request = server.request("POST", "/v1/files").header("content-type", "multipart/form-data; boundary=limit");
    request.body(form(filename, content)).send()
}

#[track_caller]
fn upload(server: &Server, filename: &str, content: &str) -> String {
    let file = send_file(server, filename, content.as_bytes()).ok().json();
    assert_eq!((&file["object"], &file["filename"]), (&json!("file"), &json!(filename)));
    assert_eq!(file["bytes"], json!(content.len()));
    file["id"].as_str().unwrap().to_owned()
}

#[track_caller]
fn post(server: &Server, path: &str, body: Value) -> Value {
    server.post(path, &body.to_string()).ok().json()
}

#[track_caller]
fn delete(server: &Server, path: &str) -> Value {
    server.request("DELETE", path).send().ok().json()
}

#[track_caller]
fn store_of(server: &Server, body: Value) -> String {
    let store = post(server, "/v1/vector_stores", body);
    assert_eq!(store["object"], json!("vector_store"), "{store}");
    store["id"].as_str().unwrap().to_owned()
}

/// Waits until nothing of a store is being indexed.
#[track_caller]
fn wait_until_indexed(server: &Server, store: &str) {
    wait_for("the end of indexing", || {
        server.get(&format!("/v1/vector_stores/{store}")).ok().json()["file_counts"]["in_progress"] == json!(0)
    });
}

/// Two files with attributes, in a store.
fn indexed() -> (Server, String, [String; 2]) {
    let server = Setup::all_kinds().start();
    let store = store_of(&server, json!({"name": "notes", "metadata": {"team": "a"}}));
    let files = [upload(&server, "river.txt", RIVER), upload(&server, "hill.md", HILL)];
    for (file, (about, year)) in files.iter().zip([("river", 2020), ("hill", 2021)]) {
        let body = json!({"file_id": file, "attributes": {"about": about, "year": year}});
        let attached = post(&server, &format!("/v1/vector_stores/{store}/files"), body);
        assert_eq!((&attached["object"], &attached["vector_store_id"]), (&json!("vector_store.file"), &json!(store)));
    }
    wait_until_indexed(&server, &store);
    (server, store, files)
}

#[track_caller]
fn found(server: &Server, store: &str, body: Value) -> Vec<String> {
    let page = post(server, &format!("/v1/vector_stores/{store}/search"), body);
    assert_eq!(page["object"], json!("vector_store.search_results.page"));
    let results = page["data"].as_array().unwrap().iter();
    results.map(|result| result["filename"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn files_of_a_store_are_found_by_what_they_say() {
    let (server, store, files) = indexed();
    let shown = server.get(&format!("/v1/vector_stores/{store}")).ok().json();
    assert_eq!((&shown["status"], &shown["name"]), (&json!("completed"), &json!("notes")));
    assert_eq!((&shown["file_counts"]["completed"], &shown["metadata"]["team"]), (&json!(2), &json!("a")));
    assert!(shown["usage_bytes"].as_u64().unwrap() > 0);
    let page = post(&server, &format!("/v1/vector_stores/{store}/search"), json!({"query": RIVER}));
    let best = &page["data"][0];
    assert_eq!((&best["file_id"], &best["filename"]), (&json!(files[0]), &json!("river.txt")));
    assert_eq!((&best["content"][0]["type"], &best["content"][0]["text"]), (&json!("text"), &json!(RIVER)));
    assert_eq!(best["attributes"], json!({"about": "river", "year": 2020}));
    let score = |at: usize| page["data"][at]["score"].as_f64().unwrap();
    assert!(score(0) > 0.9 && score(0) > score(1), "{page}");
    assert_eq!((&page["search_query"], &page["has_more"]), (&json!([RIVER]), &json!(false)));
    let search = |extra: Value| {
        let mut body = json!({"query": "the river"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        found(&server, &store, body)
    };
    assert_eq!(search(json!({"max_num_results": 1})).len(), 1);
    assert_eq!(search(json!({"filters": {"type": "eq", "key": "about", "value": "hill"}})), ["hill.md"]);
    assert_eq!(search(json!({"filters": {"type": "gt", "key": "year", "value": 2020}})), ["hill.md"]);
    let either = json!({"type": "or", "filters": [
        {"type": "nin", "key": "about", "value": ["river", "hill"]}, {"type": "lt", "key": "year", "value": 2021},
    ]});
    assert_eq!(search(json!({ "filters": either })), ["river.txt"]);
    assert_eq!(search(json!({"query": [RIVER, HILL]})).len(), 2, "several queries, each part once");
    for ranker in ["none", "auto", "default-2024-11-15"] {
        assert_eq!(search(json!({"ranking_options": {"ranker": ranker}})).len(), 2, "{ranker}");
    }
    let between = json!({"score_threshold": (score(0) + score(1)) / 2.0});
    assert_eq!(search(json!({"query": RIVER, "ranking_options": between})), ["river.txt"]);
    let words = json!({"hybrid_search": {"embedding_weight": 0.01, "text_weight": 1.0}});
    assert_eq!(search(json!({"query": "dog", "ranking_options": words, "max_num_results": 1})), ["hill.md"]);
}

#[test]
fn a_store_is_a_collection_that_every_door_sees() {
    let (server, store, _) = indexed();
    let query = json!({"query": {"text": RIVER}, "limit": 1, "with_payload": true});
    let best = post(&server, &format!("/collections/{store}/points/query"), query)["result"]["points"][0].clone();
    assert_eq!(best["payload"]["filename"], json!("river.txt"));
    let printed =
        server.beside(&["search", &store, RIVER, "--server", &format!("http://{}", server.address), "--json"]);
    assert!(printed.contains("river.txt"), "{printed}");
    // And one that was made elsewhere can be searched here.
    let dimensions = server.post("/embed", r#"{"inputs":"river"}"#).ok().json()[0].as_array().unwrap().len();
    let settings = json!({"vectors": {"size": dimensions, "distance": "Cosine"}, "text_field": "text"});
    server.request("PUT", "/collections/other").body(settings.to_string()).send().ok();
    let payload = json!({"text": HILL, "source": "docs/hill.md", "n": 1});
    let points = json!({"points": [{"id": 5, "vector": {"text": HILL}, "payload": payload}]});
    server.request("PUT", "/collections/other/points").body(points.to_string()).send().ok();
    let filter = json!({"type": "eq", "key": "n", "value": 1});
    let page = post(&server, "/v1/vector_stores/other/search", json!({"query": "clouds", "filters": filter}));
    let best = &page["data"][0];
    assert_eq!((&best["file_id"], &best["filename"]), (&json!("5"), &json!("docs/hill.md")));
    assert_eq!(server.get("/v1/vector_stores/other").ok().json()["name"], json!("other"));
    let listed = server.get("/v1/vector_stores").ok().json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "only stores are listed: {listed}");
    server.check_refused("/v1/vector_stores/other", "{}", 400, "is no vector store");
    assert_eq!(server.request("DELETE", "/v1/vector_stores/other").send().status, 400);
}

#[test]
fn files_are_listed_changed_and_taken_out() {
    let (server, store, files) = indexed();
    let path = format!("/v1/vector_stores/{store}/files");
    let ids = |query: &str| {
        let page = server.get(&format!("{path}{query}")).ok().json();
        let data = page["data"].as_array().unwrap().iter();
        data.map(|file| file["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(""), [files[1].clone(), files[0].clone()]);
    assert_eq!(ids("?order=asc&limit=1"), [files[0].clone()]);
    assert_eq!(ids(&format!("?after={}", files[1])), [files[0].clone()]);
    assert_eq!((ids("?filter=failed").len(), ids("?filter=completed").len()), (0, 2));
    assert_eq!(server.get(&format!("{path}?limit=0")).status, 400);
    let content = server.get(&format!("{path}/{}/content", files[1])).ok().json();
    assert_eq!(
        (&content["object"], &content["data"][0]["text"]),
        (&json!("vector_store.file_content.page"), &json!(HILL))
    );
    let changed = post(&server, &format!("{path}/{}", files[0]), json!({"attributes": {"about": "boats"}}));
    assert_eq!(changed["attributes"], json!({"about": "boats"}));
    let filter = json!({"type": "eq", "key": "about", "value": "boats"});
    assert_eq!(found(&server, &store, json!({"query": "boat", "filters": filter})), ["river.txt"]);
    let gone = delete(&server, &format!("{path}/{}", files[0]));
    assert_eq!(gone, json!({"id": files[0], "object": "vector_store.file.deleted", "deleted": true}));
    assert_eq!(
        (ids(""), found(&server, &store, json!({"query": "boat"}))),
        (vec![files[1].clone()], vec!["hill.md".to_owned()])
    );
    assert_eq!(server.get(&format!("{path}/{}", files[0])).status, 404);
    assert_eq!(server.get(&format!("/v1/files/{}/content", files[0])).ok().text(), RIVER, "the file itself stays");
    // A file that is deleted leaves the stores too.
    delete(&server, &format!("/v1/files/{}", files[1]));
    assert_eq!((ids("").len(), found(&server, &store, json!({"query": "boat"})).len()), (0, 0));
    let left = server.get("/v1/files?purpose=assistants").ok().json();
    assert_eq!((&left["data"][0]["id"], &left["has_more"]), (&json!(files[0]), &json!(false)));
    delete(&server, &format!("/v1/vector_stores/{store}"));
    assert_eq!(server.get(&format!("/v1/vector_stores/{store}")).status, 404);
}

#[test]
fn a_batch_tells_what_became_of_its_files() {
    let server = Setup::embedder().start();
    let bytes: Vec<u8> = vec![0; 100];
    let binary = send_file(&server, "x.bin", &bytes).ok().json()["id"].as_str().unwrap().to_owned();
    let blank = upload(&server, "blank.txt", " \n");
    let text = upload(&server, "river.txt", RIVER);
    let store = store_of(&server, json!({}));
    let strategy = json!({"type": "static", "static": {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 400}});
    let body = json!({"file_ids": [binary, blank, text], "chunking_strategy": strategy, "attributes": {"n": 1}});
    let batch = post(&server, &format!("/v1/vector_stores/{store}/file_batches"), body);
    assert_eq!((&batch["object"], &batch["file_counts"]["total"]), (&json!("vector_store.files_batch"), &json!(3)));
    let path = format!("/v1/vector_stores/{store}/file_batches/{}", batch["id"].as_str().unwrap());
    wait_for("the batch", || server.get(&path).ok().json()["status"] == json!("completed"));
    let shown = server.get(&path).ok().json();
    assert_eq!((&shown["file_counts"]["completed"], &shown["file_counts"]["failed"]), (&json!(1), &json!(2)));
    let files = server.get(&format!("{path}/files")).ok().json();
    assert_eq!(files["data"].as_array().unwrap().len(), 3);
    let file = |id: &str| server.get(&format!("/v1/vector_stores/{store}/files/{id}")).ok().json();
    assert_eq!(file(&binary)["last_error"]["code"], json!("unsupported_file"));
    assert_eq!(file(&blank)["last_error"]["code"], json!("invalid_file"));
    // Chunks are no longer than the model reads, and the answer says so.
    let sizes = &file(&text)["chunking_strategy"]["static"];
    assert!(sizes["max_chunk_size_tokens"].as_u64().unwrap() < 800, "{sizes}");
    let cancelled = post(&server, &format!("{path}/cancel"), json!({}));
    assert_eq!(cancelled["file_counts"], shown["file_counts"], "what is indexed stays");
    assert_eq!(server.get(&format!("/v1/vector_stores/{store}/file_batches/vsfb_1")).status, 404);
}

#[test]
fn long_files_are_split_by_tokens_with_the_wanted_sizes() {
    let server = Setup::embedder().start();
    let long = upload(&server, "long.txt", &"The cat sat by the river. ".repeat(400));
    let store = store_of(&server, json!({}));
    let chunks = |strategy: Value| {
        let body = json!({"file_id": long, "chunking_strategy": strategy});
        post(&server, &format!("/v1/vector_stores/{store}/files"), body);
        wait_until_indexed(&server, &store);
        let count = post(&server, &format!("/collections/{store}/points/count"), json!({}));
        count["result"]["count"].as_u64().unwrap() - 1
    };
    let auto = chunks(json!({"type": "auto"}));
    let sizes = json!({"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50});
    let half = chunks(json!({"type": "static", "static": sizes}));
    assert!(auto > 5 && half != auto, "{auto} and {half}");
    let again = chunks(json!({"type": "auto"}));
    assert_eq!(again, auto, "a file that is put in again has its chunks once");
}

#[test]
fn what_was_acknowledged_survives_a_kill_and_indexing_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = serving(folder.path()).start();
    let store = store_of(&server, json!({"name": "kept"}));
    let first = upload(&server, "river.txt", RIVER);
    post(&server, &format!("/v1/vector_stores/{store}/files"), json!({"file_id": first}));
    wait_until_indexed(&server, &store);
    // Long enough to be still under way when the server is killed; should it be done, the rest holds as well.
    let long = upload(&server, "long.txt", &"The cat sat by the river. ".repeat(20_000));
    post(&server, &format!("/v1/vector_stores/{store}/files"), json!({"file_id": long}));
    server.signal(Signal::KILL);
    drop(server);
    let server = serving(folder.path()).start();
    assert_eq!(found(&server, &store, json!({"query": RIVER, "max_num_results": 1})), ["river.txt"]);
    wait_until_indexed(&server, &store);
    let shown = server.get(&format!("/v1/vector_stores/{store}")).ok().json();
    assert_eq!((&shown["name"], &shown["file_counts"]["completed"]), (&json!("kept"), &json!(2)));
    assert_eq!(server.get(&format!("/v1/files/{long}")).ok().json()["filename"], json!("long.txt"));
    let filter = json!({"must": [{"key": "file_id", "match": {"value": long}}, {"has_vector": ""}]});
    let count = || post(&server, &format!("/collections/{store}/points/count"), json!({"filter": filter}));
    let parts = count()["result"]["count"].clone();
    post(&server, &format!("/v1/vector_stores/{store}/files"), json!({"file_id": long}));
    wait_until_indexed(&server, &store);
    assert_eq!(count()["result"]["count"], parts, "the same chunks as by a run that nobody cut off");
}

#[test]
fn a_file_that_is_taken_out_while_it_is_indexed_leaves_nothing() {
    let server = Setup::embedder().start();
    let store = store_of(&server, json!({}));
    let long = upload(&server, "long.txt", &"The cat sat by the river. ".repeat(20_000));
    let path = format!("/v1/vector_stores/{store}");
    let batch = post(&server, &format!("{path}/file_batches"), json!({"file_ids": [long]}));
    assert_eq!(found(&server, &store, json!({"query": "cat"})).len(), 0, "a file is found when it is whole");
    let batch = format!("{path}/file_batches/{}", batch["id"].as_str().unwrap());
    let cancelled = post(&server, &format!("{batch}/cancel"), json!({}));
    assert_eq!((&cancelled["status"], &cancelled["file_counts"]["cancelled"]), (&json!("cancelled"), &json!(1)));
    post(&server, &format!("{path}/files"), json!({"file_id": long}));
    delete(&server, &format!("{path}/files/{long}"));
    let points = || post(&server, &format!("/collections/{store}/points/count"), json!({}))["result"]["count"].clone();
    // A second file is indexed after the first has given up its place.
    let other = upload(&server, "river.txt", RIVER);
    post(&server, &format!("{path}/files"), json!({"file_id": other}));
    wait_until_indexed(&server, &store);
    assert_eq!(points(), json!(2), "the record of the second file and its chunk");
}

#[test]
fn refusals_say_what_is_wrong() {
    let server = Setup::embedder().start();
    let store = store_of(&server, json!({}));
    let path = format!("/v1/vector_stores/{store}");
    let text = upload(&server, "river.txt", RIVER);
    for (path, body, status, reason) in [
        ("/v1/vector_stores/vs_none/search".to_owned(), json!({"query": "a"}), 404, "no vector store"),
        (format!("{path}/files"), json!({"file_id": "file-none"}), 404, "no file"),
        (format!("{path}/files"), json!({}), 400, "file_id"),
        (format!("{path}/files"), json!({"file_id": text, "attributes": {"a": []}}), 400, "attributes.a"),
        (format!("{path}/file_batches"), json!({}), 400, "file_ids or files"),
        (format!("{path}/search"), json!({"query": ""}), 400, "query"),
        (format!("{path}/search"), json!({"query": "a", "max_num_results": 100}), 400, "max_num_results"),
        (format!("{path}/search"), json!({"query": "a", "filters": {"type": "like"}}), 400, "filter"),
        (format!("{path}/search"), json!({"query": "a", "ranking_options": {"ranker": "x"}}), 400, "ranker"),
        (path.clone(), json!({"expires_after": {"anchor": "last_active_at", "days": 0}}), 400, "days"),
        ("/v1/vector_stores".to_owned(), json!({"file_ids": ["file-none"]}), 404, "no file"),
        ("/v1/vector_stores".to_owned(), json!({"model": "none"}), 404, "none"),
    ] {
        let reply = server.post(&path, &body.to_string());
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text());
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains(reason), "{path}: {}", reply.text());
    }
    let listed = server.get("/v1/vector_stores").ok().json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "a refused store is not left behind: {listed}");
    let expiring = post(&server, &path, json!({"expires_after": {"anchor": "last_active_at", "days": 7}}));
    let (active, end) = (expiring["last_active_at"].as_u64().unwrap(), expiring["expires_at"].as_u64().unwrap());
    assert_eq!(end - active, 7 * 86_400);
    let broken = server.request("POST", "/v1/files").header("content-type", "multipart/form-data; boundary=limit");
    assert_eq!(broken.body("--limit\r\n").send().status, 400);
    let no_file = "--limit\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n--limit--\r\n";
    let request = server.request("POST", "/v1/files").header("content-type", "multipart/form-data; boundary=limit");
    assert_eq!(request.body(no_file).send().json()["error"]["param"], json!("file"));
    assert_eq!(server.request("POST", "/v1/files").body("{}").send().status, 400);
}

#[test]
fn a_body_over_the_limit_is_no_file() {
    let server = Setup::embedder().settings("[server]\nbody_bytes_max = 3000\n").start();
    assert_eq!(send_file(&server, "a.txt", &[b'a'; 3000]).status, 413);
    send_file(&server, "a.txt", &[b'a'; 2000]).ok();
}

#[test]
fn keys_of_users_search_and_those_of_administrators_change() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "user").env("MAGRAY_ADMIN_KEYS", "admin").start();
    let create = |key: &str| server.request("POST", "/v1/vector_stores").key(key).body("{}").send();
    let made = create("admin").ok().json();
    assert_eq!((create("user").status, create("wrong").status), (403, 401));
    let path = format!("/v1/vector_stores/{}", made["id"].as_str().unwrap());
    let search = server.request("POST", &format!("{path}/search")).key("user").body(r#"{"query":"a"}"#);
    search.send().ok();
    assert_eq!(server.request("GET", &path).key("user").send().status, 200);
    assert_eq!(server.request("DELETE", &path).key("user").send().status, 403);
    assert_eq!(server.request("GET", "/v1/files").key("user").send().status, 200);
}
