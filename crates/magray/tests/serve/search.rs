//! Qdrant's API as its clients meet it: collections, points, queries, texts that the server embeds, errors, keys, restarts.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    http::Reply,
    rig::{Server, Setup, wait_for},
};

fn send(server: &Server, method: &str, path: &str, body: &Value) -> Reply {
    server.request(method, path).header("content-type", "application/json").body(body.to_string()).send()
}

/// The result of a request that must succeed.
#[track_caller]
fn ask(server: &Server, method: &str, path: &str, body: Value) -> Value {
    let reply = send(server, method, path, &body).ok().json();
    assert_eq!(reply["status"], json!("ok"), "{reply}");
    assert!(reply["time"].is_number(), "{reply}");
    reply["result"].clone()
}

#[track_caller]
fn create(server: &Server, name: &str) {
    let settings = json!({
        "vectors": {"size": 2, "distance": "Dot"},
        "sparse_vectors": {"words": {"modifier": "idf"}},
    });
    assert_eq!(ask(server, "PUT", &format!("/collections/{name}"), settings), json!(true));
}

fn with_points() -> Server {
    let server = Setup::embedder().start();
    create(&server, "things");
    let points = json!({"points": [
        {"id": 1, "vector": [1, 0], "payload": {"word": "red", "n": 1}},
        {"id": 2, "vector": [0, 1], "payload": {"word": "blue", "n": 2}},
        {"id": "c56a4180-65aa-42ec-a945-5fd21dec0538", "vector": [0.5, 0.5], "payload": {"word": "red", "n": 3}},
    ]});
    let stored = ask(&server, "PUT", "/collections/things/points?wait=true", points);
    assert_eq!(stored["status"], json!("completed"));
    server
}

fn ids(result: &Value) -> Vec<Value> {
    let points = if result.is_array() { result } else { &result["points"] };
    points.as_array().unwrap().iter().map(|point| point["id"].clone()).collect()
}

const UUID: &str = "c56a4180-65aa-42ec-a945-5fd21dec0538";

#[test]
fn points_are_stored_found_and_deleted() {
    let server = with_points();
    let found =
        ask(&server, "POST", "/collections/things/points/query", json!({"query": [1, 0], "with_payload": true}));
    assert_eq!(ids(&found), [json!(1), json!(UUID), json!(2)]);
    assert_eq!((&found["points"][0]["score"], &found["points"][0]["payload"]["word"]), (&json!(1.0), &json!("red")));
    let filter = json!({"must": [{"key": "word", "match": {"value": "red"}}]});
    let asked = json!({"query": [0, 1], "filter": filter, "limit": 1, "with_vector": true});
    let found = ask(&server, "POST", "/collections/things/points/query", asked);
    assert_eq!((ids(&found), &found["points"][0]["vector"]), (vec![json!(UUID)], &json!([0.5, 0.5])));
    let count = ask(&server, "POST", "/collections/things/points/count", json!({"filter": filter}));
    assert_eq!(count, json!({"count": 2}));
    let page = ask(&server, "POST", "/collections/things/points/scroll", json!({"limit": 1}));
    assert_eq!((ids(&page), &page["next_page_offset"]), (vec![json!(1)], &json!(2)));
    assert_eq!(ids(&ask(&server, "POST", "/collections/things/points", json!({"ids": [2, 99]}))), [json!(2)]);
    let one = server.get(&format!("/collections/things/points/{UUID}")).ok().json();
    assert_eq!(one["result"]["payload"]["n"], json!(3));
    ask(&server, "POST", "/collections/things/points/delete", json!({"filter": filter}));
    assert_eq!(ids(&ask(&server, "POST", "/collections/things/points/scroll", json!({}))), [json!(2)]);
}

#[test]
fn payloads_and_vectors_are_changed_alone_and_in_batches() {
    let server = with_points();
    let payload =
        |id: u64| server.get(&format!("/collections/things/points/{id}")).ok().json()["result"]["payload"].clone();
    ask(&server, "POST", "/collections/things/points/payload", json!({"payload": {"n": 7}, "points": [1]}));
    assert_eq!(payload(1), json!({"word": "red", "n": 7}));
    ask(&server, "PUT", "/collections/things/points/payload", json!({"payload": {"a": {"b": 1}}, "points": [1]}));
    assert_eq!(payload(1), json!({"a": {"b": 1}}));
    ask(&server, "POST", "/collections/things/points/payload/delete", json!({"keys": ["a.b"], "points": [1]}));
    assert_eq!(payload(1), json!({"a": {}}));
    ask(&server, "POST", "/collections/things/points/payload/clear", json!({"points": [1]}));
    assert_eq!(payload(1), json!({}));
    let words = json!({"points": [{"id": 1, "vector": {"words": {"indices": [5], "values": [2]}}}]});
    ask(&server, "PUT", "/collections/things/points/vectors", words);
    let asked = json!({"query": {"indices": [5], "values": [1]}, "using": "words"});
    assert_eq!(ids(&ask(&server, "POST", "/collections/things/points/query", asked.clone())), [json!(1)]);
    let batch = json!({"operations": [
        {"delete_vectors": {"points": [1], "vector": ["words"]}},
        {"upsert": {"batch": {"ids": [8, 9], "vectors": [[1, 1], [2, 2]], "payloads": [{"n": 8}, null]}}},
        {"delete": {"points": [2]}},
    ]});
    let done = ask(&server, "POST", "/collections/things/points/batch", batch);
    assert_eq!(done.as_array().unwrap().len(), 3);
    assert_eq!(ids(&ask(&server, "POST", "/collections/things/points/query", asked)), [] as [Value; 0]);
    assert_eq!(ask(&server, "POST", "/collections/things/points/count", json!({}))["count"], json!(4));
    let facet = ask(&server, "POST", "/collections/things/facet", json!({"key": "n"}));
    assert_eq!(facet["hits"].as_array().unwrap().len(), 2, "{facet}");
}

#[test]
fn an_upsert_may_leave_points_that_are_there_as_they_are() {
    let server = with_points();
    let n = |id: u64| {
        let found = ask(&server, "POST", "/collections/things/points", json!({"ids": [id]}));
        found[0]["payload"]["n"].clone()
    };
    let upsert = |extra: Value| {
        let mut body = json!({"points": [
            {"id": 1, "vector": [1, 0], "payload": {"n": 10}},
            {"id": 5, "vector": [1, 0], "payload": {"n": 50}},
        ]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ask(&server, "PUT", "/collections/things/points", body);
    };
    upsert(json!({"update_mode": "update_only"}));
    assert_eq!((n(1), n(5)), (json!(10), Value::Null));
    upsert(json!({"update_mode": "insert_only", "update_filter": null}));
    assert_eq!((n(1), n(5)), (json!(10), json!(50)));
    ask(&server, "POST", "/collections/things/points/payload", json!({"payload": {"n": 0}, "points": [1, 5]}));
    upsert(json!({"update_filter": {"must": [{"has_id": [5]}]}}));
    assert_eq!((n(1), n(5)), (json!(0), json!(50)));
}

#[test]
fn queries_come_alone_in_batches_in_groups_and_in_the_older_forms() {
    let server = with_points();
    let path = |rest: &str| format!("/collections/things/points/{rest}");
    let batch = json!({"searches": [{"query": [1, 0], "limit": 1}, {"query": [0, 1], "limit": 1}]});
    let found = ask(&server, "POST", &path("query/batch"), batch);
    assert_eq!((ids(&found[0]), ids(&found[1])), (vec![json!(1)], vec![json!(2)]));
    let grouped = json!({"query": [1, 0], "group_by": "word", "group_size": 1, "limit": 2});
    let groups = ask(&server, "POST", &path("query/groups"), grouped);
    let names: Vec<&Value> = groups["groups"].as_array().unwrap().iter().map(|group| &group["id"]).collect();
    assert_eq!(names, [&json!("red"), &json!("blue")]);
    let fused = json!({
        "prefetch": [{"query": [1, 0], "limit": 2}, {"query": [0, 1], "limit": 2}],
        "query": {"fusion": "rrf"}, "limit": 1,
    });
    assert_eq!(ids(&ask(&server, "POST", &path("query"), fused)), [json!(UUID)], "it is second in both");
    let by_field = json!({"query": {"order_by": {"key": "n", "direction": "desc"}}, "limit": 2});
    assert_eq!(ids(&ask(&server, "POST", &path("query"), by_field)), [json!(UUID), json!(2)]);
    assert_eq!(ids(&ask(&server, "POST", &path("query"), json!({"query": 1, "limit": 1}))), [json!(UUID)]);
    let older = json!({"vector": [1, 0], "limit": 1, "with_payload": ["n"]});
    let found = ask(&server, "POST", &path("search"), older.clone());
    assert_eq!((ids(&found), &found[0]["payload"]), (vec![json!(1)], &json!({"n": 1})));
    assert_eq!(ids(&ask(&server, "POST", &path("search/batch"), json!({"searches": [older]}))[0]), [json!(1)]);
    let recommend = json!({"positive": [1], "negative": [], "limit": 1});
    assert_eq!(ids(&ask(&server, "POST", &path("recommend"), recommend)), [json!(UUID)]);
    let discover = json!({"target": [1, 0], "context": [{"positive": [1, 0], "negative": [0, 1]}], "limit": 1});
    assert_eq!(ids(&ask(&server, "POST", &path("discover"), discover)), [json!(1)]);
    create(&server, "others");
    ask(&server, "PUT", "/collections/others/points", json!({"points": [{"id": 77, "vector": [0, 3]}]}));
    let elsewhere = json!({"query": 77, "lookup_from": {"collection": "others"}, "limit": 1});
    assert_eq!(ids(&ask(&server, "POST", &path("query"), elsewhere)), [json!(2)]);
}

#[test]
fn texts_are_embedded_by_the_server() {
    let server = Setup::embedder().start();
    let vector = server.post("/embed", r#"{"inputs":["river","a cat"],"prompt_name":"query"}"#).ok().json();
    let size = vector[0].as_array().unwrap().len();
    let settings = json!({
        "vectors": {"size": size, "distance": "Cosine"}, "sparse_vectors": {"words": {"modifier": "idf"}}, "text_field": "text",
    });
    ask(&server, "PUT", "/collections/texts", settings);
    let point = |id: u64, text: &str| {
        let vector = json!({"": {"text": text, "model": "bert"}, "words": {"text": text, "model": "Qdrant/bm25"}});
        json!({"id": id, "vector": vector, "payload": {"text": text}})
    };
    ask(
        &server,
        "PUT",
        "/collections/texts/points",
        json!({"points": [point(1, "river"), point(2, "a cat"), point(3, "dogs")]}),
    );
    let query = |body: Value| ask(&server, "POST", "/collections/texts/points/query", body);
    let by_meaning = query(json!({"query": {"text": "a cat", "model": "bert"}, "limit": 1}));
    assert_eq!(query(json!({"query": vector[1], "limit": 1})), by_meaning, "the same vector as by /embed");
    let by_terms = query(json!({"query": {"text": "the dog", "model": "bm25"}, "using": "words"}));
    assert_eq!(ids(&by_terms), [json!(3)]);
    assert_eq!(ids(&query(json!({"query": {"text": "cats"}, "using": "text"}))), [json!(2)], "by BM25 of the field");
    let wrong = json!({"query": {"text": "a", "model": "gpt-4"}});
    let refused = send(&server, "POST", "/collections/texts/points/query", &wrong);
    assert!(refused.status == 404 && refused.text().contains("gpt-4"), "{}", refused.text());
}

#[test]
fn errors_have_the_shape_of_qdrants() {
    let server = with_points();
    for (method, path, body, status) in [
        ("GET", "/collections/none", json!({}), 404),
        ("POST", "/collections/none/points/query", json!({"query": [1, 0]}), 404),
        ("GET", "/collections/things/points/99", json!({}), 404),
        ("PUT", "/collections/things", json!({"vectors": {"size": 2, "distance": "Dot"}}), 409),
        ("PUT", "/collections/things/points", json!({"points": [{"id": 1, "vector": [1, 0, 0]}]}), 400),
        ("PUT", "/collections/things/points", json!({"points": [{"id": -1, "vector": [1, 0]}]}), 400),
        ("PUT", "/collections/things/points", json!({}), 400),
        ("PUT", "/collections/wrong", json!({"vectors": {"size": 0, "distance": "Dot"}}), 400),
        ("POST", "/collections/things/points/query", json!({"query": [1, 0], "using": "none"}), 400),
        ("POST", "/collections/things/points/query", json!({"query": {"unknown": 1}}), 400),
        ("POST", "/collections/things/points/query", json!({"filter": {"musst": []}}), 400),
        ("POST", "/collections/things/points/delete", json!({}), 400),
        ("POST", "/collections/things/nothing", json!({}), 404),
        ("PATCH", "/collections/things/points/query", json!({}), 405),
    ] {
        let reply = send(&server, method, path, &body);
        assert_eq!(reply.status, status, "{method} {path} {body}: {}", reply.text());
        let message = reply.json()["status"]["error"].as_str().unwrap_or_default().to_owned();
        assert!(!message.is_empty(), "{method} {path} {body}: {}", reply.text());
    }
    let not_json = server.request("PUT", "/collections/things/points").body("{").send();
    assert_eq!((not_json.status, not_json.json()["time"].is_number()), (400, true));
    let exists =
        |name: &str| server.get(&format!("/collections/{name}/exists")).ok().json()["result"]["exists"].clone();
    assert_eq!((exists("things"), exists("none")), (json!(true), json!(false)));
    assert_eq!(ask(&server, "DELETE", "/collections/none", json!({})), json!(false));
}

#[test]
fn a_collection_is_shown_as_it_was_made_and_has_aliases() {
    let server = with_points();
    let info = || server.get("/collections/things").ok().json()["result"].clone();
    assert_eq!(info()["config"]["params"]["vectors"], json!({"size": 2, "distance": "Dot"}));
    assert_eq!((&info()["points_count"], &info()["status"]), (&json!(3), &json!("green")));
    ask(&server, "PUT", "/collections/things/index", json!({"field_name": "word", "field_schema": "keyword"}));
    assert_eq!(info()["payload_schema"]["word"], json!({"data_type": "keyword", "points": 3}));
    ask(&server, "DELETE", "/collections/things/index/word", json!({}));
    assert_eq!(info()["payload_schema"], json!({}));
    ask(&server, "PATCH", "/collections/things", json!({"metadata": {"owner": "Ann"}}));
    assert_eq!(info()["config"]["metadata"], json!({"owner": "Ann"}));
    let actions = json!({"actions": [{"create_alias": {"collection_name": "things", "alias_name": "other"}}]});
    ask(&server, "POST", "/collections/aliases", actions);
    let aliases = server.get("/collections/things/aliases").ok().json()["result"]["aliases"].clone();
    assert_eq!(aliases, json!([{"alias_name": "other", "collection_name": "things"}]));
    assert_eq!(ask(&server, "POST", "/collections/other/points/count", json!({}))["count"], json!(3));
    let listed = server.get("/collections").ok().json()["result"]["collections"].clone();
    assert_eq!(listed, json!([{"name": "things"}]));
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let start = || Setup::embedder().arg("--collections").arg(folder.path()).start();
    let server = start();
    create(&server, "things");
    ask(
        &server,
        "PUT",
        "/collections/things/points",
        json!({"points": [{"id": 1, "vector": [1, 0], "payload": {"a": 1}}]}),
    );
    drop(server);
    let again = start();
    let found = ask(&again, "POST", "/collections/things/points/query", json!({"query": [1, 0], "with_payload": true}));
    assert_eq!(found["points"][0]["payload"], json!({"a": 1}));
    // A second process is told who has the folder.
    let second = start();
    let refused = second.get("/collections");
    assert!(refused.status == 503 && refused.text().contains("used by"), "{}", refused.text());
}

#[test]
fn a_server_without_collections_makes_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("collections");
    let server = Setup::embedder().arg("--collections").arg(&inside).start();
    server.post("/embed", r#"{"inputs":"river"}"#).ok();
    server.get("/metrics").ok();
    assert!(!inside.exists());
    create(&server, "things");
    assert!(inside.exists());
}

#[test]
fn keys_of_users_read_and_those_of_administrators_write() {
    let server = Setup::embedder().env("MAGRAY_API_KEYS", "user").env("MAGRAY_ADMIN_KEYS", "admin").start();
    let settings = json!({"vectors": {"size": 2, "distance": "Dot"}}).to_string();
    let put =
        |key: &str| server.request("PUT", "/collections/things").header("api-key", key).body(settings.clone()).send();
    assert_eq!((put("user").status, put("wrong").status, put("admin").status), (403, 401, 200));
    let count = |key: &str| {
        let request = server.request("POST", "/collections/things/points/count").header("api-key", key);
        request.body("{}").send()
    };
    assert_eq!((count("user").status, count("wrong").status), (200, 401));
    assert!(count("wrong").json()["status"]["error"].is_string());
    let delete = server.request("POST", "/collections/things/points/delete").header("api-key", "user");
    assert_eq!(delete.body(r#"{"points":[1]}"#).send().status, 403);
}

#[test]
fn formulas_score_what_prefetches_found() {
    let server = with_points();
    let query = |formula: Value| {
        let body = json!({
            "prefetch": {"query": [1, 0], "limit": 3}, "query": {"formula": formula, "defaults": {"m": 0.5}}, "limit": 2,
        });
        send(&server, "POST", "/collections/things/points/query", &body)
    };
    let scores = |formula: Value| {
        let found = query(formula).ok().json()["result"]["points"].clone();
        found.as_array().unwrap().iter().map(|point| point["score"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(scores(json!({"sum": ["$score", {"mult": [2, "n"]}]})), [6.5, 4.0]);
    assert_eq!(scores(json!({"sum": ["m", {"key": "word", "match": {"value": "red"}}]})), [1.5, 1.5]);
    assert_eq!(scores(json!({"lin_decay": {"x": "n", "target": 2, "scale": 2}})), [1.0, 0.75]);
    for (formula, reason) in
        [(json!({"ln": {"neg": "n"}}), "non-finite"), (json!("missing"), "missing"), (json!({"a": 1}), "a")]
    {
        let refused = query(formula);
        assert!(refused.status == 400 && refused.text().contains(reason), "{}", refused.text());
    }
    let feedback = json!({
        "target": [0.4, 0.6], "feedback": [{"example": [1, 0], "score": 1}, {"example": [0, 1], "score": 0}],
        "strategy": {"naive": {"a": 1, "b": 1, "c": 1}},
    });
    let found =
        ask(&server, "POST", "/collections/things/points/query", json!({"query": {"relevance_feedback": feedback}}));
    assert_eq!(ids(&found), [json!(1), json!(UUID), json!(2)]);
}

#[test]
fn collections_get_vectors_and_lose_them() {
    let server = with_points();
    ask(&server, "PUT", "/collections/things/vectors/late", json!({"dense": {"size": 1, "distance": "Dot"}}));
    let refused = send(&server, "PUT", "/collections/things/vectors/words", &json!({"sparse": {}}));
    assert_eq!(refused.status, 409, "{}", refused.text());
    let vectors = json!({"points": [{"id": 2, "vector": {"late": [3]}}]});
    ask(&server, "PUT", "/collections/things/points/vectors", vectors);
    let found = ask(&server, "POST", "/collections/things/points/query", json!({"query": [2], "using": "late"}));
    assert_eq!((ids(&found), &found["points"][0]["score"]), (vec![json!(2)], &json!(6.0)));
    ask(&server, "DELETE", "/collections/things/vectors/late", json!({}));
    let count = ask(&server, "POST", "/collections/things/points/count", json!({}));
    assert_eq!(count, json!({"count": 3}));
    assert_eq!(send(&server, "DELETE", "/collections/things/vectors/late", &json!({})).status, 400);
}

#[test]
fn requests_are_counted_by_the_route_and_not_by_the_collection() {
    let server = with_points();
    ask(&server, "POST", "/collections/things/points/query", json!({"query": [1, 0]}));
    let metrics = server.get("/metrics").ok();
    let line = r#"magray_http_requests_total{route="/collections/{collection_name}/points/query",method="POST",status="200"} 1"#;
    assert!(metrics.text().contains(line) && !metrics.text().contains("things"), "{}", metrics.text());
}

#[test]
fn clients_are_told_the_version_of_the_api_at_the_root() {
    let server = Setup::embedder().start();
    let told = server.request("GET", "/").header("user-agent", "python-client/1.20.0 python/3.11").send().ok().json();
    assert!(told["version"].as_str().unwrap().starts_with("1."), "{told}");
    assert_eq!(server.get("/").ok().text(), "magray is running");
    assert_eq!(server.get("/healthz").ok().text(), "healthz check passed");
}

/// Numbers that look random and are the same in every run.
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn searches_on_gpu(server: &Server) -> u64 {
    let page = server.get("/metrics").ok();
    let line = page.text().lines().find(|line| line.starts_with("magray_vector_searches_total{device=\"gpu\"}"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// Searches until a GPU has done so; each answer must be what `expected` is.
#[track_caller]
fn search_until_on_gpu(server: &Server, query: &Value, expected: &[Value]) {
    let before = searches_on_gpu(server);
    wait_for("a search on the GPU", || {
        let found = ask(server, "POST", "/collections/many/points/query", query.clone());
        assert_eq!(ids(&found), expected);
        searches_on_gpu(server) > before
    });
}

#[test]
fn vectors_are_searched_on_a_gpu_and_answers_do_not_change_when_it_is_lost() {
    const COUNT: u64 = 2000;
    let gpu = ["--simulated-gpus", "1", "--model", &crate::rig::fixture("bert")];
    let server = Setup::new(&gpu).env("MAGRAY_SEARCH_GPU_FROM_MIB", "0").start();
    ask(&server, "PUT", "/collections/many", json!({"vectors": {"size": 8, "distance": "Euclid"}}));
    let point = |id: u64, seed: u64| json!({"id": id, "vector": numbers(seed, 8), "payload": {"n": id}});
    let points: Vec<Value> = (0..COUNT).map(|id| point(id, id)).collect();
    ask(&server, "PUT", "/collections/many/points?wait=true", json!({"points": points}));
    let query = numbers(77_777, 8);
    // By the numbers themselves.
    let nearest = |seed_of: &dyn Fn(u64) -> Option<u64>| {
        let distance = |seed: u64| numbers(seed, 8).iter().zip(&query).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        let mut all: Vec<(f64, u64)> = (0..COUNT).filter_map(|id| Some((distance(seed_of(id)?), id))).collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        all.iter().take(10).map(|(_, id)| json!(id)).collect::<Vec<_>>()
    };
    let asked = json!({"query": query});
    let first = nearest(&Some);
    search_until_on_gpu(&server, &asked, &first);
    // Changed, deleted and new vectors count from the next search on.
    let (changed, deleted) = (first[0].as_u64().unwrap(), first[1].as_u64().unwrap());
    ask(&server, "PUT", "/collections/many/points?wait=true", json!({"points": [point(changed, 99_999)]}));
    ask(&server, "POST", "/collections/many/points/delete?wait=true", json!({"points": [deleted]}));
    let seed_of = |id| if id == changed { Some(99_999) } else { (id != deleted).then_some(id) };
    let second = nearest(&seed_of);
    search_until_on_gpu(&server, &asked, &second);
    // The worker dies: the same answers come from the CPU, then from a new worker.
    let status = server.get("/gpu/status").ok().json();
    let pid = status["devices"][1]["worker_pid"].as_i64().expect("a worker computes");
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    let found = ask(&server, "POST", "/collections/many/points/query", asked.clone());
    assert_eq!(ids(&found), second);
    search_until_on_gpu(&server, &asked, &second);
}
