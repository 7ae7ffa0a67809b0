//! What an answer has to be: JSON of a schema, a text that a regular expression matches, or one of some texts.
//! Compiles nothing: it travels as text, and each executor compiles it for its model.

use serde::{Deserialize, Serialize};

/// What the new tokens of a sequence have to spell together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Constraint {
    /// JSON that this JSON schema allows.
    JsonSchema(String),
    /// A text that this regular expression matches from its beginning to its end.
    Regex(String),
    /// One of these texts.
    Choices(Vec<String>),
}

/// Why output cannot be constrained like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// It has more bytes than any that is meant.
    #[error("the {kind} has {bytes} bytes; the limit is {BYTES_MAX}")]
    Long {
        /// What.
        kind: &'static str,
        /// Its bytes.
        bytes: usize,
    },
    /// More texts to choose from than any request needs.
    #[error("{0} choices were given; the limit is {CHOICES_MAX}")]
    ManyChoices(usize),
    /// It allows nothing but the empty text.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// It cannot be compiled.
    #[error("the {kind} cannot be used: {reason}")]
    Refused {
        /// What.
        kind: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// The most bytes of a constraint. It travels in one message.
pub(crate) const BYTES_MAX: usize = 256 << 10;
const CHOICES_MAX: usize = 4096;

impl Constraint {
    /// What it is, in an error.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Choices(_) => "list of choices",
        }
    }

    /// Refuses one that is too large to be meant, or empty.
    pub(crate) fn check_size(&self) -> Result<(), ConstraintError> {
        let kind = self.kind();
        let (bytes, is_empty) = match self {
            Self::JsonSchema(text) | Self::Regex(text) => (text.len(), text.trim().is_empty()),
            Self::Choices(texts) if texts.len() > CHOICES_MAX => return Err(ConstraintError::ManyChoices(texts.len())),
            Self::Choices(texts) => {
                (texts.iter().map(String::len).sum(), texts.is_empty() || texts.iter().any(String::is_empty))
            }
        };
        match is_empty {
            true => Err(ConstraintError::Empty(kind)),
            false if bytes > BYTES_MAX => Err(ConstraintError::Long { kind, bytes }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_or_endless_is_refused() {
        let long = || "a".repeat(BYTES_MAX + 1);
        let is_refused = |constraint: Constraint| constraint.check_size().is_err();
        assert!(is_refused(Constraint::JsonSchema(" ".to_owned())));
        assert!(is_refused(Constraint::JsonSchema(long())));
        assert!(is_refused(Constraint::Regex(long())));
        assert!(is_refused(Constraint::Choices(Vec::new())));
        assert!(is_refused(Constraint::Choices(vec!["a".to_owned(), String::new()])));
        assert!(is_refused(Constraint::Choices(vec!["a".to_owned(); CHOICES_MAX + 1])));
        assert!(!is_refused(Constraint::Choices(vec!["yes".to_owned(), "no".to_owned()])));
        assert!(!is_refused(Constraint::Regex("[0-9]+".to_owned())));
    }
}
