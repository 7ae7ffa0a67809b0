//! Checks that crates lean on lower crates only: magray, generation, engine, index, device, core.
//! Reads manifests line by line, no full TOML.

use super::Finding;
use super::tree::SourceFile;

/// The crates from the lowest to the highest. One may depend on those before it.
const LAYERS: [&str; 7] =
    ["magray-core", "magray-device", "magray-index", "magray-engine", CHAT, "magray-generation", "magray"];

/// Text work of a chat: leans on none of the layers; only the highest leans on it.
const CHAT: &str = "magray-chat";

/// Sends requests and checks their answers: leans on the lowest layer alone; the demo and the bench lean on it.
const LOAD: &str = "magray-load";

/// Chores: leans on none of the layers, and none leans on it.
const APART: &str = "xtask";

/// Tries the decisions: leans on the lowest layer alone, and none leans on it.
const SIMULATOR: &str = "magray-simulator";

/// Measures the engine: leans on it as the highest layer does, and none leans on it.
const BENCH: &str = "magray-bench";

/// Speaks Python: leans on what the commands lean on, and on these in a wheel, which has both; none leans on it.
const PYTHON: &str = "magray-python";

/// Reports skipped tests: leans on none, and the tests of every crate may lean on it.
const FOR_TESTS: &str = "magray-skip";

/// Checks one file; only manifests of crates have layers.
pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    let Some(owner) = file.path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml")) else {
        return Vec::new();
    };
    let rank = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let apart = [(APART, 0), (FOR_TESTS, 0), (SIMULATOR, 1), (LOAD, 1), (BENCH, 4), (PYTHON, 7)];
    let apart = apart.into_iter().find(|(name, _)| *name == owner);
    let own_rank = if owner == CHAT { Some(0) } else { rank(owner) };
    let Some(own_rank) = own_rank.or(apart.map(|(_, rank)| rank)) else {
        return vec![Finding::new(file, 0, "layers", format!("'{owner}' has no layer: give it one in LAYERS"))];
    };
    let mut findings = Vec::new();
    for (line, needed) in dependencies(file) {
        let is_ours = (needed == APART || needed.starts_with("magray")) && needed != FOR_TESTS;
        let is_lower = rank(needed).is_some_and(|rank| rank < own_rank);
        let may_send = needed == LOAD && ["magray", BENCH].contains(&owner);
        // A crate may ask for features of itself in its tests.
        if is_ours && !is_lower && !may_send && needed != owner {
            findings.push(Finding::new(file, line, "layers", format!("'{owner}' must not depend on '{needed}'")));
        }
    }
    findings
}

/// The names under all dependency tables (of the build and of tests too), each with its line.
fn dependencies(file: &SourceFile) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for (number, line) in file.numbered_lines() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            // `[dependencies.name]` names its crate in the heading.
            let (table, last) = section.rsplit_once('.').unwrap_or(("", section));
            is_inside = last.ends_with("dependencies");
            if table.ends_with("dependencies") {
                found.push((number, last.trim_matches('"')));
            }
        } else if is_inside && !line.starts_with('#') {
            let name = line.split(['=', '.']).next().unwrap_or_default().trim().trim_matches('"');
            if !name.is_empty() {
                found.push((number, name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(owner: &str, manifest: &str) -> Vec<usize> {
        let file = SourceFile::new(&format!("crates/{owner}/Cargo.toml"), manifest);
        check(&file).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn arrows_point_down() {
        let manifest = "[package]\nname = \"x\"\n\n[dependencies]\nmagray-core.workspace = true\nserde = \"1\"\n";
        assert_eq!(lines("magray-engine", manifest), []);
        assert_eq!(lines("magray-device", manifest), []);
        assert_eq!(lines("xtask", manifest), [5]);
        assert_eq!(lines("magray-core", "[dependencies]\nmagray-device = \"1\"\n"), [2]);
        assert_eq!(lines("magray-core", "[dev-dependencies]\nmagray-core = { path = \".\" }\n"), []);
    }

    #[test]
    fn every_kind_of_table_is_read() {
        assert_eq!(lines("magray-core", "[dev-dependencies]\nmagray-engine = { path = \"x\" }\n"), [2]);
        assert_eq!(lines("magray-core", "[target.'cfg(unix)'.build-dependencies]\n\"magray\" = \"1\"\n"), [2]);
        assert_eq!(lines("magray-device", "[dependencies.magray-engine]\nworkspace = true\n"), [1]);
        assert_eq!(lines("magray", "[dependencies]\nxtask = \"1\"\n# magray = 1\n\n[lints]\nmagray = true\n"), [2]);
    }

    #[test]
    fn the_simulator_leans_on_the_decisions_alone() {
        let manifest = "[dependencies]\nmagray-core = \"1\"\nmagray-device = \"1\"\n";
        assert_eq!(lines("magray-simulator", manifest), [3]);
        assert_eq!(lines("magray", "[dev-dependencies]\nmagray-simulator = \"1\"\n"), [2]);
    }

    #[test]
    fn the_bench_leans_on_the_engine_and_not_on_the_commands() {
        let manifest = "[dependencies]\nmagray-engine = \"1\"\nmagray = \"1\"\n";
        assert_eq!(lines("magray-bench", manifest), [3]);
        assert_eq!(lines("magray", "[dev-dependencies]\nmagray-bench = \"1\"\n"), [2]);
    }

    #[test]
    fn python_leans_on_the_commands_and_on_what_they_lean_on() {
        let manifest =
            "[dependencies]\nmagray-generation = \"1\"\nmagray-index = \"1\"\nmagray = \"1\"\nmagray-bench = \"1\"\n";
        assert_eq!(lines("magray-python", manifest), [5]);
        assert_eq!(lines("magray", "[dependencies]\nmagray-python = \"1\"\n"), [2]);
    }

    #[test]
    fn the_engine_knows_nothing_of_load() {
        let manifest = "[dependencies]\nmagray-load.workspace = true\n";
        assert_eq!(lines("magray-bench", manifest), []);
        assert_eq!(lines("magray", manifest), []);
        for lower in ["magray-core", "magray-device", "magray-engine", "magray-index", "magray-simulator"] {
            assert_eq!(lines(lower, manifest), [2], "{lower}");
        }
        assert_eq!(lines("magray-load", "[dependencies]\nmagray-engine.workspace = true\n"), [2]);
    }

    #[test]
    fn every_crate_may_report_skipped_tests() {
        assert_eq!(lines("magray-device", "[dev-dependencies]\nmagray-skip.workspace = true\n"), []);
        assert_eq!(lines("magray-skip", "[dependencies]\nmagray-core = \"1\"\n"), [2]);
    }

    #[test]
    fn a_new_crate_must_find_its_layer() {
        assert_eq!(lines("magray-extra", ""), [0]);
        assert_eq!(check(&SourceFile::new("Cargo.toml", "[workspace.dependencies]\nmagray-core = \"1\"\n")), []);
    }
}
