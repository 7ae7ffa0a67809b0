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
}
