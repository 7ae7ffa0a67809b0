//! Compiles the kernels for architectures of GPUs that need not be there; what compiled before is not compiled again.
//! Runs none of them. Exit code 3: no compiler was found.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program speaks to its user")]

use magray_device::cuda::{Arch, CompileError, CubinArchive, CubinCache, CubinKey, KernelSpec, Nvrtc, SearchPath};
use magray_device::cuda::{all_specs, compile, covering_specs, stack_bytes};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};
use std::time::Instant;

const NO_COMPILER: u8 = 3;
const USAGE: &str = "usage: compile_kernels [--all] [--python FOLDER] [--keep FOLDER] [--pack FILE] sm_75 sm_80 ...
  --all             every form of every kernel; else those that cover all of them
  --python FOLDER   where Python packages are installed, to look for NVRTC besides the usual places
  --keep FOLDER     where cubins are kept
  --pack FILE       makes one archive of all cubins; needs --keep. An architecture that NVRTC does not know is left out";
/// Bytes of stack that a kernel may need: some spilled registers.
const STACK_BYTES_MAX: u32 = 128;
/// More than all forms for all architectures, and some generations of them.
const FILES_MAX: usize = 8192;

/// What the command line asks for.
struct Asked {
    specs: Vec<KernelSpec>,
    search: SearchPath,
    keep: Option<PathBuf>,
    pack: Option<PathBuf>,
    archs: Vec<Arch>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(mut asked) = read(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let Some(nvrtc) = Nvrtc::find(&asked.search, None, None) else {
        eprintln!("no NVRTC was found: `pip install nvidia-cuda-nvrtc`");
        return ExitCode::from(NO_COMPILER);
    };
    let (major, minor) = nvrtc.version();
    println!("NVRTC {major}.{minor} from {}", nvrtc.path().display());
    if let Some(unknown) = asked.archs.iter().find(|arch| !nvrtc.knows(**arch)) {
        eprintln!("this NVRTC does not know {unknown}: install another version");
        if asked.pack.is_none() {
            return ExitCode::FAILURE;
        }
        asked.archs.retain(|arch| nvrtc.knows(*arch));
    }

    // What one version compiles another may refuse, so each has a folder of its own.
    let folder = asked.keep.as_ref().map(|folder| folder.join(format!("{major}.{minor}")));
    let cache = folder.map(|folder| CubinCache::new(folder).with_files_max(FILES_MAX));
    let on = |arch: Arch| asked.specs.iter().filter(move |spec| spec.runs_on(arch)).map(move |spec| (spec, arch));
    let forms: Vec<(&KernelSpec, Arch)> = asked.archs.iter().flat_map(|arch| on(*arch)).collect();
    let is_new = |(spec, arch): &(&KernelSpec, Arch)| {
        cache.as_ref().and_then(|cache| cache.get(&CubinKey::of(spec, *arch))).is_none()
    };
    let jobs: Vec<(&KernelSpec, Arch)> = forms.iter().copied().filter(is_new).collect();
    let began = Instant::now();
    let failures = compile_each(&nvrtc, cache.as_ref(), &jobs);
    for failure in &failures {
        eprintln!("{failure}\n");
    }
    let seconds = began.elapsed().as_secs_f64();
    let (all, new, failed) = (forms.len(), jobs.len(), failures.len());
    println!("{all} forms for {}: {new} compiled in {seconds:.1} s, {failed} failed", names(&asked.archs));
    // Other compilers spill other registers, which is no reason to have no archive.
    let are_thin = asked.pack.is_some() || cache.as_ref().is_none_or(|cache| have_little_stack(cache, &forms));
    let is_packed = match (&asked.pack, &cache) {
        (Some(file), Some(cache)) => pack(file, cache, &forms),
        _ => true,
    };
    if failures.is_empty() && are_thin && is_packed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Makes one archive of all forms; whether it is whole.
fn pack(file: &Path, cache: &CubinCache, forms: &[(&KernelSpec, Arch)]) -> bool {
    let keys = forms.iter().map(|(spec, arch)| CubinKey::of(spec, *arch));
    let Some(cubins) = keys.map(|key| Some((cache.get(&key)?, key))).collect::<Option<Vec<_>>>() else {
        eprintln!("no archive: a kernel is not compiled, or could not be kept");
        return false;
    };
    let bytes: usize = cubins.iter().map(|(cubin, _)| cubin.len()).sum();
    let count = cubins.len();
    match CubinArchive::write(file, cubins.into_iter().map(|(cubin, key)| (key, cubin)).collect()) {
        Ok(packed) => {
            let mb = |bytes: u64| bytes as f64 / 1e6;
            println!("{}: {count} kernels, {:.1} MB, packed {:.1} MB", file.display(), mb(bytes as u64), mb(packed));
            true
        }
        Err(error) => {
            eprintln!("'{}' cannot be written: {error}", file.display());
            false
        }
    }
}

/// Whether no kernel needs more stack than it may. The driver holds so much for every thread that a GPU can run at once:
/// a KiB is 264 MiB of an H200's memory.
fn have_little_stack(cache: &CubinCache, forms: &[(&KernelSpec, Arch)]) -> bool {
    let mut are_thin = true;
    let mut most = 0;
    for (spec, arch) in forms {
        let cubin = cache.get(&CubinKey::of(spec, *arch));
        let bytes = cubin.and_then(|cubin| stack_bytes(&cubin)).unwrap_or(0);
        most = most.max(bytes);
        if bytes > STACK_BYTES_MAX {
            eprintln!(
                "{spec} for {arch}: {bytes} bytes of stack, {} are allowed: spill fewer registers",
                STACK_BYTES_MAX
            );
            are_thin = false;
        }
    }
    println!("{most} bytes of stack at most");
    are_thin
}

/// What the words mean; `None` where one means nothing, or no architecture is named.
fn read(words: &[String]) -> Option<Asked> {
    let mut asked =
        Asked { specs: covering_specs(), search: SearchPath::system(), keep: None, pack: None, archs: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--all" => asked.specs = all_specs(),
            "--python" => asked.search = asked.search.with_python(words.next()?),
            "--keep" => asked.keep = Some(words.next()?.into()),
            "--pack" => asked.pack = Some(words.next()?.into()),
            arch => asked.archs.push(parse_arch(arch)?),
        }
    }
    let can_pack = asked.pack.is_none() || asked.keep.is_some();
    (!asked.archs.is_empty() && can_pack).then_some(asked)
}

/// `sm_90` and `sm_90a` are 9.0.
fn parse_arch(word: &str) -> Option<Arch> {
    let number: u32 = word.strip_prefix("sm_")?.trim_end_matches('a').parse().ok()?;
    Some(Arch::of((number / 10, number % 10)))
}

fn names(archs: &[Arch]) -> String {
    archs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Compiles on all cores; what failed, in the order of the jobs.
fn compile_each(nvrtc: &Nvrtc, cache: Option<&CubinCache>, jobs: &[(&KernelSpec, Arch)]) -> Vec<CompileError> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failures = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((spec, arch)) = jobs.get(at) else { return failures };
            match (compile(nvrtc, spec, *arch), cache) {
                // A disk that takes no file costs time at the next run and nothing else.
                (Ok(cubin), Some(cache)) => drop(cache.put(&CubinKey::of(spec, *arch), &cubin, nvrtc.version())),
                (Ok(_), None) => {}
                (Err(failure), _) => failures.push((at, failure)),
            }
        }
    };
    let mut failures = thread::scope(|scope| {
        let cores = available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
        joined.flatten().collect::<Vec<_>>()
    });
    failures.sort_by_key(|(at, _)| *at);
    failures.into_iter().map(|(_, failure)| failure).collect()
}
