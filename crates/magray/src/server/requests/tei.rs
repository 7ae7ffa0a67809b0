//! What clients of text-embeddings-inference send.
//! Fields that are not named here have no meaning and are passed over.

use std::borrow::Cow;

use serde::Deserialize;

use crate::server::inputs::{Documents, Input, Sequences, Texts};

/// Texts to embed.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = EmbedRequest)]
pub(crate) struct EmbedRequest<'a> {
    /// A text, texts, or token ids of the model.
    #[serde(borrow)]
    pub(crate) inputs: Input<'a>,
    /// Without it, the first model that embeds.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    /// Cut texts that are longer than the model reads; without it, as the server is set.
    #[serde(default)]
    pub(crate) truncate: Option<bool>,
    #[serde(default)]
    pub(crate) truncation_direction: Option<Direction>,
    /// Scale vectors to length 1; without it, they are. `false`: as they are pooled.
    #[serde(default)]
    pub(crate) normalize: Option<bool>,
    #[serde(borrow, default)]
    pub(crate) prompt_name: Option<Cow<'a, str>>,
    #[serde(default)]
    #[schema(minimum = 1)]
    pub(crate) dimensions: Option<usize>,
}

/// Texts whose tokens are embedded.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = EmbedAllRequest)]
pub(crate) struct EmbedAllRequest<'a> {
    /// A text, texts, or token ids of the model.
    #[serde(borrow)]
    pub(crate) inputs: Input<'a>,
    /// Without it, the first model that embeds.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    /// Cut texts that are longer than the model reads; without it, as the server is set.
    #[serde(default)]
    pub(crate) truncate: Option<bool>,
    #[serde(default)]
    pub(crate) truncation_direction: Option<Direction>,
    #[serde(borrow, default)]
    pub(crate) prompt_name: Option<Cow<'a, str>>,
}

/// Where texts that are too long are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
pub(crate) enum Direction {
    #[serde(alias = "left")]
    Left,
    #[default]
    #[serde(alias = "right")]
    Right,
}

/// A query, and texts to put in order.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = TeiRerankRequest)]
pub(crate) struct RerankRequest<'a> {
    #[serde(borrow)]
    pub(crate) query: Cow<'a, str>,
    #[serde(borrow)]
    #[schema(value_type = Vec<String>, min_items = 1)]
    pub(crate) texts: Documents<'a>,
    /// Without it, the first model that scores pairs; where there is none, vectors are compared.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    /// The model's own numbers, not brought between 0 and 1.
    #[serde(default)]
    pub(crate) raw_scores: Option<bool>,
    #[serde(default)]
    pub(crate) return_text: Option<bool>,
    #[serde(default)]
    pub(crate) truncate: Option<bool>,
}

/// Texts or pairs of texts to classify.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = PredictRequest)]
pub(crate) struct PredictRequest<'a> {
    #[serde(borrow)]
    pub(crate) inputs: Sequences<'a>,
    /// Without it, the first model that classifies.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) raw_scores: Option<bool>,
    #[serde(default)]
    pub(crate) truncate: Option<bool>,
}

/// The part of a request that tells its kind.
#[derive(Debug, Deserialize)]
pub(crate) struct AnyRequest<'a> {
    #[serde(borrow)]
    inputs: &'a serde_json::value::RawValue,
}

impl AnyRequest<'_> {
    pub(crate) fn has_sentences(&self) -> bool {
        self.inputs.get().starts_with('{')
    }
}

/// A sentence, and others to compare it with.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = SimilarityRequest)]
pub(crate) struct SimilarityRequest<'a> {
    #[serde(borrow)]
    pub(crate) inputs: SimilarityInputs<'a>,
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) parameters: Option<SimilarityParameters<'a>>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = SimilarityInputs)]
pub(crate) struct SimilarityInputs<'a> {
    #[serde(borrow)]
    pub(crate) source_sentence: Cow<'a, str>,
    #[serde(borrow)]
    #[schema(value_type = Vec<String>, min_items = 1)]
    pub(crate) sentences: Documents<'a>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = SimilarityParameters)]
pub(crate) struct SimilarityParameters<'a> {
    #[serde(default)]
    pub(crate) truncate: Option<bool>,
    #[serde(borrow, default)]
    pub(crate) prompt_name: Option<Cow<'a, str>>,
}

/// Texts to turn into tokens: TEI's `inputs`, llama.cpp's `content` or vLLM's `prompt`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = TokenizeRequest)]
pub(crate) struct TokenizeRequest<'a> {
    #[serde(borrow, default)]
    #[schema(nullable = false)]
    pub(crate) inputs: Option<Texts<'a>>,
    /// A text, as llama.cpp's clients send it.
    #[serde(borrow, default)]
    pub(crate) content: Option<Cow<'a, str>>,
    /// A text, as vLLM's clients send it.
    #[serde(borrow, default)]
    pub(crate) prompt: Option<Cow<'a, str>>,
    /// Whether `content` gets the tokens that begin and end a text; without it, it does not.
    #[serde(default)]
    pub(crate) add_special: Option<bool>,
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) add_special_tokens: Option<bool>,
    /// A prompt of the model to put before each text.
    #[serde(borrow, default)]
    pub(crate) prompt_name: Option<Cow<'a, str>>,
}

/// Token ids to turn into texts.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = DecodeRequest)]
pub(crate) struct DecodeRequest<'a> {
    /// Token ids of a text, or of several.
    #[serde(borrow)]
    #[schema(value_type = Ids)]
    pub(crate) ids: Input<'a>,
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) skip_special_tokens: Option<bool>,
}

/// Token ids as the OpenAPI document describes them.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its description is used")]
enum Ids {
    One(Vec<u32>),
    Several(Vec<Vec<u32>>),
}
