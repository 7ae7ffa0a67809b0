//! One JSON line: a string, or an object with `text` and perhaps `id`.
//! Does not care for other members of the object.

use serde_json::Value;

use super::Text;

pub(super) enum Fault {
    NotJson(String),
    NoText(&'static str),
}

pub(super) fn read(json: &str, line: u64) -> Result<Text, Fault> {
    let value: Value = serde_json::from_str(json).map_err(|error| Fault::NotJson(error.to_string()))?;
    match value {
        Value::String(text) => Ok(Text { text, id: None, line }),
        Value::Object(mut object) => match object.remove("text") {
            Some(Value::String(text)) => Ok(Text { text, id: object.remove("id"), line }),
            Some(_) => Err(Fault::NoText("its \"text\" is not a string")),
            None => Err(Fault::NoText("an object without \"text\"")),
        },
        Value::Array(_) => Err(Fault::NoText("an array")),
        Value::Null => Err(Fault::NoText("null")),
        Value::Bool(_) => Err(Fault::NoText("true or false")),
        Value::Number(_) => Err(Fault::NoText("a number")),
    }
}
