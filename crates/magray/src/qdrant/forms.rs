//! Fields that Qdrant's clients send in several forms: one thing or a list, yes or names, a key or an object.
//! Says nothing of what the fields are for.

use std::fmt;

use magray_index::{Direction, JsonPath, PayloadSelector, VectorSelector};
use serde::{
    Deserialize,
    de::{self, Deserializer, MapAccess, SeqAccess, Visitor, value},
};

/// One thing, a list of them, or nothing.
#[derive(Clone, Debug)]
pub(crate) struct OneOrMany<T>(pub(crate) Vec<T>);

/// All of a payload, nothing of it, or some fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct WithPayload(pub(crate) PayloadSelector);

/// All vectors, none, or those with these names.
#[derive(Clone, Debug, Default)]
pub(crate) struct WithVector(pub(crate) VectorSelector);

/// A field, or a field with a direction and a start.
#[derive(Clone, Debug)]
pub(crate) struct OrderByInput {
    pub(super) key: String,
    pub(super) direction: Direction,
    pub(super) start_from: Option<serde_json::Value>,
}

/// Points of another collection whose ids are the names of groups.
#[derive(Debug)]
pub(crate) struct WithLookup {
    pub(crate) collection: String,
    pub(crate) with_payload: PayloadSelector,
    pub(crate) with_vectors: VectorSelector,
}

impl WithPayload {
    pub(crate) fn all() -> Self {
        Self(PayloadSelector::All)
    }
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object, or a list of objects")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(OneOrMany(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(value::SeqAccessDeserializer::new(items)).map(OneOrMany)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(value::MapAccessDeserializer::new(map)).map(|one| OneOrMany(vec![one]))
            }
        }
        from.deserialize_any(Either(std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for WithPayload {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Fields {
            Include(Vec<String>),
            Exclude(Vec<String>),
        }
        fn paths<E: de::Error>(names: Vec<String>) -> Result<Vec<JsonPath>, E> {
            names.iter().map(|name| name.parse().map_err(E::custom)).collect()
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = WithPayload;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, a list of fields, or {\"include\": [..]} or {\"exclude\": [..]}")
            }

            fn visit_bool<E: de::Error>(self, is_all: bool) -> Result<Self::Value, E> {
                Ok(WithPayload(if is_all { PayloadSelector::All } else { PayloadSelector::None }))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
                let names = Vec::deserialize(value::SeqAccessDeserializer::new(items))?;
                Ok(WithPayload(PayloadSelector::Include(paths(names)?)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Ok(WithPayload(match Fields::deserialize(value::MapAccessDeserializer::new(map))? {
                    Fields::Include(names) => PayloadSelector::Include(paths(names)?),
                    Fields::Exclude(names) => PayloadSelector::Exclude(paths(names)?),
                }))
            }
        }
        from.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for WithVector {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = WithVector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or a list of names of vectors")
            }

            fn visit_bool<E: de::Error>(self, is_all: bool) -> Result<Self::Value, E> {
                Ok(WithVector(if is_all { VectorSelector::All } else { VectorSelector::None }))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
                let names = Vec::deserialize(value::SeqAccessDeserializer::new(items))?;
                Ok(WithVector(VectorSelector::Names(names)))
            }
        }
        from.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for OrderByInput {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Order {
            Asc,
            Desc,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Object {
            key: String,
            #[serde(default)]
            direction: Option<Order>,
            #[serde(default)]
            start_from: Option<serde_json::Value>,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = OrderByInput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field, or {\"key\", \"direction\", \"start_from\"}")
            }

            fn visit_str<E: de::Error>(self, key: &str) -> Result<Self::Value, E> {
                Ok(OrderByInput { key: key.to_owned(), direction: Direction::Ascending, start_from: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let Object { key, direction, start_from } =
                    Object::deserialize(value::MapAccessDeserializer::new(map))?;
                let direction = match direction {
                    None | Some(Order::Asc) => Direction::Ascending,
                    Some(Order::Desc) => Direction::Descending,
                };
                Ok(OrderByInput { key, direction, start_from })
            }
        }
        from.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for WithLookup {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object {
            collection: String,
            #[serde(default)]
            with_payload: Option<WithPayload>,
            #[serde(default)]
            with_vectors: Option<WithVector>,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = WithLookup;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a collection, or {\"collection\", \"with_payload\", \"with_vectors\"}")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
                let (with_payload, with_vectors) = (PayloadSelector::All, VectorSelector::None);
                Ok(WithLookup { collection: name.to_owned(), with_payload, with_vectors })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let object = Object::deserialize(value::MapAccessDeserializer::new(map))?;
                Ok(WithLookup {
                    collection: object.collection,
                    with_payload: object.with_payload.unwrap_or_else(WithPayload::all).0,
                    with_vectors: object.with_vectors.unwrap_or_default().0,
                })
            }
        }
        from.deserialize_any(Either)
    }
}
