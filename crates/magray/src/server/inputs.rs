//! The forms in which clients send texts: one, many, token ids, pairs. Read from the bytes of the request.
//! Builds no tree of JSON, and bounds the number of items.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize,
    de::{self, Deserializer, SeqAccess, Visitor},
};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, OneOfBuilder, RefOr, Schema, Type};

/// Items of a request that are read at most, whatever the limits say: an item of two bytes takes twenty-four of memory.
const ITEMS_MAX: usize = 1 << 16;
/// Token ids of a text that are read at most: more than any model reads.
const IDS_MAX: usize = 1 << 20;

/// Reads a text without a copy where it has no escapes.
macro_rules! visit_text {
    ($value:expr) => {
        fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
            Ok($value(Cow::Borrowed(text)))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok($value(Cow::Owned(text.to_owned())))
        }
    };
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input<'a> {
    Texts { texts: Vec<Cow<'a, str>>, is_single: bool },
    Ids { texts: Vec<Vec<u32>>, is_single: bool },
}

impl Input<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Texts { texts, .. } => texts.len(),
            Self::Ids { texts, .. } => texts.len(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Texts<'a> {
    pub(crate) texts: Vec<Cow<'a, str>>,
    pub(crate) is_single: bool,
}

/// Texts or pairs of texts to classify: a text; an array of one text or of the two of a pair; or an array of such arrays.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sequences<'a> {
    Single(Sequence<'a>),
    Batch(Vec<Sequence<'a>>),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sequence<'a> {
    One(Cow<'a, str>),
    Pair(Cow<'a, str>, Cow<'a, str>),
}

/// An array of documents: each a text, or an object with a `text`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Documents<'a>(pub(crate) Vec<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for Documents<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Documents<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(Document(text)) = items.next_element()? {
                    if all.len() >= ITEMS_MAX {
                        return Err(de::Error::custom(format_args!("more than {ITEMS_MAX} items")));
                    }
                    all.push(text);
                }
                Ok(Documents(all))
            }
        }
        from.deserialize_seq(All)
    }
}

struct Document<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Document<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object<'a> {
            #[serde(borrow)]
            text: Cow<'a, str>,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Document<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or an object with a `text`")
            }

            visit_text!(Document);

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let object = Object::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Document(object.text))
            }
        }
        from.deserialize_any(Either)
    }
}

enum Item<'a> {
    Text(Cow<'a, str>),
    Id(u32),
    Ids(Vec<u32>),
    Texts(Vec<Cow<'a, str>>),
    Nothing,
}

impl<'de: 'a, 'a> Deserialize<'de> for Input<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        const FORMS: &str = "a text, an array of texts, an array of token ids, or an array of arrays of token ids";
        let items = match from.deserialize_any(Outer(FORMS))? {
            Read::Text(text) => return Ok(Self::Texts { texts: vec![text], is_single: true }),
            Read::Items(items) => items,
        };
        let mixed = || de::Error::custom(format_args!("the items are mixed: expected {FORMS}"));
        match items.first() {
            None => Ok(Self::Texts { texts: Vec::new(), is_single: false }),
            Some(Item::Text(_)) => {
                let text = |item| if let Item::Text(text) = item { Ok(text) } else { Err(mixed()) };
                Ok(Self::Texts { texts: items.into_iter().map(text).collect::<Result<_, _>>()?, is_single: false })
            }
            Some(Item::Id(_)) => {
                let id = |item| if let Item::Id(id) = item { Ok(id) } else { Err(mixed()) };
                let ids = items.into_iter().map(id).collect::<Result<_, _>>()?;
                Ok(Self::Ids { texts: vec![ids], is_single: true })
            }
            Some(_) => {
                let ids = |item| match item {
                    Item::Ids(ids) => Ok(ids),
                    Item::Nothing => Ok(Vec::new()),
                    _ => Err(mixed()),
                };
                Ok(Self::Ids { texts: items.into_iter().map(ids).collect::<Result<_, _>>()?, is_single: false })
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Texts<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Input::deserialize(from)? {
            Input::Texts { texts, is_single } => Ok(Self { texts, is_single }),
            Input::Ids { .. } => {
                Err(de::Error::custom("token ids are not taken here: send a text or an array of texts"))
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Sequences<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        const FORMS: &str = "a text, an array of one text or of the two of a pair, or an array of such arrays";
        let wrong = || de::Error::custom(format_args!("expected {FORMS}"));
        let sequence = |mut texts: Vec<Cow<'de, str>>| match (texts.len(), texts.pop(), texts.pop()) {
            (1, Some(text), None) => Ok(Sequence::One(text)),
            (2, Some(second), Some(first)) => Ok(Sequence::Pair(first, second)),
            _ => Err(wrong()),
        };
        let items = match from.deserialize_any(Outer(FORMS))? {
            Read::Text(text) => return Ok(Self::Single(Sequence::One(text))),
            Read::Items(items) => items,
        };
        if matches!(items.first(), Some(Item::Text(_))) {
            let text = |item| if let Item::Text(text) = item { Ok(text) } else { Err(wrong()) };
            return items.into_iter().map(text).collect::<Result<_, _>>().and_then(sequence).map(Self::Single);
        }
        let inner = |item| match item {
            Item::Texts(texts) => sequence(texts),
            _ => Err(wrong()),
        };
        items.into_iter().map(inner).collect::<Result<_, _>>().map(Self::Batch)
    }
}

enum Read<'a> {
    Text(Cow<'a, str>),
    Items(Vec<Item<'a>>),
}

struct Outer(&'static str);

impl<'de> Visitor<'de> for Outer {
    type Value = Read<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    visit_text!(Read::Text);

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        // A flat array of ids is one text and may be longer than an array of texts.
        while let Some(item) = items.next_element::<Item<'de>>()? {
            let most = if matches!(item, Item::Id(_)) { IDS_MAX } else { ITEMS_MAX };
            if all.len() >= most {
                return Err(de::Error::custom(format_args!("more than {most} items")));
            }
            all.push(item);
        }
        Ok(Read::Items(all))
    }
}

impl<'de> Deserialize<'de> for Item<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Inner)
    }
}

struct Inner;

impl<'de> Visitor<'de> for Inner {
    type Value = Item<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token id, or an array of them")
    }

    visit_text!(Item::Text);

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Self::Value, E> {
        u32::try_from(id).map(Item::Id).map_err(|_| E::custom(format_args!("{id} is no token id")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let (mut ids, mut texts) = (Vec::new(), Vec::new());
        while let Some(item) = items.next_element::<Leaf<'de>>()? {
            match item {
                Leaf::Id(id) if texts.is_empty() && ids.len() < IDS_MAX => ids.push(id),
                Leaf::Text(text) if ids.is_empty() && texts.len() < ITEMS_MAX => texts.push(text),
                _ => return Err(de::Error::custom("an array inside has token ids or texts, and not too many")),
            }
        }
        Ok(match (ids.is_empty(), texts.is_empty()) {
            (true, true) => Item::Nothing,
            (false, _) => Item::Ids(ids),
            (true, false) => Item::Texts(texts),
        })
    }
}

enum Leaf<'a> {
    Text(Cow<'a, str>),
    Id(u32),
}

impl<'de> Deserialize<'de> for Leaf<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Innermost;
        impl<'de> Visitor<'de> for Innermost {
            type Value = Leaf<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a token id")
            }

            visit_text!(Leaf::Text);

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Self::Value, E> {
                u32::try_from(id).map(Leaf::Id).map_err(|_| E::custom(format_args!("{id} is no token id")))
            }
        }
        from.deserialize_any(Innermost)
    }
}

fn text_schema() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn ids_schema() -> ArrayBuilder {
    let id = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
    ArrayBuilder::new().items(id)
}

impl utoipa::PartialSchema for Input<'_> {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new()
            .item(text_schema())
            .item(ArrayBuilder::new().items(text_schema()).min_items(Some(1)))
            .item(ids_schema().min_items(Some(1)))
            .item(ArrayBuilder::new().items(ids_schema()).min_items(Some(1)))
            .into()
    }
}

impl utoipa::ToSchema for Input<'_> {}

impl utoipa::PartialSchema for Documents<'_> {
    fn schema() -> RefOr<Schema> {
        let object = ObjectBuilder::new().schema_type(Type::Object).property("text", text_schema()).required("text");
        let either = OneOfBuilder::new().item(text_schema()).item(object);
        ArrayBuilder::new().items(either).min_items(Some(1)).into()
    }
}

impl utoipa::ToSchema for Documents<'_> {}

impl utoipa::PartialSchema for Texts<'_> {
    fn schema() -> RefOr<Schema> {
        let many = ArrayBuilder::new().items(text_schema()).min_items(Some(1));
        OneOfBuilder::new().item(text_schema()).item(many).into()
    }
}

impl utoipa::ToSchema for Texts<'_> {}

impl utoipa::PartialSchema for Sequences<'_> {
    fn schema() -> RefOr<Schema> {
        let one = || ArrayBuilder::new().items(text_schema()).min_items(Some(1)).max_items(Some(2));
        let batch = ArrayBuilder::new().items(one()).min_items(Some(1));
        OneOfBuilder::new().item(text_schema()).item(one()).item(batch).into()
    }
}

impl utoipa::ToSchema for Sequences<'_> {}

#[cfg(test)]
mod plain;
#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    fn input(json: &str) -> Result<Input<'_>, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn every_form_is_read_and_texts_are_not_copied() {
        let texts = |texts: &[&'static str], is_single| Input::Texts {
            texts: texts.iter().map(|text| Cow::Borrowed(*text)).collect(),
            is_single,
        };
        assert_eq!(input(r#""a""#).unwrap(), texts(&["a"], true));
        assert_eq!(input(r#"["a","b"]"#).unwrap(), texts(&["a", "b"], false));
        assert_eq!(input("[1,2]").unwrap(), Input::Ids { texts: vec![vec![1, 2]], is_single: true });
        assert_eq!(input("[[1],[2,3]]").unwrap(), Input::Ids { texts: vec![vec![1], vec![2, 3]], is_single: false });
        assert_eq!(input("[]").unwrap().len(), 0);
        let Input::Texts { texts, .. } = input(r#"["plain","es\ncaped"]"#).unwrap() else { panic!("texts") };
        assert!(matches!((&texts[0], &texts[1]), (Cow::Borrowed(_), Cow::Owned(_))));
    }

    #[test]
    fn what_is_none_of_the_forms_is_refused() {
        for json in ["null", "1", "{}", "true", r#"["a",1]"#, r#"[1,"a"]"#, "[[1],2]", "[-1]", "[4294967296]", "[1.5]"]
        {
            assert!(input(json).is_err(), "{json}");
        }
        assert!(input(r#"[["a"],["b"]]"#).is_err() && input("[[[1]]]").is_err());
    }

    #[test]
    fn many_tiny_items_are_refused_before_they_fill_the_memory() {
        let json = format!("[{}\"\"]", "\"\",".repeat(ITEMS_MAX));
        assert!(input(&json).unwrap_err().to_string().contains("more than"));
    }

    #[test]
    fn sequences_are_texts_or_pairs() {
        let read = |json| serde_json::from_str::<Sequences<'_>>(json);
        let one = |text| Sequence::One(Cow::Borrowed(text));
        assert_eq!(read(r#""a""#).unwrap(), Sequences::Single(one("a")));
        assert_eq!(read(r#"["a"]"#).unwrap(), Sequences::Single(one("a")));
        assert_eq!(read(r#"["a","b"]"#).unwrap(), Sequences::Single(Sequence::Pair("a".into(), "b".into())));
        assert_eq!(
            read(r#"[["a"],["b","c"]]"#).unwrap(),
            Sequences::Batch(vec![one("a"), Sequence::Pair("b".into(), "c".into())])
        );
        for json in [r#"["a","b","c"]"#, "[1]", "[[]]", r#"[["a","b","c"]]"#, "null"] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
