//! Builds the Python package for an old glibc: `cargo xtask wheel`.
//! Knows nothing of what is in it: `crates/magray-python/pack` lays it out.

use crate::old_glibc::{self, GLIBC};
use crate::step::{self, Lack, Outcome};
use std::path::Path;
use std::process::Command;

/// Builds the native part and the program, and packs them.
pub(crate) fn make(root: &Path) -> Outcome {
    let Some(python) = step::python().filter(|_| cfg!(target_os = "linux")) else {
        return Outcome::LeftOut(Lack::Tool("wheels are made on Linux, with python3"));
    };
    let release = match old_glibc::build(root, &["magray", "magray-python"]) {
        Ok(release) => release,
        Err(outcome) => return outcome,
    };
    let mut packing = Command::new(python);
    packing.current_dir(root).args(["-B", "crates/magray-python/pack"]);
    packing.arg("--library").arg(release.join("lib_magray.so")).arg("--program").arg(release.join("magray"));
    packing.args(["--glibc", GLIBC]).arg("--into").arg(step::target_folder(root).join("wheels"));
    step::passes(&mut packing, "mend what crates/magray-python/pack names above")
}
