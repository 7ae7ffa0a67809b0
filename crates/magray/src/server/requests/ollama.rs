//! What Ollama's clients send.
//! Fields that are not named here, such as the options of text generation, have no meaning and are passed over.

use std::borrow::Cow;

use serde::Deserialize;

use crate::server::inputs::Texts;

/// Texts to embed. `options` and `keep_alive` are taken and have no effect.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaEmbedRequest)]
pub(crate) struct EmbedRequest<'a> {
    /// Without it, the first model that embeds.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    /// A text or texts; without any, the answer has no vectors.
    #[serde(borrow, default)]
    pub(crate) input: Option<Texts<'a>>,
    /// Cut texts that are longer than the model reads; without it, they are cut.
    #[serde(default)]
    pub(crate) truncate: Option<bool>,
    /// Shorten each vector to this many numbers, scaled to length 1 again.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub(crate) dimensions: Option<usize>,
}

/// A text to embed. `options` and `keep_alive` are taken and have no effect.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaEmbeddingsRequest)]
pub(crate) struct EmbeddingsRequest<'a> {
    /// Without it, the first model that embeds.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    /// Without it, the answer has no numbers.
    #[serde(borrow, default)]
    pub(crate) prompt: Option<Cow<'a, str>>,
}

/// Which model is to be shown.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaShowRequest)]
pub(crate) struct ShowRequest {
    /// The older `name` does too.
    #[serde(alias = "name")]
    pub(crate) model: String,
}
