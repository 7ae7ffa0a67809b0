//! How a server treats a GPU that is slow: a warning, less weight, and all of it back.

use serde_json::{Value, json};

use crate::rig::{Server, Setup, wait_for};

/// The first GPU, after one more request has been answered by it.
fn gpu_after_a_request(server: &Server) -> Value {
    server.post("/embed", r#"{"inputs":["the quick brown fox","jumps over","the lazy dog"]}"#).ok();
    server.get("/gpu/status").ok().json()["devices"][1].take()
}

#[test]
fn a_gpu_that_becomes_slow_is_warned_of_gets_less_weight_and_all_of_it_back() {
    // Again and again: however slow this machine is, there is a time at full speed before and after.
    let server = Setup::on_gpu("slow20@every=6s+3s").settings("[gpu.monitoring]\nslow_after_s = 1\n").start();
    let slow = |gpu: &Value| gpu["weight"].as_f64().unwrap() < 0.7 && gpu["speed"].as_f64().unwrap() < 0.7;
    wait_for("less weight", || slow(&gpu_after_a_request(&server)));
    let warned = server.said().lines().find(|line| line.contains("of its speed:")).map(str::to_owned);
    let warned = warned.expect("the warning came before the weight");
    assert!(warned.contains("WARN magray::health: sim:0 computes at"), "{warned}");
    assert!(warned.contains(" usual_tokens_per_s=") && warned.contains(" tokens_per_s="), "{warned}");

    wait_for("full weight", || gpu_after_a_request(&server)["weight"] == json!(1.0));
    assert!(server.said().contains("full weight again"), "{}", server.said());
    let metrics = server.get("/metrics").ok().text().to_owned();
    for name in
        ["magray_device_speed_ratio", "magray_device_recovery_attempts_total", "magray_device_memory_peak_bytes"]
    {
        assert!(metrics.contains(&format!("{name}{{device=\"sim:0\"}} ")), "{metrics}");
    }
    assert!(metrics.contains("magray_device_weight_ratio{device=\"sim:0\"} 1\n"), "{metrics}");
}

#[test]
fn speed_is_measured_only_where_that_is_wanted() {
    let speed = |settings: &str| {
        let server = Setup::on_gpu("").settings(settings).start();
        (0..150).fold(serde_json::Value::Null, |_, _| gpu_after_a_request(&server)["speed"].take())
    };
    assert_eq!(speed("[gpu]\nperformance_monitoring = false\n[gpu.monitoring]\nslow_after_s = 1\n"), Value::Null);
    assert_eq!(speed("[gpu.monitoring]\nenabled = false\nslow_after_s = 1\n"), Value::Null);
    let server = Setup::on_gpu("").settings("[gpu.monitoring]\nslow_after_s = 1\n").start();
    wait_for("a speed", || gpu_after_a_request(&server)["speed"].is_number());
}

#[test]
fn what_went_wrong_last_is_told_with_its_time_and_counted() {
    let server = Setup::on_gpu("transient@batch=2").start();
    gpu_after_a_request(&server);
    let gpu = gpu_after_a_request(&server);
    assert_eq!((&gpu["failures"], &gpu["recovery_attempts"]), (&json!(1), &json!(0)), "{gpu}");
    assert!(gpu["last_error"].is_string() && gpu["last_error_at"].as_str().unwrap() > "2026-", "{gpu}");
    assert!(gpu["memory_peak_bytes"].as_u64().unwrap() > 0, "{gpu}");
    let text = server.beside(&["gpu", "status"]);
    assert!(text.contains("recovery attempts") && text.contains("last failure"), "{text}");
    let metrics = server.get("/metrics").ok().text().to_owned();
    assert!(metrics.contains("magray_device_last_failure_timestamp_seconds{device=\"sim:0\"} 1"), "{metrics}");
}

#[test]
fn memory_that_is_nearly_full_is_trimmed_then_spared_then_left_to_the_cpu_and_used_again() {
    // Two samples a second would take longer than a test may.
    let server = Setup::new(&["--simulated-gpus", "1", "--model", &crate::rig::fixture("bert")])
        .settings("[gpu.monitoring]\ninterval_ms = 20\n")
        .env("MAGRAY_FAULTS", "full@2s+3s")
        .start();
    let lines = ["its caches are freed", "smaller batches and less work", "the CPU computes what it may"];
    for told in lines {
        wait_for(told, || server.said().contains(told));
        let line = server.said().lines().find(|line| line.contains(told)).unwrap().to_owned();
        assert!(line.contains("WARN magray::health: the memory of sim:0 is nearly full"), "{line}");
        assert!(line.contains("of 8192 MiB are in use"), "{line}");
    }
    for told in ["used again, with smaller batches", "all of its work again", "all is as before"] {
        wait_for(told, || server.said().contains(told));
    }
    assert_eq!(server.get("/gpu/status").ok().json()["devices"][1]["memory_step"], json!("roomy"));
}

#[test]
fn each_switch_between_devices_is_logged_by_default() {
    // A fault of the hardware keeps it out for ten seconds.
    let server = Setup::new(&["--simulated-gpus", "1", "--model", &crate::rig::fixture("bert")])
        .settings("[gpu.monitoring]\ninterval_ms = 20\n")
        .env("MAGRAY_FAULTS", "xid79@1s+100ms, xid79@every=13s+100ms")
        .start();
    gpu_after_a_request(&server);
    let count = |what: &str| server.said().matches(what).count();
    wait_for("the second departure", || {
        count("sim:0 left the rotation") >= 2 && count("sim:0 is back in the rotation") >= 1
    });
}

#[test]
fn clearing_the_cache_frees_it_and_tells_how_much_came_back() {
    let server = Setup::on_gpu("").start();
    let clear = || server.post("/gpu/cache/clear", "").ok().json();
    gpu_after_a_request(&server);
    let cleared = clear();
    let freed = cleared["devices"][0]["freed_bytes"].as_u64().unwrap();
    assert_eq!(cleared, json!({"devices": [{"device": "sim:0", "freed_bytes": freed}]}));
    assert!(freed > 0, "a pass had memory");
    let told = format!("cached memory was freed device=sim:0 freed={freed}");
    // The line may come after the answer.
    wait_for("a line of what was freed", || server.said().contains(&told));
    // Passes that measure the speed may take some meanwhile.
    wait_for("nothing more to free", || server.beside(&["gpu", "clear-cache"]) == "sim:0 gave 0 B back\n");
    let status = server.get("/gpu/status").ok().json();
    assert_eq!(status["models"][0]["location"], json!("gpu"), "the model stays: {status}");
    gpu_after_a_request(&server);
    assert!(clear()["devices"][0]["freed_bytes"].as_u64().unwrap() > 0, "the next pass took what it needed");
}
