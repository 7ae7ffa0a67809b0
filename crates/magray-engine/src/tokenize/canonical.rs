//! Brings a `tokenizer.json` of any age into the one form that the tokenizers crate reads.
//! Never parses the vocabulary: it is nearly all of the file, and the old form of it is the new one.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, json, value::RawValue};
use tokenizers::ConvertError;

/// Tables are made as long as the largest id, so that a single absurd one would ask for all memory.
const MAX_ID: u64 = 1 << 24;

/// Why a file cannot be rewritten.
#[derive(Debug, thiserror::Error)]
pub(super) enum RewriteError {
    #[error("it is no valid JSON of a tokenizer ({0})")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Convert(#[from] ConvertError),
    #[error("its vocabulary has the id {0}, and {MAX_ID} is the most that is accepted")]
    AbsurdId(u64),
}

/// Rewrites the JSON of a tokenizer; where `lowercase` is asked for and it does not do so, it then does.
pub(super) fn rewrite(json: &[u8], lowercase: bool) -> Result<String, RewriteError> {
    let Original { model: OriginalModel { vocab, merges, rest: model }, mut rest } = serde_json::from_slice(json)?;
    let LargestId(id) = serde_json::from_str(vocab.get())?;
    if id > MAX_ID {
        return Err(RewriteError::AbsurdId(id));
    }
    // Truncation and padding are the caller's; what the file says of them may even be malformed.
    rest.remove("truncation");
    rest.remove("padding");
    if lowercase {
        put_lowercase_first(&mut rest);
    }

    // The pass sees the model with an empty vocabulary of the right kind.
    let mut model = model;
    model.insert("vocab".to_owned(), if vocab.get().starts_with('[') { json!([]) } else { json!({}) });
    let merges_are_pairs = merges.is_some_and(|merges| opens_with_two_brackets(merges.get()));
    if let Some(merges) = merges {
        let seen = if merges_are_pairs { json!([]) } else { serde_json::from_str(merges.get())? };
        model.insert("merges".to_owned(), seen);
    }
    rest.insert("model".to_owned(), Value::Object(model));
    let mut root = Value::Object(rest);
    tokenizers::canonicalize_value(&mut root)?;

    // The pass refuses everything else than an object with a model that is one, so that both are there.
    let mut rest = root.as_object().cloned().unwrap_or_default();
    let mut model = rest.remove("model").and_then(|model| model.as_object().cloned()).unwrap_or_default();
    model.remove("vocab");
    let merges = if merges_are_pairs {
        model.remove("merges");
        merges
    } else {
        None
    };
    Ok(serde_json::to_string(&Canonical { model: CanonicalModel { vocab, merges, rest: model }, rest: &rest })?)
}

fn opens_with_two_brackets(json: &str) -> bool {
    json.strip_prefix('[').is_some_and(|inside| inside.trim_start().starts_with('['))
}

/// Adds the step unless one of the steps is it, as sentence-transformers does for `do_lower_case`.
fn put_lowercase_first(root: &mut Map<String, Value>) {
    let normalizer = root.remove("normalizer").unwrap_or(Value::Null);
    let steps = match &normalizer {
        Value::Null => Vec::new(),
        Value::Object(one) if one.get("type") == Some(&json!("Sequence")) => {
            one.get("normalizers").and_then(Value::as_array).cloned().unwrap_or_default()
        }
        _ => vec![normalizer.clone()],
    };
    let lowers = |step: &Value| match step.get("type").and_then(Value::as_str) {
        Some("Lowercase") => true,
        Some("BertNormalizer") => step.get("lowercase").and_then(Value::as_bool).unwrap_or(true),
        _ => false,
    };
    let normalizer = if steps.iter().any(lowers) {
        normalizer
    } else {
        let steps: Vec<Value> = std::iter::once(json!({"type": "Lowercase"})).chain(steps).collect();
        json!({"type": "Sequence", "normalizers": steps})
    };
    root.insert("normalizer".to_owned(), normalizer);
}

/// The largest id of a vocabulary that gives each token one; 0 for one that numbers its tokens by their order.
struct LargestId(u64);

impl<'de> Deserialize<'de> for LargestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look;

        impl<'de> Visitor<'de> for Look {
            type Value = LargestId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut tokens: A) -> Result<LargestId, A::Error> {
                let mut largest = 0;
                while let Some((_, id)) = tokens.next_entry::<IgnoredAny, u64>()? {
                    largest = largest.max(id);
                }
                Ok(LargestId(largest))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tokens: A) -> Result<LargestId, A::Error> {
                while tokens.next_element::<IgnoredAny>()?.is_some() {}
                Ok(LargestId(0))
            }
        }

        deserializer.deserialize_any(Look)
    }
}

/// The file as it lies on the disk.
#[derive(Deserialize)]
struct Original<'a> {
    #[serde(borrow)]
    model: OriginalModel<'a>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct OriginalModel<'a> {
    #[serde(borrow)]
    vocab: &'a RawValue,
    #[serde(borrow)]
    merges: Option<&'a RawValue>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The file as it is handed on.
#[derive(Serialize)]
struct Canonical<'a> {
    model: CanonicalModel<'a>,
    #[serde(flatten)]
    rest: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct CanonicalModel<'a> {
    vocab: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    merges: Option<&'a RawValue>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}
