//! GPUs that are out of service, the words for wanting a GPU, and the log, on a machine without one.
//! What follows from the health of a GPU is tested in the engine.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use expect_test::expect;
use serde_json::{Value, json};

use crate::runner::{Home, fixture};

/// Writes the list of GPUs that are out, where the binary looks for it.
fn write_ledger(home: &Home, content: &str) -> PathBuf {
    let folder = home.path("../.local/state/magray");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("gpus.json");
    fs::write(&file, content).unwrap();
    file
}

fn two_out(home: &Home) -> PathBuf {
    let outage = |uuid| json!({ "uuid": uuid, "since_unix_s": 1_767_225_599, "code": "lost", "message": "it is gone" });
    let page = json!({ "format": 1, "out_of_service": [outage("GPU-aa11"), outage("GPU-aa22")] });
    write_ledger(home, &page.to_string())
}

fn uuids(file: &Path) -> Vec<Value> {
    let page: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    page["out_of_service"].as_array().unwrap().iter().map(|outage| outage["uuid"].clone()).collect()
}

#[test]
fn nothing_to_reset_is_no_failure_and_leaves_no_file() {
    let home = Home::new();
    let answer = home.call(&["gpu", "reset"]).run().success();
    assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("no GPU is out of service\n", ""));
    let answer = home.call(&["gpu", "reset", "--json"]).run().success();
    assert_eq!(answer.stdout, "{\"returned\":[]}\n");
    assert!(!home.path("../.local").exists());
}

#[test]
fn a_gpu_is_reset_by_its_uuid_also_where_it_is_not_in_the_machine() {
    let home = Home::new();
    let file = two_out(&home);
    let answer = home.call(&["gpu", "reset", "cuda:gpu-AA2"]).run().success();
    assert_eq!(
        answer.stdout,
        "GPU-aa22 is back in service; it was out since 2025-12-31T23:59:59Z: it is gone (lost)\n"
    );
    assert_eq!(uuids(&file), ["GPU-aa11"]);
    let answer = home.call(&["gpu", "reset", "--json"]).run().success();
    let found: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(
        found,
        json!({ "returned": [
            { "uuid": "GPU-aa11", "since": "2025-12-31T23:59:59Z", "reason": "lost", "message": "it is gone" }
        ] })
    );
    assert!(uuids(&file).is_empty());
}

#[test]
fn a_reset_of_what_is_no_gpu_changes_nothing() {
    let home = Home::new();
    let file = two_out(&home);
    home.check_refused(
        &["gpu", "reset", "cpu"],
        2,
        expect![[r#"
            error: 'cpu' is never out of service: name a GPU, such as cuda:0
        "#]],
    );
    home.check_refused(
        &["gpu", "reset", "moon"],
        2,
        expect![[r#"
            error: unknown device 'moon': use auto, prefer-gpu, require-gpu, cpu, cuda, cuda:NUMBER or cuda:UUID
        "#]],
    );
    home.check_refused(
        &["gpu", "reset", "cuda:GPU-aa"],
        2,
        expect![[r#"
            error: 'cuda:GPU-aa' names several GPUs: write more of the UUID
        "#]],
    );
    for word in ["cuda:0", "cuda:GPU-bb"] {
        let answer = home.call(&["gpu", "reset", word]).run();
        assert_eq!((answer.code, answer.stdout.as_str()), (7, ""));
        assert!(answer.stderr.contains("`magray gpu info` lists the GPUs"), "{}", answer.stderr);
    }
    assert_eq!(uuids(&file), ["GPU-aa11", "GPU-aa22"]);
}

#[test]
fn a_damaged_list_is_logged_and_stops_nothing() {
    let home = Home::new();
    let file = write_ledger(&home, "{ half");
    let answer = home.call(&["gpu", "reset"]).run().success();
    assert_eq!(answer.stdout, "no GPU is out of service\n");
    let told = "gpus.json: the list of GPUs that are out of service cannot be read and counts as empty";
    assert!(answer.stderr.contains(" WARN magray::health: ") && answer.stderr.contains(told), "{}", answer.stderr);
    assert!(!answer.stderr.contains('\u{1b}'), "a pipe gets no colours");
    let answer = home.call(&["gpu", "reset"]).env("MAGRAY_LOG", "error").run().success();
    assert_eq!(answer.stderr, "");
    assert_eq!(fs::read_to_string(file).unwrap(), "{ half");
    home.call(&["gpu", "reset"]).env("MAGRAY_LOG", "loud").run().check_refused(
        2,
        expect![[r#"
            error: MAGRAY_LOG: 'loud' is not allowed; use one of error, warn, info, debug
        "#]],
    );
}

#[test]
fn require_gpu_refuses_where_there_is_none() {
    let home = Home::new();
    for word in ["require-gpu", "require_gpu"] {
        let answer = home.call(&["embed", "--device", word, "hello"]).env("MAGRAY_MODEL", fixture("bert")).run();
        assert_eq!((answer.code, answer.stdout.as_str()), (7, ""), "{}", answer.stderr);
        assert!(answer.stderr.starts_with("error: device cuda cannot be used: "), "{}", answer.stderr);
        assert_eq!(answer.stderr.lines().count(), 1);
    }
}

#[test]
fn prefer_gpu_answers_from_the_cpu_and_says_so_loudly() {
    let home = Home::new();
    let plain = ["embed", "--device", "prefer-gpu", "--json", "-f", "texts.txt"];
    home.write("texts.txt", "river\n".repeat(5000));
    for args in [&plain[..], &[&plain[..], &["-q"]].concat()] {
        let answer = home.call(args).env("MAGRAY_MODEL", fixture("bert")).run().success();
        let warnings: Vec<&str> = answer.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
        assert_eq!(warnings.len(), 1, "once, and not for each window: {}", answer.stderr);
        assert!(warnings[0].starts_with("warning: the CPU computes in place of the GPU ("), "{}", answer.stderr);
        let first: Value = serde_json::from_str(answer.stdout.lines().next().unwrap()).unwrap();
        assert_eq!(first["device"], "cpu");
        let code = first["fallback"].as_str().unwrap();
        assert!(warnings[0].contains(&format!("({code})")), "{code}: {}", warnings[0]);
    }
    // From a file of settings it is the same.
    home.write("magray.toml", "[embed]\ndevice = 'prefer_gpu'\n");
    let answer = home.call(&["similarity", "a", "b"]).env("MAGRAY_MODEL", fixture("bert")).run().success();
    assert!(answer.stderr.starts_with("warning: the CPU computes in place of the GPU ("), "{}", answer.stderr);
}
