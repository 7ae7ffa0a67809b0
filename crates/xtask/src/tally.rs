//! Counts the tests that truly ran, and names what was skipped and why.
//! Runs no test. A test that was skipped although the machine has what it needs is a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The variable by which tests learn where to report that they are skipped (`crates/magray-skip`).
pub(crate) const SKIPPED_FILE: &str = "MAGRAY_SKIPPED_FILE";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// Why tests, or parts of them, were skipped, and how many.
    reasons: BTreeMap<String, usize>,
}

/// Where a program prints its test results.
#[derive(Clone, Copy)]
pub(crate) enum Told {
    Stdout,
    Stderr,
}

impl Tally {
    /// Runs a command, shows its output, and counts the tests in it.
    pub(crate) fn count(&mut self, command: &mut Command, told: Told) -> io::Result<ExitStatus> {
        println!("   {command:?}");
        match told {
            Told::Stdout => command.stdout(Stdio::piped()),
            Told::Stderr => command.stderr(Stdio::piped()),
        };
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let lines: Box<dyn io::Read> = match (stdout, stderr) {
            (Some(stdout), _) => Box::new(stdout),
            (_, Some(stderr)) => Box::new(stderr),
            (None, None) => Box::new(io::empty()),
        };
        let mut ran = 0;
        for line in BufReader::new(lines).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            self.read_line(&line, &mut ran);
        }
        child.wait()
    }

    /// Reads the summary lines of Rust's harness and of Python's; `ran` is the count that the latter printed before.
    fn read_line(&mut self, line: &str, ran: &mut usize) {
        if let Some(told) = line.strip_prefix("test result: ") {
            self.passed += number_before(told, " passed");
            self.failed += number_before(told, " failed");
            let ignored = number_before(told, " ignored");
            self.add_skipped("marked as ignored", ignored);
        } else if let Some(told) = line.strip_prefix("Ran ") {
            *ran = number_before(told, " test");
        } else if line == "OK" || line.starts_with("OK (") || line.starts_with("FAILED (") {
            let failed = number_after(line, "failures=") + number_after(line, "errors=");
            let skipped = number_after(line, "skipped=");
            self.passed += std::mem::take(ran).saturating_sub(failed + skipped);
            self.failed += failed;
            self.add_skipped("skipped by a Python test: its lines above say why", skipped);
        }
    }

    fn add_skipped(&mut self, reason: &str, count: usize) {
        if count > 0 {
            self.skipped += count;
            *self.reasons.entry(reason.to_owned()).or_default() += count;
        }
    }

    /// Takes what tests reported as skipped out of those that passed. `has` says whether the machine has what they
    /// missed; the error names what was skipped without need.
    pub(crate) fn take_skipped(&mut self, reports: &str, has: impl Fn(&str) -> bool) -> Result<(), String> {
        let mut tests = BTreeSet::new();
        let mut parts = BTreeSet::new();
        let mut needless = BTreeSet::new();
        for line in reports.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [extent, need, test, reason] = fields[..] else {
                return Err(format!("a report of a skipped test that cannot be read: {line:?}"));
            };
            if has(need) {
                needless.insert(format!("{test} needs {need}, which this machine has, and was skipped: {reason}"));
            }
            let reports = if extent == "test" { &mut tests } else { &mut parts };
            reports.insert((test, need, reason));
        }
        // A test that reports several lacks is one test.
        let whole: BTreeSet<&str> = tests.iter().map(|(test, ..)| *test).collect();
        self.passed = self.passed.saturating_sub(whole.len());
        self.skipped += whole.len();
        for (_, need, reason) in tests {
            *self.reasons.entry(format!("{need}: {reason}")).or_default() += 1;
        }
        for (_, need, reason) in parts {
            *self.reasons.entry(format!("{need}: {reason} (a part of a test)")).or_default() += 1;
        }
        if needless.is_empty() { Ok(()) } else { Err(needless.into_iter().collect::<Vec<_>>().join("\n")) }
    }

    /// One line a reason.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = String> {
        self.reasons.iter().map(|(reason, count)| format!("{count} skipped, {reason}"))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

fn number_before(text: &str, word: &str) -> usize {
    let before = text.split_once(word).map_or("", |(before, _)| before);
    before.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn number_after(text: &str, word: &str) -> usize {
    let after = text.split_once(word).map_or("", |(_, after)| after);
    after.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// What this machine has of what tests may need, found without any code of the tests.
pub(crate) struct Machine {
    cpu_flags: BTreeSet<String>,
    has_gpu: bool,
    nvrtc: PathBuf,
    onnx_runtime: PathBuf,
    has_landlock: bool,
    /// The most files that a process may open; none if there is no limit.
    open_files_max: Option<u64>,
    has_pip: bool,
}

impl Machine {
    pub(crate) fn look(target: &Path) -> Self {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = cpus.lines().find(|line| line.starts_with("flags")).and_then(|line| line.split_once(':'));
        let cpu_flags = flags.map(|(_, flags)| flags.split_whitespace().map(str::to_owned).collect());
        Self {
            cpu_flags: cpu_flags.unwrap_or_default(),
            has_gpu: Path::new("/dev/nvidia0").exists(),
            nvrtc: target.join("nvrtc"),
            onnx_runtime: target.join("onnxruntime"),
            has_landlock: std::fs::read_to_string("/sys/kernel/security/lsm")
                .is_ok_and(|modules| modules.trim().split(',').any(|module| module == "landlock")),
            open_files_max: open_files_max(),
            has_pip: has_pip(),
        }
    }

    /// Whether it has what a test calls by this word.
    pub(crate) fn has(&self, need: &str) -> bool {
        let has_flags = |flags: &[&str]| flags.iter().all(|flag| self.cpu_flags.contains(*flag));
        match need {
            "gpu" => self.has_gpu,
            "no-gpu" => !self.has_gpu,
            "nvrtc" => self.nvrtc.exists(),
            "onnxruntime" => self.onnx_runtime.exists(),
            "landlock" => self.has_landlock,
            "pip" => self.has_pip,
            "avx2" => has_flags(&["avx2", "fma"]),
            "avx512" => has_flags(&["avx512f", "avx512bw", "avx512dq", "avx512vl"]),
            "amx" => has_flags(&["amx_tile", "amx_bf16", "amx_int8", "avx512_vnni", "avx512_bf16"]),
            // The model is pulled before the tests.
            "model" => true,
            _ => need
                .strip_prefix("open-files-")
                .and_then(|count| count.parse::<u64>().ok())
                .is_some_and(|count| self.open_files_max.is_none_or(|most| most >= count)),
        }
    }
}

/// The hard limit: a test may raise the other up to it. Where the system does not tell, none is taken for granted.
fn open_files_max() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    match line.split_whitespace().nth(1) {
        Some("unlimited") => None,
        hard => Some(hard.and_then(|hard| hard.parse().ok()).unwrap_or(0)),
    }
}

fn has_pip() -> bool {
    let pip = Command::new("python3").args(["-I", "-m", "pip", "--version"]).output();
    pip.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally_of(lines: &[&str]) -> Tally {
        let (mut tally, mut ran) = (Tally::default(), 0);
        lines.iter().for_each(|line| tally.read_line(line, &mut ran));
        tally
    }

    #[test]
    fn both_harnesses_are_counted() {
        let tally = tally_of(&[
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.10s",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
            "Ran 10 tests in 0.5s",
            "",
            "OK (skipped=1)",
            "Ran 5 tests in 0.5s",
            "FAILED (failures=1, errors=2)",
            "Ran 1 test in 0.5s",
            "OK",
            "a line that says nothing: 7 passed",
        ]);
        assert_eq!(tally.to_string(), "28 passed, 5 failed, 4 skipped");
    }

    #[test]
    fn a_skipped_test_has_not_passed_and_a_skipped_part_has_not_failed_it() {
        let mut tally = Tally { passed: 10, ..Tally::default() };
        let reports = "test\tgpu\tconformance::a\tno GPU\ntest\tgpu\tconformance::a\tno GPU\n\
            test\tgpu\tconformance::b\tno GPU\npart\tamx\tconformance::c\tno such path\n";
        assert_eq!(tally.take_skipped(reports, |_| false), Ok(()));
        assert_eq!(tally.to_string(), "8 passed, 0 failed, 2 skipped");
        let reasons: Vec<String> = tally.reasons().collect();
        assert_eq!(reasons, ["1 skipped, amx: no such path (a part of a test)", "2 skipped, gpu: no GPU"]);
    }

    #[test]
    fn what_the_machine_has_may_not_be_skipped() {
        let skip = |need: &str| Tally::default().take_skipped(&format!("part\t{need}\tt\twhy\n"), |need| need == "amx");
        assert_eq!(skip("gpu"), Ok(()));
        assert!(skip("amx").is_err_and(|told| told.contains("t needs amx")));
        assert!(Tally::default().take_skipped("garbled\n", |_| false).is_err());
    }

    #[test]
    fn a_machine_knows_what_it_has() {
        let flags = "avx2 fma avx512f avx512bw avx512dq avx512vl".split(' ').map(str::to_owned).collect();
        let machine = Machine {
            cpu_flags: flags,
            has_gpu: false,
            nvrtc: PathBuf::from("/none/such"),
            onnx_runtime: PathBuf::from("/none/such"),
            has_landlock: true,
            open_files_max: Some(4_096),
            has_pip: false,
        };
        let has = ["avx2", "avx512", "no-gpu", "model", "landlock", "open-files-4096"];
        assert!(has.iter().all(|need| machine.has(need)));
        let lacks = ["amx", "gpu", "nvrtc", "ordinary-user", "pip", "open-files-4097", "open-files-", "outer-address"];
        assert!(!lacks.iter().any(|need| machine.has(need)));
    }
}
