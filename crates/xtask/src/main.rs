//! The chores of the repository: `cargo xtask tidy`, `deny`, `kernels`, `cubins`, `wheel`, `package`, `page`, `browser`, `fuzz` and `ci`.
//! Never part of the product, and depends on nothing but the standard library.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program speaks to its user")]

mod ci;
mod fuzzing;
mod kernels;
mod old_glibc;
mod packages;
mod page;
mod step;
mod supply;
mod tally;
mod tidy;
mod wheel;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <command>

  tidy   checks what the compiler does not: file sizes, first lines, names, layers, circles, links
  deny   checks what comes from others by deny.toml: licences, bans, sources, advisories
  kernels [--all]
         compiles the CUDA kernels without a GPU, in the forms that cover all others, or in all forms
  cubins FILE
         compiles all forms for all generations of GPUs into one archive; beside the program, as magray.cubins, it makes
         NVRTC needless there
  wheel  builds the Python package with the program inside, for Linux with glibc 2.28 or newer: target/wheels
  page   checks the types of the server's page, builds it again and compares
  browser
         tries the page of the built server in Chromium
  package [--without-cubins]
         builds the release for glibc 2.28 and makes a tarball, a Debian package, a bill of materials and checksums of it,
         with the kernels for all GPUs or without, in target/packages
  fuzz SECONDS
         throws bytes at what reads requests, files and messages, each target for so long
  ci     runs everything a change must pass: formatting, tidy, dependencies, lints, kernels, the default model, all
         tests, the page in Chromium, fuzzing for a short time, clients, the Python package";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = repository_root();
    match words.as_slice() {
        ["tidy"] => tidy::check_tree(root),
        ["deny"] => step::alone("deny", supply::check(root)),
        ["kernels"] => step::alone("kernels", kernels::check(root, kernels::Forms::Covering)),
        ["kernels", "--all"] => step::alone("kernels", kernels::check(root, kernels::Forms::All)),
        ["cubins", file] => step::alone("cubins", kernels::pack(root, Path::new(file))),
        ["wheel"] => step::alone("wheel", wheel::make(root)),
        ["package"] => step::alone("package", packages::make(root, packages::Kernels::Packed)),
        ["package", "--without-cubins"] => step::alone("package", packages::make(root, packages::Kernels::LeftOut)),
        ["fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => step::alone("fuzz", fuzzing::check(root, seconds)),
            Err(_) => misused(),
        },
        ["page"] => step::alone("page", page::check(root)),
        ["browser"] => {
            step::alone("browser", page::browse(root, &ci::built_binary(root), &mut tally::Tally::default()))
        }
        ["ci"] => ci::run(root),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => misused(),
    }
}

fn misused() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn repository_root() -> &'static Path {
    // Known at compile time: xtask is always built where it runs, and only there.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}
