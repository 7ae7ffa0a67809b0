//! The arguments and results of the tools; agents get schemas made from them.
//! Types only: nothing here computes.

use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::server::requests::gpu::Timeout;

/// Which model is meant.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(default)]
pub(super) struct OneOrAll {
    /// A name of list_models; without it, all models.
    pub(super) model: Option<String>,
}

/// A model by its name.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct OneModel {
    /// Of the hub or the store, such as `BAAI/bge-small-en-v1.5`.
    pub(super) model: String,
}

/// Another name of a model.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Alias {
    pub(super) alias: String,
    /// A name of list_models; without it, the alias is removed.
    #[serde(default)]
    pub(super) model: Option<String>,
}

/// Which model is to come, and how urgently.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(default)]
pub(super) struct Preheat {
    /// A name of list_models; without it, all models.
    pub(super) model: Option<String>,
    /// `high`, `normal` or `low`. A high one evicts models that count less, also those that compute or just came.
    pub(super) priority: Option<String>,
}

/// How much models count when they compete for the memory of a GPU.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct PriorityChange {
    /// `high`, `normal` or `low`.
    pub(super) priority: String,
    /// A name of list_models; without it, all models.
    #[serde(default)]
    pub(super) model: Option<String>,
}

/// How long models stay on a GPU without being used.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct TimeoutChange {
    /// Seconds; 0: as soon as nothing of it waits or runs; `never`: until it is offloaded.
    #[schemars(with = "SecondsOrNever")]
    pub(super) timeout_seconds: Timeout,
    /// A name of list_models; without it, all models.
    #[serde(default)]
    pub(super) model: Option<String>,
}

/// What [`Timeout`] is to agents.
#[derive(JsonSchema)]
#[schemars(crate = "rmcp::schemars", untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum SecondsOrNever {
    Seconds(f64),
    Text(String),
}

/// Texts to embed.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Texts {
    /// At least one.
    #[schemars(length(min = 1))]
    pub(super) texts: Vec<String>,
    /// A name of list_models; without it, the first that embeds.
    #[serde(default)]
    pub(super) model: Option<String>,
    /// Shorten each vector to this many numbers, scaled to length 1 again; without it, all.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub(super) dimensions: Option<usize>,
    /// A prompt of the model to put before each text.
    #[serde(default)]
    pub(super) prompt_name: Option<String>,
    /// `high`, `normal` or `low`: which of several waiting calls goes first. Without it, normal.
    #[serde(default)]
    pub(super) priority: Option<String>,
}

/// A sentence, and others to compare it with.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Sentences {
    pub(super) source_sentence: String,
    /// At least one.
    #[schemars(length(min = 1))]
    pub(super) sentences: Vec<String>,
    /// A name of list_models; without it, the first that embeds.
    #[serde(default)]
    pub(super) model: Option<String>,
    /// `high`, `normal` or `low`: which of several waiting calls goes first. Without it, normal.
    #[serde(default)]
    pub(super) priority: Option<String>,
}

/// A query, and documents to put in order.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Query {
    pub(super) query: String,
    /// At least one.
    #[schemars(length(min = 1))]
    pub(super) documents: Vec<String>,
    /// How many of the best are returned; without it, all.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub(super) top_n: Option<usize>,
    /// A name of list_models; without it, the first that scores pairs, or else one that embeds.
    #[serde(default)]
    pub(super) model: Option<String>,
    /// `high`, `normal` or `low`: which of several waiting calls goes first. Without it, normal.
    #[serde(default)]
    pub(super) priority: Option<String>,
}

/// Vectors.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Embedded {
    pub(super) model: String,
    pub(super) dimensions: usize,
    /// One vector a text, in the order of the texts.
    pub(super) embeddings: Vec<Vec<f64>>,
    pub(super) tokens: usize,
    /// Texts that were longer than the model reads and were cut.
    pub(super) truncated: usize,
    /// The device that computed it.
    pub(super) device: String,
}

/// How near sentences are to one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Compared {
    pub(super) model: String,
    /// One cosine a sentence, from -1 to 1, in the order of the sentences.
    pub(super) similarities: Vec<f64>,
    /// The device that computed it.
    pub(super) device: String,
}

/// Documents in order.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Reranked {
    pub(super) model: String,
    /// The best first.
    pub(super) results: Vec<Ranked>,
    /// The device that computed it.
    pub(super) device: String,
}

/// A document and how well it fits.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Ranked {
    /// Its index among the documents, from 0 on.
    pub(super) index: usize,
    pub(super) relevance_score: f64,
    pub(super) document: String,
}

/// All models.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct ModelList {
    pub(super) models: Vec<ListedModel>,
}

/// A model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct ListedModel {
    pub(super) name: String,
    /// `embed`, `rank`, `classify` or `generate`.
    pub(super) does: &'static str,
    /// Tokens of a text at most.
    pub(super) max_tokens: usize,
    /// Dimensions of a vector, or labels.
    pub(super) outputs: usize,
    /// Where it is now: `gpu`, `loading`, `cpu` or `unloaded`.
    pub(super) location: String,
}

/// The number with the digits that a 32-bit float has, and no more: agents pay for each.
pub(super) fn short(number: f32) -> f64 {
    zmij::Buffer::new().format(number).parse().unwrap_or_else(|_| f64::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_more_digits_than_they_mean() {
        for (number, text) in [(0.1, "0.1"), (-0.037_5, "-0.0375"), (1e-7, "1e-7"), (0.0, "0.0")] {
            assert_eq!(serde_json::to_string(&short(number)).unwrap(), text);
            assert_eq!(short(number) as f32, number);
        }
        assert!(short(f32::NAN).is_nan());
    }
}
