//! What is sent to be evaluated by critics.
//! A field that is not named here is refused: one that is misspelt would change what is judged.

use serde::Deserialize;

/// A text to evaluate.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvaluateRequest {
    pub(crate) text: String,
    /// Names of critics of the settings; without it, all of them.
    #[serde(default)]
    pub(crate) critics: Option<Vec<String>>,
    /// The language model of critics that have none of their own; without it, the first.
    #[serde(default)]
    pub(crate) model: Option<String>,
    /// A collection of earlier cases: those that are most like the text are shown to the critics.
    #[serde(default)]
    pub(crate) collection: Option<String>,
    /// How many cases are shown; without it, 3.
    #[serde(default)]
    #[schema(maximum = 20)]
    pub(crate) precedents: Option<usize>,
    /// Store the text and its evaluation in the collection, as a case; asks for the key of an administrator where changes do.
    #[serde(default)]
    pub(crate) store: Option<bool>,
}
