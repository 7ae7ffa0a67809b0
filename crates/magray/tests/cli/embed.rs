//! `magray embed` and `magray similarity` with a tiny real model, in every form of input and output.
//! That the vectors are right in general is tested with the engine; here, that they reach the user.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    fs,
    io::{self, Read},
    process::Stdio,
};

use expect_test::expect;
use serde_json::Value;

use crate::runner::{Answer, Call, Home, fixture};

impl Home {
    /// Calls with the tiny model in f32, where results can be compared closely.
    pub(crate) fn with_model(&self, args: &[&str]) -> Call {
        self.call(args).env("MAGRAY_MODEL", fixture("bert")).env("MAGRAY_PRECISION", "f32")
    }
}

fn json_lines(answer: &Answer) -> Vec<Value> {
    answer.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn vector(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
    }
}

#[test]
fn vectors_are_those_of_the_reference() {
    let reference = fs::read_to_string(fixture("bert") + "/reference.json").unwrap();
    let reference: Value = serde_json::from_str(&reference).unwrap();
    let plain: Vec<&Value> =
        reference["cases"].as_array().unwrap().iter().filter(|case| case["prompt"].is_null()).collect();
    let lines: Vec<String> = plain.iter().map(|case| serde_json::json!({ "text": case["text"] }).to_string()).collect();
    let home = Home::new();
    home.write("texts.jsonl", lines.join("\n"));
    let answer = home.with_model(&["embed", "--json", "-f", "texts.jsonl"]).run().success();
    let found = json_lines(&answer);
    assert_eq!(found.len(), plain.len());
    for (found, case) in found.iter().zip(&plain) {
        assert_near(&vector(&found["embedding"]), &vector(&case["vector"]));
    }
}

#[test]
fn a_prompt_changes_the_vector_as_in_the_reference() {
    let reference = fs::read_to_string(fixture("bert") + "/reference.json").unwrap();
    let reference: Value = serde_json::from_str(&reference).unwrap();
    let case = reference["cases"].as_array().unwrap().iter().find(|case| case["prompt"].is_string()).unwrap();
    let (text, prompt) = (case["text"].as_str().unwrap(), case["prompt"].as_str().unwrap());
    let home = Home::new();
    let answer = home.with_model(&["embed", "--json", "--prompt", prompt, text]).run().success();
    assert_near(&vector(&json_lines(&answer)[0]["embedding"]), &vector(&case["vector"]));
    let refused = home.with_model(&["embed", "--prompt", "nope", text]).run();
    refused.check_refused(
        2,
        expect![[r#"
        error: the model has no prompt named 'nope'; it has: passage, query
    "#]],
    );
}

#[test]
fn every_line_gets_its_vector_whatever_it_holds() {
    let home = Home::new();
    let answer = home.with_model(&["embed", "-q", "-"]).stdin("river\n\nb\0c\n😀 🏳️‍🌈\r\nriver").run().success();
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|line| line.split(' ').count() == 48));
    assert_eq!(answer.stderr, "");
    // Texts of a batch do not touch each other, and an empty line is a text.
    assert_ne!(lines[0], lines[1]);
    let numbers = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<f64>>();
    assert_near(&numbers(lines[0]), &numbers(lines[4]));
}

#[test]
fn json_lines_give_ids_back_and_name_the_device() {
    let home = Home::new();
    let input = "{\"id\": \"a\", \"text\": \"river\"}\n\n\"stone\"\n{\"text\": \"x\", \"id\": {\"n\": 1}}\n";
    let answer = home.with_model(&["embed", "--jsonl", "--json", "-"]).stdin(input).run().success();
    let mut lines = json_lines(&answer);
    for line in &mut lines {
        assert_eq!(line.as_object_mut().unwrap().remove("embedding").unwrap().as_array().unwrap().len(), 48);
    }
    let shown: Vec<String> = lines.iter().map(ToString::to_string).collect();
    expect![[r#"
        {"index":0,"id":"a","precision":"f32","device":"cpu"}
        {"index":1,"precision":"f32","device":"cpu"}
        {"index":2,"id":{"n":1},"precision":"f32","device":"cpu"}"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn a_pipe_is_read_without_being_named() {
    let home = Home::new();
    let answer = home.with_model(&["embed", "-q"]).stdin("river\nstone\n").run().success();
    assert_eq!(answer.stdout.lines().count(), 2);
}

#[test]
fn several_files_are_one_input_and_rows_say_where_they_come_from() {
    let home = Home::new();
    home.write("a.txt", "river\nstone\n");
    home.write("b.JSONL", "{\"body\": \"river\", \"id\": 7}\n");
    let args = ["embed", "-f", "a.txt", "-f", "b.JSONL", "-f", "-", "--json", "--with-text"];
    let answer = home.with_model(&args).stdin("stone").run();
    answer.check_refused(
        3,
        expect![[r#"
            error: b.JSONL, line 1: an object without "text"; a line is a JSON string, or an object with the string "text"
        "#]],
    );
    home.write("a.txt", "\"river\"\n\"stone\"\n");
    let args = [&args[..], &["--text-field", "body"]].concat();
    let answer = home.with_model(&args).stdin("\"stone\"").run().success();
    let mut lines = json_lines(&answer);
    assert_eq!(lines[0]["embedding"], lines[2]["embedding"]);
    for line in &mut lines {
        line.as_object_mut().unwrap().remove("embedding");
    }
    let shown: Vec<String> = lines.iter().map(ToString::to_string).collect();
    expect![[r#"
        {"index":0,"file":"a.txt","line":1,"text":"river","precision":"f32","device":"cpu"}
        {"index":1,"file":"a.txt","line":2,"text":"stone","precision":"f32","device":"cpu"}
        {"index":2,"file":"b.JSONL","line":1,"id":7,"text":"river","precision":"f32","device":"cpu"}
        {"index":3,"file":"standard input","line":1,"text":"stone","precision":"f32","device":"cpu"}"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn bad_lines_are_skipped_if_that_is_wanted_and_never_silently() {
    let home = Home::new();
    home.write("bad.jsonl", "\"river\"\n{\n\"stone\"\n{\"text\": 1}\n");
    home.write("good.jsonl", "\"river\"\n");
    let args = ["embed", "-q", "--json", "--on-error", "skip", "-f", "bad.jsonl", "-f", "good.jsonl"];
    let answer = home.with_model(&args).run().success();
    let lines: Vec<Value> = json_lines(&answer).iter().map(|line| line["line"].clone()).collect();
    assert_eq!(lines, [1, 3, 1]);
    expect![[r#"
        warning: skipped: bad.jsonl, line 2: not JSON: EOF while parsing an object at line 1 column 1
        warning: skipped: bad.jsonl, line 4: its "text" is not a string; a line is a JSON string, or an object with the string "text"
        warning: 2 bad lines were skipped
    "#]]
    .assert_eq(&answer.stderr);
    let stopped = home.with_model(&["embed", "-q", "--on-error", "stop", "-f", "bad.jsonl"]).run();
    assert_eq!((stopped.code, stopped.stdout.as_str()), (3, ""));
}

#[test]
fn numbers_have_nine_digits_and_are_those_of_the_array() {
    let home = Home::new();
    let text = home.with_model(&["embed", "-q", "river"]).run().success().stdout;
    let json = json_lines(&home.with_model(&["embed", "-q", "--json", "river"]).run().success());
    home.with_model(&["embed", "-q", "river", "--output", "out.NPY"]).run().success();
    let array = fs::read(home.path("out.NPY")).unwrap();
    let exact: Vec<f32> =
        array[128..].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let printed: Vec<f32> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!(printed, exact);
    assert_eq!(vector(&json[0]["embedding"]).iter().map(|number| *number as f32).collect::<Vec<_>>(), exact);
    let digits = |number: &str| number.trim_start_matches(['-', '0', '.']).chars().filter(char::is_ascii_digit).count();
    assert_eq!(text.split_whitespace().map(digits).max(), Some(9));
}

#[test]
fn a_numpy_file_has_its_header_and_rows_and_nothing_else_is_left() {
    let home = Home::new();
    home.write("texts.txt", "river\nstone\nriver\n");
    home.with_model(&["embed", "-q", "-f", "texts.txt", "--output", "out.npy"]).run().success();
    let bytes = fs::read(home.path("out.npy")).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
    assert!(String::from_utf8_lossy(&bytes[..128]).contains("'shape': (3, 48), }"));
    assert_eq!(bytes.len(), 128 + 3 * 48 * 4);
    assert_eq!(bytes[128..320], bytes[512..704]);
    assert_eq!(home.names(), ["out.npy", "texts.txt"]);
    // Through a pipe the same bytes come.
    let file = fs::File::create(home.path("piped")).unwrap();
    home.with_model(&["embed", "-q", "-f", "texts.txt", "--format", "npy"]).stdout(file).run().success();
    assert_eq!(fs::read(home.path("piped")).unwrap(), bytes);
}

#[test]
fn a_parquet_file_holds_texts_ids_and_the_vectors_of_the_array() {
    let home = Home::new();
    home.write("texts.jsonl", "{\"text\": \"river\", \"id\": {\"n\": 1}}\n\"stone\"\n");
    home.with_model(&["embed", "-q", "-f", "texts.jsonl", "--output", "out.npy"]).run().success();
    home.with_model(&["embed", "-q", "-f", "texts.jsonl", "--with-text", "--output", "out.Parquet"]).run().success();
    let (array, file) = (fs::read(home.path("out.npy")).unwrap(), fs::read(home.path("out.Parquet")).unwrap());
    let at = |wanted: &[u8]| file.windows(wanted.len()).position(|bytes| bytes == wanted);
    let metadata = file.len() - 8 - u32::from_le_bytes(file[file.len() - 8..][..4].try_into().unwrap()) as usize;
    assert!(file.starts_with(b"PAR1") && file.ends_with(b"PAR1"));
    // Plain columns: the vectors end to end, strings behind their lengths; names only in the metadata.
    let order = [
        at(b"\x07\0\0\0{\"n\":1}").unwrap(),
        at(b"\x05\0\0\0river\x05\0\0\0stone").unwrap(),
        at(&array[128..]).unwrap(),
        metadata,
        at(b"embedding").unwrap(),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(order[2] + array.len() - 128, metadata);
    // Through a pipe the same bytes come.
    let piped = fs::File::create(home.path("piped")).unwrap();
    let args = ["embed", "-q", "-f", "texts.jsonl", "--with-text", "--format", "parquet"];
    home.with_model(&args).stdout(piped).run().success();
    assert!(fs::read(home.path("piped")).unwrap() == file);
}

#[test]
fn a_text_file_can_replace_its_own_input() {
    let home = Home::new();
    home.write("texts.txt", "river\nstone\n");
    home.with_model(&["embed", "-q", "-f", "texts.txt", "--output", "texts.txt"]).run().success();
    assert_eq!(fs::read_to_string(home.path("texts.txt")).unwrap().lines().count(), 2);
}

#[test]
fn a_summary_names_what_was_done_and_cut_texts_are_never_silent() {
    let home = Home::new();
    let input = format!("river\n{}\n", "river ".repeat(100));
    let answer = home.with_model(&["embed", "-"]).stdin(&input).run().success();
    let (warning, summary) = answer.stderr.split_once('\n').unwrap();
    expect!["warning: 1 of 2 texts were longer than the 32 tokens that the model reads and were cut (at 2)"]
        .assert_eq(warning);
    assert!(summary.starts_with("2 texts, 38 tokens in ") && summary.contains(" on cpu ("), "{summary}");
    let answer = home.with_model(&["embed", "-q", "--json", "-"]).stdin(&input).run().success();
    assert_eq!(answer.stderr.lines().count(), 1);
    assert_eq!(json_lines(&answer)[1]["truncated"], true);
}

#[test]
fn ten_megabytes_in_one_line_can_be_allowed() {
    let home = Home::new();
    home.write("long.txt", "river ".repeat((10 << 20) / 6));
    let args = ["embed", "-q", "-f", "long.txt", "--max-text-bytes", "20000000"];
    let answer = home.with_model(&args).run().success();
    assert!(answer.stderr.starts_with("warning: 1 of 1 texts"), "{}", answer.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_with_6() {
    let home = Home::new();
    for format in ["text", "jsonl", "npy"] {
        let answer = home.with_model(&["embed", "river", "--format", format, "--output", "/dev/full"]).run();
        answer.check_refused(
            6,
            expect![[r#"
            error: cannot write /dev/full: No space left on device (os error 28)
        "#]],
        );
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let home = Home::new();
    home.write("texts.txt", "river\n".repeat(3000));
    let (mut reader, writer) = io::pipe().unwrap();
    let mut command = home.command(&["embed", "-q", "-f", "texts.txt", "--model", &fixture("bert")]);
    let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    // The command keeps an end of the pipe open until it is dropped.
    drop(command);
    reader.read_exact(&mut [0; 100]).unwrap();
    drop(reader);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

/// Takes a file's name and content and returns what is to lie there.
type Spoil<'a> = &'a dyn Fn(&str, Vec<u8>) -> Option<Vec<u8>>;

#[test]
fn broken_models_end_with_4() {
    let home = Home::new();
    let broken = |name: &str, spoil: Spoil<'_>| {
        let folder = home.path(name);
        fs::create_dir_all(folder.join("1_Pooling")).unwrap();
        for file in [
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "modules.json",
            "sentence_bert_config.json",
            "1_Pooling/config.json",
            "model.safetensors",
        ] {
            let content = fs::read(format!("{}/{file}", fixture("bert"))).unwrap();
            if let Some(content) = spoil(file, content) {
                fs::write(folder.join(file), content).unwrap();
            }
        }
        let answer = home.call(&["embed", "--model", &format!("./{name}"), "river"]).run();
        assert_eq!(answer.stdout, "");
        format!("{} {}", answer.code, answer.stderr)
    };
    expect![[r#"
        4 error: cannot load './no-config': './no-config/config.json' does not exist: a model folder holds config.json, tokenizer.json and model.safetensors
    "#]].assert_eq(&broken("no-config", &|file, content| (file != "config.json").then_some(content)));
    expect![[r#"
        4 error: cannot load './cut-weights': './cut-weights/model.safetensors' is cut off: tensor 'encoder.layer.0.output.dense.weight' ends at byte 101808 and the file has 88484; pull the model again
    "#]].assert_eq(&broken("cut-weights", &|file, content| {
        Some(if file == "model.safetensors" { content[..content.len() / 2].to_vec() } else { content })
    }));
    expect![[r#"
        4 error: cannot load './lies': tensor 'encoder.layer.0.intermediate.dense.weight' in './lies/model.safetensors' has the shape [70, 48] where config.json asks for [71, 48]: they are of different models
    "#]].assert_eq(&broken("lies", &|file, content| {
        let text = String::from_utf8_lossy(&content).replace("\"intermediate_size\": 70", "\"intermediate_size\": 71");
        Some(if file == "config.json" { text.into_bytes() } else { content })
    }));
    home.call(&["embed", "--model", &fixture("bert-classify"), "river"]).run().check_refused(
        4,
        expect![[r#"
        error: this model scores texts; use one that embeds them
    "#]],
    );
}

#[test]
fn similarity_is_one_number() {
    let home = Home::new();
    let answer = home.with_model(&["similarity", "river", "river"]).run().success();
    assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("1.0000\n", ""));
    let answer = home.with_model(&["similarity", "--json", "river", "stone"]).run().success();
    let json = &json_lines(&answer)[0];
    let cosine = json["cosine"].as_f64().unwrap();
    assert!((-1.0..1.0).contains(&cosine), "{cosine}");
    assert_eq!((&json["device"], &json["precision"]), (&"cpu".into(), &"f32".into()));
}

#[test]
fn a_precision_that_the_cpu_lacks_is_replaced_and_never_silently() {
    let home = Home::new();
    let args = ["embed", "-q", "--json", "--precision", "fp16", "--cpu-path", "portable", "river"];
    let answer = home.with_model(&args).run().success();
    expect![[r#"
        warning: the CPU does not compute in f16: f32 is used instead
    "#]]
    .assert_eq(&answer.stderr);
    assert_eq!(json_lines(&answer)[0]["precision"], "f32");
    let args = ["bench", "embed", "--model", "synthetic:tiny", "--batch", "1", "--seconds", "0", "--precision", "tf32"];
    let answer = home.call(&args).run().success();
    assert_eq!(answer.stderr, "warning: the CPU does not compute in tf32: f32 is used instead\n");
}
