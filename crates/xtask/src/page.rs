//! The page of the server: checks its types, builds it again and compares, and tries it in a real browser.
//! Changes nothing of the tree; what is fetched lies beside its sources, where git ignores it, or in the user's cache.

use crate::step::{Lack, Outcome, is_ci, passes, runs, target_folder};
use crate::tally::{Tally, Told};
use std::path::Path;
use std::process::Command;

/// Its sources.
const SOURCES: &str = "crates/magray/ui";

/// Whether the files in the tree are those that its sources make.
pub(crate) fn check(root: &Path) -> Outcome {
    if !has_node() {
        return Outcome::LeftOut(Lack::Tool("no Node with npm: the page is not built again"));
    }
    let sources = root.join(SOURCES);
    let npm = |arguments: &[&str]| {
        let mut npm = Command::new("npm");
        npm.current_dir(&sources).args(arguments);
        npm
    };
    if !sources.join("node_modules/.package-lock.json").exists()
        && !npm(&["ci", "--silent"]).status().is_ok_and(|status| status.success())
    {
        return Outcome::LeftOut(Lack::Network("the tools that build the page cannot be fetched"));
    }
    let checked = passes(&mut npm(&["run", "--silent", "check"]), "mend the types that tsc names above");
    if !matches!(checked, Outcome::Done) {
        return checked;
    }
    let built = target_folder(root).join("page");
    let mut build = Command::new("node");
    build.current_dir(&sources).arg("build.mjs").arg(&built);
    match passes(&mut build, "mend what esbuild names above") {
        Outcome::Done => compare(&sources.join("dist"), &built),
        other => other,
    }
}

/// Both folders have the same files with the same bytes.
fn compare(known: &Path, built: &Path) -> Outcome {
    let stale = |name: &str| {
        Outcome::Failed(format!("{SOURCES}/dist/{name} is not what its sources make: `npm run build` there"))
    };
    let (Ok(own), Ok(other)) = (names(known), names(built)) else { return stale("") };
    if own != other {
        return stale("");
    }
    let differs = |name: &&String| std::fs::read(known.join(name)).ok() != std::fs::read(built.join(name)).ok();
    own.iter().find(differs).map_or(Outcome::Done, |name| stale(name))
}

fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Tries the page of this binary in a real browser.
pub(crate) fn browse(root: &Path, binary: &Path, tally: &mut Tally) -> Outcome {
    /// Exit code of the program where it could not fetch what drives the browser.
    const NOT_FETCHED: i32 = 77;
    if !has_node() {
        return Outcome::LeftOut(Lack::Tool("no Node with npm: the page is not tried"));
    }
    let Some(browser) = browser() else {
        return Outcome::LeftOut(Lack::Network("no Chromium, and none can be fetched: the page is not tried"));
    };
    let mut program = Command::new(root.join("tests/browser/page"));
    program.current_dir(root).env("MAGRAY_BIN", binary).env("CHROMIUM", browser);
    match tally.count(&mut program, Told::Stdout).map(|status| status.code()) {
        Ok(Some(0)) => Outcome::Done,
        Ok(Some(NOT_FETCHED)) => Outcome::LeftOut(Lack::Network("what drives the browser cannot be fetched")),
        Ok(_) => Outcome::Failed("mend what tests/browser/page names above".to_owned()),
        Err(error) => Outcome::Failed(format!("tests/browser/page does not run: {error}")),
    }
}

fn has_node() -> bool {
    let is_there = || ["node", "npm"].into_iter().all(|name| runs(name, &["--version"]));
    is_there() || (install(&["nodejs", "npm"]) && is_there())
}

fn browser() -> Option<&'static str> {
    let known = || ["chromium", "google-chrome"].into_iter().find(|name| runs(name, &["--version"]));
    known().or_else(|| install(&["chromium"]).then(known)?)
}

/// Installs packages of Debian, only where `CI` says that the machine is made for this: a system is its owner's to change.
fn install(packages: &[&str]) -> bool {
    if !is_ci() || !runs("apt-get", &["--version"]) {
        return false;
    }
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet").args(arguments);
        matches!(passes(&mut apt, ""), Outcome::Done)
    };
    apt(&["update"]) && apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_or_differs_is_stale() {
        let folder = std::env::temp_dir().join(format!("magray-page-{}", std::process::id()));
        let (known, built) = (folder.join("known"), folder.join("built"));
        let write = |at: &Path, text: &str| std::fs::write(at.join("app.js"), text).unwrap();
        for at in [&known, &built] {
            std::fs::create_dir_all(at).unwrap();
            write(at, "1");
        }
        assert!(matches!(compare(&known, &built), Outcome::Done));
        write(&built, "2");
        assert!(matches!(compare(&known, &built), Outcome::Failed(why) if why.contains("app.js")));
        std::fs::remove_file(known.join("app.js")).unwrap();
        assert!(matches!(compare(&known, &built), Outcome::Failed(_)));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
