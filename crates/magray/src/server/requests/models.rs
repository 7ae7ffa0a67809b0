//! What is sent to let models come and go.
//! Says nothing of which models there are.

use serde::Deserialize;

/// Which model is to be pulled. `insecure` is taken and has no effect.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaPullRequest)]
pub(crate) struct PullRequest {
    /// A repository of the hub, org/name or org/name@revision. The older `name` does too.
    #[serde(alias = "name")]
    pub(crate) model: String,
    /// False: one answer at the end; without it, a line for each step.
    #[serde(default)]
    pub(crate) stream: Option<bool>,
}

/// Which model is to be deleted.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaDeleteRequest)]
pub(crate) struct DeleteRequest {
    /// The older `name` does too.
    #[serde(alias = "name")]
    pub(crate) model: String,
}

/// Which model is meant.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct LoadRequest {
    pub(crate) model: String,
}

/// A name for a model.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct AliasRequest {
    pub(crate) alias: String,
    /// Without it, the alias is removed.
    #[serde(default)]
    pub(crate) model: Option<String>,
}
