//! `magray generate` with a tiny language model: what is printed, and what is refused.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use expect_test::expect;
use magray_engine::testing::tiny_decoder;
use serde_json::Value;

use crate::runner::Home;

/// A home with a language model in the folder `tiny`.
fn home() -> Home {
    let home = Home::new();
    let folder = home.path("tiny");
    std::fs::create_dir(&folder).unwrap();
    tiny_decoder::write(&folder, 1).unwrap();
    home
}

fn object(home: &Home, args: &[&str]) -> Value {
    let args = [&["generate", "-m", "./tiny", "--json", "-n", "12"], args].concat();
    serde_json::from_str(&home.call(&args).run().success().stdout).unwrap()
}

#[test]
fn a_text_goes_on_the_same_way_each_time() {
    let home = home();
    let first = object(&home, &["hello"]);
    assert_eq!((&first["prompt_tokens"], &first["device"]), (&5.into(), &"cpu".into()));
    assert_eq!(object(&home, &["hello"])["ids"], first["ids"]);
    let plain = home.call(&["generate", "-m", "./tiny", "-n", "12", "hello"]).run().success();
    assert_eq!(plain.stdout.trim_end_matches('\n'), first["text"].as_str().unwrap().trim_end_matches('\n'));
    let drawn = |seed: &str| object(&home, &["--temperature", "1.2", "--seed", seed, "--ignore-end", "hello"]);
    assert_eq!(drawn("7")["ids"], drawn("7")["ids"]);
    assert_ne!(drawn("7")["ids"], drawn("8")["ids"]);
    let args = ["generate", "-m", "./tiny", "--json", "-n", "12"];
    let piped = home.call(&args).stdin("hello").run().success();
    assert_eq!(serde_json::from_str::<Value>(&piped.stdout).unwrap()["ids"], first["ids"]);
}

#[test]
fn a_stop_ends_the_text_before_it() {
    let home = home();
    let whole = object(&home, &["--ignore-end", "hello"]);
    let text = whole["text"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(2).collect();
    let cut = object(&home, &["--ignore-end", "--stop", &stop, "hello"]);
    let found = cut["text"].as_str().unwrap();
    assert!(text.starts_with(found) && !found.contains(&stop), "{found:?} of {text:?} before {stop:?}");
    assert_eq!((&cut["finish_reason"], &whole["finish_reason"]), (&"stop".into(), &"length".into()));
}

#[test]
fn output_is_constrained_by_a_schema_a_regular_expression_or_choices() {
    let home = home();
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": false}"#;
    home.write("schema.json", schema);
    for named in [schema, "schema.json"] {
        let found = object(&home, &["--json-schema", named, "hello"]);
        let value: Value = serde_json::from_str(found["text"].as_str().unwrap()).unwrap();
        assert!((0..10).contains(&value["n"].as_i64().unwrap()), "{found}");
    }
    let found = object(&home, &["--regex", "[0-9]{3}x", "hello"]);
    assert!(found["text"].as_str().unwrap().ends_with('x') && found["tokens"] == 4, "{found}");
    assert_eq!(found["finish_reason"], "stop");
    let found = object(&home, &["--choice", "yes", "--choice", "no", "hello"]);
    assert!(["yes", "no"].contains(&found["text"].as_str().unwrap()), "{found}");
    let cut = object(&home, &["--regex", "[0-9]{100}", "hello"]);
    assert_eq!((&cut["finish_reason"], &cut["tokens"]), (&"length".into(), &12.into()));
}

#[test]
fn log_probabilities_and_several_answers_are_told() {
    let home = home();
    let found = object(&home, &["--logprobs", "3", "--ignore-end", "hello"]);
    let told = found["logprobs"].as_array().unwrap();
    assert_eq!(told.len(), 12);
    for (one, id) in told.iter().zip(found["ids"].as_array().unwrap()) {
        assert_eq!((&one["id"], &one["top"][0]["id"]), (id, id), "the likeliest was taken");
        assert_eq!(one["top"].as_array().unwrap().len(), 3);
        assert!(one["logprob"].as_f64().unwrap() <= 0.0);
    }
    let drawn = |args: &[&str]| object(&home, &[&["--temperature", "1.2", "--ignore-end", "hello"], args].concat());
    let several = drawn(&["--seed", "7", "--answers", "3"]);
    let several = several.as_array().unwrap();
    assert_eq!(several.len(), 3);
    assert_eq!(several[0]["ids"], drawn(&["--seed", "7"])["ids"]);
    assert_eq!((&several[2]["ids"], &several[2]["seed"]), (&drawn(&["--seed", "9"])["ids"], &9.into()));
    let args = ["generate", "-m", "./tiny", "-n", "3", "--answers", "2", "--choice", "abc", "hello"];
    assert_eq!(home.call(&args).run().success().stdout, "abc\n\nabc\n");
}

#[test]
fn proposed_tokens_change_no_answer_and_are_counted() {
    let home = home();
    let args = ["--repetition-penalty", "0.3", "--ignore-end", "hello hello hello"];
    let plain = object(&home, &args);
    let fast = object(&home, &[&["--speculate", "6"], &args[..]].concat());
    assert_eq!(fast["ids"], plain["ids"]);
    assert!(plain.get("speculated").is_none(), "{plain}");
    let (proposed, accepted) = (fast["speculated"]["proposed"].as_u64(), fast["speculated"]["accepted"].as_u64());
    assert!(proposed > Some(0) && accepted <= proposed, "{fast}");
    let set = home.call(&[&["generate", "-m", "./tiny", "--json", "-n", "12"], &args[..]].concat());
    let set: Value = serde_json::from_str(&set.env("MAGRAY_SPECULATE", "6").run().success().stdout).unwrap();
    assert_eq!((&set["ids"], &set["speculated"]), (&fast["ids"], &fast["speculated"]));
    let wrong = home.call(&["generate", "-m", "./tiny", "--speculate", "16", "hello"]).run();
    assert!(wrong.code == 2 && wrong.stderr.contains("0..=15"), "{}", wrong.stderr);
}

#[test]
fn keys_and_values_of_8_bits_are_a_setting() {
    let home = home();
    let run = |bits: &str| {
        let args = ["generate", "-m", "./tiny", "--json", "--ignore-end", "-n", "100", "hello"];
        home.call(&args).env("MAGRAY_KV_BITS", bits).run()
    };
    let found: Value = serde_json::from_str(&run("8").success().stdout).unwrap();
    assert_eq!(found["tokens"], 100);
    let wrong = run("4");
    assert!(wrong.stderr.contains("chat.kv_bits") || wrong.stderr.contains("MAGRAY_KV_BITS"), "{}", wrong.stderr);
}

#[test]
fn what_cannot_be_generated_is_refused() {
    let home = home();
    home.check_refused(
        &["generate", "hello"],
        2,
        expect![[r#"
            error: name a language model: -m FILE.gguf or -m FOLDER
        "#]],
    );
    home.check_refused(
        &["generate", "-m", "./tiny", "-n", "1000000000", "hello"],
        2,
        expect![[r#"
            error: the prompt has 5 tokens and 1000000000 new ones were asked for; the model takes 512 in all: ask for fewer, or shorten the prompt
        "#]],
    );
    home.write("broken.gguf", "GGUF and no more");
    let broken = home.call(&["generate", "-m", "broken.gguf", "hello"]).run();
    assert!(!broken.stderr.contains("panicked") && broken.stderr.contains("broken.gguf"), "{}", broken.stderr);
    let none = home.call(&["generate", "-m", "absent.gguf", "hello"]).run();
    assert!(none.stderr.contains("absent.gguf"), "{}", none.stderr);
    let wrong = home.call(&["generate", "-m", "./tiny", "--temperature=-1", "hello"]).run();
    assert!(wrong.stderr.contains("temperature must be from 0 to 100"), "{}", wrong.stderr);
    let refused = |args: &[&str]| {
        let run = home.call(&[&["generate", "-m", "./tiny", "hello"], args].concat()).run();
        assert!(run.stdout.is_empty(), "{}", run.stdout);
        run.stderr
    };
    let told = refused(&["--json-schema", r#"{"type": "obj"}"#]);
    assert!(told.contains("the JSON schema cannot be used"), "{told}");
    assert!(refused(&["--json-schema", "absent.json"]).contains("cannot read absent.json"));
    assert!(refused(&["--regex", "(a"]).contains("the regular expression cannot be used"));
    assert!(refused(&["--regex", "a", "--choice", "b"]).contains("cannot be used with"));
    assert!(refused(&["--logprobs", "21", "--json"]).contains("21"));
}
