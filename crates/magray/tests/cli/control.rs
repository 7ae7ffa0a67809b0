//! `magray gpu status` and the commands that move models: without an engine, with one that is not one, and with a real one.
//! The engine is a `magray serve`, which is ended by each test.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    path::PathBuf,
    process::{Child, Stdio},
};

use expect_test::expect;
use serde_json::{Value, json};

use crate::runner::{Home, fixture};

/// Where the binary keeps its sockets.
fn folder(home: &Home) -> PathBuf {
    home.path("../.local/state/magray/run")
}

fn sockets(home: &Home) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(home)).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// A process with an engine, ended with the test.
pub(crate) struct Engine(Child);

impl Engine {
    /// Starts one without a GPU, and waits until it can be asked.
    pub(crate) fn start(home: &Home) -> Self {
        let args = ["serve", "--model", &fixture("bert"), "--device", "cpu", "--threads", "1", "--port", "0"];
        let mut child = home.command(&args).stderr(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(child.stderr.take().unwrap());
        let engine = Self(child);
        assert!(told.lines().map_while(Result::ok).any(|line| line.contains("listening on ")), "it ended");
        engine
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json_of(home: &Home, args: &[&str]) -> Value {
    serde_json::from_str(&home.call(args).run().success().stdout).unwrap()
}

#[test]
fn without_an_engine_there_is_nothing_to_see_and_nothing_to_move() {
    let home = Home::new();
    let answer = home.call(&["gpu", "status"]).run().success();
    assert_eq!(answer.stdout, "no magray is running: nothing of it holds memory of a GPU\n");
    assert_eq!(json_of(&home, &["gpu", "status", "--json"]), json!({ "engines": [] }));
    for args in [
        &["gpu", "offload", "--all"][..],
        &["gpu", "release", "x"],
        &["gpu", "preheat", "x"],
        &["gpu", "timeout", "5"],
        &["gpu", "pin", "x", "--json"],
    ] {
        home.check_refused(
            args,
            8,
            expect![[r#"
                error: no magray is running: there is no model to move
            "#]],
        );
    }
    home.check_refused(
        &["gpu", "offload", "--all", "--pid", "1"],
        8,
        expect![[r#"
            error: no magray is running with pid 1: there is no model to move
        "#]],
    );
    assert!(!home.path("../.local").exists(), "looking leaves nothing behind");
}

#[test]
fn an_engine_without_a_gpu_is_shown() {
    let home = Home::new();
    let engine = Engine::start(&home);
    let status = json_of(&home, &["gpu", "status", "--json"]);
    let shown = &status["engines"][0];
    assert_eq!((&shown["pid"], status["engines"].as_array().unwrap().len()), (&json!(engine.pid()), 1));
    assert_eq!((&shown["devices"][0]["name"], &shown["devices"][0]["is_gpu"]), (&json!("cpu"), &json!(false)));
    let text = home.call(&["gpu", "status"]).run().success().stdout;
    assert!(text.contains("there is no GPU: models are kept in the memory of the host"), "{text}");
}

#[test]
fn several_engines_are_told_apart_by_their_process() {
    let home = Home::new();
    let (one, other) = (Engine::start(&home), Engine::start(&home));
    let engines = json_of(&home, &["gpu", "status", "--json"]);
    assert_eq!(engines["engines"].as_array().unwrap().len(), 2);
    let answer = home.call(&["gpu", "offload"]).run();
    assert_eq!(answer.code, 2, "{}", answer.stderr);
    assert!(answer.stderr.contains("several engines run: pick one with --pid: "), "{}", answer.stderr);
    let done = json_of(&home, &["gpu", "timeout", "1", "--pid", &other.pid().to_string(), "--json"]);
    assert_eq!(done["pid"], other.pid());
    drop(one);
    // What a killed process left behind is removed by the next process that sees it.
    assert_eq!(sockets(&home).len(), 2);
    let engines = json_of(&home, &["gpu", "status", "--json"]);
    assert_eq!(engines["engines"].as_array().unwrap().len(), 1);
    assert_eq!(sockets(&home).len(), 1);
}

#[test]
fn an_engine_that_talks_nonsense_is_told_and_stops_nothing() {
    let home = Home::new();
    fs::create_dir_all(folder(&home)).unwrap();
    let listener = UnixListener::bind(folder(&home).join("7.sock")).unwrap();
    let liar = std::thread::spawn(move || {
        for reply in ["{\"version\": 99}\n", "what?\n"] {
            // The first connection only checks that a process listens.
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
            // Until it hangs up.
            let _ = BufReader::new(stream).lines().count();
        }
    });
    let status = json_of(&home, &["gpu", "status", "--json"]);
    let error = status["engines"][0]["error"].as_str().unwrap();
    assert!(error.starts_with("magray (pid 7): ") && error.contains("use the same magray for both"), "{error}");
    let answer = home.call(&["gpu", "offload", "x"]).run();
    assert_eq!(answer.code, 9, "{}", answer.stderr);
    liar.join().unwrap();
}

#[test]
fn an_engine_without_a_gpu_moves_its_models_on_the_host() {
    let home = Home::new();
    let engine = Engine::start(&home);
    let pid = engine.pid().to_string();
    for args in [
        &["gpu", "offload"][..],
        &["gpu", "offload", "bert", "--pid", &pid],
        &["gpu", "release", "--all"],
        &["gpu", "preheat", "bert"],
        &["gpu", "timeout", "5"],
        &["gpu", "pin", "bert"],
    ] {
        let answer = home.call(args).run().success();
        assert!(answer.stdout.contains("'bert'") && answer.stdout.lines().count() == 1, "{}", answer.stdout);
    }
    let done = json_of(&home, &["gpu", "timeout", "never", "--json"]);
    assert_eq!((&done["pid"], &done["models"][0]["model"]), (&json!(engine.pid()), &json!("bert")));
    let model = &done["status"]["models"][0];
    assert_eq!((&model["idle_timeout_s"], &model["pinned"]), (&Value::Null, &json!(true)));
    let answer = home.call(&["gpu", "preheat", "nobody"]).run();
    let message = format!("error: magray (pid {pid}): there is no model 'nobody': it has bert\n");
    assert_eq!((answer.code, answer.stderr), (4, message));
}
