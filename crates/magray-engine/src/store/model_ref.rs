//! Names of models: a folder of the user, or a repository on the hub.
//! Refuses every name that could lead out of the store.

use super::known_models;
use std::fmt;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

/// The model that is used when none is named.
pub const DEFAULT_MODEL: &str = "all-MiniLM-L6-v2";

/// The model that a chat uses when none is named.
pub const DEFAULT_CHAT_MODEL: &str = "SmolLM2-135M-Instruct";

pub(super) const DEFAULT_REPO: &str = "sentence-transformers/all-MiniLM-L6-v2";
pub(super) const DEFAULT_CHAT_REPO: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";

/// The hub's own limit for `org/name`.
const REPO_CHARS_MAX: usize = 96;
/// Room for a commit hash or a branch; together with the repository it stays below the 255 bytes of a file name.
const REVISION_CHARS_MAX: usize = 64;

/// A model as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// A folder that is used in place and never copied, changed or removed.
    Folder(PathBuf),
    /// A model that the store keeps.
    Hub(HubModel),
}

impl ModelRef {
    /// Reads a name: `.`, `/` or an existing folder with a separator in its name is a folder,
    /// a well-known name such as `bge-small-en-v1.5` that model, anything else `org/name[@revision]`.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(NameError::unusable(text, "it holds a control character"));
        }
        // The shell expands `~`; one that arrives here was quoted, and a folder named `~` is hardly meant.
        if text.starts_with('~') {
            return Err(NameError::unusable(text, "'~' is not expanded here; write the whole path"));
        }
        let path = Path::new(text);
        let has_separator = text.contains('/') || text.contains(MAIN_SEPARATOR);
        if text.starts_with('.') || path.has_root() || path.is_absolute() || (has_separator && path.is_dir()) {
            return Ok(Self::Folder(path.to_path_buf()));
        }
        HubModel::parse(text).map(Self::Hub)
    }

    /// The model that is used when none is named.
    pub fn default_model() -> Self {
        Self::Hub(HubModel { repo: DEFAULT_REPO.to_owned(), revision: None })
    }

    /// The model that a chat uses when none is named.
    pub fn default_chat_model() -> Self {
        Self::Hub(HubModel { repo: DEFAULT_CHAT_REPO.to_owned(), revision: None })
    }

    /// Whether it is one of those that are used when none is named: they may be pulled without asking.
    pub fn is_default(&self) -> bool {
        *self == Self::default_model() || *self == Self::default_chat_model()
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Hub(model) => model.fmt(f),
        }
    }
}

/// A repository on the hub, at a revision if one was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    repo: String,
    revision: Option<String>,
}

impl HubModel {
    /// Reads `org/name[@revision]` or the short name of a well-known model; looks at no folder.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let (repo, revision) = match text.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (text, None),
        };
        let known = known_models::repo_of(repo);
        let repo = known.as_deref().unwrap_or(repo);
        if let Some(revision) = revision
            && (revision.len() > REVISION_CHARS_MAX || !revision.split('/').all(is_plain_segment))
        {
            return Err(NameError::unusable(text, "the revision after '@' is not a branch, tag or commit"));
        }
        let mut segments = repo.split('/');
        let (Some(first), second, None) = (segments.next(), segments.next(), segments.next()) else {
            return Err(NameError::unusable(text, "it is neither an existing folder nor of the form org/name"));
        };
        let plain = [Some(first), second].into_iter().flatten().all(is_plain_segment);
        // `--` stands for the slash in folder names; the hub allows it in no repository either.
        if !plain || repo.contains("--") || repo.len() > REPO_CHARS_MAX {
            return Err(NameError::unusable(text, "it is neither an existing folder nor of the form org/name"));
        }
        if second.is_none() {
            return Err(NameError::NoOrganisation { text: text.to_owned() });
        }
        Ok(Self { repo: repo.to_owned(), revision: revision.map(str::to_owned) })
    }

    /// `org/name`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The branch, tag or commit that was asked for.
    pub fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    /// The model's folder in the store: one path segment, different for every model.
    pub(super) fn dir_name(&self) -> String {
        let repo = if self.repo == DEFAULT_REPO { DEFAULT_MODEL } else { &self.repo };
        let mut name = repo.replace('/', "--");
        if let Some(revision) = &self.revision {
            name.push('@');
            name.push_str(&revision.replace('/', "%2F"));
        }
        name
    }

    /// The model whose folder has this name; `None` for a folder that no model would get.
    pub(super) fn from_dir_name(dir_name: &str) -> Option<Self> {
        let (repo, revision) = match dir_name.split_once('@') {
            Some((repo, revision)) => (repo, format!("@{}", revision.replace("%2F", "/"))),
            None => (dir_name, String::new()),
        };
        let model = Self::parse(&format!("{}{revision}", repo.replacen("--", "/", 1))).ok()?;
        (model.dir_name() == dir_name).then_some(model)
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.repo == DEFAULT_REPO { DEFAULT_MODEL } else { &self.repo })?;
        match &self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

/// Whether a text can be one segment of a path or URL: nothing to escape, nothing hidden, nothing special.
pub(super) fn is_plain_segment(segment: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let edge = |c: char| matches!(c, '-' | '.');
    !segment.is_empty()
        && segment.chars().all(plain)
        && !segment.starts_with(edge)
        && !segment.ends_with(edge)
        && !segment.contains("..")
}

/// Why a text names no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing was given.
    #[error("the model name is empty; give org/name, a folder, or '{DEFAULT_MODEL}'")]
    Empty,
    /// The name cannot be a model or would lead out of the store.
    #[error("'{text}' is no model name: {why}")]
    Unusable {
        /// The name as given, control characters escaped.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A bare name that is not well-known: it could be a folder or a repository of anyone.
    #[error("'{text}' is no well-known model: write org/name, or ./{text} for a folder")]
    NoOrganisation {
        /// The name as given.
        text: String,
    },
}

impl NameError {
    fn unusable(text: &str, why: &'static str) -> Self {
        Self::Unusable { text: text.escape_default().take(200).collect(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(text: &str) -> HubModel {
        match ModelRef::parse(text) {
            Ok(ModelRef::Hub(model)) => model,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_default_model_has_two_spellings_and_one_folder() {
        for text in ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"] {
            assert!(ModelRef::Hub(hub(text)).is_default());
            assert_eq!(hub(text).dir_name(), "all-MiniLM-L6-v2");
            assert_eq!(hub(text).to_string(), "all-MiniLM-L6-v2");
        }
        assert_eq!(ModelRef::default_model(), ModelRef::Hub(hub(DEFAULT_MODEL)));
        assert!(!ModelRef::Hub(hub("all-MiniLM-L6-v2@main")).is_default());
        assert_eq!(ModelRef::default_chat_model(), ModelRef::Hub(hub(DEFAULT_CHAT_MODEL)));
        assert_eq!(hub(DEFAULT_CHAT_MODEL).to_string(), DEFAULT_CHAT_REPO);
    }

    #[test]
    fn short_names_lead_to_their_organisations() {
        assert_eq!(hub("bge-small-en-v1.5").to_string(), "BAAI/bge-small-en-v1.5");
        assert_eq!(hub("E5-Base-V2@main").to_string(), "intfloat/e5-base-v2@main");
        assert!(ModelRef::parse("bge-small").is_err());
    }

    #[test]
    fn every_model_has_a_folder_of_its_own_that_leads_back_to_it() {
        for (text, dir) in [
            ("BAAI/bge-small-en-v1.5", "BAAI--bge-small-en-v1.5"),
            ("a/b@refs/pr/1", "a--b@refs%2Fpr%2F1"),
            ("a/b@v1.0", "a--b@v1.0"),
            ("all-MiniLM-L6-v2@c9745ed1", "all-MiniLM-L6-v2@c9745ed1"),
        ] {
            assert_eq!(hub(text).dir_name(), dir);
            assert_eq!(hub(text).to_string(), text);
            assert_eq!(HubModel::from_dir_name(dir), Some(hub(text)));
        }
        for foreign in ["", "x", "..", "a--b--c", "sentence-transformers--all-MiniLM-L6-v2", "a--b~old"] {
            assert_eq!(HubModel::from_dir_name(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn names_that_could_escape_the_store_are_refused() {
        for text in [
            "",
            "a/..",
            "a/../b",
            "a/b/../../c",
            "a/b/c",
            "a\\b",
            "a/b\\..\\c",
            "a/b\0",
            "a/b\n",
            "a/.b",
            "a//b",
            "a/",
            "~/model",
            "~",
            "a/b@",
            "a/b@..",
            "a/b@../../x",
            "a/b@/etc",
            "a/b@x\\y",
            "a/b@x@y",
            "a/b?x",
            "a/b#x",
            "a/%2e%2e",
            "a--b/c",
            "C:evil/x",
            "a/bé",
            "a b/c",
            "name",
        ] {
            assert!(ModelRef::parse(text).is_err(), "{text:?}");
        }
        assert!(ModelRef::parse(&format!("a/{}", "b".repeat(95))).is_err());
        assert!(ModelRef::parse(&format!("a/b@{}", "c".repeat(65))).is_err());
        let longest = format!("a/{}@c{}", "b".repeat(94), "/c".repeat(31));
        assert!(hub(&longest).dir_name().len() < 250);
    }

    #[test]
    fn folders_are_told_from_repositories() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().to_str().unwrap();
        for text in [there, ".", "..", "./x", "../x", "/no/such/folder"] {
            assert_eq!(ModelRef::parse(text), Ok(ModelRef::Folder(PathBuf::from(text))));
        }
        // `src/store` exists below the crate, where tests run; it has the shape of a repository too.
        assert_eq!(ModelRef::parse("src/store"), Ok(ModelRef::Folder(PathBuf::from("src/store"))));
    }
}
