//! One JSON line: a string, or an object with a field for the text and perhaps an `id`.
//! Does not care for other members of the object.

use serde_json::Value;

use super::Text;

pub(super) enum Fault {
    NotJson(String),
    NoText(String),
}

pub(super) fn read(json: &str, field: &str, line: u64) -> Result<Text, Fault> {
    let value: Value = serde_json::from_str(json).map_err(|error| Fault::NotJson(error.to_string()))?;
    let found = match value {
        Value::String(text) => return Ok(Text { text, id: None, input: 0, line }),
        Value::Object(mut object) => match object.remove(field) {
            Some(Value::String(text)) => return Ok(Text { text, id: object.remove("id"), input: 0, line }),
            Some(_) => format!("its \"{field}\" is not a string"),
            None => format!("an object without \"{field}\""),
        },
        Value::Array(_) => "an array".to_owned(),
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "true or false".to_owned(),
        Value::Number(_) => "a number".to_owned(),
    };
    Err(Fault::NoText(found))
}
