//! Points: an id, named vectors, a payload.
//! Does not know the settings of a collection; those check vectors.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The JSON object that belongs to a point.
pub type Payload = serde_json::Map<String, serde_json::Value>;

/// What a collection holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Unique in its collection.
    pub id: PointId,
    /// By name; the unnamed vector has the name "". A point may lack some.
    pub vectors: BTreeMap<String, Vector>,
    /// May be empty.
    pub payload: Payload,
}

/// An id as Qdrant has it: an unsigned integer or a UUID. Numbers come before UUIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PointId {
    /// An integer.
    Number(u64),
    /// The 128 bits of a UUID, of any version.
    Uuid(u128),
}

/// One vector of a point, or of a query.
#[derive(Clone, Debug, PartialEq)]
pub enum Vector {
    /// One value for each dimension.
    Dense(Vec<f32>),
    /// Values at some indices. Stored with indices in ascending order, each once.
    Sparse {
        /// The dimensions that are not zero.
        indices: Vec<u32>,
        /// One for each index.
        values: Vec<f32>,
    },
    /// Several dense vectors of one size, compared by the sum of the best matches.
    Multi(Vec<Vec<f32>>),
}

/// Refuses values that are not finite, and sparse indices that are double or do not match the values.
pub fn check_vector(vector: &Vector) -> Result<()> {
    let is_finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
    match vector {
        Vector::Dense(values) if values.is_empty() => Err(Error::bad("a dense vector has no values")),
        Vector::Dense(values) if is_finite(values) => Ok(()),
        Vector::Multi(rows) if rows.is_empty() || rows.iter().any(Vec::is_empty) => {
            Err(Error::bad("a multi-vector needs at least one vector, and each at least one value"))
        }
        Vector::Multi(rows) if rows.iter().any(|row| row.len() != rows[0].len()) => {
            Err(Error::bad("the vectors of a multi-vector must have the same size"))
        }
        Vector::Multi(rows) if rows.iter().all(|row| is_finite(row)) => Ok(()),
        Vector::Sparse { indices, values } if indices.len() != values.len() => Err(Error::bad(format!(
            "a sparse vector has {} indices and {} values: both need the same number",
            indices.len(),
            values.len()
        ))),
        Vector::Sparse { indices, values } if is_finite(values) => {
            let mut sorted = indices.clone();
            sorted.sort_unstable();
            match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                Some(pair) => Err(Error::bad(format!("a sparse vector has the index {} twice", pair[0]))),
                None => Ok(()),
            }
        }
        _ => Err(Error::bad("a vector has a value that is not finite (NaN or infinity)")),
    }
}

impl fmt::Display for PointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Uuid(bits) => {
                let part = |from: u32, digits: u32| (bits >> from) & ((1 << (4 * digits)) - 1);
                write!(
                    f,
                    "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                    part(96, 8),
                    part(80, 4),
                    part(64, 4),
                    part(48, 4),
                    part(0, 12)
                )
            }
        }
    }
}

impl FromStr for PointId {
    type Err = Error;

    /// Reads digits as a number, everything else as a UUID: hyphenated, simple, braced or as a URN.
    fn from_str(text: &str) -> Result<Self> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Number(number));
        }
        parse_uuid(text).map(Self::Uuid).ok_or_else(|| {
            Error::bad(format!("'{text}' is no id of a point: use an unsigned 64-bit integer or a UUID"))
        })
    }
}

fn parse_uuid(text: &str) -> Option<u128> {
    let text = text.strip_prefix("urn:uuid:").unwrap_or(text);
    let text = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(text);
    let is_hyphenated = text.len() == 36 && [8, 13, 18, 23].iter().all(|&at| text.as_bytes()[at] == b'-');
    if !is_hyphenated && text.len() != 32 {
        return None;
    }
    let mut bits = 0;
    let mut digits = 0;
    for (at, letter) in text.bytes().enumerate() {
        if is_hyphenated && [8, 13, 18, 23].contains(&at) {
            continue;
        }
        bits = bits << 4 | u128::from(char::from(letter).to_digit(16)?);
        digits += 1;
    }
    (digits == 32).then_some(bits)
}

impl Serialize for PointId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Uuid(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for PointId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl serde::de::Visitor<'_> for Read {
            type Value = PointId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id of a point: an unsigned 64-bit integer or a UUID")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<PointId, E> {
                Ok(PointId::Number(number))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<PointId, E> {
                let wrong = serde::de::Unexpected::Signed(number);
                u64::try_from(number).map(PointId::Number).map_err(|_| E::invalid_value(wrong, &self))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PointId, E> {
                let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
                parse_uuid(text).map(PointId::Uuid).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for text in ["0", "18446744073709551615", "c56a4180-65aa-42ec-a945-5fd21dec0538"] {
            assert_eq!(text.parse::<PointId>().unwrap().to_string(), text);
        }
        let id: PointId = serde_json::from_str("\"C56A418065AA42ECA9455FD21DEC0538\"").unwrap();
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"c56a4180-65aa-42ec-a945-5fd21dec0538\"");
        assert_eq!(serde_json::from_str::<PointId>("7").unwrap(), PointId::Number(7));
        for wrong in ["-1", "1.5", "\"7\"", "\"c56a4180-65aa-42ec-a945\"", "null"] {
            assert!(serde_json::from_str::<PointId>(wrong).is_err(), "{wrong}");
        }
        assert!(PointId::Number(u64::MAX) < PointId::Uuid(0));
    }

    #[test]
    fn vectors_that_cannot_be_compared_are_refused() {
        let sparse =
            |indices: &[u32], values: &[f32]| Vector::Sparse { indices: indices.into(), values: values.into() };
        for wrong in [
            Vector::Dense(vec![]),
            Vector::Dense(vec![1.0, f32::NAN]),
            Vector::Multi(vec![]),
            Vector::Multi(vec![vec![1.0], vec![1.0, 2.0]]),
            Vector::Multi(vec![vec![f32::INFINITY]]),
            sparse(&[1, 1], &[1.0, 2.0]),
            sparse(&[1], &[]),
            sparse(&[1], &[f32::NAN]),
        ] {
            assert!(check_vector(&wrong).is_err(), "{wrong:?}");
        }
        for right in
            [Vector::Dense(vec![0.0]), Vector::Multi(vec![vec![1.0]]), sparse(&[], &[]), sparse(&[9, 1], &[1.0; 2])]
        {
            check_vector(&right).unwrap();
        }
    }
}
