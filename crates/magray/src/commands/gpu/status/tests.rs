//! What `magray gpu status` prints for engines that these tests make up.

use super::*;
use crate::control::{DeviceResidency, Grade, LayersReport};
use expect_test::expect;

pub(in crate::commands) fn engine() -> EngineReport {
    let cpu = DeviceReport {
        name: "cpu".to_owned(),
        is_gpu: false,
        hardware: None,
        state: "in_rotation".to_owned(),
        reason: None,
        grade: Grade::A,
        worker_pid: None,
        memory_total_bytes: None,
        memory_used_bytes: None,
        memory_peak_bytes: None,
        memory_reserved_bytes: None,
        memory_limit_bytes: None,
        memory_used_by_all_bytes: None,
        memory_step: "roomy".to_owned(),
        temperature_celsius: None,
        power_watts: None,
        power_limit_watts: None,
        utilisation_percent: None,
        weight: 1.0,
        speed: None,
        kv_bytes: 0,
        kv_bytes_max: 0,
        preemptions: 0,
        batches: 0,
        batches_finished: 10,
        texts_finished: 320,
        busy_s: 1.5,
        failures: 0,
        worker_restarts: 0,
        recovery_attempts: 0,
        pool: None,
        last_error: None,
        last_error_at: None,
        last_error_unix_s: None,
    };
    let pool = PoolReport {
        reserved_bytes: 128 << 20,
        used_bytes: 99_000_000,
        peak_reserved_bytes: 128 << 20,
        peak_used_bytes: 120_000_000,
        parked_bytes: 0,
        largest_free_bytes: 30_000_000,
        fragmentation: 0.106,
        blocks: 12,
        hits: 1000,
        misses: 3,
        driver_calls: 7,
        trims: 1,
        stitches: 0,
        predicted_bytes: 110_000_000,
    };
    let gpu = DeviceReport {
        name: "cuda:0".to_owned(),
        is_gpu: true,
        hardware: Some("NVIDIA H200".to_owned()),
        grade: Grade::B,
        worker_pid: Some(4712),
        memory_total_bytes: Some(150_000_000_000),
        memory_used_bytes: Some(99_000_000),
        memory_peak_bytes: Some(120_000_000),
        speed: Some(0.97),
        failures: 2,
        recovery_attempts: 3,
        last_error_at: Some("2026-03-01T12:00:05Z".to_owned()),
        memory_reserved_bytes: Some(140_000_000),
        memory_limit_bytes: Some(8_000_000_000),
        memory_used_by_all_bytes: Some(650_000_000),
        temperature_celsius: Some(41),
        power_watts: Some(120.4),
        power_limit_watts: Some(700.0),
        utilisation_percent: Some(35),
        pool: Some(pool),
        ..cpu.clone()
    };
    let at = |device: &str, place: &str| DeviceResidency { device: device.to_owned(), place: place.to_owned() };
    let model = ModelReport {
        number: 0,
        name: "all-MiniLM-L6-v2".to_owned(),
        location: "gpu".to_owned(),
        requests: 2,
        idle_s: 0.0,
        bytes: 45_000_000,
        loads: 3,
        offloads: 2,
        idle_timeout_s: Some(60.0),
        offload_after_use: false,
        pinned: false,
        priority: "normal".to_owned(),
        residency: vec![at("cpu", "ready"), at("cuda:0", "on_gpu")],
        layers: None,
    };
    let other = ModelReport {
        number: 0,
        name: "org/other".to_owned(),
        location: "cpu".to_owned(),
        requests: 0,
        idle_s: 75.5,
        pinned: true,
        priority: "high".to_owned(),
        residency: vec![at("cpu", "unloaded"), at("cuda:0", "on_cpu")],
        ..model.clone()
    };
    EngineReport {
        pid: 4711,
        magray: "0.1.0".to_owned(),
        uptime_s: 3725.0,
        requests: 2,
        waiting: 1,
        wait_s: Some(0.25),
        tokens: 40,
        gpu_memory_allocated_gb: 0.099,
        tensorrt: false,
        performance: PerformanceReport {
            window_s: 60.0,
            requests: 120,
            latency_mean_s: Some(0.0042),
            requests_per_s: 2.0,
            texts_per_s: 64.0,
            tokens_per_s: 1280.0,
            fallback_rate: Some(0.008),
        },
        devices: vec![cpu, gpu],
        models: vec![model, other],
    }
}

pub(in crate::commands::gpu) fn without_gpu() -> EngineReport {
    let mut engine = engine();
    engine.devices.truncate(1);
    engine.models.truncate(1);
    engine.models[0].residency.truncate(1);
    engine
}

#[test]
fn the_tables_line_up() {
    expect![[r#"
        magray 0.1.0 (pid 4711); requests: 2, of these waiting: 1

        device              state        grade  TensorRT  memory used                used by all  temperature  power         load  worker
        cpu                 in_rotation  A      off       -                          -            -            -             -     -
        cuda:0 NVIDIA H200  in_rotation  B      off       99.0 MB of 8.0 GB (1.2 %)  650.0 MB     41 C         120 of 700 W  35 %  pid 4712

        average latency  throughput                      fallback rate  uptime
        4.2 ms           64.0 texts/s in 2.0 requests/s  0.8 %          62 min

        since the start  batches  texts  computing
        cpu              10       320    1.50 s
        cuda:0           10       320    1.50 s

        health  own speed  weight  failures  recovery attempts  peak memory  last failure
        cuda:0  97 %       100 %   2         3                  120.0 MB     2026-03-01T12:00:05Z

        pool    reserved  used     peak      largest free  fragmentation  hits  misses  driver calls  trims  stitches  predicted
        cuda:0  134.2 MB  99.0 MB  120.0 MB  30.0 MB       10.6 %         1000  3       7             1      0         110.0 MB

        model             where                        idle    size     open requests  loads  offloads  idle timeout  priority
        all-MiniLM-L6-v2  cpu ready, cuda:0 on_gpu     0.0 ms  45.0 MB  2              3      2         60 s          normal
        org/other         cpu unloaded, cuda:0 on_cpu  75 s    45.0 MB  0              3      2         pinned        high
    "#]]
    .assert_eq(&text_of(&[(4711, Ok(engine()))]));
}

#[test]
fn without_a_gpu_it_says_so() {
    expect![[r#"
        magray 0.1.0 (pid 4711); requests: 2, of these waiting: 1

        device  state        grade  TensorRT  memory used  used by all  temperature  power  load  worker
        cpu     in_rotation  A      off       -            -            -            -      -     -

        average latency  throughput                      fallback rate  uptime
        4.2 ms           64.0 texts/s in 2.0 requests/s  0.8 %          62 min

        since the start  batches  texts  computing
        cpu              10       320    1.50 s

        model             where      idle    size     open requests  loads  offloads  idle timeout  priority
        all-MiniLM-L6-v2  cpu ready  0.0 ms  45.0 MB  2              3      2         60 s          normal

        there is no GPU: models are kept in the memory of the host

        magray (pid 5) does not answer
    "#]]
    .assert_eq(&text_of(&[(4711, Ok(without_gpu())), (5, Err(AskError::Silent { pid: 5 }))]));
}

#[test]
fn a_gpu_that_is_out_says_why() {
    let mut engine = engine();
    engine.devices[1].state = "out".to_owned();
    engine.devices[1].reason = Some("lost".to_owned());
    engine.devices[1].last_error = Some("it fell off the bus".to_owned());
    let text = text_of(&[(4711, Ok(engine))]);
    assert!(text.contains("out (lost)") && text.contains("\ncuda:0: it fell off the bus\n"), "{text}");
}

#[test]
fn a_model_whose_layers_the_cpu_and_a_gpu_share_says_how_many_are_where() {
    let mut engine = engine();
    let text = "20 of 32 layers are on a GPU, the CPU computes the others: chat.gpu_layers is 20".to_owned();
    engine.models[1].layers = Some(LayersReport { on_gpu: 20, of: 32, text: text.clone() });
    let asked = [(4711, Ok(engine))];
    assert!(text_of(&asked).contains(&format!("\norg/other: {text}\n")), "{}", text_of(&asked));
    let models = &json_of(&asked)["engines"][0]["models"];
    assert_eq!((&models[1]["layers"]["on_gpu"], &models[1]["layers"]["of"]), (&json!(20), &json!(32)));
    assert!(models[0].get("layers").is_none(), "{models}");
}

#[test]
fn programs_get_every_figure_and_an_empty_list_where_nothing_runs() {
    assert_eq!(json_of(&[]), json!({ "engines": [] }));
    let value = json_of(&[(4711, Ok(engine())), (5, Err(AskError::Silent { pid: 5 }))]);
    let engine = &value["engines"][0];
    assert_eq!((&engine["pid"], &engine["devices"][1]["pool"]["driver_calls"]), (&json!(4711), &json!(7)));
    assert_eq!(engine["models"][1]["residency"][1], json!({ "device": "cuda:0", "where": "on_cpu" }));
    assert_eq!(engine["models"][0]["idle_timeout_s"], json!(60.0));
    assert_eq!(value["engines"][1]["error"], "magray (pid 5) does not answer");
}
