//! What Cohere's clients send, by both versions of its API; for ranks they send what [`super::openai`] has.
//! Fields that are not named here have no meaning and are passed over.

use std::borrow::Cow;

use serde::Deserialize;

use crate::server::inputs::Documents;

/// Texts to embed.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereEmbedRequest)]
pub(crate) struct EmbedRequest<'a> {
    /// Without it, the first model that embeds.
    #[serde(borrow, default)]
    pub(crate) model: Option<Cow<'a, str>>,
    /// The texts; or else `inputs`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Vec<String>>, min_items = 1)]
    pub(crate) texts: Option<Documents<'a>>,
    /// Texts in parts.
    #[serde(borrow, default)]
    pub(crate) inputs: Option<Vec<Parts<'a>>>,
    /// Refused: images are not supported.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) images: Option<Vec<serde::de::IgnoredAny>>,
    #[serde(default)]
    pub(crate) input_type: Option<InputType>,
    /// Without it, `float`.
    #[serde(default)]
    pub(crate) embedding_types: Option<Vec<Encoding>>,
    #[serde(default)]
    #[schema(minimum = 1)]
    pub(crate) output_dimension: Option<usize>,
    #[serde(default)]
    pub(crate) truncate: Option<Truncate>,
}

/// A text that comes in parts, which are read one after the other.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereInput)]
pub(crate) struct Parts<'a> {
    #[serde(borrow)]
    pub(crate) content: Vec<Part<'a>>,
}

impl<'a> Parts<'a> {
    pub(crate) fn join(self) -> Result<Cow<'a, str>, &'static str> {
        let mut whole: Option<Cow<'a, str>> = None;
        for part in self.content {
            let Some(text) = part.text.filter(|_| part.r#type.is_none_or(|kind| kind == "text")) else {
                return Err("a part must have a text: images are not supported");
            };
            match &mut whole {
                Some(whole) => {
                    let whole = whole.to_mut();
                    whole.push('\n');
                    whole.push_str(&text);
                }
                None => whole = Some(text),
            }
        }
        whole.ok_or("an input has no part")
    }
}

/// A part of a text.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereInputPart)]
pub(crate) struct Part<'a> {
    /// `text`.
    #[serde(borrow, default)]
    pub(crate) r#type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) text: Option<Cow<'a, str>>,
}

/// What the vectors are for: it chooses the model's prompt where it has one for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputType {
    SearchDocument,
    SearchQuery,
    Classification,
    Clustering,
    Image,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereEmbeddingType)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Encoding {
    Float,
    /// 32-bit floats in base64.
    Base64,
    /// The signs of the numbers, eight a byte, as numbers from -128 on.
    Binary,
    /// The signs of the numbers, eight a byte, as numbers from 0 on.
    Ubinary,
    /// The numbers of the vector of length 1, times 127 and rounded.
    Int8,
    /// Those of `int8` and 128.
    Uint8,
}

/// Where texts that are too long are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereTruncate)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Truncate {
    None,
    /// Refused: texts are cut at their end only.
    Start,
    End,
}
