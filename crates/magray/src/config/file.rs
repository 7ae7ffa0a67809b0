//! Finds the configuration file and reads it into settings, refusing keys that mean nothing.
//! Does not merge: the caller knows what wins over what.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::nearest::nearest;

use super::{
    ConfigError, Inputs, Setting, Value, bad_value,
    critics::{self, CriticValues},
    setting::Files,
    table::{self, SETTINGS},
    tree::{self, Data, Node},
    value::Kind,
};

/// Real configurations have a few kilobytes; a larger file is one given by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    named_by: &'static str,
    is_trusted: bool,
}

/// The file to read: one that was named must exist, others are used where they do.
pub(super) fn find(inputs: &Inputs<'_>) -> Result<Option<Found>, ConfigError> {
    let trusted = |path, named_by| Found { path, named_by, is_trusted: true };
    if let Some(path) = inputs.file {
        return Ok(Some(trusted(path.to_owned(), "--config")));
    }
    if let Some(path) = (inputs.env)("MAGRAY_CONFIG").filter(|path| !path.is_empty()) {
        return Ok(Some(trusted(path.into(), "MAGRAY_CONFIG")));
    }
    let here = ["magray.toml", "magray.yaml", "magray.yml"].map(|name| Found {
        path: inputs.folder.join(name),
        named_by: "the current folder",
        is_trusted: false,
    });
    let at_home = config_home(inputs.env).into_iter().flat_map(|folder| {
        ["config.toml", "config.yaml", "config.yml"]
            .map(|name| trusted(folder.join("magray").join(name), "the home folder"))
    });
    Ok(here.into_iter().chain(at_home).find(|found| found.path.is_file()))
}

pub(super) fn config_home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    absolute(env("XDG_CONFIG_HOME")).or_else(|| Some(home(env)?.join(".config")))
}

pub(super) fn data_home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let base = absolute(env("XDG_DATA_HOME")).or_else(|| Some(home(env)?.join(".local").join("share")));
    base.or_else(|| absolute(env("LOCALAPPDATA"))).map(|base| base.join("magray"))
}

/// Beside the models.
pub(super) fn collections_home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let base = env("MAGRAY_HOME").filter(|home| !home.is_empty()).map(PathBuf::from).or_else(|| data_home(env));
    base.map(|base| base.join("collections"))
}

pub(super) fn cache_home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let base = absolute(env("XDG_CACHE_HOME")).or_else(|| Some(home(env)?.join(".cache")));
    base.or_else(|| absolute(env("LOCALAPPDATA"))).map(|base| base.join("magray"))
}

pub(super) fn state_home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let base = absolute(env("XDG_STATE_HOME")).or_else(|| Some(home(env)?.join(".local").join("state")));
    base.or_else(|| absolute(env("LOCALAPPDATA"))).map(|base| base.join("magray"))
}

/// The folders for what lives as long as a process, the best first. The second serves where there is no session, and is
/// looked into also where there is one.
pub(super) fn running_homes(env: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let session = absolute(env("XDG_RUNTIME_DIR")).map(|base| base.join("magray"));
    session.into_iter().chain(state_home(env).map(|home| home.join("run"))).collect()
}

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct FileValues {
    /// Each with the line that it stands on.
    pub(super) values: Vec<(&'static str, Value, usize)>,
    pub(super) critics: Vec<CriticValues>,
}

pub(super) fn read(found: &Found) -> Result<FileValues, ConfigError> {
    let path = &found.path;
    let unreadable = |reason| ConfigError::Unreadable { path: path.clone(), named_by: found.named_by, reason };
    let parse = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => tree::parse_toml,
        Some("yaml" | "yml") => tree::parse_yaml,
        _ => return Err(ConfigError::UnknownFormat { path: path.clone() }),
    };
    let mut bytes = Vec::new();
    fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ConfigError::TooLarge { path: path.clone(), limit: FILE_BYTES_MAX });
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error())))?;
    let root = parse(text.trim_start_matches('\u{feff}')).map_err(|error| ConfigError::Syntax {
        path: path.clone(),
        line: error.line,
        message: error.message,
    })?;
    let mut reading = Reading { path, is_trusted: found.is_trusted, read: FileValues::default() };
    reading.section("", root)?;
    Ok(reading.read)
}

struct Reading<'a> {
    path: &'a Path,
    is_trusted: bool,
    read: FileValues,
}

impl Reading<'_> {
    fn section(&mut self, prefix: &str, node: Node) -> Result<(), ConfigError> {
        for (name, node) in self.rows(prefix, node)? {
            let key = format!("{prefix}{name}");
            let inside = format!("{key}.");
            match table::find(&key) {
                Some(setting) => {
                    let value = self.value(setting, setting.key, &node)?;
                    self.read.values.extend(value.map(|value| (setting.key, value, node.line)));
                }
                None if key == critics::SECTION => self.critics(node)?,
                None if SETTINGS.iter().any(|setting| setting.key.starts_with(&inside)) => {
                    self.section(&inside, node)?
                }
                None => {
                    let hint = hint(prefix, &name);
                    return Err(ConfigError::UnknownKey { path: self.path.to_owned(), line: node.line, key, hint });
                }
            }
        }
        Ok(())
    }

    /// The rows of a section; an empty one has none.
    fn rows(&self, prefix: &str, node: Node) -> Result<Vec<(String, Node)>, ConfigError> {
        match node.data {
            Data::Table(rows) => Ok(rows),
            Data::Null => Ok(Vec::new()),
            _ => {
                let key = prefix.trim_end_matches('.').to_owned();
                Err(ConfigError::NotASection { path: self.path.to_owned(), line: node.line, key })
            }
        }
    }

    /// A table a critic.
    fn critics(&mut self, node: Node) -> Result<(), ConfigError> {
        for (name, node) in self.rows(critics::SECTION, node)? {
            let (prefix, line) = (format!("{}.{name}.", critics::SECTION), node.line);
            let mut values = Vec::new();
            for (field, node) in self.rows(&prefix, node)? {
                let key = format!("{prefix}{field}");
                let Some(setting) = critics::find(&field) else {
                    let hint = critics::hint(&prefix, &field);
                    return Err(ConfigError::UnknownKey { path: self.path.to_owned(), line: node.line, key, hint });
                };
                let value = self.value(setting, &key, &node)?;
                values.extend(value.map(|value| (setting, critics::anchored(setting, value, self.path), node.line)));
            }
            self.read.critics.push(CriticValues { name, line, values });
        }
        Ok(())
    }

    /// The value of a node; `None`: nothing was written.
    fn value(&self, setting: &'static Setting, key: &str, node: &Node) -> Result<Option<Value>, ConfigError> {
        let line = node.line;
        if setting.files == Files::Trusted && !self.is_trusted {
            return Err(ConfigError::Untrusted { path: self.path.to_owned(), line, key: setting.key });
        }
        let value = match &node.data {
            Data::Null => return Ok(None),
            Data::Scalar(text) => setting.read(text),
            Data::List(items) => {
                let texts: Option<Vec<&str>> = items.iter().map(scalar).collect();
                texts.and_then(|texts| setting.kind.read_list(texts.into_iter()))
            }
            Data::Table(rows) if setting.kind.is_table() => {
                let row = |(name, node): &(String, Node)| setting.kind.read_row(name, scalar(node)?);
                rows.iter().map(row).collect::<Option<_>>().map(Value::Table)
            }
            Data::Table(_) => None,
        };
        let location = || format!("{}:{line}: {key}", self.path.display());
        let value = value.ok_or_else(|| bad_value(location(), setting, &as_written(&node.data)))?;
        Ok(Some(self.anchored(setting, value)))
    }

    /// A relative path of a file counts from the folder of that file, wherever magray is started.
    fn anchored(&self, setting: &Setting, value: Value) -> Value {
        match (setting.kind, value, self.path.parent()) {
            (Kind::Path, Value::Path(path), Some(folder)) => Value::Path(folder.join(path)),
            (_, value, _) => value,
        }
    }
}

fn scalar(node: &Node) -> Option<&str> {
    match &node.data {
        Data::Scalar(text) => Some(text),
        _ => None,
    }
}

fn as_written(data: &Data) -> String {
    match data {
        Data::Null => String::new(),
        Data::Scalar(text) => text.clone(),
        Data::List(items) => {
            let items: Vec<String> = items.iter().map(|item| as_written(&item.data)).collect();
            format!("[{}]", items.join(", "))
        }
        Data::Table(rows) => {
            let rows: Vec<String> =
                rows.iter().map(|(name, node)| format!("{name} = {}", as_written(&node.data))).collect();
            format!("{{{}}}", rows.join(", "))
        }
    }
}

/// The key that was probably meant: a like name beside it, else the same name elsewhere.
pub(super) fn hint(prefix: &str, name: &str) -> String {
    let beside = SETTINGS.iter().filter_map(|setting| setting.key.strip_prefix(prefix)?.split('.').next());
    if let Some(other) = nearest(name, beside) {
        return format!("; did you mean '{prefix}{other}'?");
    }
    match SETTINGS.iter().find(|setting| setting.name() == name) {
        Some(setting) => format!("; did you mean '{}'?", setting.key),
        None => "; `magray config` lists the known keys".to_owned(),
    }
}

pub(super) fn home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    absolute(env("HOME"))
}

/// The XDG rules say that a relative path there is to be ignored.
pub(super) fn absolute(path: Option<OsString>) -> Option<PathBuf> {
    path.map(PathBuf::from).filter(|path| path.is_absolute())
}
