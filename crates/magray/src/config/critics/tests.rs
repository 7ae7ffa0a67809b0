//! Sections of critics in files of both formats, right and wrong.
//! Reads no real environment.

use std::{ffi::OsString, fs};

use super::*;
use crate::config::Inputs;

fn resolve(name: &str, content: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    let inputs = Inputs { file: Some(&path), flags: &[], env: &|_| None::<OsString>, folder: folder.path() };
    let shorten = |text: String| text.replace(&folder.path().display().to_string(), "DIR");
    Config::resolve(&inputs).map_err(|error| shorten(error.to_string()))
}

fn refused(toml: &str) -> String {
    resolve("a.toml", toml).unwrap_err()
}

const TOML: &str = "
[critics.tone]
prompt = 'Is it kind?'
model = 'tiny'
device = 'cpu'
weight = 2.5
veto_below = 0.25
timeout_s = 7
schema = '{\"type\": \"object\"}'
[critics.safety]
";

#[test]
fn critics_read_the_same_from_both_formats() {
    let yaml = "critics:\n  tone:\n    prompt: Is it kind?\n    model: tiny\n    device: cpu\n    weight: 2.5\n    \
        veto_below: 0.25\n    timeout_s: 7\n    schema: '{\"type\": \"object\"}'\n  safety:\n";
    let critics = resolve("a.toml", TOML).unwrap().critics().unwrap();
    let strip = |mut critics: Vec<CriticSettings>| {
        critics.iter_mut().for_each(|critic| critic.location.clear());
        critics
    };
    assert_eq!(strip(critics.clone()), strip(resolve("a.yaml", yaml).unwrap().critics().unwrap()));
    let [tone, safety] = &critics[..] else { panic!("{critics:?}") };
    assert_eq!((tone.name.as_str(), tone.prompt.as_str(), tone.weight), ("tone", "Is it kind?", 2.5));
    assert_eq!((tone.veto_below, tone.within), (Some(0.25), Duration::from_secs(7)));
    assert_eq!((tone.model.as_deref(), tone.device), (Some("tiny"), Some(DeviceName::Cpu)));
    assert_eq!((safety.prompt.as_str(), safety.schema.as_deref()), (BUILT_IN[2].1, None));
    assert_eq!((safety.weight, safety.veto_below, safety.within), (1.0, None, Duration::from_secs(60)));
}

#[test]
fn without_sections_the_built_in_critics_judge() {
    for content in ["", "[critics]\n"] {
        let critics = resolve("a.toml", content).unwrap().critics().unwrap();
        let names: Vec<&str> = critics.iter().map(|critic| critic.name.as_str()).collect();
        assert_eq!(names, ["ethics", "fairness", "safety"]);
        assert!(critics.iter().all(|critic| critic.prompt.ends_with('.')));
    }
}

#[test]
fn a_critic_is_placed_by_its_own_device_or_by_its_name_among_the_assignments() {
    let toml = "[critics.ethics]\n[critics.fairness]\ndevice = 'cuda:2'\n[gpu.model_assignments]\nethics = 'cuda:1'\nfairness = 'cpu'\n";
    let config = resolve("a.toml", toml).unwrap();
    let critics = config.critics().unwrap();
    assert_eq!(critics[0].device, Some(DeviceName::Cuda(1)));
    assert_eq!(critics[1].device, Some(DeviceName::Cuda(2)));
    assert_eq!(config.critic_devices().collect::<Vec<_>>(), [DeviceName::Cuda(2)]);
    let known: Vec<String> = config.critic_names().map(str::to_owned).collect();
    assert_eq!(config.assignments().unknown(&known).count(), 0);
}

#[test]
fn wrong_critics_are_refused_with_their_line() {
    let cases = [
        ("[critics.a]\n", "DIR/a.toml:1: critics.a: it has nothing to judge by: set critics.a.prompt"),
        (
            "[critics.'a b']\nprompt = 'x'\n",
            "DIR/a.toml:1: critics.a b: a critic's name has 1 to 64 letters, digits, _ and -",
        ),
        (
            "[critics.ethics]\n[critics.Ethics]\nprompt = 'x'\n",
            "DIR/a.toml:2: critics.Ethics: there is a critic 'ethics' already",
        ),
        (
            "[critics.ethics]\nveto_below = 2\n",
            "DIR/a.toml:2: critics.ethics.veto_below: '2' is not allowed; use a number from 0 to 1, or never",
        ),
        (
            "[critics.ethics]\nwieght = 2\n",
            "DIR/a.toml:2: unknown key 'critics.ethics.wieght'; did you mean 'critics.ethics.weight'?",
        ),
        ("[critics.ethics]\nweight = nan\n", "'nan' is not allowed; use a number from 0 to 1000000"),
        (
            "[critics.ethics]\ndevice = 'moon'\n",
            "'moon' is not allowed; use a device: cpu, cuda or cuda:NUMBER, or default",
        ),
        ("critics = 3\n", "DIR/a.toml:1: 'critics' is a section: write its keys below it"),
        ("[critics]\nethics = 3\n", "DIR/a.toml:2: 'critics.ethics' is a section: write its keys below it"),
        ("[critics.a]\nprompt = 'x'\n[critics.a]\nprompt = 'y'\n", "DIR/a.toml:3: "),
    ];
    for (toml, expected) in cases {
        let told = refused(toml);
        assert!(told.contains(expected), "{toml}: {told}");
    }
    let many: String = (0..=CRITICS_MAX).map(|at| format!("[critics.c{at}]\nprompt = 'x'\n")).collect();
    assert!(refused(&many).contains("32 critics are allowed"));
    let long = format!("[critics.a]\nprompt = '{}'\n", "x".repeat(PROMPT_BYTES_MAX + 1));
    assert!(refused(&long).contains("its prompt has 16385 bytes"));
}

#[test]
fn critics_are_not_taken_from_a_file_that_was_found() {
    let folder = tempfile::tempdir().unwrap();
    for setting in &CRITIC {
        fs::write(folder.path().join("magray.toml"), format!("[critics.ethics]\n{} = 'cpu'\n", setting.name()))
            .unwrap();
        let inputs = Inputs { file: None, flags: &[], env: &|_| None::<OsString>, folder: folder.path() };
        let error = Config::resolve(&inputs).unwrap_err();
        assert!(matches!(error, ConfigError::Untrusted { line: 2, .. }), "{}: {error}", setting.key);
    }
}

#[test]
fn a_schema_may_be_a_file_beside_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    fs::write(&path, "[critics.ethics]\nschema = 'verdict.json'\n").unwrap();
    let inputs = Inputs { file: Some(&path), flags: &[], env: &|_| None::<OsString>, folder: folder.path() };
    let config = Config::resolve(&inputs).unwrap();
    let missing = config.critics().unwrap_err().to_string();
    assert!(missing.contains("a.toml:1: critics.ethics.schema: cannot read the schema"), "{missing}");
    fs::write(folder.path().join("verdict.json"), "{}").unwrap();
    assert_eq!(config.critics().unwrap()[0].schema.as_deref(), Some("{}"));
    fs::write(folder.path().join("verdict.json"), " ".repeat(SCHEMA_BYTES_MAX as usize + 1)).unwrap();
    assert!(config.critics().unwrap_err().to_string().contains("at most 262144 bytes"));
}

#[test]
fn every_setting_of_a_critic_is_listed_with_its_source() {
    let config = resolve("a.toml", TOML).unwrap();
    let all: Vec<(String, String)> = config.all().map(|(key, entry)| (key, entry.source.to_string())).collect();
    let source = |key: &str| all.iter().find(|(known, _)| known == key).map(|(_, source)| source.as_str());
    assert!(source("critics.tone.weight").is_some_and(|source| source.ends_with("a.toml:6")), "{all:?}");
    assert_eq!(source("critics.safety.prompt"), Some("default"));
    assert_eq!(source("critics.ethics.prompt"), None);
}
