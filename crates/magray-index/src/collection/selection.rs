//! Which part of a payload comes back.
//! `a[0]` selects nothing, as with Qdrant: only `a[]` leads into lists.

use crate::{JsonPath, PathStep, Payload, PayloadSelector};
use serde_json::Value;

/// The part of a payload that was asked for; `None` if nothing was.
pub(crate) fn select(payload: Payload, selector: &PayloadSelector) -> Option<Payload> {
    let steps = |paths: &[JsonPath]| paths.iter().map(|path| path.steps().to_vec()).collect::<Vec<_>>();
    match selector {
        PayloadSelector::None => None,
        PayloadSelector::All => Some(payload),
        PayloadSelector::Include(paths) => Some(include_fields(payload, &borrowed(&steps(paths)))),
        PayloadSelector::Exclude(paths) => Some(exclude_fields(payload, &borrowed(&steps(paths)))),
    }
}

/// Paths from here on.
type Rest<'a> = Vec<&'a [PathStep]>;

fn borrowed(paths: &[Vec<PathStep>]) -> Rest<'_> {
    paths.iter().map(Vec::as_slice).collect()
}

/// The paths that go on with a step, without it.
fn after<'a>(paths: &Rest<'a>, step: &PathStep) -> Rest<'a> {
    let matching = paths.iter().filter(|path| path.first() == Some(step));
    matching.map(|path| &path[1..]).collect()
}

/// A path that ends here selects everything below.
fn ends(paths: &Rest<'_>) -> bool {
    paths.iter().any(|path| path.is_empty())
}

fn include_fields(fields: Payload, paths: &Rest<'_>) -> Payload {
    let kept = fields.into_iter().filter_map(|(key, value)| {
        let paths = after(paths, &PathStep::Key(key.clone()));
        (!paths.is_empty()).then(|| (key, include(value, &paths)))
    });
    kept.collect()
}

fn include(value: Value, paths: &Rest<'_>) -> Value {
    match value {
        value if ends(paths) => value,
        Value::Object(fields) => Value::Object(include_fields(fields, paths)),
        Value::Array(values) => {
            let paths = after(paths, &PathStep::Every);
            if paths.is_empty() {
                return Value::Array(Vec::new());
            }
            Value::Array(values.into_iter().map(|value| include(value, &paths)).collect())
        }
        other => other,
    }
}

fn exclude_fields(fields: Payload, paths: &Rest<'_>) -> Payload {
    let kept = fields.into_iter().filter_map(|(key, value)| {
        let paths = after(paths, &PathStep::Key(key.clone()));
        (!ends(&paths)).then(|| (key, exclude(value, &paths)))
    });
    kept.collect()
}

fn exclude(value: Value, paths: &Rest<'_>) -> Value {
    match value {
        value if paths.is_empty() => value,
        Value::Object(fields) => Value::Object(exclude_fields(fields, paths)),
        Value::Array(values) => {
            let paths = after(paths, &PathStep::Every);
            if ends(&paths) {
                return Value::Array(Vec::new());
            }
            Value::Array(values.into_iter().map(|value| exclude(value, &paths)).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_of_a_payload_are_selected() {
        let payload = json!({"a": {"b": 1, "c": 2}, "aa": {"b": 3}, "a.b": 4, "l": [{"b": 5, "c": 6}]});
        let paths = |paths: &[&str]| paths.iter().map(|path| path.parse().unwrap()).collect::<Vec<JsonPath>>();
        let selected = |selector| Value::Object(select(payload.as_object().unwrap().clone(), &selector).unwrap());
        let include = |keys: &[&str]| selected(PayloadSelector::Include(paths(keys)));
        let exclude = |keys: &[&str]| selected(PayloadSelector::Exclude(paths(keys)));
        assert_eq!(include(&["a.b"]), json!({"a": {"b": 1}}));
        assert_eq!(include(&["\"a.b\"", "l[].c"]), json!({"a.b": 4, "l": [{"c": 6}]}));
        assert_eq!(include(&["l[0].c"]), json!({"l": []}));
        assert_eq!(include(&["a", "a.b"]), json!({"a": {"b": 1, "c": 2}}));
        assert_eq!(include(&[]), json!({}));
        assert_eq!(exclude(&["a", "l[].b"]), json!({"aa": {"b": 3}, "a.b": 4, "l": [{"c": 6}]}));
        assert_eq!(exclude(&["l[]"])["l"], json!([]));
        assert_eq!(exclude(&[]), payload);
    }
}
