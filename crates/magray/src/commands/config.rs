//! `magray config`: every setting, its value and where it came from; one of them; or a file to start from.
//! Shows no secret, and overwrites no file without being told to.

use std::{env, fs, path::PathBuf};

use clap::{Args, Subcommand};

use super::Context;
use crate::{
    config::{self, Config, Entry},
    exit::Failure,
    output::{self, Destination, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray config
  MAGRAY_THREADS=2 magray config --json
  magray --config other.yaml config
  magray config get embed.precision
  magray config init                      a file with every setting, commented out";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: Option<ConfigAction>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Print the value of one setting
    Get {
        /// Its key, such as embed.precision
        key: String,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a file with every setting, its meaning and its default, commented out
    Init {
        /// Where to, such as ./magray.toml [default: magray/config.toml in the folder of configurations]
        file: Option<PathBuf>,
        /// Replace a file that is there
        #[arg(long)]
        force: bool,
    },
}

pub(crate) fn run(args: &ConfigArgs, context: &Context) -> Result<(), Failure> {
    match &args.action {
        Some(ConfigAction::Init { file, force }) => init(file.clone(), *force),
        Some(ConfigAction::Get { key, json }) => get(key, *json, context),
        None => {
            let config = context.settle(&[])?;
            Ok(output::print(&if args.json { json_of(&config) } else { table(&config) })?)
        }
    }
}

fn get(key: &str, as_json: bool, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&[])?;
    let Some((_, entry)) = config.all().find(|(known, _)| known == key) else {
        return Err(Failure::Usage(format!("unknown key '{key}'{}", config::key_hint(key))));
    };
    let text = if as_json { json_value(entry).to_string() } else { entry.shown() };
    Ok(output::print(&(text + "\n"))?)
}

/// Prints the file that it wrote.
fn init(file: Option<PathBuf>, replaces: bool) -> Result<(), Failure> {
    let path = match file.or_else(|| config::home_file(&|name| env::var_os(name))) {
        Some(path) => path,
        None => return Err(Failure::Usage("no folder of configurations: name a FILE, or set HOME".to_owned())),
    };
    if path.exists() && !replaces {
        return Err(Failure::Usage(format!("{} is there already: --force replaces it", path.display())));
    }
    if let Some(folder) = path.parent() {
        // A folder that cannot be made is reported with the file.
        let _ = fs::create_dir_all(folder);
    }
    let mut out = Destination::open(Some(&path))?;
    out.checked(|out| out.write_all(config::template().as_bytes()))?;
    out.finish()?;
    Ok(output::print(&format!("{}\n", path.display()))?)
}

fn table(config: &Config) -> String {
    let cells = |(key, entry): (String, &Entry)| vec![key, short(&entry.shown()), entry.source.to_string()];
    let head = vec!["key".to_owned(), "value".to_owned(), "source".to_owned()];
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(config.all().map(cells)).collect();
    let file = config.file.as_ref().map_or("none found".to_owned(), |path| path.display().to_string());
    format!("file: {file}\n\n{}", aligned(&rows))
}

/// A long text, such as a critic's prompt, as far as it fits on a line.
fn short(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) if text.contains(' ') => format!("{}...", output::safe(&text[..end])),
        _ => output::safe(text),
    }
}

fn json_value(entry: &Entry) -> serde_json::Value {
    match entry.setting.is_secret {
        true => entry.shown().into(),
        false => entry.value.to_json(),
    }
}

fn json_of(config: &Config) -> String {
    let entry = |(key, entry): (String, &Entry)| {
        let row = serde_json::json!({
            "value": json_value(entry), "source": entry.source.to_string(),
            "allowed": entry.setting.allowed(), "help": entry.setting.help,
        });
        (key, row)
    };
    let settings: serde_json::Map<String, serde_json::Value> = config.all().map(entry).collect();
    let file = config.file.as_ref().map(|path| path.display().to_string());
    format!("{}\n", serde_json::json!({ "file": file, "settings": settings }))
}
