//! Settings that change while the server runs, by signal and by request.

use rustix::process::Signal;
use serde_json::json;

use crate::rig::{Setup, said_soon, wait_for};

#[test]
fn what_can_change_changes_and_the_rest_is_named() {
    let server = Setup::embedder().settings("[server]\ntexts_max = 1\n").start();
    let two = r#"{"inputs":["a","b"]}"#;
    server.check_refused("/embed", two, 413, "1 are allowed");
    server.settings("[server]\ntexts_max = 2\nconnections_max = 7\n[queue]\ntokens_max = 1000\n");
    let reloaded = server.post("/admin/reload", "").ok().json();
    assert_eq!(reloaded["changed"], json!(["server.texts_max"]));
    assert_eq!(reloaded["needs_restart"], json!(["queue.tokens_max", "server.connections_max"]));
    server.post("/embed", two).ok();
    // Told again, since it still does not hold.
    let again = server.post("/admin/reload", "").ok().json();
    assert_eq!((&again["changed"], again["needs_restart"].as_array().unwrap().len()), (&json!([]), 2));
}

#[test]
fn keys_are_taken_and_given_while_it_runs() {
    let setup = Setup::embedder();
    let file = setup.file("keys", "old\n");
    let server = setup.arg("--api-keys-file").arg(&file).start();
    let ask = |key: &str| server.request("GET", "/v1/models").key(key).send().status;
    assert_eq!((ask("old"), ask("new")), (200, 401));
    std::fs::write(&file, "new\n").unwrap();
    server.signal(Signal::HUP);
    wait_for("the new key", || ask("new") == 200);
    assert_eq!(ask("old"), 401);
    assert!(said_soon(&server, r#"changed="server.api_keys_file""#), "{}", server.said());
}

#[test]
fn a_reload_by_signal_was_told_twice() {
    let server = Setup::embedder().settings("[server]\ntexts_max = 1\n").start();
    let told = || -> Vec<String> {
        let said = server.said();
        said.lines().filter(|line| line.contains("settings")).map(str::to_owned).collect()
    };
    server.signal(Signal::HUP);
    wait_for("the line", || told().len() == 1);
    server.settings("[server]\ntexts_max = 2\nport = 1\n");
    server.signal(Signal::HUP);
    wait_for("the next line", || told().len() >= 2);
    server.post("/admin/reload", "").ok();
    wait_for("the last line", || told().len() >= 3);
    let lines = told();
    for (line, changed) in lines.iter().zip(["nothing", "server.texts_max", "nothing"]) {
        let expected = format!(r#"the settings were read again changed="{changed}" needs_restart="#);
        assert!(line.contains("INFO") && line.contains(&expected), "{line}");
    }
    assert_eq!(lines.len(), 3, "{lines:?}");
}

#[test]
fn a_wrong_configuration_changes_nothing() {
    let server = Setup::embedder().settings("[server]\ntexts_max = 1\n").start();
    server.settings("[server]\ntexts_max = 0\n");
    server.check_refused("/admin/reload", "", 422, "nothing has changed");
    server.check_refused("/embed", r#"{"inputs":["a","b"]}"#, 413, "1 are allowed");
    server.signal(Signal::HUP);
    assert!(said_soon(&server, "nothing has changed"), "{}", server.said());
    server.post("/embed", r#"{"inputs":["a"]}"#).ok();
}
