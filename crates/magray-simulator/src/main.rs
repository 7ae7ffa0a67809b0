//! The simulator as a program: runs seeds and shows what a seed does.
//! Changes no file but those that are named.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own: answers go to stdout")]

use magray_simulator::{ExperimentError, Output, Rule, batching, placement, replay, try_seed, try_seeds};
use std::collections::BTreeMap;
use std::process::ExitCode;

const USAGE: &str = "usage:
  magray-simulator seeds [COUNT [FIRST]]   run worlds, 10,000 of them if nothing is said
  magray-simulator survey COUNT            run worlds and count the rules that they break
  magray-simulator replay SEED [LINES]     run one world and show its last LINES events and actions (40)
  magray-simulator placement [OUTPUT]      weighted placement against round-robin
  magray-simulator batching [OUTPUT]       adaptive batches against fixed ones
OUTPUT is any of: --markdown FILE.md, --plot FILE.svg, --date DAY";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some((command, rest)) = arguments.split_first() else { return explain() };
    let numbers: Option<Vec<u64>> = rest.iter().map(|text| text.parse().ok()).collect();
    match (*command, numbers.as_deref()) {
        ("seeds", Some([])) => seeds(10_000, 0),
        ("seeds", Some([count])) => seeds(*count, 0),
        ("seeds", Some([count, first])) => seeds(*count, *first),
        ("survey", Some([count])) => survey(*count),
        ("replay", Some([seed])) => show(*seed, 40),
        ("replay", Some([seed, lines])) => show(*seed, usize::try_from(*lines).unwrap_or(usize::MAX)),
        ("placement", _) => experiment(placement, rest),
        ("batching", _) => experiment(batching, rest),
        _ => explain(),
    }
}

fn explain() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn seeds(count: u64, first: u64) -> ExitCode {
    match try_seeds(first..first.saturating_add(count)) {
        Ok(totals) => {
            println!("{totals:?}");
            ExitCode::SUCCESS
        }
        Err(failed) => {
            println!("{failed}");
            ExitCode::FAILURE
        }
    }
}

/// Counts the rules that are broken, with the first seed of each: for work on the scheduler.
fn survey(count: u64) -> ExitCode {
    let mut broken: BTreeMap<Rule, (u64, u64)> = BTreeMap::new();
    for failed in (0..count).filter_map(|seed| try_seed(seed).err()) {
        broken.entry(failed.broken.rule).or_insert((failed.seed, 0)).1 += 1;
    }
    for (rule, (seed, times)) in &broken {
        println!("{rule:?}: {times} of {count} seeds, the first is {seed}");
    }
    ExitCode::from(u8::from(!broken.is_empty()))
}

fn experiment(run: fn(&Output) -> Result<String, ExperimentError>, arguments: &[&str]) -> ExitCode {
    let mut output = Output::default();
    for pair in arguments.chunks(2) {
        match pair {
            ["--markdown", file] => output.markdown = Some(file.into()),
            ["--plot", file] => output.plot = Some(file.into()),
            ["--date", day] => output.date = Some((*day).to_owned()),
            _ => return explain(),
        }
    }
    match run(&output) {
        Ok(page) => {
            println!("{page}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn show(seed: u64, lines: usize) -> ExitCode {
    match replay(seed, lines) {
        Ok(measured) => {
            println!("seed {seed} breaks nothing: {} answers, {} steps", measured.answers.len(), measured.steps);
            ExitCode::SUCCESS
        }
        Err(failed) => {
            println!("{failed}");
            ExitCode::FAILURE
        }
    }
}
