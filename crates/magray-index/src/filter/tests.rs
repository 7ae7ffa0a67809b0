//! Filters by index and by payload must agree, and both must mean what Qdrant means.

use super::check::{Subject, meets};
use super::*;
use crate::{Condition, Filter};
use proptest::prelude::*;
use proptest::strategy::Strategy;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashMap;

/// Payloads at slots; ids are the slots.
struct Payloads {
    all: Vec<Payload>,
    live: RoaringBitmap,
    fields: RefCell<HashMap<JsonPath, Arc<FieldIndex>>>,
}

impl Payloads {
    fn new(all: Vec<Payload>) -> Self {
        let live = (0..all.len() as u32).collect();
        Self { all, live, fields: RefCell::default() }
    }
}

impl Source for Payloads {
    fn live(&self) -> &RoaringBitmap {
        &self.live
    }

    fn slot_of(&self, id: PointId) -> Option<u32> {
        match id {
            PointId::Number(number) if (number as usize) < self.all.len() => Some(number as u32),
            _ => None,
        }
    }

    fn id_of(&self, slot: u32) -> Option<PointId> {
        Some(PointId::Number(slot.into()))
    }

    fn has_vector(&self, slot: u32, name: &str) -> bool {
        name == "even" && slot.is_multiple_of(2)
    }

    fn with_vector(&self, name: &str) -> RoaringBitmap {
        self.live.iter().filter(|slot| self.has_vector(*slot, name)).collect()
    }

    fn field(&self, key: &JsonPath) -> Result<Option<Arc<FieldIndex>>> {
        let mut fields = self.fields.borrow_mut();
        let index = fields.entry(key.clone()).or_insert_with(|| {
            let mut index = FieldIndex::new(key.clone());
            // What is taken back must leave nothing.
            for (slot, _) in self.all.iter().enumerate() {
                let other = &self.all[(slot + 1) % self.all.len()];
                index.insert(slot as u32, other);
                index.remove(slot as u32, other);
            }
            self.all.iter().enumerate().for_each(|(slot, payload)| index.insert(slot as u32, payload));
            Arc::new(index)
        });
        Ok(Some(Arc::clone(index)))
    }

    fn payload(&self, slot: u32) -> Result<Option<Payload>> {
        Ok(self.all.get(slot as usize).cloned())
    }
}

fn payload(value: Value) -> Payload {
    value.as_object().unwrap().clone()
}

fn found(payloads: &Payloads, filter: Value) -> Vec<u32> {
    let filter = Filter::from_json(&filter).unwrap();
    let found: Vec<u32> = slots(&filter, payloads).unwrap().iter().collect();
    assert_eq!(found, one_by_one(payloads, &filter), "{filter:?}");
    found
}

fn one_by_one(payloads: &Payloads, filter: &Filter) -> Vec<u32> {
    let meets = |slot: &u32| {
        let has_vector = |name: &str| payloads.has_vector(*slot, name);
        let payload = &payloads.all[*slot as usize];
        meets(filter, &Subject { payload, id: payloads.id_of(*slot), has_vector: &has_vector })
    };
    payloads.live.iter().filter(meets).collect()
}

#[test]
fn conditions_mean_what_qdrant_means() {
    let payloads = Payloads::new(
        [
            json!({"city": "London", "n": 1, "tags": ["a", "b"], "at": {"lon": 0.0, "lat": 51.5}, "t": "2024-01-01"}),
            json!({"city": ["Berlin", "Paris"], "n": 1.0, "tags": [], "t": "2024-06-01T12:00:00+02:00"}),
            json!({"city": null, "n": true, "tags": [null, 3], "text": "A quick brown Fox"}),
            json!({"people": [{"name": "x", "age": 3}, {"name": "y", "age": 9}]}),
            json!({}),
        ]
        .map(payload)
        .into(),
    );
    let one = |key: &str, test: Value| {
        let mut condition = test;
        condition["key"] = json!(key);
        found(&payloads, json!({"must": [condition]}))
    };
    assert_eq!(one("city", json!({"match": {"value": "Paris"}})), [1]);
    assert_eq!(one("city", json!({"match": {"any": ["Paris", "London"]}})), [0, 1]);
    assert_eq!(one("city", json!({"match": {"except": ["Paris"]}})), [0, 1]);
    assert_eq!(one("n", json!({"match": {"value": 1}})), [0]);
    assert_eq!(one("n", json!({"match": {"value": true}})), [2]);
    assert_eq!(one("n", json!({"range": {"gte": 1, "lt": 2}})), [0, 1]);
    assert_eq!(one("t", json!({"range": {"gt": "2024-06-01T09:59:59"}})), [1]);
    assert_eq!(one("tags", json!({"values_count": {"gte": 2}})), [0, 2]);
    assert_eq!(one("tags", json!({"values_count": {"lt": 1}})), [1, 3, 4]);
    assert_eq!(one("text", json!({"match": {"text": "fox QUICK"}})), [2]);
    assert_eq!(one("text", json!({"match": {"phrase": "quick fox"}})), [] as [u32; 0]);
    assert_eq!(one("text", json!({"match": {"phrase": "brown fox"}})), [2]);
    assert_eq!(one("at", json!({"geo_radius": {"center": {"lon": 0.1, "lat": 51.5}, "radius": 10_000}})), [0]);
    assert_eq!(one("people[].name", json!({"match": {"value": "y"}})), [3]);
    assert_eq!(found(&payloads, json!({"must": {"is_empty": {"key": "tags"}}})), [1, 3, 4]);
    assert_eq!(found(&payloads, json!({"must": {"is_null": {"key": "tags"}}})), [2]);
    assert_eq!(found(&payloads, json!({"must_not": {"is_null": {"key": "city"}}})), [0, 1, 3, 4]);
    assert_eq!(found(&payloads, json!({"must": [{"has_id": [0, 4, 77]}, {"has_vector": "even"}]})), [0, 4]);
    let both = |name: &str, age: u8| {
        let filter = json!({"must": [
            {"key": "name", "match": {"value": name}}, {"key": "age", "range": {"gt": age}}
        ]});
        found(&payloads, json!({"must": {"nested": {"key": "people", "filter": filter}}}))
    };
    assert_eq!(both("x", 5), [] as [u32; 0]);
    assert_eq!(both("y", 5), [3]);
    let two = json!([{"has_id": [0, 1, 2]}, {"has_id": [1, 2]}, {"has_vector": "even"}]);
    assert_eq!(found(&payloads, json!({"min_should": {"conditions": two, "min_count": 2}})), [0, 1, 2]);
    assert_eq!(found(&payloads, json!({"should": []})), [0, 1, 2, 3, 4]);
    assert_eq!(found(&payloads, json!({})), [0, 1, 2, 3, 4]);
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2i64..3).prop_map(Value::from),
        (-2i8..3).prop_map(|number| json!(f64::from(number) / 2.0)),
        prop::sample::select(vec!["a", "b", "a b", "2024-01-01", "2024-01-02T00:00"]).prop_map(Value::from),
        (0i8..3, 0i8..3).prop_map(|(lon, lat)| json!({"lon": lon, "lat": lat})),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(vec!["x", "y"]), inner, 0..3)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

fn any_condition() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec!["x", "y", "x.y", "x[]", "x[].y", "y[0]"]);
    let test = prop_oneof![
        prop::sample::select(vec![json!("a"), json!(1), json!(true)])
            .prop_map(|value| json!({"match": {"value": value}})),
        Just(json!({"match": {"any": ["b", 0, false]}})),
        Just(json!({"match": {"except": ["a", 1, true]}})),
        Just(json!({"match": {"text": "b"}})),
        (-2i8..3, -2i8..3).prop_map(|(gte, lt)| json!({"range": {"gte": gte, "lt": lt}})),
        (-2i8..3).prop_map(|gt| json!({"range": {"gt": gt, "gte": gt}})),
        Just(json!({"range": {"lte": "2024-01-01T12:00"}})),
        (0u8..4).prop_map(|lt| json!({"values_count": {"lt": lt}})),
        (0u8..4).prop_map(|gte| json!({"values_count": {"gte": gte}})),
        Just(json!({"geo_bounding_box": {"top_left": {"lon": -1, "lat": 2}, "bottom_right": {"lon": 2, "lat": -1}}})),
        any::<bool>().prop_map(|flag| json!({"is_empty": flag})),
        any::<bool>().prop_map(|flag| json!({"is_null": flag})),
    ];
    let field = (key, test).prop_map(|(key, mut test)| {
        test["key"] = json!(key);
        test
    });
    let leaf = prop_oneof![
        8 => field,
        1 => prop::collection::vec(0u8..12, 0..4).prop_map(|ids| json!({"has_id": ids})),
        1 => Just(json!({"has_vector": "even"})),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let some = || prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            (some(), some(), some())
                .prop_map(|(must, should, must_not)| { json!({"must": must, "should": should, "must_not": must_not}) }),
            (some(), 1u8..3).prop_map(|(all, least)| json!({"min_should": {"conditions": all, "min_count": least}})),
            some().prop_map(|must| json!({"nested": {"key": "x", "filter": {"must": must}}})),
        ]
    })
}

proptest! {
    #[test]
    fn indexes_agree_with_payloads(
        all in prop::collection::vec(prop::collection::btree_map(prop::sample::select(vec!["x", "y"]), any_value(), 0..3), 1..8),
        condition in any_condition(),
    ) {
        let all = all.into_iter().map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
        let payloads = Payloads::new(all.collect());
        let filter = Filter::from_json(&json!({"must": [condition]})).unwrap();
        let by_index: Vec<u32> = slots(&filter, &payloads).unwrap().iter().collect();
        prop_assert_eq!(by_index, one_by_one(&payloads, &filter));
        let none = Filter { must_not: vec![Condition::Filter(Box::new(filter.clone()))], ..Filter::default() };
        let others = slots(&none, &payloads).unwrap().len() as usize;
        prop_assert_eq!(others + one_by_one(&payloads, &filter).len(), payloads.all.len());
    }
}
