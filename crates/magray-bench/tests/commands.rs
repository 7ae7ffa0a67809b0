//! The commands on tiny models: what they print and refuse, not how fast.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::process::{Command, Output};

use expect_test::{Expect, expect};
use serde_json::Value;

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_magray-bench"));
    command.args(args).env_clear().env("PATH", "").output().unwrap()
}

#[track_caller]
fn lines(args: &[&str]) -> Vec<Value> {
    let output = run(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn check_refused(args: &[&str], code: i32, expected: Expect) {
    let output = run(args);
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(code), true), "{args:?}");
    expected.assert_eq(&String::from_utf8(output.stderr).unwrap());
}

#[test]
fn a_load_on_the_cpu_is_answered_and_told() {
    let args = ["load", "--model", "synthetic:tiny", "--device", "cpu", "--tokens", "8", "--clients", "2", "--threads"];
    let times = ["1", "--seconds", "0.2", "--warmup", "0", "--check", "--json", "--batching", "adaptive,4:1"];
    let lines = lines(&[&args[..], &times].concat());
    let [adaptive, fixed] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&adaptive["batching"], &fixed["batching"]), (&"adaptive".into(), &"4:1".into()));
    for case in [adaptive, fixed] {
        assert!(case["answered"].as_u64().unwrap() > 0, "{case}");
        assert_eq!(case["answered"], case["sent"], "{case}");
        for count in ["lost", "doubled", "wrong", "unexpected"] {
            assert_eq!(case[count], 0, "{case}");
        }
        assert_eq!(case["devices"][0]["device"], "cpu");
    }
}

#[test]
fn queue_and_worker_are_weighed_against_the_bare_pass() {
    let args =
        ["overhead", "--model", "synthetic:tiny", "--device", "cpu", "--threads", "1", "--seconds", "0", "--json"];
    let [report] = &lines(&args)[..] else { panic!("one line") };
    assert_eq!((&report["device"], &report["runs"]), (&"cpu".into(), &20.into()));
    let median = |name: &str| report[name]["p50"].as_f64().unwrap();
    let difference = median("engine_us") - median("bare_us");
    assert!((report["overhead_us"].as_f64().unwrap() - difference).abs() < 1e-6, "{report}");
}

#[test]
fn a_collection_is_stored_opened_and_searched_under_filters() {
    let args = ["collection", "--points", "2000", "--dims", "8", "--single", "3", "--seconds", "0", "--json"];
    let [report] = &lines(&args)[..] else { panic!("one line") };
    let shares: Vec<u64> =
        report["filters"].as_array().unwrap().iter().map(|f| f["per_mille"].as_u64().unwrap()).collect();
    assert_eq!((&report["points"], shares), (&2000.into(), vec![1, 10, 100, 500, 900, 1000]));
}

#[test]
fn documents_are_found_by_their_words() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("docs.tsv", "a\tthe cat sleeps\nb\tdogs are barking\n");
    write("queries.tsv", "1\ta barking dog\n");
    write("qrels.tsv", "1\tb\t1\n");
    let [report] = &lines(&["retrieval", folder.path().to_str().unwrap(), "--only-words", "--json"])[..] else {
        panic!()
    };
    assert_eq!(report["bm25"], 1.0, "{report}");
    assert_eq!((&report["documents"], &report["hybrid"]), (&2.into(), &Value::Null));
}

#[test]
fn a_pool_without_a_gpu_is_measured_and_a_trace_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("x.trace");
    std::fs::write(&trace, "a 1 1000\nf 1\n").unwrap();
    let lines = lines(&["alloc", "--device", "simulated", "--json", "--trace", trace.to_str().unwrap()]);
    assert_eq!((lines.len(), &lines[1]["case"]), (2, &"x.trace".into()), "{lines:?}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let load = |args: &[&str], expected: Expect| {
        check_refused(&[&["load", "--model", "synthetic:tiny", "--seconds", "0.1"], args].concat(), 2, expected);
    };
    load(
        &["--tokens", "513"],
        expect![[r#"
        error: --tokens 513: this model reads at most 512
    "#]],
    );
    load(
        &["--faults", "fire@2s"],
        expect![[r#"
        error: --faults: the fault 'fire@2s' cannot be planned: there is no fault 'fire': use illegal_address, oom, hang, transient, crash, poison, wrong, slow, load_oom, load_fails, load_crash, load_hang, freeze, kill, hot, full, slow and a number up to 100, xid and a number, random
    "#]],
    );
    load(
        &["--device", "cpu", "--faults", "poison@id=30522"],
        expect![[r#"
        error: cannot load 'synthetic:tiny': the fault 'poison@id=30522' cannot be planned: no text holds this token: the vocabulary has 1000, from 0 to 999
    "#]],
    );
    check_refused(
        &["load", "--model", "synthetic:gpt"],
        2,
        expect![[r#"
        error: --model synthetic:gpt: unknown shape 'gpt': use one of minilm-l6 minilm-l12 bge-base bge-large huge-16gb tiny
    "#]],
    );
    check_refused(
        &["overhead", "--model", "synthetic:tiny", "--tokens", "513"],
        2,
        expect![[r#"
        error: --tokens 513: this model reads at most 512
    "#]],
    );
    check_refused(
        &["alloc", "--trace", "nowhere.trace"],
        3,
        expect![[r#"
        error: nowhere.trace: No such file or directory (os error 2)
    "#]],
    );
}
