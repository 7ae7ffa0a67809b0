//! Confines a worker before it reads a file that strangers made: no programs, no network, only the files that it needs.
//! Refuses to run where it was told to be confined and is not. Decision 0009 says why it is built so.
//!
//! Landlock limits the files, seccomp the system calls. Both hold for the calling thread and for what it starts later, so
//! the sandbox is entered while the process has one thread.

mod attempts;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod grants;
#[cfg(target_os = "linux")]
mod syscalls;

pub use attempts::{Attempt, Outcome};
pub(super) use attempts::{SECRET, SOCKET, Targets, attempt_all};

use super::spec::{NOT_CONFINED, Sandbox, WorkerSpec};
use crate::executors::{Failure, FailureKind};
use crate::gpu::SandboxMode;

/// Enters the sandbox that the supervisor asked for. Called before there are other threads.
pub(super) fn enter(spec: &WorkerSpec) -> Result<Sandbox, Failure> {
    if spec.sandbox == SandboxMode::Off {
        return Ok(Sandbox::default());
    }
    let sandbox = confine(spec);
    if spec.sandbox == SandboxMode::Require && !sandbox.is_whole() {
        let why = sandbox.missing.as_deref().unwrap_or("its Landlock is older than Linux 6.2");
        let message = format!(
            "this system cannot confine a worker ({sandbox}; {why}): use a kernel with Landlock, or set gpu.sandbox to auto"
        );
        return Err(Failure::new(FailureKind::Transient, NOT_CONFINED, message));
    }
    Ok(sandbox)
}

#[cfg(target_os = "linux")]
fn confine(spec: &WorkerSpec) -> Sandbox {
    use std::os::fd::IntoRawFd;
    if let Some(missing) = other_threads() {
        return Sandbox { missing: Some(missing), ..Sandbox::default() };
    }
    let grants = grants::Grants::of(spec);
    let files = files::limit(&grants);
    // Stays open until the process ends.
    grants.threads.map(IntoRawFd::into_raw_fd);
    let capabilities = drop_capabilities();
    let syscalls = syscalls::limit();
    let errors = [files.as_ref().err(), capabilities.as_ref().err(), syscalls.as_ref().err()];
    let missing: Vec<&str> = errors.into_iter().flatten().map(String::as_str).collect();
    let missing = (!missing.is_empty()).then(|| missing.join("; "));
    Sandbox { landlock: files.ok(), has_seccomp: syscalls.is_ok(), missing }
}

/// Why a sandbox would not hold: a thread that runs already stays outside and shares all memory.
#[cfg(target_os = "linux")]
fn other_threads() -> Option<String> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    (threads != 1).then(|| format!("the process has {threads} threads where it should have one"))
}

/// Gives up what root may do beyond other users, but for reading files of others.
///
/// Root may look into other processes by its capabilities, past Landlock.
#[cfg(target_os = "linux")]
fn drop_capabilities() -> Result<(), String> {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let kept = CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        // What is copied to a GPU is locked into memory.
        | CapabilitySet::IPC_LOCK
        | CapabilitySet::SYS_NICE;
    let drop = |has: CapabilitySets| {
        let permitted = has.permitted & kept;
        let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets)
    };
    capabilities(None).and_then(drop).map_err(|error| format!("capabilities: {error}"))
}

#[cfg(not(target_os = "linux"))]
fn confine(_: &WorkerSpec) -> Sandbox {
    Sandbox { missing: Some("only Linux has Landlock and seccomp".to_owned()), ..Sandbox::default() }
}
