//! Brings a `tokenizer.json` of any age into the one form that the tokenizers crate reads.
//! Never parses the vocabulary: it is nearly all of the file, and the old form of it is the new one. Bounds all the rest.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, json, value::RawValue};
use tokenizers::ConvertError;

/// Tables are made as long as the largest id, so that a single absurd one would ask for all memory.
const MAX_ID: u64 = 1 << 24;

/// Added tokens of a file: several times as many as real ones have.
const ADDED_TOKENS_MAX: usize = 1 << 14;

/// Bytes of an added token. At each place of a text every length that occurs is tried.
const ADDED_TOKEN_BYTES_MAX: usize = 256;

/// Bytes of all that is neither vocabulary nor merges: it is parsed into values that take far more memory than its text.
const REST_BYTES_MAX: usize = 8 << 20;

/// Why a file cannot be rewritten.
#[derive(Debug, thiserror::Error)]
pub(super) enum RewriteError {
    #[error("it is no valid JSON of a tokenizer ({0})")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Convert(#[from] ConvertError),
    #[error("its vocabulary has the id {0}, and {MAX_ID} is the most that is accepted")]
    AbsurdId(u64),
    #[error("it adds {0} tokens, and {ADDED_TOKENS_MAX} is the most that is accepted")]
    ManyAdded(usize),
    #[error("it adds a token of {0} bytes, and {ADDED_TOKEN_BYTES_MAX} is the most that is accepted")]
    LongAdded(usize),
    #[error("it has {0} bytes beside its vocabulary and merges, and {REST_BYTES_MAX} is the most that is accepted")]
    LargeRest(usize),
}

/// Rewrites the JSON of a tokenizer; where `lowercase` is asked for and it does not do so, it then does.
pub(super) fn rewrite(json: &[u8], lowercase: bool) -> Result<String, RewriteError> {
    check_rest(json)?;
    let Original { model: OriginalModel { vocab, merges, rest: model }, mut rest } = serde_json::from_slice(json)?;
    let LargestId(id) = serde_json::from_str(vocab.get())?;
    if id > MAX_ID {
        return Err(RewriteError::AbsurdId(id));
    }
    check_added(&rest)?;
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

/// Refuses a file whose other parts are too long; a file that is not as long in all is not looked at.
fn check_rest(json: &[u8]) -> Result<(), RewriteError> {
    if json.len() <= REST_BYTES_MAX {
        return Ok(());
    }
    type Parts<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;
    let others = |parts: &Parts<'_>, large: &[&str]| -> usize {
        parts
            .iter()
            .filter(|(name, _)| !large.contains(&name.as_ref()))
            .map(|(name, part)| name.len() + part.get().len())
            .sum()
    };
    let file: Parts<'_> = serde_json::from_slice(json)?;
    let mut bytes = others(&file, &["model"]);
    if let Some(model) = file.get("model") {
        bytes += others(&serde_json::from_str(model.get())?, &["vocab", "merges"]);
    }
    if bytes > REST_BYTES_MAX { Err(RewriteError::LargeRest(bytes)) } else { Ok(()) }
}

fn check_added(rest: &Map<String, Value>) -> Result<(), RewriteError> {
    let added = rest.get("added_tokens").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if added.len() > ADDED_TOKENS_MAX {
        return Err(RewriteError::ManyAdded(added.len()));
    }
    let lengths = added.iter().filter_map(|token| Some(token.get("content")?.as_str()?.len()));
    match lengths.max() {
        Some(longest) if longest > ADDED_TOKEN_BYTES_MAX => Err(RewriteError::LongAdded(longest)),
        _ => Ok(()),
    }
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
