//! Models that come and go on simulated GPUs: by chance, and round after round.
//! Asserts no speed. Linux only: what is left behind is looked for in `/proc`.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    env,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

/// A home folder of its own, so that no other engines and settings interfere.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_magray-bench"));
        command.args(args).args(["--threads", "1"]).env_clear().env("HOME", self.path()).env("PATH", "");
        command.current_dir(self.path());
        command
    }

    /// Runs to the end, which must be a success, and gives what it printed.
    fn json(&self, args: &[&str]) -> Value {
        let output = self.command(args).output().unwrap();
        json_of(&output)
    }
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}\n{stdout}\n{stderr}"))
}

/// Another one a day by hand: `MAGRAY_TEST_SEED=7 cargo test ...`.
fn seed() -> String {
    env::var("MAGRAY_TEST_SEED").unwrap_or_else(|_| "1".to_owned())
}

#[test]
fn two_hundred_random_rounds_lose_nothing_and_leave_nothing() {
    let home = Home::new();
    let seed = seed();
    let report = home.json(&[
        "residency",
        "--random",
        "200",
        "--models",
        "6",
        "--fit",
        "3",
        "--callers",
        "6",
        "--device",
        "simulated",
        "--model",
        "synthetic:tiny",
        "--worker-kept",
        "0.2",
        "--seed",
        &seed,
        "--strict",
        "--json",
    ]);
    for count in ["failed", "wrong", "other_bits", "refused", "moves_failed"] {
        assert_eq!(report[count], 0, "{count}:\n{report:#}");
    }
    let left = &report["left"];
    for count in ["device_bytes", "pool_bytes", "shared_memory_bytes", "file_descriptors", "processes"] {
        assert_eq!(left[count], 0, "{count}:\n{report:#}");
    }
    assert_eq!((&report["answered"], &left["is_resting"]), (&report["requests"], &true.into()), "{report:#}");
    // Nothing would be shown by rounds in which nothing moved, or in which everything had room.
    let number = |key: &str| report[key].as_u64().unwrap();
    assert!(number("requests") == 200 * 6 * 4 && number("loads") > 50 && number("offloads") > 50, "{report:#}");
    assert!((2..=3).contains(&number("resident_max")), "{report:#}");
    assert!(report["by_device"]["sim:0"].as_u64().unwrap() > 500, "{report:#}");
    for what in ["preheat", "offload", "release", "timeout", "after_use", "favour"] {
        assert!(report["moves"][what].as_u64().unwrap() > 5, "{what}:\n{report:#}");
    }
    assert!(number("compared") > 100, "{report:#}");
}

#[test]
fn a_model_that_leaves_and_wakes_answers_the_same_bits_in_every_state() {
    let home = Home::new();
    let args = ["residency", "--device", "simulated", "--model", "synthetic:tiny", "--rounds", "2"];
    let report = home.json(&[&args[..], &["--worker-kept", "1", "--json"]].concat());
    assert_eq!((&report["failed"], &report["wrong"]), (&0.into(), &0.into()), "{report:#}");
    let phases: Vec<&str> =
        report["phases"].as_array().unwrap().iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(
        phases,
        [
            "first_load",
            "warm",
            "first_offload",
            "early_wake",
            "offload",
            "wake",
            "preheat",
            "cold_wake",
            "release",
            "reload"
        ],
        "{report:#}"
    );
    let state = |name: &str| {
        let states = report["memory"].as_array().unwrap();
        states.iter().find(|state| state["state"] == name).unwrap_or_else(|| panic!("{name}:\n{report:#}")).clone()
    };
    assert!(state("on_gpu")["magray_used_bytes"].as_u64().unwrap() >= report["bytes"].as_u64().unwrap());
    // What passes had taken stays for the next ones, unless others need it.
    let left = state("on_cpu")["magray_used_bytes"].as_u64().unwrap();
    assert!(left < report["bytes"].as_u64().unwrap() / 4 && state("on_cpu")["has_worker"] == true, "{report:#}");
    for name in ["on_cpu_cold", "released", "after"] {
        assert_eq!(
            (&state(name)["magray_used_bytes"], &state(name)["has_worker"]),
            (&0.into(), &false.into()),
            "{name}"
        );
    }
}

#[test]
fn a_model_that_was_just_written_is_loaded_from_its_files() {
    let home = Home::new();
    let args = ["residency", "--device", "simulated", "--model", "synthetic:tiny", "--rounds", "1"];
    let report = home.json(&[&args[..], &["--worker-kept", "0.2", "--write-model", "written", "--json"]].concat());
    assert_eq!((&report["failed"], &report["wrong"], &report["from_files"]), (&0.into(), &0.into(), &true.into()));
    assert!(home.path().join("written/model.safetensors").exists());
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_starts() {
    let home = Home::new();
    let refused = |args: &[&str]| {
        let output = home.command(&[&["residency"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let tiny = ["--device", "simulated", "--model", "synthetic:tiny"];
    let with = |more: &[&str]| refused(&[&tiny[..], more].concat());
    assert!(with(&["--random", "5", "--models", "3", "--fit", "3"]).contains("fewer than the 3 models"));
    assert!(with(&["--random", "0"]).contains("--random"));
    assert!(with(&["--fit", "2"]).contains("--random"));
    assert!(with(&["--tokens", "0"]).contains("--tokens"));
    assert!(refused(&["--device", "cpu", "--model", "synthetic:tiny"]).contains("use --device simulated"));
    assert!(refused(&["--random", "5", "--device", "simulated", "--model", "x"]).contains("synthetic:SHAPE"));
    assert!(refused(&["--write-model", "d", "--device", "simulated", "--model", "x"]).contains("synthetic:SHAPE"));
}
