//! Runs the binary in a home of its own and holds its answer against what is expected.
//! Hands on nothing of the environment that the tests run in.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use expect_test::Expect;

/// A home folder with a current folder in it.
pub(crate) struct Home {
    root: tempfile::TempDir,
}

/// One call of the binary.
pub(crate) struct Call {
    command: Command,
    stdin: Vec<u8>,
    root: String,
}

/// How a call ended; the home folder reads `HOME` in both texts.
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("here")).unwrap();
        Self { root }
    }

    /// A path in the current folder of the calls.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("here").join(name)
    }

    /// Writes a file into the current folder of the calls.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// The names in the current folder of the calls.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("")).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_magray"));
        command.args(args).env_clear().current_dir(self.path(""));
        command.env("HOME", self.root.path()).env("HF_ENDPOINT", "http://127.0.0.1:1").env("PATH", "");
        // What the tests expect must not depend on the GPUs of the machine that they run on.
        command.env("CUDA_VISIBLE_DEVICES", "");
        command.stdout(Stdio::piped());
        command
    }

    pub(crate) fn call(&self, args: &[&str]) -> Call {
        let root = self.root.path().to_str().unwrap().to_owned();
        Call { command: self.command(args), stdin: Vec::new(), root }
    }

    /// Calls and checks that it is refused with this code and message, and that nothing is printed.
    pub(crate) fn check_refused(&self, args: &[&str], code: i32, message: Expect) {
        self.call(args).run().check_refused(code, message);
    }
}

impl Call {
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn stdin(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.stdin = bytes.as_ref().to_owned();
        self
    }

    /// Sends stdout there and not into the answer.
    pub(crate) fn stdout(mut self, to: impl Into<Stdio>) -> Self {
        self.command.stdout(to);
        self
    }

    pub(crate) fn run(mut self) -> Answer {
        let mut child = self.command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bytes = std::mem::take(&mut self.stdin);
        // A program that refuses its input early closes the pipe, which is its right.
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        Answer::of(output, &self.root)
    }
}

impl Answer {
    fn of(output: Output, root: &str) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap().replace(root, "HOME");
        Self { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    pub(crate) fn check_refused(self, code: i32, message: Expect) {
        assert_eq!(self.code, code, "{}", self.stderr);
        assert_eq!(self.stdout, "");
        message.assert_eq(&self.stderr);
    }

    /// The answer of a call that must succeed.
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }
}

/// A tiny model of the engine's fixtures.
pub(crate) fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../magray-engine/tests/fixtures").join(name);
    path.to_str().unwrap().to_owned()
}
