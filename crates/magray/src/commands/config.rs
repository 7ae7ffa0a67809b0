//! `magray config`: every setting, its value and where it came from.
//! Shows no secret and changes nothing.

use clap::Args;

use super::Context;
use crate::{
    config::{Config, Entry},
    exit::Failure,
    output::{self, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray config
  MAGRAY_THREADS=2 magray config --json
  magray --config other.yaml config

Settings marked unused are read and checked, but nothing follows from them in this version.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConfigArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ConfigArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&[])?;
    Ok(output::print(&if args.json { json(&config) } else { table(&config) })?)
}

fn table(config: &Config) -> String {
    let cells = |entry: &Entry| {
        let source = entry.source.to_string();
        let source = if entry.setting.is_used { source } else { format!("{source} (unused)") };
        vec![entry.setting.key.to_owned(), entry.shown(), source]
    };
    let head = vec!["key".to_owned(), "value".to_owned(), "source".to_owned()];
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(config.entries.iter().map(cells)).collect();
    let file = config.file.as_ref().map_or("none found".to_owned(), |path| path.display().to_string());
    format!("file: {file}\n\n{}", aligned(&rows))
}

fn json(config: &Config) -> String {
    let entry = |entry: &Entry| {
        let value = match entry.setting.is_secret {
            true => entry.shown().into(),
            false => entry.value.to_json(),
        };
        let row = serde_json::json!({
            "value": value, "source": entry.source.to_string(), "used": entry.setting.is_used,
            "allowed": entry.setting.allowed(), "help": entry.setting.help,
        });
        (entry.setting.key.to_owned(), row)
    };
    let settings: serde_json::Map<String, serde_json::Value> = config.entries.iter().map(entry).collect();
    let file = config.file.as_ref().map(|path| path.display().to_string());
    format!("{}\n", serde_json::json!({ "file": file, "settings": settings }))
}
