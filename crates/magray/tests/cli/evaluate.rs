//! `magray evaluate` with a tiny language model: what is printed, exit codes, cases in a folder, and what is refused.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use expect_test::expect;
use magray_engine::testing::tiny_decoder;
use serde_json::{Value, json};

use crate::runner::{Answer, Home, fixture};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

/// A home with a language model for chats in the folder `tiny`, and with these settings.
fn home(settings: &str) -> Home {
    /// Tokens are bytes.
    const CONTEXT: usize = 8192;
    let home = Home::new();
    let folder = home.path("tiny");
    std::fs::create_dir(&folder).unwrap();
    tiny_decoder::write(&folder, 1).unwrap();
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let known = format!("\"max_position_embeddings\":{}", tiny_decoder::CONTEXT);
    std::fs::write(
        folder.join("config.json"),
        config.replace(&known, &format!("\"max_position_embeddings\":{CONTEXT}")),
    )
    .unwrap();
    std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    home.write("settings.toml", format!("[chat]\nmodel = './tiny'\n[cpu]\npath = 'portable'\n{settings}"));
    home
}

fn evaluate(home: &Home, args: &[&str]) -> Answer {
    home.call(&[&["--config", "settings.toml", "evaluate"], args].concat()).run()
}

fn report(answer: &Answer) -> Value {
    serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", answer.stdout, answer.stderr))
}

#[test]
fn the_built_in_critics_judge_without_any_setting() {
    let home = home("[evaluate]\naccept_from = 0\n");
    let answer = evaluate(&home, &["--json", "A kind text."]).success();
    let report = report(&answer);
    assert_eq!(report["aggregate"]["formed_over"], json!(["ethics", "fairness", "safety"]));
    assert_eq!((&report["aggregate"]["decision"], &report["stored"]), (&json!("accepted"), &Value::Null));
    for critic in report["critics"].as_array().unwrap() {
        assert_eq!((&critic["device"], &critic["model"]), (&json!("cpu"), &json!("./tiny")));
        assert!(
            (0.0..=1.0).contains(&critic["score"].as_f64().unwrap())
                && !critic["reasons"].as_array().unwrap().is_empty()
        );
        assert!(critic["latency_ms"].as_f64().unwrap() > 0.0);
    }
    let shown = evaluate(&home, &["A kind text.", "--critic", "safety", "--critic", "ethics"]).success().stdout;
    let heads: Vec<&str> =
        shown.lines().filter(|line| !line.starts_with(' ')).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(heads, ["ethics", "safety", "accepted:"], "{shown}");
}

#[test]
fn the_exit_code_tells_what_was_decided() {
    let text = "A kind text.";
    let never = r#"[critics.ethics]
schema = '{"type": "object", "properties": {"score": {"enum": [0]}}, "required": ["score"], "additionalProperties": false}'
"#;
    let rejected = evaluate(&home(never), &[text]);
    assert_eq!(rejected.code, 10, "{}{}", rejected.stdout, rejected.stderr);
    assert!(rejected.stdout.contains("rejected: ") && rejected.stderr.contains("error: the critics rejected the text"));
    let silent = evaluate(&home("[critics.ethics]\nweight = 0\n"), &[text]);
    assert_eq!(silent.code, 11, "{}", silent.stdout);
    let late = "[critics.ethics]\n[critics.tone]\nprompt = 'Is it kind?'\ntimeout_s = 0.001\nveto_below = 0.1\n[evaluate]\naccept_from = 0\n";
    let late = evaluate(&home(late), &["--json", text]);
    let whole = report(&late);
    assert_eq!((late.code, &whole["aggregate"]["missing"]), (11, &json!(["tone"])));
    assert_eq!(whole["critics"][1]["error"], "no verdict within 0.001 s");
}

#[test]
fn a_text_comes_from_a_file_or_a_pipe() {
    let home = home("[critics.ethics]\n[evaluate]\naccept_from = 0\n");
    home.write("text.txt", "A kind text.");
    let scores = |answer: Answer| report(&answer.success())["critics"][0]["verdict"].clone();
    let given = scores(evaluate(&home, &["--json", "A kind text."]));
    assert_eq!(scores(evaluate(&home, &["--json", "-f", "text.txt"])), given);
    let args = ["--config", "settings.toml", "evaluate", "--json"];
    assert_eq!(scores(home.call(&args).stdin("A kind text.").run()), given);
}

#[test]
fn a_critic_without_its_model_is_named_and_the_others_decide() {
    let home = home(
        "[critics.ethics]\n[critics.lost]\nprompt = 'Is it fair?'\nmodel = './none'\n[evaluate]\naccept_from = 0\n",
    );
    let report = report(&evaluate(&home, &["--json", "A kind text."]).success());
    assert_eq!(
        (&report["aggregate"]["formed_over"], &report["aggregate"]["missing"]),
        (&json!(["ethics"]), &json!(["lost"]))
    );
    assert_eq!(report["critics"][1]["status"], "failed");
    assert!(report["critics"][1]["error"].as_str().is_some_and(|error| error.contains("none")), "{report}");
    let alone = evaluate(&home, &["--critic", "lost", "A kind text."]);
    assert!(alone.code == 4 && alone.stdout.is_empty(), "{}: {}", alone.code, alone.stderr);
}

#[test]
fn cases_are_kept_in_a_collection_and_shown_to_critics() {
    let home = home("[critics.ethics]\n[evaluate]\naccept_from = 0\n");
    let bert = fixture("bert");
    let evaluate = |text: &str| {
        let args = [
            "--config",
            "settings.toml",
            "evaluate",
            "--json",
            text,
            "--collection",
            "cases",
            "--collections",
            "all",
            "--store",
        ];
        report(&home.call(&args).env("MAGRAY_MODEL", &bert).run().success())
    };
    let first = evaluate("the king of the hill");
    assert_eq!(first["precedents"], json!([]));
    let second = evaluate("the king of the hills");
    assert_eq!(second["precedents"][0]["id"], first["stored"]);
    assert_eq!(second["precedents"][0]["evaluation"]["decision"], "accepted");
    let found =
        home.call(&["search", "cases", "king", "--collections", "all", "--json"]).env("MAGRAY_MODEL", &bert).run();
    assert_eq!(found.success().stdout.lines().count(), 2);
}

#[test]
fn what_cannot_be_evaluated_is_refused() {
    let home = home("");
    home.check_refused(
        &["--config", "settings.toml", "evaluate", "--critic", "nobody", "a"],
        2,
        expect![[r#"
            error: there is no critic 'nobody'; there is ethics, fairness, safety
        "#]],
    );
    home.check_refused(
        &["--config", "settings.toml", "evaluate", " "],
        2,
        expect![[r#"
            error: the text is empty: give one, or pipe one in
        "#]],
    );
    let long = "a".repeat(9000);
    let refused = evaluate(&home, &[&long]);
    assert!(refused.code == 3 && refused.stderr.contains("8192"), "{}: {}", refused.code, refused.stderr);
    let embeds = evaluate(&home, &["-m", &fixture("bert"), "a"]);
    assert!(embeds.code == 2 && embeds.stderr.contains("generates no text"), "{}: {}", embeds.code, embeds.stderr);
    let store = evaluate(&home, &["--store", "a"]);
    assert!(store.code == 2 && store.stderr.contains("--collection"), "{}", store.stderr);
    let none = evaluate(&home, &["--collection", "none", "--collections", "all", "a"]);
    assert!(none.code == 3 && none.stderr.contains("none"), "{}: {}", none.code, none.stderr);
}
