//! `magray chat` with a tiny language model: one answer, what is refused, and a conversation on a terminal.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use expect_test::expect;
use magray_engine::testing::tiny_decoder;
use serde_json::Value;

use crate::{pty::Terminal, runner::Home, runner::fixture};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

/// A home with a language model for chats in the folder `tiny`.
fn home() -> Home {
    let home = Home::new();
    let folder = home.path("tiny");
    std::fs::create_dir(&folder).unwrap();
    tiny_decoder::write(&folder, 1).unwrap();
    std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    home
}

fn object(home: &Home, args: &[&str]) -> Value {
    let args = [&["chat", "-m", "./tiny", "--json", "-n", "12", "--temperature", "0"], args].concat();
    serde_json::from_str(&home.call(&args).run().success().stdout).unwrap()
}

#[test]
fn a_question_is_asked_in_the_form_of_the_template() {
    let home = home();
    let found = object(&home, &["hi"]);
    assert_eq!(found["prompt_tokens"], "[user]hi[assistant]".len());
    assert_eq!((&found["device"], &found["model"]), (&"cpu".into(), &"./tiny".into()));
    let instructed = object(&home, &["--system", "Be kind.", "hi"]);
    assert_eq!(instructed["prompt_tokens"], "[system]Be kind.[user]hi[assistant]".len());
    let plain = home.call(&["chat", "-m", "./tiny", "-n", "12", "--temperature", "0", "hi"]).run().success();
    assert_eq!(plain.stdout.trim_end(), found["text"].as_str().unwrap().trim_end());
}

#[test]
fn a_question_comes_from_stdin_or_a_file() {
    let home = home();
    let text = object(&home, &["hi\n\nthere"])["text"].clone();
    home.write("there.txt", "there");
    assert_eq!(object(&home, &["-f", "there.txt", "hi"])["text"], text);
    let args = ["chat", "-m", "./tiny", "--json", "-n", "12", "--temperature", "0"];
    let piped = home.call(&args).stdin("hi\n\nthere").run().success();
    assert_eq!(serde_json::from_str::<Value>(&piped.stdout).unwrap()["text"], text);
    let dash = home.call(&[&args[..], &["-f", "-", "hi"]].concat()).stdin("there").run().success();
    assert_eq!(serde_json::from_str::<Value>(&dash.stdout).unwrap()["text"], text);
}

#[test]
fn an_answer_follows_a_schema() {
    let home = home();
    let schema = r#"{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}"#;
    home.write("schema.json", schema);
    let args = ["chat", "-m", "./tiny", "-n", "40", "--schema", "schema.json", "hi"];
    let answer = home.call(&args).run().success().stdout;
    let value: Value = serde_json::from_str(&answer).unwrap();
    assert!(value["ok"].is_boolean(), "{answer}");
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let home = home();
    home.check_refused(
        &["chat", "-m", "./tiny", " "],
        2,
        expect![[r#"
        error: the question is empty: give one, or pipe one in
    "#]],
    );
    home.check_refused(
        &["chat", "-m", "./tiny", "-f", "none.txt"],
        2,
        expect![[r#"
        error: cannot read none.txt: No such file or directory (os error 2)
    "#]],
    );
    let embeds = home.call(&["chat", "-m", &fixture("bert"), "hi"]).run();
    assert!(embeds.code == 2 && embeds.stderr.contains("generates no text"), "{}", embeds.stderr);
    std::fs::remove_file(home.path("tiny/chat_template.jinja")).unwrap();
    home.check_refused(
        &["chat", "-m", "./tiny", "hi"],
        2,
        expect![[r#"
            error: this model has no chat template: ask for a completion of a text, or use a model that was made for chats
        "#]],
    );
    std::fs::write(
        home.path("tiny/chat_template.jinja"),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    )
    .unwrap();
    home.check_refused(
        &["chat", "-m", "./tiny", "hi"],
        2,
        expect![[r#"
            error: the chat template did not come to an end within 10000000 steps
        "#]],
    );
    std::fs::write(home.path("tiny/chat_template.jinja"), "\n{% if %}").unwrap();
    home.check_refused(
        &["chat", "-m", "./tiny", "hi"],
        2,
        expect![[r#"
            error: the chat template is broken at line 2: syntax error: unexpected end of block
        "#]],
    );
}

#[test]
fn passages_of_a_collection_are_cited() {
    let home = home();
    home.write("sky.txt", "The sky is blue because of scattered light.");
    let bert = fixture("bert");
    let add = ["index", "add", "notes", "sky.txt", "--collections", "all", "-m", &bert];
    home.call(&add).run().success();
    let args = ["chat", "-m", "./tiny", "-n", "8", "--collection", "notes", "--collections", "all", "why"];
    let answer = home.call(&args).run().success().stdout;
    assert!(answer.contains("\nSources:\n[1] ") && answer.contains("The sky is blue"), "{answer}");
    let found: Value =
        serde_json::from_str(&home.call(&[&args[..], &["--json"]].concat()).run().success().stdout).unwrap();
    assert_eq!(found["citations"][0]["number"], 1);
    let missing = home.call(&["chat", "-m", "./tiny", "--collection", "none", "--collections", "all", "why"]).run();
    assert!(missing.code != 0 && missing.stderr.contains("none"), "{}", missing.stderr);
}

#[test]
fn a_conversation_goes_on_until_it_is_left() {
    let home = home();
    let mut terminal = Terminal::start(home.command(&["chat", "-m", "./tiny", "-n", "6"]));
    let steps = [
        ("/help\r", "/save FILE"),
        ("hello\r", "tokens"),
        ("one\\\rtwo\r", "tokens"),
        ("/nonsense\r", "there is no command /nonsense"),
        ("/save talk.json\r", "written to talk.json"),
        ("/clear\r", "forgotten"),
        ("/model none/such\r", "error: "),
        // At the prompt Ctrl-C is a key.
        ("\u{3}", "to leave, press Ctrl-D"),
    ];
    for (keys, shown) in steps {
        terminal.wait_for(">>> ");
        terminal.send(keys);
        terminal.wait_for(shown);
    }
    terminal.wait_for(">>> ");
    terminal.send("/quit\r");
    assert_eq!(terminal.end(), Some(0));
    let saved: Value = serde_json::from_slice(&std::fs::read(home.path("talk.json")).unwrap()).unwrap();
    let said: Vec<&Value> = saved["messages"].as_array().unwrap().iter().map(|message| &message["content"]).collect();
    assert_eq!((said.len(), said[0], said[2]), (4, &"hello".into(), &"one\ntwo".into()));
}

#[test]
fn an_interrupt_stops_an_answer_and_not_the_conversation() {
    let home = home();
    let mut terminal = Terminal::start(home.command(&["chat", "-m", "./tiny"]));
    terminal.wait_for(">>> ");
    for _ in 0..3 {
        terminal.send("hello\r");
        terminal.interrupt();
        terminal.wait_for("tokens");
        terminal.wait_for(">>> ");
    }
    terminal.send("\u{4}");
    assert_eq!(terminal.end(), Some(0));
}
