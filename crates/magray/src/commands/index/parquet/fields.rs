//! Values of a row as JSON: fields of payloads, and vectors.
//! A value that JSON cannot say exactly becomes a text; one that no vector can have is refused.

use parquet::record::{Field, List, Row};
use serde_json::{Map, Number, Value};

/// Refuses values that lie deeper: a payload is written and read by recursion.
const DEPTH_MAX: usize = 64;

/// A value as a field of a payload.
pub(super) fn value(field: &Field) -> Result<Value, String> {
    value_at(field, DEPTH_MAX)
}

fn value_at(field: &Field, depth: usize) -> Result<Value, String> {
    let depth = depth.checked_sub(1).ok_or_else(|| format!("values lie more than {DEPTH_MAX} deep"))?;
    // JSON has no NaN and no infinities.
    let number = |value: f64| Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number);
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => (*value).into(),
        Field::Byte(value) => (*value).into(),
        Field::Short(value) => (*value).into(),
        Field::Int(value) => (*value).into(),
        Field::Long(value) => (*value).into(),
        Field::UByte(value) => (*value).into(),
        Field::UShort(value) => (*value).into(),
        Field::UInt(value) => (*value).into(),
        Field::ULong(value) => (*value).into(),
        Field::Float16(value) => number(value.to_f64()),
        Field::Float(value) => number((*value).into()),
        Field::Double(value) => number(*value),
        Field::Str(text) => text.as_str().into(),
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => text.into(),
            Err(_) => base64_simd::STANDARD.encode_to_string(bytes.data()).into(),
        },
        // As RFC 3339 has it, so that filters of dates find it.
        Field::TimestampMillis(_) | Field::TimestampMicros(_) => {
            field.to_string().replacen(' ', "T", 1).replace(" +00:00", "Z").into()
        }
        Field::Decimal(_) | Field::Date(_) | Field::TimeMillis(_) | Field::TimeMicros(_) => field.to_string().into(),
        Field::Group(row) => object(row, depth)?,
        Field::ListInternal(list) => {
            Value::Array(list.elements().iter().map(|field| value_at(field, depth)).collect::<Result<_, _>>()?)
        }
        Field::MapInternal(map) => {
            let entry = |(key, value): &(Field, Field)| {
                let key = match key {
                    Field::Str(text) => text.clone(),
                    other => other.to_string(),
                };
                Ok((key, value_at(value, depth)?))
            };
            Value::Object(map.entries().iter().map(entry).collect::<Result<Map<_, _>, String>>()?)
        }
    })
}

fn object(row: &Row, depth: usize) -> Result<Value, String> {
    let fields = row.get_column_iter().map(|(name, field)| Ok((name.clone(), value_at(field, depth)?)));
    Ok(Value::Object(fields.collect::<Result<Map<_, _>, String>>()?))
}

/// A vector: a list of numbers, a list of such lists, or indices with values. `None`: the row has none.
pub(super) fn vector(field: &Field) -> Result<Option<Value>, String> {
    const FORMS: &str = "is no vector: a list of numbers, a list of such lists, or a group of indices and values";
    Ok(Some(match field {
        Field::Null => return Ok(None),
        Field::ListInternal(list) if matches!(list.elements().first(), Some(Field::ListInternal(_))) => {
            let row = |field: &Field| match field {
                Field::ListInternal(row) => numbers(row),
                _ => Err(FORMS.to_owned()),
            };
            Value::Array(list.elements().iter().map(row).collect::<Result<_, _>>()?)
        }
        Field::ListInternal(list) => numbers(list)?,
        Field::Group(row) => {
            let part = |name: &str| match row.get_column_iter().find(|(own, _)| *own == name) {
                Some((_, Field::ListInternal(list))) => numbers(list),
                _ => Err(FORMS.to_owned()),
            };
            serde_json::json!({"indices": part("indices")?, "values": part("values")?})
        }
        _ => return Err(FORMS.to_owned()),
    }))
}

/// How many numbers a dense vector has, or each of several; a sparse one has any number of them.
pub(super) fn lengths(vector: &Value) -> impl Iterator<Item = usize> + '_ {
    let rows = vector.as_array().map_or(&[][..], Vec::as_slice);
    let dense = rows.first().is_some_and(Value::is_number).then_some(rows.len());
    dense.into_iter().chain(rows.iter().filter_map(|row| row.as_array().map(Vec::len)))
}

fn numbers(list: &List) -> Result<Value, String> {
    let number = |field: &Field| match field {
        Field::Null | Field::Str(_) | Field::Bool(_) => Err("has a value that is no number".to_owned()),
        field => match value(field)? {
            number @ Value::Number(_) => Ok(number),
            _ => Err("has a value that is no finite number".to_owned()),
        },
    };
    Ok(Value::Array(list.elements().iter().map(number).collect::<Result<_, _>>()?))
}
