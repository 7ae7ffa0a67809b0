//! Speaks: reads the command line, runs one command, turns its end into an exit code.
//! Holds no model or device code and decides nothing itself.
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod config;
mod console;
mod control;
mod critics;
mod exit;
mod exit_code;
mod input;
mod interrupt;
mod logging;
mod model;
mod nearest;
mod output;
mod qdrant;
mod remote;
mod server;
mod session;
mod splitting;
mod vector_stores;

use magray_generation as generation;

/// The program: reads the command line of this process and runs the command. Returns its exit code.
pub fn run() -> u8 {
    // A panic is a defect; it has printed its message, and scripts see the exit code for it.
    std::panic::catch_unwind(speak).unwrap_or(exit::Exit::Internal.code())
}

fn speak() -> u8 {
    let cli = cli::Cli::read();
    if !cli.command.handles_signals() {
        interrupt::install();
    }
    let context = cli.context();
    match cli.command.run(&context) {
        Ok(()) => 0,
        Err(failure) => match failure.exit() {
            Some(exit) => {
                context.console.fail(&failure);
                if let Some(message) = interrupt::last_word() {
                    context.console.note(message);
                }
                exit.code()
            }
            None => 0,
        },
    }
}
