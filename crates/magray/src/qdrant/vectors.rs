//! Vectors as Qdrant's clients send them: numbers, several vectors, indices with values, a text to embed, or a point's id.
//! Read from the bytes of the request, without a tree of JSON.

use std::{collections::BTreeMap, fmt};

use magray_index::{PointId, Vector};
use serde::{
    Deserialize,
    de::{self, Deserializer, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum VectorInput {
    Vector(Vector),
    /// A text that the server embeds.
    Document(Document),
    /// The vector of a point; queries alone have it.
    Id(PointId),
}

/// A text, and the model that embeds it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) text: String,
    /// Without it, the server's first model that embeds.
    pub(crate) model: Option<String>,
}

impl Document {
    /// Whether it becomes the terms of BM25, which no model computes.
    pub(crate) fn is_bm25(&self) -> bool {
        let is = |name: &str| ["bm25", "qdrant/bm25"].iter().any(|known| name.eq_ignore_ascii_case(known));
        self.model.as_deref().is_some_and(is)
    }
}

/// The texts of a request, in the order in which they stand in it.
#[derive(Debug, Default)]
pub(crate) struct Documents(Vec<Document>);

impl Documents {
    pub(crate) fn note(&mut self, input: &VectorInput) {
        if let VectorInput::Document(document) = input {
            self.0.push(document.clone());
        }
    }
}

impl FromIterator<Document> for Documents {
    fn from_iter<T: IntoIterator<Item = Document>>(documents: T) -> Self {
        Self(documents.into_iter().collect())
    }
}

impl IntoIterator for Documents {
    type Item = Document;
    type IntoIter = std::vec::IntoIter<Document>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The vectors of the texts, to be put in their places in the same order.
#[derive(Debug)]
pub(crate) struct Embedded(std::vec::IntoIter<Vector>);

impl Embedded {
    pub(crate) fn new(vectors: impl IntoIterator<Item = Vector>) -> Self {
        Self(vectors.into_iter().collect::<Vec<_>>().into_iter())
    }

    pub(crate) fn fill(&mut self, input: &mut VectorInput) {
        if let VectorInput::Document(_) = input {
            let vector = self.0.next().unwrap_or_else(|| unreachable!("every text was noted"));
            *input = VectorInput::Vector(vector);
        }
    }
}

impl Iterator for Embedded {
    type Item = Vector;

    fn next(&mut self) -> Option<Vector> {
        self.0.next()
    }
}

/// The vectors of a point by name; a single one has the name "".
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct VectorsInput(pub(crate) BTreeMap<String, VectorInput>);

/// The vectors of several points, of each name a list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BatchVectors(pub(crate) BTreeMap<String, Vec<VectorInput>>);

impl<'de> Deserialize<'de> for VectorInput {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match from.deserialize_any(Form)? {
            Read::Vector(vector) => Ok(Self::Vector(vector)),
            Read::Document(document) => Ok(Self::Document(document)),
            Read::Id(id) => Ok(Self::Id(id)),
            Read::Text(text) => text.parse().map(Self::Id).map_err(de::Error::custom),
            Read::Named(_) => Err(de::Error::custom(FORMS)),
        }
    }
}

impl<'de> Deserialize<'de> for VectorsInput {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let single = |input| Ok(Self(BTreeMap::from([(String::new(), input)])));
        match from.deserialize_any(Form)? {
            Read::Vector(Vector::Sparse { .. }) => Err(de::Error::custom("a sparse vector needs a name")),
            Read::Vector(vector) => single(VectorInput::Vector(vector)),
            Read::Document(document) => single(VectorInput::Document(document)),
            Read::Named(named) => Ok(Self(named)),
            Read::Id(_) | Read::Text(_) => Err(de::Error::custom(FORMS)),
        }
    }
}

impl<'de> Deserialize<'de> for BatchVectors {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = BatchVectors;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of vectors, or an object with a list for each name")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = items.next_element()? {
                    all.push(item);
                }
                Ok(BatchVectors(BTreeMap::from([(String::new(), all)])))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                BTreeMap::deserialize(MapAccessDeserializer::new(map)).map(BatchVectors)
            }
        }
        from.deserialize_any(Either)
    }
}

const FORMS: &str =
    "a vector is a list of numbers, a list of such lists, {\"indices\", \"values\"}, or {\"text\", \"model\"}";

enum Read {
    Vector(Vector),
    Document(Document),
    Id(PointId),
    Text(String),
    Named(BTreeMap<String, VectorInput>),
}

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Form)
    }
}

struct Form;

impl<'de> Visitor<'de> for Form {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FORMS)
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Read, E> {
        Ok(Read::Id(PointId::Number(id)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Read, E> {
        Ok(Read::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Read, A::Error> {
        let mixed = || de::Error::custom("numbers and lists are mixed in a vector");
        let (mut numbers, mut rows) = (Vec::new(), Vec::new());
        while let Some(item) = items.next_element()? {
            match item {
                Item::Number(number) if rows.is_empty() => numbers.push(number),
                Item::Row(row) if numbers.is_empty() => rows.push(row),
                _ => return Err(mixed()),
            }
        }
        Ok(Read::Vector(if rows.is_empty() { Vector::Dense(numbers) } else { Vector::Multi(rows) }))
    }

    /// An object is a sparse vector, a document, or vectors by name; the names and types of its values tell which.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
        let wrong = || de::Error::custom(FORMS);
        let (mut named, mut text, mut model, mut indices, mut values) = (BTreeMap::new(), None, None, None, None);
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                // Too large for 32-bit floats.
                "indices" => indices = Some(map.next_value::<Vec<u32>>()?),
                "values" => values = Some(map.next_value::<Vec<f32>>()?),
                "options" => drop(map.next_value::<de::IgnoredAny>()?),
                _ => match (name.as_str(), map.next_value::<Read>()?) {
                    ("text", Read::Text(own)) => text = Some(own),
                    ("model", Read::Text(own)) => model = Some(own),
                    (_, Read::Vector(vector)) => drop(named.insert(name, VectorInput::Vector(vector))),
                    (_, Read::Document(document)) => drop(named.insert(name, VectorInput::Document(document))),
                    _ => return Err(wrong()),
                },
            }
        }
        match (indices, values, text) {
            (Some(indices), Some(values), None) if named.is_empty() && model.is_none() => {
                Ok(Read::Vector(Vector::Sparse { indices, values }))
            }
            (None, None, Some(text)) if named.is_empty() => Ok(Read::Document(Document { text, model })),
            (None, None, None) if model.is_none() => Ok(Read::Named(named)),
            _ => Err(wrong()),
        }
    }
}

/// One part of a list: a number, or the numbers of one of several vectors.
enum Item {
    Number(f32),
    Row(Vec<f32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Part;
        impl<'de> Visitor<'de> for Part {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or a list of numbers")
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Item, E> {
                Ok(Item::Number(number as f32))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Item, E> {
                Ok(Item::Number(number as f32))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Item, E> {
                Ok(Item::Number(number as f32))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Item, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(items)).map(Item::Row)
            }
        }
        from.deserialize_any(Part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(json: &str) -> Result<VectorInput, serde_json::Error> {
        serde_json::from_str(json)
    }

    fn document(text: &str, model: Option<&str>) -> VectorInput {
        VectorInput::Document(Document { text: text.to_owned(), model: model.map(str::to_owned) })
    }

    #[test]
    fn every_form_of_a_vector_is_read() {
        let cases = [
            ("[1,-2.5]", VectorInput::Vector(Vector::Dense(vec![1.0, -2.5]))),
            ("[[1],[2]]", VectorInput::Vector(Vector::Multi(vec![vec![1.0], vec![2.0]]))),
            (
                r#"{"values":[0.5],"indices":[4294967295]}"#,
                VectorInput::Vector(Vector::Sparse { indices: vec![u32::MAX], values: vec![0.5] }),
            ),
            (r#"{"text":"a","model":"m","options":{"x":1}}"#, document("a", Some("m"))),
            (r#"{"text":"a"}"#, document("a", None)),
            ("7", VectorInput::Id(PointId::Number(7))),
        ];
        for (json, vector) in cases {
            assert_eq!(one(json).unwrap(), vector, "{json}");
        }
        for wrong in
            ["null", "[1,[2]]", "[\"a\"]", "{\"a\":[1]}", "{\"indices\":[1]}", "\"a\"", "-1", "{\"model\":\"m\"}"]
        {
            assert!(one(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_points_vectors_have_names_or_there_is_one() {
        let read = |json| serde_json::from_str::<VectorsInput>(json);
        let single = BTreeMap::from([(String::new(), VectorInput::Vector(Vector::Dense(vec![1.0])))]);
        assert_eq!(read("[1]").unwrap().0, single);
        let named = read(r#"{"text":[1],"b":{"text":"c","model":"d"}}"#).unwrap().0;
        assert_eq!(named["text"], VectorInput::Vector(Vector::Dense(vec![1.0])));
        assert_eq!(named["b"], document("c", Some("d")));
        assert_eq!(read(r#"{"text":"c","model":"d"}"#).unwrap().0[""], document("c", Some("d")));
        assert_eq!(read("{}").unwrap().0.len(), 0);
        assert!(read(r#"{"indices":[1],"values":[1]}"#).is_err() && read("5").is_err());
        let batch: BatchVectors = serde_json::from_str(r#"{"a":[[1],[2]]}"#).unwrap();
        assert_eq!(batch.0["a"].len(), 2);
        let batch: BatchVectors = serde_json::from_str("[[1],[2],[3]]").unwrap();
        assert_eq!(batch.0[""].len(), 3);
    }
}
