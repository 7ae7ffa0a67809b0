//! The log: what happens inside, for those who run magray, as lines of text or JSON on stderr.
//! Answers and messages to the caller do not go through it, and it never fails a command.

use std::{io, sync::OnceLock};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, Registry, fmt,
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
    level: reload::Handle<LevelFilter, Registry>,
    format: LogFormat,
}

static LOG: OnceLock<Log> = OnceLock::new();

type Filtered = Layered<reload::Layer<LevelFilter, Registry>, Registry>;

/// Starts the log of this process; a second start changes nothing.
pub(crate) fn start(level: &str, format: LogFormat) {
    let (filter, handle) = reload::Layer::new(read_level(level));
    if Registry::default().with(filter).with(lines(format)).try_init().is_ok() {
        // Only the first start comes here.
        let _ = LOG.set(Log { level: handle, format });
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
        let _ = log.level.reload(read_level(level));
    }
}

pub(crate) fn is_json() -> bool {
    LOG.get().is_some_and(|log| log.format == LogFormat::Json)
}

fn read_level(level: &str) -> LevelFilter {
    // A word that is none of these cannot come from the table of settings.
    level.parse().unwrap_or(LevelFilter::WARN)
}

fn lines(format: LogFormat) -> Box<dyn Layer<Filtered> + Send + Sync> {
    // With stderr closed there is no place for the error either.
    let lines = fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
    }
}
