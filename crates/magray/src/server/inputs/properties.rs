//! The readers of texts beside a slow and plain one that builds a tree: they take and refuse the same, whatever comes.
//! What is random is printed and kept where it fails.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    plain::{plain_documents, plain_input, plain_sequences},
    *,
};

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => "[a-z\\\\\"\n\u{e9}\u{1f600}]{0,6}".prop_map(Value::from),
        4 => (0u64..70_000).prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => (-1e3..1e3f64).prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => "[a-z]{0,3}".prop_map(|text| json!({ "text": text })),
        1 => "[a-z]{0,3}".prop_map(|text| json!({ "other": text })),
    ];
    // Arrays of one kind are what is taken, so they must be frequent.
    let alike = prop_oneof![
        prop::collection::vec("[a-z\n]{0,4}".prop_map(Value::from), 0..4),
        prop::collection::vec((0u64..9000).prop_map(Value::from), 0..4),
    ];
    let array = prop_oneof![alike, prop::collection::vec(leaf.clone(), 0..4)].prop_map(Value::from);
    let nested = prop::collection::vec(prop_oneof![4 => array.clone(), 1 => leaf.clone()], 0..4).prop_map(Value::from);
    prop_oneof![leaf, array, nested]
}

proptest! {
    #[test]
    fn readers_take_what_the_plain_ones_take(value in values(), is_spaced in any::<bool>()) {
        let written = if is_spaced { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        let json = written.unwrap();
        prop_assert_eq!(serde_json::from_str::<Input<'_>>(&json).ok(), plain_input(&value), "{}", json);
        prop_assert_eq!(serde_json::from_str::<Sequences<'_>>(&json).ok(), plain_sequences(&value), "{}", json);
        prop_assert_eq!(serde_json::from_str::<Documents<'_>>(&json).ok(), plain_documents(&value), "{}", json);
        let texts = match plain_input(&value) {
            Some(Input::Texts { texts, is_single }) => Some(Texts { texts, is_single }),
            _ => None,
        };
        prop_assert_eq!(serde_json::from_str::<Texts<'_>>(&json).ok(), texts, "{}", json);
    }

    #[test]
    fn damaged_bodies_are_refused_or_read_and_never_end_the_server(
        value in values(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut json = serde_json::to_vec(&value).unwrap();
        for (at, byte) in damage {
            let at = at.index(json.len());
            json[at] = byte;
        }
        let plain: Option<Value> = serde_json::from_slice(&json).ok();
        let input = serde_json::from_slice::<Input<'_>>(&json).ok();
        // The reference parses all of it first: what it refuses, every reader must refuse.
        prop_assert!(plain.is_some() || input.is_none());
        let _ = serde_json::from_slice::<Sequences<'_>>(&json);
        let _ = serde_json::from_slice::<Documents<'_>>(&json);
    }
}
