//! GPU control through HTTP: where models are, how they come and go, and workers that die under load.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::rig::{Server, Setup, wait_for};

fn status(server: &Server) -> Value {
    server.get("/gpu/status").ok().json()
}

fn location(server: &Server) -> String {
    status(server)["models"][0]["location"].as_str().unwrap().to_owned()
}

#[test]
fn a_model_is_loaded_by_its_first_request_and_moved_by_requests() {
    let server = Setup::on_gpu("").start();
    assert_eq!(location(&server), "unloaded");
    let reply = server.post("/v1/embeddings", r#"{"input":"river"}"#).ok();
    assert_eq!(reply.header("x-magray-device"), Some("sim:0"));
    assert_eq!(location(&server), "gpu");
    assert!(status(&server)["gpu_memory_allocated_gb"].as_f64().unwrap() > 0.0);

    let moved = server.post("/gpu/offload", "").ok().json();
    assert_eq!(moved["models"][0]["name"], json!("bert"));
    assert_eq!(location(&server), "cpu");
    server.post("/gpu/preheat", r#"{"model":"bert"}"#).ok();
    assert_eq!(location(&server), "gpu");
    server.request("POST", "/gpu/release").body("model=bert").send().ok();
    assert_eq!(location(&server), "unloaded");
    server.post("/v1/embeddings", r#"{"input":"river"}"#).ok();
    server.check_refused("/gpu/offload", r#"{"model":"nothing"}"#, 404, "no model 'nothing'");
}

#[test]
fn requests_to_move_models_had_no_bound() {
    // The load never ends, so none of the moves does.
    let server = Setup::on_gpu("load_hang@0s").start();
    let (send, replies) = std::sync::mpsc::channel();
    for _ in 0..9 {
        let (mut stream, send) = (server.request("POST", "/gpu/preheat").body("").begin(), send.clone());
        std::thread::spawn(move || send.send(crate::http::Reply::read(&mut stream)));
    }
    let refused = replies.recv().unwrap().expect("an answer");
    assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("overloaded")), "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    assert!(replies.try_recv().is_err(), "eight moves are under way");
}

#[test]
fn a_multipart_form_got_422() {
    let server = Setup::embedder().start();
    // As curl -F sends it.
    let multipart = |path: &str, body: &str| {
        let kind = "multipart/form-data; boundary=------------------------d74496d66958873e";
        let body = body.replace('\n', "\r\n").replace("--B", "--------------------------d74496d66958873e");
        server.request("POST", path).header("content-type", kind).body(body).send()
    };
    let field = |name: &str, value: &str| format!("--B\nContent-Disposition: form-data; name=\"{name}\"\n\n{value}\n");
    let timeout = |fields: &str| multipart("/gpu/timeout", &format!("{fields}--B--\n"));
    let changed = timeout(&field("timeout", "300")).ok().json();
    assert_eq!(changed, json!({"models": ["bert"], "timeout": 300.0}));
    assert_eq!(status(&server)["models"][0]["idle_timeout_s"], json!(300.0));
    let both = format!("{}{}", field("model", "bert"), field("timeout_seconds", "never"));
    assert_eq!(timeout(&both).ok().json()["timeout"], Value::Null);
    for path in ["/gpu/offload", "/gpu/release", "/gpu/preheat"] {
        for body in ["", "--B--\n", &format!("{}--B--\n", field("model", "bert"))] {
            let moved = multipart(path, body).ok().json();
            assert_eq!(moved["models"][0]["name"], json!("bert"), "{path} {body}");
        }
        let unknown = multipart(path, &format!("{}--B--\n", field("model", "nothing")));
        assert_eq!(unknown.status, 404, "{path}: {}", unknown.text());
    }
    for (wrong, status) in [
        (field("timeout", "soon"), 422),
        (String::new(), 422),
        (field("timeout", "1").repeat(2), 422),
        (field("timeout", "1").repeat(100), 413),
        (field("timeout", &"1".repeat(100_000)), 413),
    ] {
        let reply = timeout(&wrong);
        assert_eq!(reply.status, status, "{}", reply.text());
    }
    let broken = multipart("/gpu/timeout", &field("timeout", "5"));
    assert_eq!(broken.status, 400, "{}", broken.text());
    let without_boundary = server.request("POST", "/gpu/timeout").header("content-type", "multipart/form-data");
    assert_eq!(without_boundary.body("x").send().status, 400);
}

#[test]
fn the_document_names_every_form_of_the_fields() {
    let document = Setup::embedder().start().get("/openapi.json").ok().json();
    let paths = document["paths"].as_object().unwrap().iter();
    let calls: Vec<_> =
        paths.filter(|(path, call)| path.starts_with("/gpu/") && call["post"]["requestBody"].is_object()).collect();
    assert_eq!(calls.len(), 6);
    for (path, call) in calls {
        let forms: Vec<&String> = call["post"]["requestBody"]["content"].as_object().unwrap().keys().collect();
        let expected = ["application/json", "application/x-www-form-urlencoded", "multipart/form-data"];
        assert!(expected.iter().all(|form| forms.iter().any(|known| known == form)), "{path}: {forms:?}");
    }
}

#[test]
fn the_idle_timeout_is_changed_by_form_and_json() {
    let server = Setup::embedder().start();
    let timeout = || status(&server)["models"][0]["idle_timeout_s"].clone();
    assert_eq!(timeout(), json!(60.0));
    let form = server.request("POST", "/gpu/timeout").header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(form.body("timeout=30").send().ok().json(), json!({"models": ["bert"], "timeout": 30.0}));
    assert_eq!(timeout(), json!(30.0));
    server.post("/gpu/timeout", r#"{"timeout":2.5,"model":"bert"}"#).ok();
    assert_eq!(timeout(), json!(2.5));
    server.post("/gpu/timeout", r#"{"timeout":"never"}"#).ok();
    assert_eq!(timeout(), Value::Null);
    server.post("/gpu/timeout", r#"{"timeout_seconds":0}"#).ok();
    assert_eq!(status(&server)["models"][0]["offload_after_use"], json!(true));
    for wrong in ["", "{}", r#"{"timeout":-1}"#, r#"{"timeout":"soon"}"#, r#"{"timeout":1e300}"#] {
        server.check_refused("/gpu/timeout", wrong, 422, "timeout");
    }
    assert_eq!(server.request("POST", "/gpu/timeout").body("timeout=x").send().status, 422);
}

#[test]
fn the_command_line_sees_the_server() {
    let server = Setup::on_gpu("").start();
    let told = server.beside(&["gpu", "status", "--json"]);
    let pid = status(&server)["pid"].as_u64().unwrap();
    assert!(told.contains(&pid.to_string()) && told.contains("bert"), "{told}");
    server.post("/embed", r#"{"inputs":["river","cat"]}"#).ok();
    let told = server.beside(&["gpu", "status"]);
    for word in ["average latency", "throughput", "fallback rate", "uptime", "TensorRT", "grade", "texts/s", "sim:0"] {
        assert!(told.contains(word), "{word} is not in\n{told}");
    }
}

#[test]
fn http_and_the_command_line_tell_the_same() {
    let server = Setup::on_gpu("").start();
    server.post("/embed", r#"{"inputs":["river","cat"]}"#).ok();
    let told: Value = serde_json::from_str(&server.beside(&["gpu", "status", "--json"])).unwrap();
    let (mut by_socket, mut by_http) = (told["engines"][0].clone(), status(&server));
    let fields = |report: &Value| report.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&by_socket), fields(&by_http));
    assert_eq!(by_http["performance"]["requests"], json!(1));
    assert_eq!(by_http["performance"]["fallback_rate"], json!(0.0));
    assert!(by_http["performance"]["latency_mean_s"].as_f64().unwrap() > 0.0);
    let stays = |report: &mut Value| {
        let device = report["devices"][1].take();
        (device["grade"].clone(), device["worker_pid"].clone(), report["models"][0]["residency"].take())
    };
    assert_eq!(stays(&mut by_socket), stays(&mut by_http));
}

#[test]
fn the_devices_are_listed() {
    let server = Setup::on_gpu("").start();
    let devices = server.get("/gpu/devices").ok().json();
    let names: Vec<&str> = devices.as_array().unwrap().iter().map(|device| device["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cpu", "sim:0"]);
}

#[test]
fn a_worker_that_is_killed_under_64_clients_costs_no_answer() {
    /// Tolerance for the order of sums, which depends on what else is in a batch.
    const TOLERANCE: f32 = 1e-5;
    const WORDS: [&str; 8] = ["quick", "brown", "fox", "jumps", "over", "lazy", "dog", "runs"];
    let body = |client: usize| {
        let (a, b) = (WORDS[client / 8], WORDS[client % 8]);
        json!({"inputs": [format!("the {a} {b}"), format!("{b} before {a}.")]}).to_string()
    };
    let vectors = |reply: crate::http::Reply| -> Vec<Vec<f32>> { serde_json::from_value(reply.ok().json()).unwrap() };
    let furthest = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let on_gpu = |faults| Setup::on_gpu(faults).arg("--precision").arg("f32").start();

    // What each client must get: its texts alone, from a server without faults.
    let calm = on_gpu("");
    let right: Vec<Vec<Vec<f32>>> = (0..64).map(|client| vectors(calm.post("/embed", &body(client)))).collect();
    let all: Vec<&Vec<f32>> = right.iter().flatten().collect();
    for (at, one) in all.iter().enumerate() {
        // The answer of another client, or of the other text, would be seen.
        assert!(all[..at].iter().all(|other| furthest(one, other) > 100.0 * TOLERANCE), "text {at} is like another");
    }

    // The second batch never ends by itself, so that all 64 are there when the worker is killed.
    let server = on_gpu("hang@batch=2");
    server.post("/embed", r#"{"inputs":"fox"}"#).ok();
    let clients: Vec<_> = (0..64).map(|client| server.request("POST", "/embed").body(body(client)).begin()).collect();
    wait_for("all 64 requests", || status(&server)["requests"] == json!(64));
    let pid = status(&server)["devices"][1]["worker_pid"].as_i64().expect("a worker computes");
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    for (client, (mut stream, right)) in clients.into_iter().zip(&right).enumerate() {
        let got = vectors(crate::http::Reply::read(&mut stream).expect("an answer"));
        assert_eq!(got.len(), right.len(), "client {client}");
        for (text, (got, right)) in got.iter().zip(right).enumerate() {
            let off = furthest(got, right);
            assert!(got.len() == right.len() && off <= TOLERANCE, "client {client}, text {text}: off by {off}");
        }
    }
    assert!(status(&server)["devices"][1]["worker_restarts"].as_u64().unwrap() >= 1);
}

#[test]
fn a_gpu_that_is_wrong_from_its_first_batch_on_answers_nobody() {
    let body = r#"{"inputs":"the quick fox"}"#;
    let calm = Setup::on_gpu("").start().post("/embed", body).ok().json();
    for preload in ["false", "true"] {
        let server = Setup::on_gpu("wrong@batch=1*2").env("MAGRAY_PRELOAD", preload).start();
        let reply = server.post("/embed", body).ok();
        assert_eq!(reply.header("x-magray-device"), Some("sim:0"));
        assert_eq!(reply.json(), calm, "preload: {preload}");
        assert!(server.said().contains("the device returned wrong answers"), "{}", server.said());
    }
}

#[test]
fn without_a_gpu_loads_idle_time_and_totals_were_blank() {
    let server = Setup::embedder().start();
    let model = || status(&server)["models"][0].clone();
    assert_eq!(model()["loads"], json!(0));
    server.post("/embed", r#"{"inputs":["river","cat"]}"#).ok();
    wait_for("the idle time", || model()["idle_s"].as_f64().unwrap() > 0.0);
    let report = status(&server);
    let (cpu, model) = (&report["devices"][0], &report["models"][0]);
    assert_eq!((&cpu["batches_finished"], &cpu["texts_finished"]), (&json!(1), &json!(2)), "{cpu}");
    assert!(cpu["busy_s"].as_f64().unwrap() > 0.0, "{cpu}");
    assert_eq!((&model["loads"], &model["location"]), (&json!(1), &json!("cpu")), "{model}");
    assert!(model["bytes"].as_u64().unwrap() > 0, "{model}");
    let metrics = server.get("/metrics").ok();
    for figure in ["magray_model_loads_total{model=\"bert\"} 1", "magray_device_texts_total{device=\"cpu\"} 2"] {
        assert!(metrics.text().contains(figure), "{figure} is not in\n{}", metrics.text());
    }
    let told = server.beside(&["gpu", "status"]);
    let cells = |first: &str| -> Vec<String> {
        let rows = told.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()));
        let mut rows = rows.map(|cells| cells.map(str::to_owned).collect::<Vec<_>>());
        let head = rows.find(|cells| cells.first().is_some_and(|cell| cell == first)).expect("the table");
        head.into_iter().zip(rows.next().expect("a row")).map(|(head, cell)| format!("{head}: {cell}")).collect()
    };
    let totals = cells("since the start");
    assert_eq!(totals[..3], ["since the start: cpu", "batches: 1", "texts: 2"], "{told}");
    assert!(cells("model").iter().any(|cell| cell == "loads: 1"), "{told}");
}

#[test]
fn only_a_demonstration_has_the_route_that_injects_faults() {
    let server = Setup::on_gpu("").start();
    assert_eq!(server.post("/ui/faults", r#"{"device":"sim:0","fault":"kill"}"#).status, 404);
}

#[test]
fn top_shows_a_server_with_the_key_of_its_caller() {
    let server = Setup::on_gpu("").env("MAGRAY_API_KEYS", "secret").start();
    let embed = server.request("POST", "/v1/embeddings").header("authorization", "Bearer secret");
    embed.header("content-type", "application/json").body(r#"{"input":"river"}"#).send().ok();
    let url = format!("http://{}", server.address);
    let with_key = |key: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_magray"));
        command.args(["top", "--once", "--server", &url]).env_clear().env("MAGRAY_API_KEY", key).output().unwrap()
    };
    let refused = with_key("wrong");
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("401"), "{refused:?}");
    let shown = with_key("secret");
    let text = String::from_utf8(shown.stdout).unwrap();
    for part in [url.as_str(), "sim:0", "bert", "#weights", "queue p50"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}
