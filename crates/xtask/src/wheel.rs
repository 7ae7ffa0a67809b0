//! Builds the Python package for an old glibc: `cargo xtask wheel`.
//! Knows nothing of what is in it: `crates/magray-python/pack` lays it out.

use crate::old_glibc::{self, GLIBC};
use crate::step::{self, Lack, Outcome};
use std::path::Path;
use std::process::Command;

/// Builds the native part, which has the program too, and what starts that, and packs them.
pub(crate) fn make(root: &Path) -> Outcome {
    let Some(python) = step::python().filter(|_| cfg!(target_os = "linux")) else {
        return Outcome::LeftOut(Lack::Tool("wheels are made on Linux, with python3"));
    };
    let library = match old_glibc::build(root, "magray-python", &["program"]) {
        Ok(release) => release.join("lib_magray.so"),
        Err(outcome) => return outcome,
    };
    let starter = step::target_folder(root).join("wheels/starter");
    match old_glibc::compile(root, &root.join("crates/magray-python/program.c"), &starter) {
        Outcome::Done => {}
        other => return other,
    }
    let mut packing = Command::new(python);
    packing.current_dir(root).args(["-B", "crates/magray-python/pack"]);
    packing.arg("--library").arg(library).arg("--starter").arg(starter);
    packing.args(["--glibc", GLIBC]).arg("--into").arg(step::target_folder(root).join("wheels"));
    step::passes(&mut packing, "mend what crates/magray-python/pack names above")
}
