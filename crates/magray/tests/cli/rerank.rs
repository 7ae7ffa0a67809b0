//! `magray rerank` with tiny models: one that scores pairs, and one that embeds.
//! That scores are right in general is tested with the engine.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use expect_test::expect;
use serde_json::Value;

use crate::runner::{Answer, Home, fixture};

fn objects(answer: &Answer) -> Vec<Value> {
    answer.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_best_document_comes_first_with_its_score() {
    let home = Home::new();
    let model = fixture("xlm-roberta-classify");
    let answer = home.call(&["rerank", "-m", &model, "river", "stone", "a river", "river river"]).run().success();
    let scores: Vec<f64> = answer.stdout.lines().map(|line| line[..6].parse().unwrap()).collect();
    assert_eq!(scores.len(), 3);
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|score| (0.0..=1.0).contains(score)), "{scores:?}");
    let raw = home.call(&["rerank", "-m", &model, "river", "stone", "--raw-scores", "--json"]).run().success();
    let plain = home.call(&["rerank", "-m", &model, "river", "stone", "--json"]).run().success();
    let (raw, plain) = (objects(&raw)[0]["score"].as_f64().unwrap(), objects(&plain)[0]["score"].as_f64().unwrap());
    assert!((1.0 / (1.0 + (-raw).exp()) - plain).abs() < 1e-6, "{raw} {plain}");
}

#[test]
fn vectors_are_compared_where_the_model_embeds() {
    let home = Home::new();
    let texts =
        "{\"body\": \"stone\", \"id\": \"a\"}\n{\"body\": \"river\", \"id\": \"b\"}\nbad\n{\"body\": \"river\"}\n";
    home.write("documents.jsonl", texts);
    let args = ["rerank", "river", "-f", "documents.jsonl", "--text-field", "body", "--on-error", "skip", "--top", "2"];
    let answer = home.with_model(&[&args[..], &["--json"]].concat()).run().success();
    let found = objects(&answer);
    assert_eq!(found.len(), 2);
    // Of equal ones the first of the input is first.
    assert_eq!((&found[0]["index"], &found[0]["id"], &found[0]["text"]), (&1.into(), &"b".into(), &"river".into()));
    assert_eq!((&found[1]["index"], &found[1]["id"]), (&2.into(), &Value::Null));
    assert!((found[0]["score"].as_f64().unwrap() - 1.0).abs() < 1e-5);
    // As a server writes it: no digits that only an f64 has.
    let digits = answer.stdout.split(|character: char| !character.is_ascii_digit()).map(str::len).max();
    assert!(digits <= Some(9), "{}", answer.stdout);
    assert!(answer.stderr.starts_with("warning: skipped: documents.jsonl, line 3: not JSON"), "{}", answer.stderr);
    let piped = home.with_model(&["rerank", "river"]).stdin("stone\nriver\n").run().success();
    assert!(piped.stdout.starts_with("1.0000  river\n"), "{}", piped.stdout);
}

#[test]
fn what_cannot_be_ranked_is_refused() {
    let home = Home::new();
    home.check_refused(
        &["rerank", "river"],
        3,
        expect![[r#"
            error: standard input holds no text
        "#]],
    );
    let answer = home.call(&["rerank", "-m", &fixture("bert-classify"), "river", "stone"]).run();
    answer.check_refused(
        4,
        expect![[r#"
            error: this model knows several labels; use one that scores pairs or embeds
        "#]],
    );
}
