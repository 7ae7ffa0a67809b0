//! Whether one point meets a filter, read from its payload.
//! The plain meaning of every condition; indexes must agree with it.

use super::geo;
use crate::{Condition, FieldTest, Filter, Instant, JsonPath, Payload, PointId};
use serde_json::Value;

/// A point, or an object inside of one (which has neither id nor vectors).
pub(crate) struct Subject<'a> {
    pub(crate) payload: &'a Payload,
    pub(crate) id: Option<PointId>,
    pub(crate) has_vector: &'a dyn Fn(&str) -> bool,
}

pub(crate) fn meets(filter: &Filter, subject: &Subject<'_>) -> bool {
    let holds = |condition: &Condition| meets_condition(condition, subject);
    filter.must.iter().all(holds)
        && !filter.must_not.iter().any(holds)
        && (filter.should.is_empty() || filter.should.iter().any(holds))
        && filter
            .min_should
            .as_ref()
            .is_none_or(|(conditions, least)| conditions.iter().filter(|condition| holds(condition)).count() >= *least)
}

pub(crate) fn meets_condition(condition: &Condition, subject: &Subject<'_>) -> bool {
    match condition {
        Condition::Field { key, test: FieldTest::ValuesCount(range) } => {
            counts(subject.payload, key).iter().any(|count| range.contains(count))
        }
        Condition::Field { key, test } => {
            let mut passes = false;
            key.visit_flat(subject.payload, &mut |value| passes = passes || passes_test(test, value));
            passes
        }
        Condition::IsEmpty(key) => is_empty(subject.payload, key),
        Condition::IsNull(key) => has_null(subject.payload, key),
        Condition::HasId(ids) => subject.id.is_some_and(|id| ids.contains(&id)),
        Condition::HasVector(name) => (subject.has_vector)(name),
        Condition::Nested { key, filter } => {
            let mut holds = false;
            key.without_last_every().visit(subject.payload, &mut |value| {
                let objects = value.as_array().into_iter().flatten().filter_map(Value::as_object);
                for payload in objects {
                    holds = holds || meets(filter, &Subject { payload, id: None, has_vector: &|_| false });
                }
            });
            holds
        }
        Condition::Filter(filter) => meets(filter, subject),
    }
}

/// Nothing is there but null and empty lists.
pub(crate) fn is_empty(payload: &Payload, key: &JsonPath) -> bool {
    let mut is_empty = true;
    key.visit(payload, &mut |value| {
        is_empty = is_empty && (value.is_null() || value.as_array().is_some_and(Vec::is_empty));
    });
    is_empty
}

/// A null is there, or a list with one.
pub(crate) fn has_null(payload: &Payload, key: &JsonPath) -> bool {
    let mut has_null = false;
    key.visit(payload, &mut |value| {
        has_null = has_null || value.is_null() || value.as_array().is_some_and(|all| all.iter().any(Value::is_null));
    });
    has_null
}

/// How many values each list at the key has; one 0 if there is nothing.
pub(crate) fn counts(payload: &Payload, key: &JsonPath) -> Vec<u64> {
    let mut counts = Vec::new();
    key.visit(payload, &mut |value| {
        counts.push(match value {
            Value::Null => 0,
            Value::Array(values) => values.len() as u64,
            _ => 1,
        });
    });
    if counts.is_empty() {
        counts.push(0);
    }
    counts
}

fn passes_test(test: &FieldTest, value: &Value) -> bool {
    let text = || value.as_str();
    match test {
        FieldTest::Value(wanted) => equal(value, wanted),
        FieldTest::Any(wanted) => wanted.iter().any(|wanted| equal(value, wanted)),
        FieldTest::Except(unwanted) => !value.is_null() && !unwanted.iter().any(|unwanted| equal(value, unwanted)),
        FieldTest::Text(query) => text().is_some_and(|text| {
            let (has, mut wanted) = (words(text), words(query).into_iter().peekable());
            wanted.peek().is_some() && wanted.all(|word| has.contains(&word))
        }),
        FieldTest::TextAny(query) => text().is_some_and(|text| {
            let has = words(text);
            words(query).iter().any(|word| has.contains(word))
        }),
        FieldTest::Phrase(query) => text().is_some_and(|text| {
            let (has, wanted) = (words(text), words(query));
            !wanted.is_empty() && has.windows(wanted.len()).any(|part| part == wanted)
        }),
        FieldTest::Prefix(prefix) => text().is_some_and(|text| text.starts_with(prefix)),
        FieldTest::Substring(part) => text().is_some_and(|text| text.contains(part)),
        FieldTest::Range(range) => value.as_f64().is_some_and(|number| range.contains(&number)),
        FieldTest::DatetimeRange(range) => {
            text().and_then(Instant::parse).is_some_and(|instant| range.contains(&instant))
        }
        FieldTest::GeoBox { .. } | FieldTest::GeoRadius { .. } | FieldTest::GeoPolygon { .. } => {
            geo::place(value).is_some_and(|place| passes_place(test, place))
        }
        FieldTest::ValuesCount(_) => false,
    }
}

/// Whether a place passes one of the tests of places.
pub(crate) fn passes_place(test: &FieldTest, place: crate::GeoPoint) -> bool {
    match test {
        FieldTest::GeoBox { top_left, bottom_right } => geo::in_box(place, *top_left, *bottom_right),
        FieldTest::GeoRadius { center, radius } => geo::distance(place, *center) < *radius,
        FieldTest::GeoPolygon { exterior, interiors } => geo::in_polygon(place, exterior, interiors),
        _ => false,
    }
}

/// Booleans, integers, other numbers and texts are never equal to each other.
fn equal(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (Value::Number(value), Value::Number(wanted)) => value.is_f64() == wanted.is_f64() && value == wanted,
        (value, wanted) => value == wanted,
    }
}

/// Letters and digits in lower case, split at everything else.
fn words(text: &str) -> Vec<String> {
    let parts = text.split(|letter: char| !letter.is_alphanumeric());
    parts.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}
