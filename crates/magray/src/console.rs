//! Messages to the user beside the answers: notes, warnings and progress, all on stderr.
//! Never writes to stdout, never fails a command because stderr is closed.
//! Where the log is JSON the messages are too, so that stderr holds nothing else.

use std::{
    fmt::{self, Display},
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use indicatif::{FormattedDuration, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle};
use serde_json::{Value, json};
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime, SystemTime},
};

use crate::logging;

const BAR: &str = "{prefix} [{wide_bar}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left{msg}";
const TEXTS: &str = "embedding [{wide_bar}] {bytes}/{total_bytes}, {texts}, {left} left";
const TEXTS_SPINNER: &str = "embedding {spinner} {bytes}, {texts}";
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

    /// A bar over the bytes of texts, some of which are done; it also tells how many texts are, how fast, and the time left.
    pub(crate) fn texts_bar(&self, total: Option<u64>, done: u64, texts: Arc<AtomicU64>) -> ProgressBar {
        let bar = self.bytes_bar(total);
        let before = texts.load(Ordering::Relaxed);
        let shown = move |state: &ProgressState, out: &mut dyn fmt::Write| {
            let texts = texts.load(Ordering::Relaxed);
            let rate = (texts - before) as f64 / state.elapsed().as_secs_f64().max(1e-9);
            let _ = write!(out, "{texts} texts, {rate:.0}/s");
        };
        let left = move |state: &ProgressState, out: &mut dyn fmt::Write| {
            let progress = Progress { begun: done, done: state.pos(), total: state.len().unwrap_or(0) };
            let _ = write!(out, "{}", time_left(progress, state.elapsed()));
        };
        let template = if total.is_some() { TEXTS } else { TEXTS_SPINNER };
        bar.set_style(style(template).with_key("texts", shown).with_key("left", left));
        bar.set_position(done);
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

struct Progress {
    /// What was done when the time began to count.
    begun: u64,
    done: u64,
    total: u64,
}

/// By the mean speed since the start: steadier than the speed of the last moments.
fn time_left(progress: Progress, elapsed: Duration) -> String {
    let Progress { begun, done, total } = progress;
    if done <= begun {
        return "?".to_owned();
    }
    let share = total.saturating_sub(done) as f64 / (done - begun) as f64;
    FormattedDuration(Duration::from_secs_f64((elapsed.as_secs_f64() * share).min(1e9).round())).to_string()
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
    let mut timestamp = String::new();
    // As the log writes it. A text takes all that is written.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    json!({ "timestamp": timestamp, "level": level, "message": message, "target": "magray" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_the_bars_parse() {
        for template in [BAR, TEXTS, TEXTS_SPINNER, STEPS, SPINNER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn the_time_left_follows_from_what_this_run_did() {
        let left = |begun, done| time_left(Progress { begun, done, total: 1000 }, Duration::from_secs(10));
        assert_eq!(left(0, 100), "00:01:30");
        assert_eq!(left(500, 600), "00:00:40");
        assert_eq!(left(500, 500), "?");
        assert_eq!(left(0, 1000), "00:00:00");
    }
}
