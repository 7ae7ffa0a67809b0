//! Paths into payloads: `a.b`, `a[].b`, `a[0]`, `"a.b".c`.
//! Reads, sets and removes what lies there; evaluates no conditions.

use super::point::Payload;
use crate::{Error, Result};
use serde_json::Value;
use std::fmt;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathStep {
    /// A field of an object.
    Key(String),
    /// An element of a list.
    Index(usize),
    /// Every element of a list.
    Every,
}

/// A path with at least one step, of which the first is a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JsonPath(Vec<PathStep>);

impl std::str::FromStr for JsonPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        read(text).map(Self).ok_or_else(|| {
            Error::bad(format!("'{text}' is no path into a payload: use forms like a.b, a[].b, a[0] or \"a b\".c"))
        })
    }
}

fn read(text: &str) -> Option<Vec<PathStep>> {
    let mut steps = Vec::new();
    let mut rest = text;
    loop {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (key, after) = quoted.split_once('"')?;
            steps.push(PathStep::Key(key.to_owned()));
            rest = after;
        } else {
            let is_plain = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
            let (key, after) = rest.split_at(rest.find(|letter| !is_plain(letter)).unwrap_or(rest.len()));
            steps.push(PathStep::Key((!key.is_empty()).then(|| key.to_owned())?));
            rest = after;
        }
        while let Some(after) = rest.strip_prefix('[') {
            let (index, after) = after.split_once(']')?;
            let is_number = index.bytes().all(|letter| letter.is_ascii_digit());
            steps.push(match index {
                "" => PathStep::Every,
                _ => PathStep::Index(is_number.then(|| index.parse().ok())??),
            });
            rest = after;
        }
        if rest.is_empty() {
            return Some(steps);
        }
        rest = rest.strip_prefix('.')?;
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |key: &str| key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-') && !key.is_empty();
        for (at, step) in self.0.iter().enumerate() {
            let dot = if at > 0 { "." } else { "" };
            match step {
                PathStep::Key(key) if is_plain(key) => write!(f, "{dot}{key}")?,
                PathStep::Key(key) => write!(f, "{dot}\"{key}\"")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
                PathStep::Every => write!(f, "[]")?,
            }
        }
        Ok(())
    }
}

impl JsonPath {
    /// The path of one field, whatever letters its name has.
    pub fn key(name: &str) -> Self {
        Self(vec![PathStep::Key(name.to_owned())])
    }

    /// The path of a field of the object that lies here.
    pub fn then(mut self, name: &str) -> Self {
        self.0.push(PathStep::Key(name.to_owned()));
        self
    }

    /// The steps, of which there is at least one.
    pub fn steps(&self) -> &[PathStep] {
        &self.0
    }

    /// Without a last `[]`, for lists that are meant as a whole.
    pub fn without_last_every(&self) -> Self {
        match self.0.split_last() {
            Some((PathStep::Every, before)) if !before.is_empty() => Self(before.to_vec()),
            _ => self.clone(),
        }
    }

    /// Every value that the path leads to.
    pub fn visit<'a>(&self, payload: &'a Payload, visitor: &mut dyn FnMut(&'a Value)) {
        let Some((PathStep::Key(key), rest)) = self.0.split_first() else {
            return;
        };
        if let Some(value) = payload.get(key) {
            visit(value, rest, visitor);
        }
    }

    /// Every value that the path leads to; a list at its end is replaced by its elements, one level deep.
    pub fn visit_flat<'a>(&self, payload: &'a Payload, visitor: &mut dyn FnMut(&'a Value)) {
        self.visit(payload, &mut |value| match value {
            Value::Array(values) => values.iter().for_each(&mut *visitor),
            value => visitor(value),
        });
    }

    /// Merges fields into the object at the path; objects that are missing on the way are made. A null removes a field.
    pub fn merge_into(&self, payload: &mut Payload, fields: &Payload) {
        let mut root = Value::Object(std::mem::take(payload));
        merge_at(&mut root, &self.0, fields);
        if let Value::Object(root) = root {
            *payload = root;
        }
    }

    /// Removes the field at the path, or clears the list if the path ends with `[]`. An index at the end removes nothing.
    pub fn remove_from(&self, payload: &mut Payload) {
        let mut root = Value::Object(std::mem::take(payload));
        remove_at(&mut root, &self.0);
        if let Value::Object(root) = root {
            *payload = root;
        }
    }
}

/// Merges fields into a payload; a null removes a field.
pub(crate) fn merge(payload: &mut Payload, fields: &Payload) {
    for (key, value) in fields {
        if value.is_null() {
            payload.remove(key);
        } else {
            payload.insert(key.clone(), value.clone());
        }
    }
}

fn visit<'a>(value: &'a Value, steps: &[PathStep], visitor: &mut dyn FnMut(&'a Value)) {
    let Some((step, rest)) = steps.split_first() else {
        return visitor(value);
    };
    match (step, value) {
        (PathStep::Key(key), Value::Object(fields)) => {
            if let Some(value) = fields.get(key) {
                visit(value, rest, visitor);
            }
        }
        (PathStep::Index(index), Value::Array(values)) => {
            if let Some(value) = values.get(*index) {
                visit(value, rest, visitor);
            }
        }
        (PathStep::Every, Value::Array(values)) => values.iter().for_each(|value| visit(value, rest, visitor)),
        _ => {}
    }
}

fn merge_at(value: &mut Value, steps: &[PathStep], fields: &Payload) {
    let Some((step, rest)) = steps.split_first() else {
        if !value.is_object() {
            *value = Value::Object(Payload::new());
        }
        if let Value::Object(object) = value {
            merge(object, fields);
        }
        return;
    };
    match step {
        PathStep::Key(key) => {
            if !value.is_object() {
                *value = Value::Object(Payload::new());
            }
            if let Value::Object(object) = value {
                merge_at(object.entry(key.clone()).or_insert_with(|| Value::Object(Payload::new())), rest, fields);
            }
        }
        PathStep::Index(index) => match value {
            Value::Array(values) => {
                if let Some(value) = values.get_mut(*index) {
                    merge_at(value, rest, fields);
                }
            }
            other => *other = Value::Array(Vec::new()),
        },
        PathStep::Every => match value {
            Value::Array(values) => values.iter_mut().for_each(|value| merge_at(value, rest, fields)),
            other => *other = Value::Array(Vec::new()),
        },
    }
}

fn remove_at(value: &mut Value, steps: &[PathStep]) {
    let Some((step, rest)) = steps.split_first() else {
        return;
    };
    match (step, value) {
        (PathStep::Key(key), Value::Object(object)) if rest.is_empty() => {
            object.remove(key);
        }
        (PathStep::Every, Value::Array(values)) if rest.is_empty() => values.clear(),
        (PathStep::Key(key), Value::Object(object)) => {
            if let Some(value) = object.get_mut(key) {
                remove_at(value, rest);
            }
        }
        (PathStep::Index(index), Value::Array(values)) => {
            if let Some(value) = values.get_mut(*index) {
                remove_at(value, rest);
            }
        }
        (PathStep::Every, Value::Array(values)) => values.iter_mut().for_each(|value| remove_at(value, rest)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn payload(value: Value) -> Payload {
        value.as_object().unwrap().clone()
    }

    fn at(value: &Value, path: &str) -> Vec<Value> {
        let mut found = Vec::new();
        path.parse::<JsonPath>().unwrap().visit_flat(&payload(value.clone()), &mut |value| found.push(value.clone()));
        found
    }

    #[test]
    fn paths_lead_through_objects_and_lists() {
        let value = json!({"a": {"b": [{"c": 1}, {"c": [2, 3]}]}, "x.y": {"z": 4}, "n": null});
        assert_eq!(at(&value, "a.b[].c"), [json!(1), json!(2), json!(3)]);
        assert_eq!(at(&value, "a.b[1].c[0]"), [json!(2)]);
        assert_eq!(at(&value, "\"x.y\".z"), [json!(4)]);
        assert_eq!(at(&value, "a.b.c"), [] as [Value; 0]);
        assert_eq!(at(&value, "n"), [json!(null)]);
        for wrong in ["", ".", "a.", "a[", "a[x]", "a[-1]", "\"a", "[0]", "a b"] {
            assert!(wrong.parse::<JsonPath>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn fields_are_merged_at_a_path() {
        let merged = |before: Value, path: &str, fields: Value| {
            let mut before = payload(before);
            path.parse::<JsonPath>().unwrap().merge_into(&mut before, &payload(fields));
            Value::Object(before)
        };
        assert_eq!(merged(json!({}), "a.b", json!({"c": 1})), json!({"a": {"b": {"c": 1}}}));
        assert_eq!(
            merged(json!({"a": {"b": {"d": 2}}}), "a.b", json!({"c": 1, "d": null})),
            json!({"a": {"b": {"c": 1}}})
        );
        assert_eq!(
            merged(json!({"a": [1, {"x": 1}]}), "a[]", json!({"c": 1})),
            json!({"a": [{"c": 1}, {"x": 1, "c": 1}]})
        );
        assert_eq!(merged(json!({"a": 3}), "a[0]", json!({"c": 1})), json!({"a": []}));
        assert_eq!(merged(json!({"a": 3}), "a.b.c", json!({"d": 1})), json!({"a": {"b": {"c": {"d": 1}}}}));
    }

    #[test]
    fn a_path_removes_a_field_but_no_single_element() {
        let without = |before: Value, path: &str| {
            let mut before = payload(before);
            path.parse::<JsonPath>().unwrap().remove_from(&mut before);
            Value::Object(before)
        };
        assert_eq!(without(json!({"a": [{"b": 1, "c": 2}]}), "a[].b"), json!({"a": [{"c": 2}]}));
        assert_eq!(without(json!({"a": [1, 2]}), "a[0]"), json!({"a": [1, 2]}));
        assert_eq!(without(json!({"a": [1, 2]}), "a[]"), json!({"a": []}));
        assert_eq!(without(json!({"a": 1}), "b.c"), json!({"a": 1}));
    }
}
