//! `magray bench embed` with tiny models: what it prints, not how fast.
//! Asserts no time.

use expect_test::expect;
use serde_json::Value;

use crate::runner::{Home, fixture};

#[test]
fn a_case_for_each_batch_size_with_all_fields() {
    let home = Home::new();
    let args =
        ["bench", "embed", "--model", "synthetic:tiny", "--batch", "1,3", "--tokens", "8", "--seconds", "0", "--json"];
    let answer = home.call(&args).env("MAGRAY_THREADS", "1").env("MAGRAY_CPU", "portable").run().success();
    let lines: Vec<Value> = answer.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [one, three] = lines.as_slice() else { panic!("{}", answer.stdout) };
    let fields: Vec<&str> = one.as_object().unwrap().keys().map(String::as_str).collect();
    expect!["model device cpu_path precision threads batch tokens ragged runs median_ms p10_ms p90_ms texts_per_s tokens_per_s tflops"].assert_eq(&fields.join(" "));
    assert_eq!((&one["batch"], &one["tokens"], &one["runs"]), (&1.into(), &8.into(), &5.into()));
    assert_eq!((&three["batch"], &three["tokens"], &three["ragged"]), (&3.into(), &24.into(), &false.into()));
    assert_eq!((&one["cpu_path"], &one["threads"]), (&"portable".into(), &1.into()));
    assert!(one["median_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn ragged_batches_print_a_table() {
    let home = Home::new();
    let args = ["bench", "embed", "--model", "synthetic:tiny", "--batch", "4", "--ragged", "--seconds", "0"];
    let answer = home.call(&args).run().success();
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert!(lines[0].starts_with("synthetic:tiny on cpu ("), "{}", lines[0]);
    assert!(lines[2].starts_with("batch  tokens"), "{}", lines[2]);
    assert!(lines[3].starts_with("4 ") && lines[3].contains(" ragged "), "{}", lines[3]);
}

#[test]
fn ids_of_a_file_are_run_and_their_vectors_kept() {
    let home = Home::new();
    home.write("ids.json", "[[2, 8, 9, 3], [2, 3]]");
    let model = fixture("bert");
    let args =
        ["bench", "embed", "--model", &model, "--ids", "ids.json", "--seconds", "0", "--json", "--vectors", "v.npy"];
    let answer = home.call(&args).run().success();
    let json: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((&json["batch"], &json["tokens"], &json["ragged"]), (&2.into(), &6.into(), &true.into()));
    assert_eq!(std::fs::metadata(home.path("v.npy")).unwrap().len(), 128 + 2 * 48 * 4);
}

#[test]
fn batches_that_the_model_cannot_take() {
    let home = Home::new();
    let model = fixture("bert");
    let check = |content: &str, expected: expect_test::Expect| {
        home.write("ids.json", content);
        home.check_refused(&["bench", "embed", "--model", &model, "--ids", "ids.json"], 3, expected);
    };
    check(
        "[[99999]]",
        expect![[r#"
        error: text 0 has the token id 99999, but the model knows 123 ids
    "#]],
    );
    check(
        "[[1], []]",
        expect![[r#"
        error: text 1 has 0 tokens; the model reads 1 to 32
    "#]],
    );
    check(
        "[[1, \"x\"]]",
        expect![[r#"
        error: ids.json, line 1: not JSON: invalid type: string "x", expected u32 at line 1 column 8; write token ids as [[101, 102], [101, 7592, 102]]
    "#]],
    );
    home.check_refused(
        &["bench", "embed", "--model", &model, "--tokens", "33"],
        2,
        expect![[r#"
        error: --tokens 33: this model reads at most 32
    "#]],
    );
    home.check_refused(
        &["bench", "embed", "--ids", "nowhere.json"],
        3,
        expect![[r#"
        error: nowhere.json: no such file
    "#]],
    );
}
