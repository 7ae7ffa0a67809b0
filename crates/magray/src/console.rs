//! Messages to the user beside the answers: notes, warnings and progress, all on stderr.
//! Never writes to stdout, never fails a command because stderr is closed.
//! Where the log is JSON the messages are too, so that stderr holds nothing else.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    time::{Duration, SystemTime},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use magray_engine::health::utc;
use serde_json::{Value, json};

use crate::logging;

const BAR: &str = "{prefix} [{wide_bar}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left{msg}";
const STEPS: &str = "{prefix} [{wide_bar}] {pos}/{len}, {elapsed}{msg}";
const SPINNER: &str = "{prefix} {spinner} {bytes}, {elapsed}{msg}";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    is_quiet: bool,
    is_verbose: bool,
}

impl Console {
    pub(crate) fn new(is_quiet: bool, is_verbose: bool) -> Self {
        Self { is_quiet, is_verbose }
    }

    /// Shown only with `--verbose`.
    pub(crate) fn detail(&self, message: impl Display) {
        if self.is_verbose {
            write_line(Weight::Info, message);
        }
    }

    /// Left out with `--quiet`.
    pub(crate) fn note(&self, message: impl Display) {
        if !self.is_quiet {
            write_line(Weight::Info, message);
        }
    }

    /// Shown also with `--quiet`.
    pub(crate) fn warn(&self, message: impl Display) {
        write_line(Weight::Warn, message);
    }

    pub(crate) fn fail(&self, message: impl Display) {
        write_line(Weight::Error, message);
    }

    /// A bar over bytes, or a spinner where the whole is unknown.
    pub(crate) fn bytes_bar(&self, total: Option<u64>) -> ProgressBar {
        // Cleared also when a failure drops it, so that the message stands on a line of its own.
        let bar = ProgressBar::with_draw_target(total, self.target()).with_finish(ProgressFinish::AndClear);
        bar.set_style(style(if total.is_some() { BAR } else { SPINNER }));
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    /// A bar over steps of unequal length; each is named as it begins.
    pub(crate) fn steps_bar(&self, total: usize) -> ProgressBar {
        let bar =
            ProgressBar::with_draw_target(Some(total as u64), self.target()).with_finish(ProgressFinish::AndClear);
        bar.set_style(style(STEPS));
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    fn target(&self) -> ProgressDrawTarget {
        let draws = !self.is_quiet && io::stderr().is_terminal();
        if draws { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
    }
}

fn style(template: &str) -> ProgressStyle {
    // A template of this file that does not parse is replaced by the plain bar: progress never stops a command.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ")
}

#[derive(Clone, Copy)]
enum Weight {
    Info,
    Warn,
    Error,
}

fn write_line(weight: Weight, message: impl Display) {
    // A closed stderr is no reason to stop.
    let _ = if logging::is_json() {
        writeln!(io::stderr(), "{}", json_line(weight, &message.to_string()))
    } else {
        let prefix = match weight {
            Weight::Info => "",
            Weight::Warn => "warning: ",
            Weight::Error => "error: ",
        };
        writeln!(io::stderr(), "{prefix}{message}")
    };
}

/// The fields that lines of the log have too.
fn json_line(weight: Weight, message: &str) -> Value {
    let level = match weight {
        Weight::Info => "INFO",
        Weight::Warn => "WARN",
        Weight::Error => "ERROR",
    };
    json!({ "timestamp": utc(SystemTime::now()), "level": level, "message": message, "target": "magray" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_the_bars_parse() {
        for template in [BAR, STEPS, SPINNER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
