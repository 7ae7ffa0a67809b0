//! Reads filters from the JSON that Qdrant's clients send.
//! Refuses what it does not know: a filter that is not understood must not match everything.

use super::filter::{Condition, FieldTest, Filter, GeoPoint, Range, Ring};
use super::instant::Instant;
use super::json_path::JsonPath;
use super::point::Payload;
use crate::{Error, Result};
use serde_json::Value;

/// How deep filters may lie in each other.
const DEPTH_MAX: usize = 32;

impl Filter {
    /// Reads `{"must": [..], "should": [..], "must_not": [..], "min_should": {"conditions": [..], "min_count": 1}}`.
    pub fn from_json(value: &Value) -> Result<Self> {
        filter(value, DEPTH_MAX)
    }
}

impl<'de> serde::Deserialize<'de> for Filter {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::from_json(&value).map_err(serde::de::Error::custom)
    }
}

fn filter(value: &Value, depth: usize) -> Result<Filter> {
    let depth = depth.checked_sub(1).ok_or_else(|| Error::bad(format!("filters lie more than {DEPTH_MAX} deep")))?;
    let mut filter = Filter::default();
    for (clause, value) in object(value, "a filter")?.iter().filter(|(_, value)| !value.is_null()) {
        match clause.as_str() {
            "must" => filter.must = conditions(value, depth)?,
            "should" => filter.should = conditions(value, depth)?,
            "must_not" => filter.must_not = conditions(value, depth)?,
            "min_should" => {
                let least = value.get("min_count").and_then(Value::as_u64).filter(|&least| least >= 1);
                let least = least.ok_or_else(|| Error::bad("min_should needs min_count, an integer of 1 or more"))?;
                let all = conditions(value.get("conditions").unwrap_or(&Value::Null), depth)?;
                filter.min_should = Some((all, usize::try_from(least).unwrap_or(usize::MAX)));
            }
            other => {
                return Err(Error::bad(format!(
                    "'{other}' is no part of a filter: use must, should, must_not, min_should, or a condition"
                )));
            }
        }
    }
    Ok(filter)
}

/// One condition, or a list of them.
fn conditions(value: &Value, depth: usize) -> Result<Vec<Condition>> {
    match value {
        Value::Array(values) => values.iter().map(|value| condition(value, depth)).collect(),
        value => Ok(vec![condition(value, depth)?]),
    }
}

pub(super) fn condition(value: &Value, depth: usize) -> Result<Condition> {
    let fields = object(value, "a condition of a filter")?;
    if let Some(key) = fields.get("key") {
        return field(path(key)?, fields);
    }
    let Some((kind, inner)) = fields.iter().find(|(_, value)| !value.is_null()) else {
        return Ok(Condition::Filter(Box::default()));
    };
    match kind.as_str() {
        "is_empty" => Ok(Condition::IsEmpty(path(inner.get("key").unwrap_or(&Value::Null))?)),
        "is_null" => Ok(Condition::IsNull(path(inner.get("key").unwrap_or(&Value::Null))?)),
        "has_id" => {
            let ids = serde_json::from_value(inner.clone());
            Ok(Condition::HasId(ids.map_err(|error| Error::bad(format!("has_id: {error}")))?))
        }
        "has_vector" => Ok(Condition::HasVector(text(inner, "has_vector")?)),
        "nested" => Ok(Condition::Nested {
            key: path(inner.get("key").unwrap_or(&Value::Null))?,
            filter: filter(inner.get("filter").unwrap_or(&Value::Null), depth)?,
        }),
        _ => Ok(Condition::Filter(Box::new(filter(value, depth)?))),
    }
}

/// The tests of one key. Several of them are alternatives.
fn field(key: JsonPath, fields: &Payload) -> Result<Condition> {
    let mut found = Vec::new();
    for (kind, value) in fields.iter().filter(|(kind, value)| *kind != "key" && !value.is_null()) {
        let test = match kind.as_str() {
            "match" => matching(value)?,
            "range" => range(value)?,
            "values_count" => FieldTest::ValuesCount(bounds(value, |value| value.as_u64())?),
            "geo_bounding_box" => FieldTest::GeoBox {
                top_left: place(value.get("top_left"))?,
                bottom_right: place(value.get("bottom_right"))?,
            },
            "geo_radius" => {
                let radius = value.get("radius").and_then(Value::as_f64).filter(|radius| *radius >= 0.0);
                let radius = radius.ok_or_else(|| Error::bad("geo_radius needs radius, in metres"))?;
                FieldTest::GeoRadius { center: place(value.get("center"))?, radius }
            }
            "geo_polygon" => FieldTest::GeoPolygon {
                exterior: ring(value.get("exterior").unwrap_or(&Value::Null))?,
                interiors: match value.get("interiors") {
                    None | Some(Value::Null) => Vec::new(),
                    Some(rings) => list(rings, "interiors")?.iter().map(ring).collect::<Result<_>>()?,
                },
            },
            "is_empty" => {
                found.push(yes_or_no(Condition::IsEmpty(key.clone()), value, kind)?);
                continue;
            }
            "is_null" => {
                found.push(yes_or_no(Condition::IsNull(key.clone()), value, kind)?);
                continue;
            }
            other => return Err(Error::bad(format!("'{other}' is no test of a field that this server knows"))),
        };
        found.push(Condition::Field { key: key.clone(), test });
    }
    match found.len() {
        0 => Err(Error::bad(format!("the condition on '{key}' tests nothing: add match, range or another test"))),
        1 => Ok(found.swap_remove(0)),
        _ => Ok(Condition::Filter(Box::new(Filter { should: found, ..Filter::default() }))),
    }
}

fn yes_or_no(condition: Condition, value: &Value, kind: &str) -> Result<Condition> {
    match value.as_bool() {
        Some(true) => Ok(condition),
        Some(false) => Ok(Condition::Filter(Box::new(Filter { must_not: vec![condition], ..Filter::default() }))),
        None => Err(Error::bad(format!("{kind} of a key is true or false"))),
    }
}

fn matching(value: &Value) -> Result<FieldTest> {
    let fields = object(value, "match")?;
    let Some((kind, value)) = fields.iter().find(|(_, value)| !value.is_null()) else {
        return Err(Error::bad("match needs value, any, except, text, text_any, phrase, prefix or substring"));
    };
    let keyword = |value: &Value| match value {
        Value::String(_) | Value::Bool(_) => Ok(value.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Ok(value.clone()),
        _ => Err(Error::bad("match compares strings, integers and booleans: use range for other numbers")),
    };
    let keywords = |value: &Value| list(value, kind)?.iter().map(keyword).collect::<Result<Vec<_>>>();
    match kind.as_str() {
        "value" => Ok(FieldTest::Value(keyword(value)?)),
        "any" => Ok(FieldTest::Any(keywords(value)?)),
        "except" => Ok(FieldTest::Except(keywords(value)?)),
        "text" => Ok(FieldTest::Text(text(value, kind)?)),
        "text_any" => Ok(FieldTest::TextAny(text(value, kind)?)),
        "phrase" => Ok(FieldTest::Phrase(text(value, kind)?)),
        "prefix" => Ok(FieldTest::Prefix(text(value, kind)?)),
        "substring" => Ok(FieldTest::Substring(text(value, kind)?)),
        other => Err(Error::bad(format!("match has no form '{other}' that this server knows"))),
    }
}

/// Bounds of numbers, or of dates if one of them is a text.
fn range(value: &Value) -> Result<FieldTest> {
    if object(value, "range")?.values().any(Value::is_string) {
        let dates = bounds(value, |value| value.as_str().and_then(Instant::parse))?;
        return Ok(FieldTest::DatetimeRange(dates));
    }
    bounds(value, Value::as_f64).map(FieldTest::Range)
}

fn bounds<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Result<Range<T>> {
    let mut range = Range::default();
    for (bound, value) in object(value, "a range")?.iter().filter(|(_, value)| !value.is_null()) {
        let value = read(value).ok_or_else(|| Error::bad(format!("the bound {bound} of a range is {value}")))?;
        match bound.as_str() {
            "lt" => range.lt = Some(value),
            "lte" => range.lte = Some(value),
            "gt" => range.gt = Some(value),
            "gte" => range.gte = Some(value),
            other => return Err(Error::bad(format!("'{other}' is no bound: use lt, lte, gt or gte"))),
        }
    }
    Ok(range)
}

pub(super) fn place(value: Option<&Value>) -> Result<GeoPoint> {
    let degrees = |name: &str, most: f64| {
        let degrees = value?.get(name)?.as_f64()?;
        (degrees.abs() <= most).then_some(degrees)
    };
    match (degrees("lon", 180.0), degrees("lat", 90.0)) {
        (Some(lon), Some(lat)) => Ok(GeoPoint { lon, lat }),
        _ => Err(Error::bad("a place is {\"lon\": -180 to 180, \"lat\": -90 to 90}")),
    }
}

fn ring(value: &Value) -> Result<Ring> {
    let points = list(value.get("points").unwrap_or(&Value::Null), "points of a polygon")?;
    let ring: Ring = points.iter().map(|point| place(Some(point))).collect::<Result<_>>()?;
    if ring.len() < 4 || ring.first() != ring.last() {
        return Err(Error::bad("a ring of a polygon has at least 4 points, and its last is its first"));
    }
    Ok(ring)
}

fn object<'a>(value: &'a Value, what: &str) -> Result<&'a Payload> {
    value.as_object().ok_or_else(|| Error::bad(format!("{what} is a JSON object")))
}

fn list<'a>(value: &'a Value, what: &str) -> Result<&'a Vec<Value>> {
    value.as_array().ok_or_else(|| Error::bad(format!("{what} is a JSON list")))
}

fn text(value: &Value, what: &str) -> Result<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| Error::bad(format!("{what} is a string")))
}

fn path(value: &Value) -> Result<JsonPath> {
    text(value, "the key of a condition")?.parse()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_of_all_kinds_are_read() {
        let filter = Filter::from_json(&json!({
            "must": [
                {"key": "a.b[].c", "match": {"value": "x"}},
                {"key": "n", "range": {"gte": 1, "lt": null}},
                {"key": "t", "range": {"gt": "2024-01-01"}},
                {"has_id": [1, "c56a4180-65aa-42ec-a945-5fd21dec0538"]},
            ],
            "should": {"is_empty": {"key": "e"}},
            "must_not": [{"nested": {"key": "l", "filter": {"must": {"key": "m", "match": {"any": [1, true]}}}}}],
            "min_should": {"conditions": [{"has_vector": "v"}, {"should": []}], "min_count": 1},
        }));
        let filter = filter.unwrap();
        assert_eq!((filter.must.len(), filter.should.len(), filter.must_not.len()), (4, 1, 1));
        assert!(matches!(&filter.must[2], Condition::Field { test: FieldTest::DatetimeRange(_), .. }));
        assert_eq!(filter.min_should.unwrap().0.len(), 2);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for wrong in [
            json!([]),
            json!({"musst": []}),
            json!({"must": [{"key": "a"}]}),
            json!({"must": [{"key": "a", "match": {"value": 1.5}}]}),
            json!({"must": [{"key": "a", "match": {"like": "x"}}]}),
            json!({"must": [{"key": "a", "range": {"gt": "soon"}}]}),
            json!({"must": [{"key": "a b", "is_null": true}]}),
            json!({"must": [{"key": "a", "geo_radius": {"center": {"lon": 181, "lat": 0}, "radius": 1}}]}),
            json!({"min_should": {"conditions": [], "min_count": 0}}),
        ] {
            assert!(Filter::from_json(&wrong).is_err(), "{wrong}");
        }
        let mut deep = json!({"must": []});
        for _ in 0..DEPTH_MAX {
            deep = json!({"must": [deep]});
        }
        assert!(Filter::from_json(&deep).is_err());
    }
}
