//! The log: what happens inside, for those who run magray, as lines of text or JSON on stderr.
//! Answers and messages to the caller do not go through it, and it never fails a command.

use std::{io, sync::OnceLock};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, Registry,
    filter::Targets,
    fmt,
    layer::{Layered, SubscriberExt},
    reload,
    util::SubscriberInitExt,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    /// One JSON object a line, for programs.
    Json,
}

struct Log {
    filter: reload::Handle<Targets, Registry>,
    format: LogFormat,
    shows_moves: bool,
}

/// Which models move, which devices come and go, settings that were read again, and signals to stop. Told by servers unless only
/// errors are wanted.
const MOVES: [&str; 4] = ["magray::residency", "magray::health", "magray::settings", "magray::signals"];

static LOG: OnceLock<Log> = OnceLock::new();

type Filtered = Layered<reload::Layer<Targets, Registry>, Registry>;

/// Starts the log of this process; a second start changes nothing.
pub(crate) fn start(level: &str, format: LogFormat, shows_moves: bool) {
    let (filter, handle) = reload::Layer::new(filter_of(level, shows_moves));
    if Registry::default().with(filter).with(lines(format)).try_init().is_ok() {
        // Only the first start comes here.
        let _ = LOG.set(Log { filter: handle, format, shows_moves });
        if format == LogFormat::Json {
            log_panics();
        }
    }
}

/// Logs panics like other lines, in the span of the request that they happened in.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| tracing::error!(target: "magray::panic", "{panic}")));
}

pub(crate) fn set_level(level: &str) {
    if let Some(log) = LOG.get() {
        // It fails only where there is no log any more.
        let _ = log.filter.reload(filter_of(level, log.shows_moves));
    }
}

pub(crate) fn is_json() -> bool {
    LOG.get().is_some_and(|log| log.format == LogFormat::Json)
}

fn filter_of(level: &str, shows_moves: bool) -> Targets {
    // A word that is none of these cannot come from the table of settings.
    let level = level.parse().unwrap_or(LevelFilter::WARN);
    let of_moves = if shows_moves && level == LevelFilter::WARN { LevelFilter::INFO } else { level };
    MOVES.into_iter().fold(Targets::new().with_default(level), |filter, target| filter.with_target(target, of_moves))
}

fn lines(format: LogFormat) -> Box<dyn Layer<Filtered> + Send + Sync> {
    // With stderr closed there is no place for the error either.
    let lines = fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
    }
}
