//! The log: what happens inside, for those who run magray, as lines on stderr.
//! Answers and messages to the caller do not go through it, and it never fails a command.

use std::io;

use tracing::level_filters::LevelFilter;

/// Starts the log of this process; a second start changes nothing.
pub(crate) fn start(level: &str) {
    // A word that is none of these cannot come from the table of settings.
    let level: LevelFilter = level.parse().unwrap_or(LevelFilter::WARN);
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr);
    // With stderr closed there is nobody to tell that the log cannot be written.
    let _ = log.log_internal_errors(false).try_init();
}
