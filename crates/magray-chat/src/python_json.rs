//! JSON as Python's `json.dumps` writes it, which is what models read in training.
//! Escapes no HTML, which is why the filter of the template library is not used.

use serde_json::Value;
use std::fmt::Write;

/// The layout of the text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    /// Spaces of one level; `None` writes all on one line.
    pub indent: Option<usize>,
    /// Whether the keys of objects are sorted.
    pub sorts_keys: bool,
}

/// Writes a value with `", "` and `": "` between its parts.
pub(crate) fn write(value: &Value, layout: Layout) -> String {
    let mut text = String::new();
    write_value(&mut text, value, layout, 0);
    text
}

fn write_value(text: &mut String, value: &Value, layout: Layout, level: usize) {
    match value {
        Value::Array(items) if items.is_empty() => text.push_str("[]"),
        Value::Object(fields) if fields.is_empty() => text.push_str("{}"),
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                begin_item(text, layout, level + 1, at == 0);
                write_value(text, item, layout, level + 1);
            }
            end_items(text, layout, level);
            text.push(']');
        }
        Value::Object(fields) => {
            text.push('{');
            let mut fields: Vec<_> = fields.iter().collect();
            if layout.sorts_keys {
                fields.sort_by_key(|(key, _)| *key);
            }
            for (at, (key, item)) in fields.into_iter().enumerate() {
                begin_item(text, layout, level + 1, at == 0);
                write_string(text, key);
                text.push_str(": ");
                write_value(text, item, layout, level + 1);
            }
            end_items(text, layout, level);
            text.push('}');
        }
        Value::String(string) => write_string(text, string),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => text.push_str(&float_text(float)),
            None => _ = write!(text, "{number}"),
        },
        Value::Bool(_) | Value::Null => _ = write!(text, "{value}"),
    }
}

fn begin_item(text: &mut String, layout: Layout, level: usize, is_first: bool) {
    match layout.indent {
        Some(indent) => {
            text.push_str(if is_first { "\n" } else { ",\n" });
            text.extend(std::iter::repeat_n(' ', indent * level));
        }
        None if is_first => {}
        None => text.push_str(", "),
    }
}

fn end_items(text: &mut String, layout: Layout, level: usize) {
    if let Some(indent) = layout.indent {
        text.push('\n');
        text.extend(std::iter::repeat_n(' ', indent * level));
    }
}

fn write_string(text: &mut String, string: &str) {
    text.push('"');
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            control if control < ' ' => _ = write!(text, "\\u{:04x}", control as u32),
            other => text.push(other),
        }
    }
    text.push('"');
}

/// A float as Python's `repr`: an exponent below 1e-4 and from 1e16 on, of two digits at least.
fn float_text(float: f64) -> String {
    let size = float.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{float:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn python_writes_the_same() {
        let value = json!({"b": [1, 2.0, "a<b>'&\u{1}é"], "a": {}, "c": [], "d": null, "e": true});
        assert_eq!(
            write(&value, Layout::default()),
            r#"{"b": [1, 2.0, "a<b>'&\u0001é"], "a": {}, "c": [], "d": null, "e": true}"#
        );
        let layout = Layout { indent: Some(2), sorts_keys: true };
        assert_eq!(
            write(&json!({"b": [1, {"x": "\n"}], "a": 1}), layout),
            "{\n  \"a\": 1,\n  \"b\": [\n    1,\n    {\n      \"x\": \"\\n\"\n    }\n  ]\n}"
        );
    }

    #[test]
    fn floats_are_those_of_python() {
        let cases =
            [(1e16, "1e+16"), (1.5e-7, "1.5e-07"), (0.0001, "0.0001"), (123456.75, "123456.75"), (-2e300, "-2e+300")];
        for (float, text) in cases {
            assert_eq!(float_text(float), text);
        }
    }
}
