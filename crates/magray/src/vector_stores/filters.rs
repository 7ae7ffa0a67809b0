//! Filters of attributes as OpenAI's clients send them, as filters of collections.
//! Refuses what it does not know: a filter that is not understood must not match everything.

use magray_index::{Condition, Error, FieldTest, Filter, JsonPath, Range, Result};
use serde_json::Value;

/// How deep filters may lie in each other.
const DEPTH_MAX: usize = 16;

/// Reads a filter. `path` tells where the attribute of a name is.
pub(crate) fn read(filter: &Value, path: &dyn Fn(&str) -> JsonPath) -> Result<Filter> {
    Ok(Filter::must(condition(filter, path, DEPTH_MAX)?))
}

fn condition(filter: &Value, path: &dyn Fn(&str) -> JsonPath, depth: usize) -> Result<Condition> {
    let depth = depth.checked_sub(1).ok_or_else(|| Error::bad(format!("filters lie more than {DEPTH_MAX} deep")))?;
    let kind = filter.get("type").and_then(Value::as_str).unwrap_or_default();
    if matches!(kind, "and" | "or") {
        let parts = filter.get("filters").and_then(Value::as_array).filter(|parts| !parts.is_empty());
        let parts = parts.ok_or_else(|| Error::bad(format!("a filter of the type '{kind}' has filters")))?;
        let parts = parts.iter().map(|part| condition(part, path, depth)).collect::<Result<_>>()?;
        return Ok(nested(match kind {
            "and" => Filter { must: parts, ..Filter::default() },
            _ => Filter { should: parts, ..Filter::default() },
        }));
    }
    let key = filter.get("key").and_then(Value::as_str).filter(|key| !key.is_empty());
    let key = path(key.ok_or_else(|| Error::bad("a filter of attributes has a key"))?);
    let value = filter.get("value").unwrap_or(&Value::Null);
    let test = |test| Condition::Field { key: key.clone(), test };
    let range = |range: fn(f64) -> Range<f64>| match value.as_f64() {
        Some(number) => Ok(test(FieldTest::Range(range(number)))),
        None => Err(Error::bad(format!("a filter of the type '{kind}' compares with a number"))),
    };
    let none_of = |conditions| nested(Filter { must_not: conditions, ..Filter::default() });
    match kind {
        "eq" => Ok(test(equal(value)?)),
        "ne" => Ok(none_of(vec![test(equal(value)?)])),
        "gt" => range(|bound| Range { gt: Some(bound), ..Range::default() }),
        "gte" => range(|bound| Range { gte: Some(bound), ..Range::default() }),
        "lt" => range(|bound| Range { lt: Some(bound), ..Range::default() }),
        "lte" => range(|bound| Range { lte: Some(bound), ..Range::default() }),
        "in" | "nin" => {
            let values = value.as_array().filter(|values| !values.is_empty());
            let values =
                values.ok_or_else(|| Error::bad(format!("a filter of the type '{kind}' has a list of values")))?;
            let any = values.iter().map(|value| Ok(test(equal(value)?))).collect::<Result<_>>()?;
            Ok(if kind == "in" { nested(Filter { should: any, ..Filter::default() }) } else { none_of(any) })
        }
        other => Err(Error::bad(format!(
            "'{other}' is no type of a filter: there are eq, ne, gt, gte, lt, lte, in, nin, and, or"
        ))),
    }
}

/// A number is the same with and without decimals.
fn equal(value: &Value) -> Result<FieldTest> {
    match value {
        Value::String(_) | Value::Bool(_) => Ok(FieldTest::Value(value.clone())),
        Value::Number(number) => {
            let number = number.as_f64();
            Ok(FieldTest::Range(Range { gte: number, lte: number, ..Range::default() }))
        }
        _ => Err(Error::bad("an attribute is compared with a text, a number or a boolean")),
    }
}

fn nested(filter: Filter) -> Condition {
    Condition::Filter(Box::new(filter))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use magray_index::{CollectionConfig, Collections, Options, Point, PointId, ScrollRequest};
    use serde_json::json;

    use super::*;

    #[test]
    fn filters_meet_what_they_say() {
        let folder = tempfile::tempdir().unwrap();
        let all = Collections::open(folder.path(), Options::default()).unwrap();
        all.create("a", CollectionConfig::default()).unwrap();
        let collection = all.get("a").unwrap();
        let attributes = [
            json!({"word": "red", "n": 1, "a.b": true}),
            json!({"word": "blue", "n": 2.5}),
            json!({"word": "red", "n": 3.0, "a.b": false}),
            json!({}),
        ];
        let points = attributes.into_iter().enumerate().map(|(at, own)| Point {
            id: PointId::Number(at as u64),
            vectors: BTreeMap::new(),
            payload: json!({ "attributes": own }).as_object().unwrap().clone(),
        });
        collection.upsert(points.collect()).unwrap();
        let path = |key: &str| JsonPath::key("attributes").then(key);
        let check = |filter: Value, expected: &[u64]| {
            let filter = Some(read(&filter, &path).unwrap());
            let page = collection.scroll(&ScrollRequest { filter, limit: 9, ..ScrollRequest::default() }).unwrap();
            let found: Vec<PointId> = page.points.iter().map(|point| point.id).collect();
            assert_eq!(found, expected.iter().map(|id| PointId::Number(*id)).collect::<Vec<_>>());
        };
        let compare = |kind: &str, key: &str, value: Value| json!({"type": kind, "key": key, "value": value});
        check(compare("eq", "word", json!("red")), &[0, 2]);
        check(compare("eq", "n", json!(3)), &[2]);
        check(compare("eq", "a.b", json!(true)), &[0]);
        check(compare("ne", "word", json!("red")), &[1, 3]);
        check(compare("gt", "n", json!(1)), &[1, 2]);
        check(compare("gte", "n", json!(2.5)), &[1, 2]);
        check(compare("lt", "n", json!(2.5)), &[0]);
        check(compare("lte", "n", json!(2.5)), &[0, 1]);
        check(compare("in", "n", json!([1, 3, "x"])), &[0, 2]);
        check(compare("nin", "word", json!(["red"])), &[1, 3]);
        let both = [compare("eq", "word", json!("red")), compare("gt", "n", json!(2))];
        check(json!({"type": "and", "filters": both}), &[2]);
        check(json!({"type": "or", "filters": [both[1], {"type": "and", "filters": [both[0]]}]}), &[0, 1, 2]);
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let mut deep = json!({"type": "eq", "key": "a", "value": 1});
        for _ in 0..40 {
            deep = json!({"type": "and", "filters": [deep]});
        }
        for wrong in [
            json!({}),
            json!(null),
            json!({"type": "like", "key": "a", "value": "x"}),
            json!({"type": "eq", "value": "x"}),
            json!({"type": "eq", "key": "a"}),
            json!({"type": "eq", "key": "a", "value": []}),
            json!({"type": "gt", "key": "a", "value": "x"}),
            json!({"type": "in", "key": "a", "value": "x"}),
            json!({"type": "and", "filters": []}),
            deep,
        ] {
            assert!(read(&wrong, &JsonPath::key).is_err(), "{wrong}");
        }
    }
}
