//! Runs `magray-bench load` in a home of its own, to its end or until it is ended.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};

use serde_json::Value;

use crate::plan::Plan;

/// A home folder, by which the processes of a test are known.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A load on two simulated GPUs.
pub(crate) struct Load<'a> {
    pub(crate) rate: u32,
    pub(crate) seconds: u32,
    pub(crate) plan: Option<&'a Plan>,
}

impl Load<'_> {
    fn command(&self, home: &Home) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_magray-bench"));
        command.args(["load", "--model", "synthetic:tiny", "--tokens", "64", "--simulated-gpus", "2"]);
        command.args(["--warmup", "0", "--check", "--strict", "--json"]);
        command.args(["--rate", &self.rate.to_string(), "--seconds", &self.seconds.to_string()]);
        if let Some(plan) = self.plan {
            command.args(["--faults", &plan.text, "--poison-every", "4", "--seed", &plan.seed.to_string()]);
        }
        command.env_clear().env("HOME", home.path()).env("PATH", "").current_dir(home.path());
        // The plainest arithmetic, on one core, which the workers do not use: the CPU is slower than they are, and
        // gets little to do.
        command.args(["--threads", "1", "--cpu-path", "portable"]);
        command
    }

    /// Runs it to its end, which must be a success, and gives its report.
    pub(crate) fn run(&self, home: &Home) -> Value {
        let output = self.command(home).output().expect("the binary runs");
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}\n{stdout}\n{stderr}"))
    }

    pub(crate) fn spawn(&self, home: &Home) -> Supervisor {
        let mut command = self.command(home);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let told = BufReader::new(child.stderr.take().expect("piped"));
        Supervisor { child, told }
    }
}

/// A run under way.
pub(crate) struct Supervisor {
    child: Child,
    told: BufReader<ChildStderr>,
}

impl Supervisor {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it tells of this many workers.
    pub(crate) fn wait_for_workers(&mut self, count: usize) {
        let mut all = String::new();
        let mut line = String::new();
        while self.told.read_line(&mut line).expect("readable") > 0 {
            if line.matches("(pid ").count() == count {
                return;
            }
            all.push_str(&line);
            line.clear();
        }
        panic!("it ended before it had {count} workers:\n{all}");
    }

    /// Ends it without giving it a chance to tidy up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was ours");
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // A test that failed leaves nothing running; one that did not has ended it already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
