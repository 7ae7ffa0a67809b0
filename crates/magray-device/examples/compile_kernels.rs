//! Compiles every form of every kernel, without a GPU: `compile_kernels FOLDER [sm_80 ...]`.
//! Keeps nothing of what it compiles; needs NVRTC, in the loader's path or below FOLDER.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program speaks to its user")]

use magray_device::cuda::{Arch, KernelSpec, Nvrtc, SearchPath, all_specs, compile};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next() else {
        eprintln!("usage: compile_kernels FOLDER [CAPABILITY ...]");
        return ExitCode::from(2);
    };
    let archs: Vec<Arch> = arguments
        .map(|w| {
            let n: u32 = w.parse().unwrap_or(90);
            Arch::of((n / 10, n % 10))
        })
        .collect();
    let Some(nvrtc) = Nvrtc::find(&SearchPath::system().with_python(folder), None, None) else {
        eprintln!("NVRTC was not found");
        return ExitCode::FAILURE;
    };
    println!("NVRTC {:?} {:?}", nvrtc.version(), nvrtc.path());
    let jobs: Vec<(KernelSpec, Arch)> = all_specs()
        .into_iter()
        .flat_map(|spec| archs.iter().filter(|a| spec.runs_on(**a)).map(|a| (spec.clone(), *a)).collect::<Vec<_>>())
        .collect();
    let next = AtomicUsize::new(0);
    let slow: Mutex<Vec<(Duration, String)>> = Mutex::new(vec![]);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::env::var("T").map_or(2, |t| t.parse().unwrap()) {
            scope.spawn(|| {
                while let Some((spec, arch)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let t = Instant::now();
                    if let Err(e) = compile(&nvrtc, spec, *arch) {
                        println!("{e}");
                    }
                    slow.lock().unwrap().push((t.elapsed(), format!("{spec} {arch}")));
                }
            });
        }
    });
    let mut slow = slow.into_inner().unwrap();
    slow.sort();
    println!("{} in {:?}; {:?}", jobs.len(), began.elapsed(), slow.iter().rev().take(5).collect::<Vec<_>>());
    ExitCode::SUCCESS
}
