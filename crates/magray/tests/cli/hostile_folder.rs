//! A current folder that a stranger filled: nothing in it runs, and its settings send nothing anywhere.
//! Runs the machine's own Python where there is one, without a network.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{env, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use expect_test::expect;

use crate::runner::{Home, fixture};

/// Python that leaves a file beside it when it runs.
const TRAP: &str = "open(__file__ + '.ran', 'w')\n";

/// Modules that Python or pip import, under the names by which a folder could offer its own.
const MODULES: [&str; 6] = ["pip.py", "sitecustomize.py", "usercustomize.py", "runpy.py", "ssl.py", "platform.py"];

fn set_traps(home: &Home) {
    for name in MODULES {
        home.write(name, TRAP);
    }
    home.write("pip.conf", format!("[global]\nlog = {}\n", home.path("pip.conf.ran").display()));
}

#[track_caller]
fn assert_nothing_ran(home: &Home) {
    let ran: Vec<String> = home.names().into_iter().filter(|name| name.ends_with("ran")).collect();
    assert!(ran.is_empty(), "{ran:?}");
}

#[test]
fn a_cloned_folder_with_pip_py_and_two_lines_of_settings_runs_nothing() {
    let home = Home::new();
    set_traps(&home);
    home.write("magray.toml", "[model]\nsource = 'pip'\n");
    let path = env::var_os("PATH").unwrap_or_default();
    home.call(&["embed", "x"]).env("PATH", path).env("PIP_NO_INDEX", "1").run().check_refused(
        2,
        expect![[r#"
            error: HOME/here/magray.toml:2: model.source is not taken from a file that was only found in the current folder; if you trust this one, name it: --config ./magray.toml
        "#]],
    );
    assert_nothing_ran(&home);
}

#[test]
fn pip_imports_nothing_from_the_current_folder() {
    let home = Home::new();
    let path = env::var_os("PATH").unwrap_or_default();
    let mut pip = Command::new("python3");
    pip.args(["-I", "-m", "pip", "--version"]).env_clear().env("PATH", &path).current_dir(home.path(""));
    if !pip.output().is_ok_and(|output| output.status.success()) {
        return magray_skip::test(magray_skip::Need::Pip, "there is no python3 with pip");
    }
    set_traps(&home);
    let call = home.call(&["embed", "x"]).env("PATH", path).env("PIP_NO_INDEX", "1").env("PIP_CONFIG_FILE", "pip.conf");
    let answer = call.run();
    // Pip itself ran, and found nothing to download.
    assert_eq!(answer.code, 5, "{}", answer.stderr);
    assert!(answer.stderr.contains("No matching distribution found"), "{}", answer.stderr);
    assert_nothing_ran(&home);
}

#[test]
fn no_program_is_started_from_a_relative_entry_of_the_path() {
    let home = Home::new();
    fs::create_dir(home.path("bin")).unwrap();
    for folder in ["", "bin/"] {
        for name in ["python3", "python", "pip3", "pip"] {
            let script =
                home.write(&format!("{folder}{name}"), format!("#!/bin/sh\n: > '{}'\n", home.path("sh.ran").display()));
            fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    for path in ["bin", ".", "", "bin:.:"] {
        let answer = home.call(&["pull", "--source", "pip"]).env("PATH", path).run();
        assert_eq!(answer.code, 5, "{path}: {}", answer.stderr);
        assert!(answer.stderr.contains("pip is not installed"), "{path}: {}", answer.stderr);
        assert_nothing_ran(&home);
    }
}

#[test]
fn a_found_file_may_not_say_where_anything_comes_from_or_goes_to() {
    let settings = [
        ("model", "store = 'models'"),
        ("model", "endpoint = 'https://hub.example'"),
        ("model", "token = 'hf_x'"),
        ("gpu", "state_file = 'out.json'"),
        ("gpu", "sandbox = 'off'"),
        ("gpu.monitoring", "alert_webhook = 'https://alerts.example'"),
        ("control", "folder = 'run'"),
        ("faults", "plan = 'kill@2s'"),
        ("server", "host = '0.0.0.0'"),
        ("server", "allowed_hosts = ['*']"),
        ("server", "cors_origins = '*'"),
        ("server", "admin_keys = 'known-to-a-stranger'"),
        ("server", "admin_keys_file = 'keys'"),
        ("server.tracing", "otlp_endpoint = 'http://collector.example'"),
    ];
    for (section, line) in settings {
        let home = Home::new();
        home.write("magray.toml", format!("# Harmless.\n[{section}]\n{line}\n"));
        let key = format!("{section}.{}", line.split(' ').next().unwrap());
        let answer = home.call(&["config"]).run();
        assert_eq!((answer.code, answer.stdout.as_str()), (2, ""), "{key}: {}", answer.stderr);
        let refusal = format!("HOME/here/magray.toml:3: {key} is not taken from a file");
        assert!(answer.stderr.contains(&refusal), "{key}: {}", answer.stderr);
        assert!(answer.stderr.contains("--config ./magray.toml"), "{key}: {}", answer.stderr);
        assert!(!answer.stderr.contains("stranger"), "a value that may be secret is shown: {}", answer.stderr);
    }
}

#[test]
fn the_same_file_is_taken_where_the_user_named_it_or_keeps_it() {
    let home = Home::new();
    let file = "[model]\nstore = 'models'\nendpoint = 'https://hub.example'\n";
    home.write("magray.toml", file);
    let stored = |call: crate::runner::Call| {
        let shown = call.env("HF_ENDPOINT", "").run().success().stdout;
        assert!(shown.contains("https://hub.example"), "{shown}");
    };
    stored(home.call(&["--config", "./magray.toml", "config"]));
    stored(home.call(&["config"]).env("MAGRAY_CONFIG", "magray.toml"));
    fs::remove_file(home.path("magray.toml")).unwrap();
    fs::create_dir_all(home.path("xdg/magray")).unwrap();
    home.write("xdg/magray/config.toml", file);
    stored(home.call(&["config"]).env("XDG_CONFIG_HOME", home.path("xdg")));
}

#[test]
fn a_found_file_may_name_a_model_of_its_own_folder() {
    let home = Home::new();
    copy_folder(Path::new(&fixture("bert")), &home.path("model"));
    home.write("magray.toml", "[model]\nname = './model'\n[cpu]\nthreads = 1\n");
    assert_ne!(home.call(&["embed", "--device", "cpu", "x"]).run().success().stdout, "");
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}
