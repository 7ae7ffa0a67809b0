//! A setting: its key, what it takes, its default, variable, flag and meaning.
//! Holds no value.

use super::value::{Kind, NEVER, Value};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// `section.name`, as in a file.
    pub(crate) key: &'static str,
    pub(crate) kind: Kind,
    /// As in a variable; equal to `unset` where nothing is chosen by default.
    pub(crate) default: &'static str,
    /// The text that chooses nothing, such as `auto`.
    pub(crate) unset: Option<&'static str>,
    /// Variables that set it; the first that is present counts.
    pub(crate) env: &'static [&'static str],
    pub(crate) flag: Option<&'static str>,
    pub(crate) is_secret: bool,
    pub(crate) files: Files,
    pub(crate) help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Files {
    /// Also one that was merely found in the current folder, which a stranger may have written.
    Any,
    /// One that the user named, or keeps in the home folder.
    Trusted,
}

impl Setting {
    /// A setting that can do no harm: a number, a choice, a model as data.
    pub(super) const fn harmless(key: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Self {
        let (unset, env, flag, is_secret) = (None, &[], None, false);
        Self { key, kind, default, unset, env, flag, is_secret, files: Files::Any, help }
    }

    /// A setting that decides where code, models, secrets or alerts come from or go to, which files are written, who has
    /// access, or which faults are injected.
    pub(super) const fn trusted(key: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Self {
        Self { files: Files::Trusted, ..Self::harmless(key, kind, default, help) }
    }

    pub(super) const fn env(self, env: &'static [&'static str]) -> Self {
        Self { env, ..self }
    }

    pub(super) const fn flag(self, flag: &'static str) -> Self {
        Self { flag: Some(flag), ..self }
    }

    pub(super) const fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }

    /// The default is this text, and it chooses nothing.
    pub(super) const fn unset_as(self, text: &'static str) -> Self {
        Self { default: text, unset: Some(text), ..self }
    }

    /// Also takes `never`, which may be the default.
    pub(super) const fn or_never(self) -> Self {
        Self { unset: Some(NEVER), ..self }
    }

    pub(crate) fn read(&self, raw: &str) -> Option<Value> {
        match self.unset {
            Some(unset) if raw.trim().eq_ignore_ascii_case(unset) => Some(Value::Unset),
            _ => self.kind.read(raw),
        }
    }

    pub(crate) fn allowed(&self) -> String {
        match self.unset {
            Some(unset) if !unset.is_empty() => format!("{}, or {unset}", self.kind),
            _ => self.kind.to_string(),
        }
    }

    /// The key's last part.
    pub(crate) fn name(&self) -> &'static str {
        self.key.rsplit('.').next().unwrap_or(self.key)
    }
}
