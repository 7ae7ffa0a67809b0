//! A slow and simple reference for the readers of texts, by a tree of JSON.
//! For tests and fuzzing only: the server builds no such tree.

use std::borrow::Cow;

use serde_json::Value;

use crate::server::inputs::{Documents, Input, Sequence, Sequences};

fn text(value: &Value) -> Option<Cow<'static, str>> {
    value.as_str().map(|text| Cow::Owned(text.to_owned()))
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

pub(crate) fn plain_input(value: &Value) -> Option<Input<'static>> {
    if let Some(text) = text(value) {
        return Some(Input::Texts { texts: vec![text], is_single: true });
    }
    let items = value.as_array()?;
    if let Some(texts) = items.iter().map(text).collect() {
        return Some(Input::Texts { texts, is_single: false });
    }
    match ids(value) {
        Some(ids) => Some(Input::Ids { texts: vec![ids], is_single: true }),
        None => Some(Input::Ids { texts: items.iter().map(ids).collect::<Option<_>>()?, is_single: false }),
    }
}

pub(crate) fn plain_sequences(value: &Value) -> Option<Sequences<'static>> {
    let sequence = |value: &Value| match value.as_array()?.as_slice() {
        [one] => Some(Sequence::One(text(one)?)),
        [first, second] => Some(Sequence::Pair(text(first)?, text(second)?)),
        _ => None,
    };
    if let Some(text) = text(value) {
        return Some(Sequences::Single(Sequence::One(text)));
    }
    if let Some(single) = sequence(value) {
        return Some(Sequences::Single(single));
    }
    value.as_array()?.iter().map(sequence).collect::<Option<_>>().map(Sequences::Batch)
}

pub(crate) fn plain_documents(value: &Value) -> Option<Documents<'static>> {
    let document = |value: &Value| text(value).or_else(|| text(value.get("text")?));
    value.as_array()?.iter().map(document).collect::<Option<_>>().map(Documents)
}
