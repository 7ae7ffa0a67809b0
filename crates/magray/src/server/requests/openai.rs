//! What OpenAI's clients send, and those of the reranking that others have put beside it.
//! Fields that are not named here have no meaning and are passed over.

use std::borrow::Cow;

use serde::Deserialize;

use crate::server::inputs::{Documents, Input};

/// Texts to embed.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = EmbeddingsRequest)]
pub(crate) struct EmbeddingsRequest<'a> {
    /// A text, texts, or token ids of the model.
    #[serde(borrow)]
    pub(crate) input: Input<'a>,
    /// A model of `/v1/models` or one of its aliases; without it, the first that embeds.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) encoding_format: Option<EncodingFormat>,
    /// Shorten each vector to this many numbers, scaled to length 1 again.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub(crate) dimensions: Option<usize>,
    /// A prompt of the model to put before each text.
    #[serde(borrow, default)]
    pub(crate) prompt_name: Option<Cow<'a, str>>,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

/// A query, and documents to put in order.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = RerankRequest)]
pub(crate) struct RerankRequest<'a> {
    /// Without it, the first model that scores pairs; where there is none, vectors are compared.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) query: Cow<'a, str>,
    /// Texts, or objects with a `text`.
    #[serde(borrow)]
    pub(crate) documents: Documents<'a>,
    /// How many of the best are returned; without it, all.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub(crate) top_n: Option<usize>,
    #[serde(default)]
    pub(crate) return_documents: Option<bool>,
}
