//! What OpenAI's clients send about vector stores.
//! Fields that are not named here have no meaning and are passed over.

use std::collections::BTreeMap;

use magray_index::{Error, Payload, Result, files::ChunkSize};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::splitting;

/// Pairs of the attributes of a file, and of the metadata of a store.
const PAIRS_MAX: usize = 16;
const KEY_CHARS_MAX: usize = 64;
const VALUE_CHARS_MAX: usize = 512;
const NAME_CHARS_MAX: usize = 1_024;
const DAYS_MAX: u32 = 365;
const CHUNK_TOKENS: std::ops::RangeInclusive<usize> = 100..=4_096;
pub(crate) const BATCH_FILES_MAX: usize = 2_000;
const RESULTS_MAX: usize = 50;
const RESULTS: usize = 10;
const QUERIES_MAX: usize = 16;

/// A new store, and files to put into it.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = CreateVectorStoreRequest)]
pub(crate) struct CreateStore {
    name: Option<String>,
    description: Option<String>,
    pub(crate) file_ids: Option<Vec<String>>,
    pub(crate) chunking_strategy: Option<ChunkingStrategy>,
    expires_after: Option<ExpiresAfter>,
    metadata: Option<BTreeMap<String, String>>,
    /// The model that embeds its texts and queries; not OpenAI's. Without it, the first that embeds.
    pub(crate) model: Option<String>,
}

/// What changes of a store.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = UpdateVectorStoreRequest)]
pub(crate) struct UpdateStore {
    name: Option<String>,
    /// `null`: it does not expire.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<ExpiresAfter>)]
    expires_after: Option<Option<ExpiresAfter>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Option<BTreeMap<String, String>>>,
}

/// Tells a null from a field that is not there.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// A store that is not used for so many days is not searched any more.
#[derive(Clone, Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub(crate) struct ExpiresAfter {
    /// `last_active_at`.
    pub(crate) anchor: String,
    #[schema(minimum = 1, maximum = 365)]
    pub(crate) days: u32,
}

/// How texts of files are split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum ChunkingStrategy {
    #[default]
    Auto,
    Static {
        #[serde(rename = "static")]
        sizes: ChunkTokens,
    },
}

/// Sizes of chunks in tokens of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, utoipa::ToSchema)]
pub(crate) struct ChunkTokens {
    #[schema(minimum = 100, maximum = 4096)]
    pub(crate) max_chunk_size_tokens: usize,
    /// Half of the size at most.
    pub(crate) chunk_overlap_tokens: usize,
}

/// A file for a store.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CreateVectorStoreFileRequest)]
pub(crate) struct AttachFile {
    pub(crate) file_id: String,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) attributes: Option<Payload>,
    #[serde(default)]
    pub(crate) chunking_strategy: Option<ChunkingStrategy>,
}

/// Files for a store: `file_ids`, or `files` with attributes of their own.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = CreateVectorStoreFileBatchRequest)]
pub(crate) struct CreateBatch {
    file_ids: Option<Vec<String>>,
    files: Option<Vec<AttachFile>>,
    #[schema(value_type = Option<Object>)]
    attributes: Option<Payload>,
    chunking_strategy: Option<ChunkingStrategy>,
}

/// Other attributes of a file in a store.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = UpdateVectorStoreFileRequest)]
pub(crate) struct UpdateFile {
    #[schema(value_type = Option<Object>)]
    pub(crate) attributes: Option<Payload>,
}

/// A search of a store.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = VectorStoreSearchRequest)]
pub(crate) struct Search {
    query: OneOrSeveral,
    /// Of attributes: `{"type": "eq", "key": .., "value": ..}` with `eq`, `ne`, `gt`, `gte`, `lt`, `lte`, `in` or `nin`, or
    /// `{"type": "and", "filters": [..]}` with `and` or `or`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) filters: Option<Value>,
    #[serde(default)]
    #[schema(minimum = 1, maximum = 50)]
    max_num_results: Option<usize>,
    #[serde(default)]
    ranking_options: Option<RankingOptions>,
    /// Accepted; queries are taken as they are.
    #[serde(default)]
    #[expect(dead_code, reason = "it is read so that a wrong type is refused")]
    rewrite_query: Option<bool>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
enum OneOrSeveral {
    One(String),
    Several(Vec<String>),
}

/// How results are ranked.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct RankingOptions {
    /// `none`: by vectors alone, as without it. `auto`, `default-2024-11-15`: again by a model that ranks, where one is served.
    ranker: Option<String>,
    #[schema(minimum = 0.0, maximum = 1.0)]
    score_threshold: Option<f32>,
    hybrid_search: Option<HybridSearch>,
}

/// Vectors and words weighed against each other.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct HybridSearch {
    #[schema(minimum = 0.0)]
    pub(crate) embedding_weight: f32,
    #[schema(minimum = 0.0)]
    pub(crate) text_weight: f32,
}

/// A search that was checked.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) queries: Vec<String>,
    pub(crate) limit: usize,
    pub(crate) score_threshold: Option<f32>,
    pub(crate) is_reranked: bool,
    pub(crate) hybrid: Option<HybridSearch>,
}

impl CreateStore {
    pub(crate) fn settings(&mut self, now: u64) -> Result<super::settings::StoreSettings> {
        let settings = super::settings::StoreSettings {
            name: checked_text("name", self.name.take().unwrap_or_default())?,
            description: self.description.take().map(|text| checked_text("description", text)).transpose()?,
            metadata: checked_metadata(self.metadata.take().unwrap_or_default())?,
            expires_after_days: self.expires_after.take().map(|after| after.checked_days()).transpose()?,
            created_at: now,
            last_active_at: now,
        };
        Ok(settings)
    }
}

impl UpdateStore {
    pub(crate) fn apply(self, store: &mut super::settings::StoreSettings, now: u64) -> Result<()> {
        if let Some(name) = self.name {
            store.name = checked_text("name", name)?;
        }
        if let Some(metadata) = self.metadata {
            store.metadata = checked_metadata(metadata.unwrap_or_default())?;
        }
        if let Some(after) = self.expires_after {
            store.expires_after_days = after.map(|after| after.checked_days()).transpose()?;
        }
        store.last_active_at = now;
        Ok(())
    }
}

impl ExpiresAfter {
    pub(crate) const ANCHOR: &str = "last_active_at";

    fn checked_days(&self) -> Result<u32> {
        match (self.anchor.as_str(), self.days) {
            (Self::ANCHOR, 1..=DAYS_MAX) => Ok(self.days),
            (Self::ANCHOR, days) => Err(Error::bad(format!("expires_after.days is {days}: use 1 to {DAYS_MAX}"))),
            (other, _) => Err(Error::bad(format!("expires_after.anchor is '{other}': use '{}'", Self::ANCHOR))),
        }
    }
}

impl ChunkingStrategy {
    /// The sizes of chunks for a model that reads this many tokens.
    pub(crate) fn size(self, max_tokens: usize) -> Result<ChunkSize> {
        let Self::Static { sizes } = self else { return Ok(splitting::chunk_size(max_tokens)) };
        let ChunkTokens { max_chunk_size_tokens: tokens, chunk_overlap_tokens: overlap } = sizes;
        if !CHUNK_TOKENS.contains(&tokens) || overlap > tokens / 2 {
            let (least, most) = (CHUNK_TOKENS.start(), CHUNK_TOKENS.end());
            return Err(Error::bad(format!(
                "chunking_strategy.static: use a max_chunk_size_tokens of {least} to {most} and a chunk_overlap_tokens of \
                 half of it at most"
            )));
        }
        Ok(splitting::readable_size(ChunkSize { tokens, overlap }, max_tokens))
    }
}

impl CreateBatch {
    pub(crate) fn into_files(self) -> Result<Vec<AttachFile>> {
        let (attributes, chunking_strategy) = (self.attributes, self.chunking_strategy);
        let plain = |file_id| AttachFile { file_id, attributes: attributes.clone(), chunking_strategy };
        let files: Vec<AttachFile> = match (self.file_ids, self.files) {
            (Some(ids), None) => ids.into_iter().map(plain).collect(),
            (None, Some(files)) => files,
            _ => return Err(Error::bad("a batch has either file_ids or files")),
        };
        if !(1..=BATCH_FILES_MAX).contains(&files.len()) {
            return Err(Error::bad(format!("the batch has {} files: use 1 to {BATCH_FILES_MAX}", files.len())));
        }
        Ok(files)
    }
}

impl Search {
    pub(crate) fn checked(&mut self) -> Result<Wanted> {
        let queries = match &mut self.query {
            OneOrSeveral::One(query) => vec![std::mem::take(query)],
            OneOrSeveral::Several(queries) => std::mem::take(queries),
        };
        if !(1..=QUERIES_MAX).contains(&queries.len()) || queries.iter().any(|query| query.trim().is_empty()) {
            return Err(Error::bad(format!("query is a text, or 1 to {QUERIES_MAX} of them, none of which is blank")));
        }
        let limit = self.max_num_results.unwrap_or(RESULTS);
        if !(1..=RESULTS_MAX).contains(&limit) {
            return Err(Error::bad(format!("max_num_results is {limit}: use 1 to {RESULTS_MAX}")));
        }
        let options = self.ranking_options.take().unwrap_or_default();
        let is_reranked = match options.ranker.as_deref() {
            None | Some("none") => false,
            Some("auto" | "default-2024-11-15") => true,
            Some(other) => {
                let known = "none, auto and default-2024-11-15";
                return Err(Error::bad(format!("ranking_options.ranker is '{other}': there are {known}")));
            }
        };
        let score_threshold = options.score_threshold;
        if score_threshold.is_some_and(|threshold| !(0.0..=1.0).contains(&threshold)) {
            return Err(Error::bad("ranking_options.score_threshold is between 0 and 1"));
        }
        let hybrid = options.hybrid_search;
        let is_wrong = |hybrid: &HybridSearch| {
            let weights = [hybrid.embedding_weight, hybrid.text_weight];
            weights.iter().any(|weight| !weight.is_finite() || *weight < 0.0) || weights.iter().sum::<f32>() <= 0.0
        };
        if hybrid.as_ref().is_some_and(is_wrong) {
            return Err(Error::bad("ranking_options.hybrid_search has two weights of 0 or more, not both of them 0"));
        }
        Ok(Wanted { queries, limit, score_threshold, is_reranked, hybrid })
    }
}

/// Refuses attributes that OpenAI would refuse.
pub(crate) fn checked_attributes(attributes: Payload) -> Result<Payload> {
    if attributes.len() > PAIRS_MAX {
        return Err(Error::bad(format!("attributes has {} pairs: {PAIRS_MAX} are allowed", attributes.len())));
    }
    for (key, value) in &attributes {
        check_key("attributes", key)?;
        let is_right = match value {
            Value::String(text) => text.chars().count() <= VALUE_CHARS_MAX,
            Value::Number(_) | Value::Bool(_) => true,
            _ => false,
        };
        if !is_right {
            return Err(Error::bad(format!(
                "attributes.{key}: use a number, a boolean, or a text of {VALUE_CHARS_MAX} characters at most"
            )));
        }
    }
    Ok(attributes)
}

fn checked_metadata(metadata: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    if metadata.len() > PAIRS_MAX {
        return Err(Error::bad(format!("metadata has {} pairs: {PAIRS_MAX} are allowed", metadata.len())));
    }
    for (key, value) in &metadata {
        check_key("metadata", key)?;
        if value.chars().count() > VALUE_CHARS_MAX {
            return Err(Error::bad(format!("metadata.{key} has more than {VALUE_CHARS_MAX} characters")));
        }
    }
    Ok(metadata)
}

fn check_key(of: &str, key: &str) -> Result<()> {
    match (1..=KEY_CHARS_MAX).contains(&key.chars().count()) {
        true => Ok(()),
        false => Err(Error::bad(format!("a key of {of} has 1 to {KEY_CHARS_MAX} characters"))),
    }
}

fn checked_text(what: &str, text: String) -> Result<String> {
    match text.chars().count() <= NAME_CHARS_MAX {
        true => Ok(text),
        false => Err(Error::bad(format!("{what} has more than {NAME_CHARS_MAX} characters"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::vector_stores::settings::StoreSettings;

    fn read<T: for<'de> Deserialize<'de>>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_store_is_changed_where_a_field_is_given_and_a_null_clears() {
        let create =
            json!({"name": "a", "expires_after": {"anchor": "last_active_at", "days": 3}, "metadata": {"k": "v"}});
        let mut store = read::<CreateStore>(create).settings(5).unwrap();
        assert_eq!((store.name.as_str(), store.expires_after_days, store.created_at), ("a", Some(3), 5));
        read::<UpdateStore>(json!({"name": "b"})).apply(&mut store, 9).unwrap();
        assert_eq!((store.name.as_str(), store.expires_after_days, store.last_active_at), ("b", Some(3), 9));
        read::<UpdateStore>(json!({"expires_after": null, "metadata": null})).apply(&mut store, 9).unwrap();
        assert!(store.expires_after_days.is_none() && store.metadata.is_empty());
        for wrong in [
            json!({"expires_after": {"anchor": "created_at", "days": 1}}),
            json!({"expires_after": {"anchor": "last_active_at", "days": 0}}),
            json!({"name": "x".repeat(2_000)}),
            json!({"metadata": {"": "v"}}),
            json!({"metadata": {"k": "v".repeat(600)}}),
        ] {
            assert!(read::<UpdateStore>(wrong.clone()).apply(&mut StoreSettings::default(), 0).is_err(), "{wrong}");
        }
    }

    #[test]
    fn chunks_are_as_long_as_wanted_and_no_longer_than_the_model_reads() {
        let size = |strategy: Value, most| read::<ChunkingStrategy>(strategy).size(most);
        assert_eq!(size(json!({"type": "auto"}), 512).unwrap(), splitting::chunk_size(512));
        let wanted = |tokens: usize, overlap: usize| json!({"type": "static", "static": {"max_chunk_size_tokens": tokens, "chunk_overlap_tokens": overlap}});
        assert_eq!(size(wanted(100, 20), 512).unwrap(), ChunkSize { tokens: 100, overlap: 20 });
        let cut = size(wanted(800, 400), 256).unwrap();
        assert!(cut.tokens < 256 && cut.overlap <= cut.tokens / 2, "{cut:?}");
        for (tokens, overlap) in [(99, 0), (5_000, 0), (100, 51)] {
            assert!(size(wanted(tokens, overlap), 512).is_err(), "{tokens} {overlap}");
        }
    }

    #[test]
    fn a_batch_has_ids_or_files_and_some_of_them() {
        let files = |batch: Value| read::<CreateBatch>(batch).into_files();
        let ids = files(json!({"file_ids": ["a", "b"], "attributes": {"k": 1}})).unwrap();
        assert!(ids.iter().all(|file| file.attributes.as_ref().unwrap()["k"] == 1));
        assert_eq!(files(json!({"files": [{"file_id": "a"}]})).unwrap()[0].file_id, "a");
        for wrong in [json!({}), json!({"file_ids": []}), json!({"file_ids": ["a"], "files": []})] {
            assert!(files(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_search_is_checked() {
        let check = |search: Value| read::<Search>(search).checked();
        let plain = check(json!({"query": "a", "rewrite_query": true})).unwrap();
        assert_eq!((plain.queries, plain.limit, plain.is_reranked), (vec!["a".to_owned()], 10, false));
        let full = check(json!({
            "query": ["a", "b"], "max_num_results": 50,
            "ranking_options": {"ranker": "auto", "score_threshold": 0.5},
        }));
        let full = full.unwrap();
        assert_eq!((full.queries.len(), full.is_reranked, full.score_threshold), (2, true, Some(0.5)));
        for wrong in [
            json!({"query": []}),
            json!({"query": " "}),
            json!({"query": "a", "max_num_results": 0}),
            json!({"query": "a", "max_num_results": 51}),
            json!({"query": "a", "ranking_options": {"ranker": "best"}}),
            json!({"query": "a", "ranking_options": {"score_threshold": 1.5}}),
            json!({"query": "a", "ranking_options": {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}}),
        ] {
            assert!(check(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn attributes_are_few_short_and_plain() {
        let check = |value: Value| checked_attributes(value.as_object().unwrap().clone());
        check(json!({"a": "x", "b": 1.5, "c": true})).unwrap();
        let many: Payload = (0..17).map(|key| (key.to_string(), json!(1))).collect();
        for wrong in [json!(many), json!({"a": [1]}), json!({"a": null}), json!({"a": "x".repeat(513)}), json!({"": 1})]
        {
            assert!(check(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
