//! Settles every setting once: defaults, then the file, then the environment, then the flags.
//! Reads no environment itself (it is handed in) and decides nothing that the settings are for.

mod assignments;
mod critics;
#[cfg(test)]
mod docs;
mod engine;
mod file;
mod gpu;
mod key_file;
mod server;
mod server_table;
mod setting;
mod settled;
mod table;
mod template;
mod tree;
mod value;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

pub(crate) use assignments::Assignments;
pub(crate) use critics::CriticSettings;
pub(crate) use engine::ModelPlans;
pub(crate) use key_file::WrittenKey;
#[cfg(test)]
pub(crate) use key_file::read_keys;
pub(crate) use server::{LiveSettings, RequestLimits, ServerSettings};
pub(crate) use setting::Setting;
pub(crate) use settled::ModelSettings;
pub(crate) use template::template;
pub(crate) use value::Value;

use crate::nearest::nearest;
use critics::CriticTable;
use table::SETTINGS;

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) file: Option<PathBuf>,
    /// One entry a setting, in the order of the table.
    pub(crate) entries: Vec<Entry>,
    /// Those of the file, or those that are built in.
    critics: Vec<CriticTable>,
    surroundings: gpu::Surroundings,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) setting: &'static Setting,
    pub(crate) value: Value,
    pub(crate) source: Source,
}

/// Where a value came from; a later one wins over those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File { path: PathBuf, line: usize },
    Env(&'static str),
    Flag(&'static str),
}

impl Source {
    /// Whether both values were set in the environment, or in the same file.
    fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Env(_), Self::Env(_)) => true,
            (Self::File { path, .. }, Self::File { path: of_other, .. }) => path == of_other,
            _ => false,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "file {}:{line}", path.display()),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct FlagValue {
    pub(crate) key: &'static str,
    pub(crate) value: String,
}

pub(crate) struct Inputs<'a> {
    pub(crate) file: Option<&'a Path>,
    pub(crate) flags: &'a [FlagValue],
    pub(crate) env: &'a dyn Fn(&str) -> Option<OsString>,
    /// The folder that `magray.toml` is looked for in.
    pub(crate) folder: &'a Path,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the configuration {} (named by {named_by}): {reason}", path.display())]
    Unreadable { path: PathBuf, named_by: &'static str, reason: std::io::Error },
    #[error("{}: a configuration ends in .toml, .yaml or .yml", path.display())]
    UnknownFormat { path: PathBuf },
    #[error("{}: larger than {limit} bytes, so it is no configuration", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("{}:{line}: {message}", path.display())]
    Syntax { path: PathBuf, line: usize, message: String },
    #[error("{}:{line}: unknown key '{key}'{hint}", path.display())]
    UnknownKey { path: PathBuf, line: usize, key: String, hint: String },
    #[error("{}:{line}: '{key}' is a section: write its keys below it", path.display())]
    NotASection { path: PathBuf, line: usize, key: String },
    #[error(
        "{}:{line}: {key} is not taken from a file that was only found in the current folder; if you trust this one, \
         name it: --config ./{}",
        path.display(),
        path.file_name().unwrap_or_default().display()
    )]
    Untrusted { path: PathBuf, line: usize, key: &'static str },
    #[error("{location}: '{shown}' is not allowed; use {allowed}")]
    BadValue { location: String, shown: String, allowed: String },
    #[error("{setting}: this version cannot do that; {remedy}")]
    Unsupported { setting: String, remedy: &'static str },
    #[error("{first} is above {second}: lower the first or raise the second")]
    Above { first: String, second: String },
    #[error("server.tls_cert and server.tls_key belong together: set both or none")]
    HalfTls,
    #[error("cannot read the file of keys {} ({named_by}): {reason}; it is a text with one key a line", path.display())]
    KeyFile { path: PathBuf, named_by: String, reason: std::io::Error },
    #[error("{}:{line}: {reason}; a file of keys ({named_by}) has one key a line, and ' #' before its name", path.display())]
    NoKey { path: PathBuf, line: usize, named_by: String, reason: &'static str },
    #[error("the file of keys {} ({named_by}) holds no key: write one a line, or remove the setting", path.display())]
    NoKeys { path: PathBuf, named_by: String },
    #[error("no folder for the models: set MAGRAY_HOME, or HOME")]
    NoStore,
    #[error("{location}: {reason}")]
    Critic { location: String, reason: String },
}

impl Config {
    pub(crate) fn resolve(inputs: &Inputs<'_>) -> Result<Self, ConfigError> {
        let mut entries: Vec<Entry> = SETTINGS.iter().map(|setting| default_entry(setting, inputs.env)).collect();
        let file = file::find(inputs)?;
        let mut critics = CriticTable::built_in();
        if let Some(found) = &file {
            let read = file::read(found)?;
            for (key, value, line) in read.values {
                set(&mut entries, key, value, Source::File { path: found.path.clone(), line });
            }
            if !read.critics.is_empty() {
                critics = CriticTable::of_file(read.critics, &found.path)?;
            }
        }
        for setting in SETTINGS {
            if let Some((value, name)) = from_env(setting, inputs.env)? {
                set(&mut entries, setting.key, value, Source::Env(name));
            }
        }
        for flag in inputs.flags {
            let setting = setting_of(flag.key);
            let name = setting.flag.unwrap_or(flag.key);
            let value = setting.read(&flag.value).ok_or_else(|| bad_value(name.to_owned(), setting, &flag.value))?;
            set(&mut entries, setting.key, value, Source::Flag(name));
        }
        let surroundings = gpu::Surroundings::read(inputs.env);
        let config = Self { file: file.map(|found| found.path), entries, critics, surroundings };
        config.check_together()?;
        Ok(config)
    }

    pub(crate) fn entry(&self, key: &str) -> &Entry {
        let found = self.entries.iter().find(|entry| entry.setting.key == key);
        found.unwrap_or_else(|| unreachable!("'{key}' is not in the table of settings"))
    }

    /// Every setting with its whole key, those of critics last.
    pub(crate) fn all(&self) -> impl Iterator<Item = (String, &Entry)> {
        let of_critic =
            |critic: &CriticTable, entry: &Entry| format!("critics.{}.{}", critic.name, entry.setting.name());
        let critics = self.critics.iter();
        let critics =
            critics.flat_map(move |critic| critic.entries.iter().map(move |one| (of_critic(critic, one), one)));
        self.entries.iter().map(|entry| (entry.setting.key.to_owned(), entry)).chain(critics)
    }

    fn check_together(&self) -> Result<(), ConfigError> {
        let shown = |entry: &Entry| format!("{} = {} ({})", entry.setting.key, entry.value, entry.source);
        let (size, limit) = (self.entry("gpu.batch.default_size"), self.entry("gpu.batch.max_size"));
        match (&size.value, &limit.value) {
            (Value::Whole(a), Value::Whole(b)) if a > b => {
                return Err(ConfigError::Above { first: shown(size), second: shown(limit) });
            }
            _ => {}
        }
        let is_4_bits = self.is_on("gpu.memory.quantization.enabled")
            && self.text("gpu.memory.quantization.bits").as_deref() == Some("4");
        match is_4_bits {
            true => {
                let setting = shown(self.entry("gpu.memory.quantization.bits"));
                Err(ConfigError::Unsupported { setting, remedy: "use 8" })
            }
            false => Ok(()),
        }
    }
}

impl Entry {
    /// The value as people read it; a secret is masked.
    pub(crate) fn shown(&self) -> String {
        match &self.value {
            Value::Unset => self.setting.unset.filter(|unset| !unset.is_empty()).unwrap_or("none").to_owned(),
            _ if self.setting.is_secret => "(hidden)".to_owned(),
            value => value.to_string(),
        }
    }
}

/// Where a user's own configuration is looked for, if there is a home folder.
pub(crate) fn home_file(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    file::config_home(env).map(|folder| folder.join("magray").join("config.toml"))
}

/// What was probably meant by a key that does not exist.
pub(crate) fn key_hint(key: &str) -> String {
    let (section, name) = key.rsplit_once('.').map_or(("", key), |(section, name)| (section, name));
    file::hint(&if section.is_empty() { String::new() } else { format!("{section}.") }, name)
}

/// Warnings about variables that look like magray's and mean nothing to it.
pub(crate) fn unknown_variables(names: impl Iterator<Item = OsString>) -> Vec<String> {
    /// Read where settings are looked for, by the Python package, and by this project's own tests and programs.
    const OTHERS: [&str; 12] = [
        "MAGRAY_CONFIG",
        "MAGRAY_BIN",
        "MAGRAY_BENCH_BIN",
        "MAGRAY_COMMIT",
        "MAGRAY_LOAD_SEED",
        "MAGRAY_PYTHON_ROUNDS",
        "MAGRAY_RAY_MODEL",
        "MAGRAY_RAY_TEXTS",
        "MAGRAY_REQUIRE_MODEL",
        "MAGRAY_SERVER",
        "MAGRAY_SKIPPED_FILE",
        "MAGRAY_TEST_SEED",
    ];
    /// Kubernetes sets these beside a service that is named magray.
    const OF_KUBERNETES: [&str; 2] = ["MAGRAY_SERVICE_", "MAGRAY_PORT_"];
    let known = || SETTINGS.iter().flat_map(|setting| setting.env).copied().chain(OTHERS);
    let mut warnings: Vec<String> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with("MAGRAY_") && !known().any(|known| known == name))
        .filter(|name| !OF_KUBERNETES.iter().any(|start| name.starts_with(start)))
        .map(|name| {
            let ours = || known().filter_map(|known| known.strip_prefix("MAGRAY_"));
            match nearest(&name["MAGRAY_".len()..], ours()) {
                Some(meant) => format!("the variable {name} means nothing; did you mean MAGRAY_{meant}?"),
                None => format!("the variable {name} means nothing; `magray config` lists the settings"),
            }
        })
        .collect();
    warnings.sort();
    warnings
}

/// The flags that settings name, so that a test can compare them with the command line.
#[cfg(test)]
pub(crate) fn flag_names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().filter_map(|setting| setting.flag)
}

fn setting_of(key: &str) -> &'static Setting {
    table::find(key).unwrap_or_else(|| unreachable!("'{key}' is not in the table of settings"))
}

fn set(entries: &mut [Entry], key: &str, value: Value, source: Source) {
    if let Some(entry) = entries.iter_mut().find(|entry| entry.setting.key == key) {
        (entry.value, entry.source) = (value, source);
    }
}

fn default_entry(setting: &'static Setting, env: &dyn Fn(&str) -> Option<OsString>) -> Entry {
    let value = match setting.key {
        "model.store" => file::data_home(env).map_or(Value::Unset, Value::Path),
        "search.folder" => file::collections_home(env).map_or(Value::Unset, Value::Path),
        "gpu.state_file" => file::state_home(env).map_or(Value::Unset, |folder| Value::Path(folder.join("gpus.json"))),
        _ => setting.read(setting.default).unwrap_or(Value::Unset),
    };
    Entry { setting, value, source: Source::Default }
}

type FromEnv = Option<(Value, &'static str)>;

fn from_env(setting: &'static Setting, env: &dyn Fn(&str) -> Option<OsString>) -> Result<FromEnv, ConfigError> {
    for name in setting.env {
        let Some(raw) = env(name) else { continue };
        // An empty variable is how scripts take a variable back, except where empty has a meaning of its own.
        if raw.is_empty() && !setting.kind.takes_empty() {
            continue;
        }
        // To a container's runtime these say "hand nothing in", not "hide what is there".
        if *name == gpu::NVIDIA_VISIBLE && (raw.is_empty() || raw == "void") {
            continue;
        }
        let value = match setting.kind {
            value::Kind::Path if raw.to_str().is_none() => Some(Value::Path(PathBuf::from(&raw))),
            _ => raw.to_str().and_then(|text| setting.read(text)),
        };
        let value = value.ok_or_else(|| bad_value((*name).to_owned(), setting, &raw.to_string_lossy()))?;
        return Ok(Some((value, name)));
    }
    Ok(None)
}

fn bad_value(location: String, setting: &Setting, value: &str) -> ConfigError {
    // Long garbage would push the rest of the message off the screen, and a secret must not appear at all.
    let shown: String = if setting.is_secret { "(hidden)".to_owned() } else { value.chars().take(80).collect() };
    ConfigError::BadValue { location, shown, allowed: setting.allowed() }
}

#[cfg(test)]
mod tests;
