//! What `magray gpu info` prints for machines that these tests make up.

use super::*;
use expect_test::expect;
use magray_engine::{
    DeviceChoice, DeviceName, Refusal, Scores,
    gpu::{Declined, GpuInfo, GpuPath, Peer, Throttle},
};

fn hopper() -> GpuStatus {
    let info = GpuInfo {
        index: 0,
        ordinal: 0,
        uuid: "GPU-1234".to_owned(),
        name: "NVIDIA H200".to_owned(),
        capability: (9, 0),
        multiprocessors: 132,
        memory_bytes: 140 << 30,
        pci_bus_id: "0000:3b:00.0".to_owned(),
    };
    let sample = Sample {
        memory_total_bytes: Some(140 << 30),
        memory_used_bytes: Some(7 << 30),
        temperature_celsius: Some(41),
        slowdown_celsius: Some(87),
        shutdown_celsius: Some(92),
        power_milliwatts: Some(123_456),
        power_limit_milliwatts: Some(700_000),
        clock_mhz: Some(1980),
        clock_mhz_max: Some(1980),
        memory_clock_mhz: Some(3201),
        utilisation_percent: Some(12),
        memory_utilisation_percent: Some(3),
        ecc_uncorrected: Some(0),
        throttle: Some(vec![Throttle::PowerCap, Throttle::Thermal]),
        recovery_action: Some(0),
        ..Sample::default()
    };
    GpuStatus { info, sample, links: Links::default(), outage: None }
}

fn report(gpus: Result<Vec<GpuStatus>, Declined>, verdict: Result<Verdict, Refusal>) -> Report {
    let is_there = gpus.is_ok();
    Report {
        survey: Survey {
            driver_version: is_there.then(|| "580.65.06".to_owned()),
            cuda_version: is_there.then_some((13, 0)),
            gpus,
        },
        outlook: Outlook {
            gpu: is_there.then(|| hopper().info),
            scores: is_there.then(|| Scores::new(100.0, 5000.0)).flatten(),
            need_bytes: is_there.then_some(900 << 20),
            free_bytes: is_there.then_some(133 << 30),
            verdict,
        },
        kernels: None,
        onnx: OnnxReport::none(),
        options: EncoderOptions::default(),
        model: "all-MiniLM-L6-v2".to_owned(),
        is_pulled: true,
    }
}

fn faster() -> Verdict {
    Verdict { device: DeviceName::Cuda(0), reason: Reason::Faster { speedup: 50.0, threshold: 1.2 } }
}

#[test]
fn a_gpu_is_shown_with_all_that_is_known() {
    expect![[r#"
        driver         580.65.06
        CUDA           13.0
        TensorRT       off
        ONNX Runtime   none: no library

        cuda:0         NVIDIA H200
          compute      capability 9.0, 132 multiprocessors
          memory       143360 MiB, 7168 MiB used (5.0 %)
          temperature  41 C, slows down at 87 C
          power        123 W of 700 W
          clocks       1980 MHz of 1980 MHz, memory 3201 MHz
          utilisation  12 %
          throttled    power_cap, thermal
          ECC errors   0 not corrected
          UUID         GPU-1234
          bus          0000:3b:00.0

        model          all-MiniLM-L6-v2
        chosen         cuda:0
        because        the GPU is 50.00 times as fast as the CPU, and 1.2 is asked for (faster)
        CPU            100.0 texts/s
        GPU            5000.0 texts/s
        speed-up       50.00, at least 1.2 is asked for
        memory         about 900 MiB needed, 136192 MiB free
    "#]]
    .assert_eq(&report(Ok(vec![hopper()]), Ok(faster())).text());
}

#[test]
fn a_gpu_that_is_out_of_service_is_shown_with_the_way_back() {
    let outage = Outage {
        uuid: "GPU-1234".to_owned(),
        since_unix_s: 1_767_225_599,
        code: "wrong_answers".to_owned(),
        message: "it returned wrong answers".to_owned(),
    };
    let report = report(Ok(vec![GpuStatus { outage: Some(outage), ..hopper() }]), Ok(faster()));
    let text = report.text();
    let at = text.find("  out of service  since 2025-12-31T23:59:59Z: it returned wrong answers (wrong_answers)");
    assert!(at.is_some() && text.contains("`magray gpu reset cuda:0` returns it"), "{text}");
    let json = &report.json()["gpus"][0]["out_of_service"];
    assert_eq!((&json["since"], &json["reason"]), (&json!("2025-12-31T23:59:59Z"), &json!("wrong_answers")));
}

#[test]
fn what_a_machine_does_not_tell_is_unknown_and_not_zero() {
    let silent = GpuStatus { sample: Sample::default(), ..hopper() };
    let mut report = report(Ok(vec![silent]), Ok(Verdict { reason: Reason::Unmeasured, ..faster() }));
    report.survey.driver_version = None;
    report.outlook.scores = None;
    let text = report.text();
    let unknown = text.lines().filter(|line| line.ends_with("unknown")).count();
    assert_eq!(unknown, 7, "{text}");
    assert!(text.contains("  memory       143360 MiB\n"), "{text}");
    assert!(text.contains("it is measured when the model is next loaded"), "{text}");
    let json = report.json();
    assert_eq!(json["gpus"][0]["temperature_celsius"], Value::Null);
    assert_eq!(json["gpus"][0]["throttle_reasons"], Value::Null);
    assert_eq!(json["choice"]["reason"], "unmeasured");
}

#[test]
fn without_a_gpu_it_says_so_and_why() {
    let absent = Reason::Absent { code: "no_driver", message: Declined::NoDriver.to_string(), is_fault: false };
    let verdict = Verdict { device: DeviceName::Cpu, reason: absent.clone() };
    let mut found = report(Err(Declined::NoDriver), Ok(verdict));
    found.is_pulled = false;
    expect![[r#"
        GPU           none (no_driver)
                      no NVIDIA driver was found: install version 525 or newer, or give the container access to the host's
        TensorRT      off
        ONNX Runtime  none: no library

        model         all-MiniLM-L6-v2 (not pulled yet)
        chosen        cpu
        because       no NVIDIA driver was found: install version 525 or newer, or give the container access to the host's (no_driver)
    "#]]
    .assert_eq(&found.text());
    let json = found.json();
    assert_eq!((&json["gpus"], &json["declined"]["code"]), (&json!([]), &json!("no_driver")));
    assert_eq!((&json["choice"]["device"], &json["choice"]["reason"]), (&json!("cpu"), &json!("no_driver")));
    let refusal = Refusal { asked: DeviceChoice::Cuda(Default::default()), reason: absent };
    let refused = report(Err(Declined::NoDriver), Err(refusal));
    assert!(refused.text().contains("chosen        none\n"), "{}", refused.text());
    assert_eq!(refused.json()["choice"]["device"], Value::Null);
}

#[test]
fn json_has_the_figures_of_the_choice() {
    let json = report(Ok(vec![hopper()]), Ok(faster())).json();
    assert_eq!(json["cuda_version"], "13.0");
    assert_eq!(json["tensorrt"], false);
    let gpu = &json["gpus"][0];
    assert_eq!((&gpu["compute_capability"], &gpu["memory_used_percent"]), (&json!("9.0"), &json!(5.0)));
    assert_eq!(gpu["throttle_reasons"], json!(["power_cap", "thermal"]));
    let choice = &json["choice"];
    assert_eq!((&choice["device"], &choice["speedup"]), (&json!("cuda:0"), &json!(50.0)));
    assert_eq!(choice["performance_threshold"], 1.2);
    assert_eq!(choice["memory_limit_bytes"], Value::Null);
}

#[test]
fn where_kernels_come_from_is_told_in_order() {
    let search = magray_engine::gpu::SearchPath::of_folders(Vec::new());
    let look = |archive: Option<std::path::PathBuf>| {
        // No compiler knows such a GPU.
        KernelSources::look((99, 0), &search, Some("/cache/kernels".into()), archive)
    };
    let words = kernel_words(&look(None));
    assert!(
        words.starts_with("compiled before, in '/cache/kernels'; none that came with magray for sm_990a; "),
        "{words}"
    );
    assert!(words.ends_with("no compiler (no_nvrtc)") || words.ends_with("no compiler (nvrtc_too_old)"), "{words}");
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("magray.cubins");
    std::fs::write(&archive, b"something else").unwrap();
    let foreign = look(Some(archive));
    assert!(kernel_words(&foreign).contains("are passed over: "), "{foreign:?}");
    let json = kernels_json(&foreign);
    assert_eq!((&json["carried"], &json["nvrtc_version"]), (&Value::Null, &Value::Null));
    assert!(
        json["carried_passed_over"].as_str().is_some_and(|reason| reason.contains("install both together")),
        "{json}"
    );
}

#[test]
fn links_are_told_where_they_are_known() {
    let unknown = Peer { index: 2, path: None, has_access: None, has_nvlink: None };
    let links = Links {
        pcie: Some((5, 16)),
        numa_node: Some(1),
        nvlinks: Some(18),
        peers: vec![
            Peer { index: 1, path: Some(GpuPath::System), has_access: Some(true), has_nvlink: Some(true) },
            unknown,
        ],
    };
    let mut rows = Rows::new();
    push_links(&mut rows, &links);
    let told: Vec<String> = rows.iter().map(|row| format!("{}: {}", row[0].trim(), row[1])).collect();
    let to_one = "to cuda:1: NVLink, between NUMA nodes, each reads the other's memory";
    assert_eq!(told, ["links: PCIe 5 x 16, NUMA node 1, 18 NVLinks up", to_one, "to cuda:2: unknown"]);
    let mut none = Rows::new();
    push_links(&mut none, &Links::default());
    assert!(none.is_empty());
    assert_eq!(links_json(&links)["peers"][0]["path"], "between NUMA nodes");
}
