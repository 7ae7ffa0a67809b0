//! Opens an address in the browser of the user's desktop, where there is one.
//! Waits for nothing, and a machine without a browser is no failure: the address was printed.

use std::{
    env,
    process::{Command, Stdio},
    thread,
};

pub(super) fn open(address: &str) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let has_desktop =
        cfg!(target_os = "macos") || ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| env::var_os(name).is_some());
    if !has_desktop {
        return;
    }
    let mut command = Command::new(program);
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        // It is reaped when it ends; some browsers stay as long as their window.
        let _ = thread::Builder::new().name("browser".to_owned()).spawn(move || child.wait());
    }
}
