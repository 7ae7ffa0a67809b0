//! Measures the engine under load, with faults, as models come and go, and how well it finds documents; checks every answer.
//! For those who work on magray: users have `magray bench embed`. Reads no settings, only its flags; Unix only.
#![forbid(unsafe_code)]

mod alloc;
mod collection;
mod engine_start;
mod failure;
mod flags;
mod generate;
mod load;
mod overhead;
mod residency;
mod retrieval;
mod search;
mod terminal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use failure::Failure;
use terminal::Console;

/// Load, residency, allocation, overhead and retrieval of magray's engine
#[derive(Debug, Parser)]
#[command(name = "magray-bench", version, max_term_width = 110)]
struct Cli {
    /// Print no progress; warnings and errors stay
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure how fast GPU memory is handed out, and how much of it is wasted
    Alloc(alloc::AllocArgs),
    /// Measure how fast points are stored, opened and found under filters
    Collection(collection::CollectionArgs),
    /// Go on with a text by a language model on the CPU
    Generate(generate::GenerateArgs),
    /// Put load on queue and workers, and check every answer
    Load(load::LoadArgs),
    /// Measure what queue and worker add to the bare pass of one text
    Overhead(overhead::OverheadArgs),
    /// Measure how fast models come and go, and what is left after them
    Residency(residency::ResidencyArgs),
    /// Measure how well documents are found, by judgements
    Retrieval(retrieval::RetrievalArgs),
    /// Measure how fast the best of many vectors are found
    Search(search::SearchArgs),
    /// Holds a GPU for another process of this program, which starts it
    #[command(hide = true)]
    Worker,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let console = Console::new(cli.quiet);
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(LevelFilter::WARN).init();
    match run(cli.command, console) {
        Ok(()) | Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(failure) => {
            console.fail(&failure);
            failure.exit()
        }
    }
}

fn run(command: Command, console: Console) -> Result<(), Failure> {
    match command {
        Command::Alloc(args) => alloc::run(&args),
        Command::Collection(args) => collection::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Load(args) => load::run(&args, console),
        Command::Overhead(args) => overhead::run(&args, console),
        Command::Residency(args) => residency::run(&args, console),
        Command::Retrieval(args) => retrieval::run(&args, console),
        Command::Search(args) => search::run(&args),
        Command::Worker => Ok(magray_engine::serve(|| {})?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
