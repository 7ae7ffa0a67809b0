//! Calls of tools as models write them: JSON objects, arrays of them, a name before its arguments.
//! Gives back complete calls or nothing.

use crate::format::{ARGS, CALL_ID};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Names longer than this are no names.
const NAME_BYTES_MAX: usize = 256;

/// A call as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadCall {
    pub name: String,
    /// JSON text as the model wrote it.
    pub arguments: String,
}

#[derive(Deserialize)]
struct Written<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

/// Reads an object, or an array of one or more, with `name` and `arguments` or `parameters`.
pub(crate) fn read_json(json: &str) -> Option<Vec<ReadCall>> {
    let written: Vec<Written<'_>> =
        if json.starts_with('[') { serde_json::from_str(json).ok()? } else { vec![serde_json::from_str(json).ok()?] };
    if written.is_empty() {
        return None;
    }
    written.into_iter().map(|call| named(call.name, call.arguments)).collect()
}

/// Reads a bare object. Both keys are needed: other answers may be JSON as well.
pub(crate) fn read_bare(json: &str) -> Option<Vec<ReadCall>> {
    let written: Written<'_> = serde_json::from_str(json).ok()?;
    written.arguments?;
    Some(vec![named(written.name, written.arguments)?])
}

/// Reads what stands before the arguments: a name, perhaps an id, perhaps a mark.
pub(crate) fn read_header(header: &str) -> Option<String> {
    let header = header.trim();
    let header = header.strip_suffix(ARGS).unwrap_or(header);
    let name = header.split_once(CALL_ID).map_or(header, |(name, _)| name).trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
    (is_name && name.len() <= NAME_BYTES_MAX).then(|| name.to_owned())
}

/// Whether this may still become a header, with the marks that may be in it.
pub(crate) fn may_be_header(header: &str) -> bool {
    header.len() <= 2 * NAME_BYTES_MAX && !header.trim_start().contains('\n')
}

/// Reads the arguments of a name.
pub(crate) fn read_arguments(name: String, json: &str) -> Option<Vec<ReadCall>> {
    let arguments: &RawValue = serde_json::from_str(json).ok()?;
    Some(vec![named(name, Some(arguments))?])
}

fn named(name: String, arguments: Option<&RawValue>) -> Option<ReadCall> {
    let text = arguments.map_or("{}", RawValue::get);
    let arguments = match text.as_bytes().first()? {
        b'{' => text.to_owned(),
        b'n' => "{}".to_owned(),
        // Some models write the arguments as a string of JSON.
        b'"' => {
            let inner: String = serde_json::from_str(text).ok()?;
            let object: &RawValue = serde_json::from_str(&inner).ok()?;
            object.get().starts_with('{').then(|| object.get().to_owned())?
        }
        _ => return None,
    };
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX).then_some(ReadCall { name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, expected: Option<&[(&str, &str)]>) {
        let read = read_json(json).map(|calls| calls.into_iter().map(|c| (c.name, c.arguments)).collect::<Vec<_>>());
        let expected = expected.map(|calls| calls.iter().map(|(n, a)| (n.to_string(), a.to_string())).collect());
        assert_eq!(read, expected, "{json}");
    }

    #[test]
    fn arguments_stay_as_they_were_written() {
        check(
            r#"{"name": "f", "arguments": {"x": 1.0, "b":9007199254740993}}"#,
            Some(&[("f", r#"{"x": 1.0, "b":9007199254740993}"#)]),
        );
        check(r#"{"arguments": "{\"x\": 1}", "name": "f"}"#, Some(&[("f", r#"{"x": 1}"#)]));
        check(r#"[{"name": "f"}, {"name": "g", "parameters": null, "id": "1"}]"#, Some(&[("f", "{}"), ("g", "{}")]));
    }

    #[test]
    fn what_is_no_call_is_nothing() {
        for json in [
            "{",
            "{}",
            "[]",
            "[1]",
            r#"{"name": 1}"#,
            r#"{"name": ""}"#,
            r#"{"name": "f", "arguments": [1]}"#,
            r#"{"name": "f", "arguments": "x"}"#,
            r#"[{"name": "f"}, {}]"#,
        ] {
            check(json, None);
        }
        assert_eq!(read_bare(r#"{"name": "Anna"}"#), None);
        assert_eq!(read_header("f[CALL_ID]abc[ARGS]").as_deref(), Some("f"));
        assert_eq!(read_header("a b"), None);
    }
}
