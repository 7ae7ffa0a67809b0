//! Random operations on a collection against a plain model: a map, and loops in 64-bit floats.
//! The collection is closed and opened again in between; what it says must not change by that.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use magray_index::*;
use proptest::prelude::*;
use proptest::strategy::Strategy;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const DISTANCES: [Distance; 4] = [Distance::Cosine, Distance::Dot, Distance::Euclid, Distance::Manhattan];

type Model = BTreeMap<PointId, (Payload, BTreeMap<String, Vector>)>;

#[derive(Clone, Debug)]
enum Step {
    Change(Change),
    Reopen,
    Nearest { vector: Vec<f32>, filter: Option<u8>, limit: usize },
    Sparse { vector: Vector, limit: usize },
    Multi { vectors: Vec<Vec<f32>>, limit: usize },
    Count(u8),
    Scroll { limit: usize, filter: Option<u8> },
}

fn config(distance: Distance) -> CollectionConfig {
    let mut config = CollectionConfig::dense(3, distance);
    let multi = DenseConfig { size: 2, distance, storage: Storage::F32, multi: true };
    config.dense.insert("multi".to_owned(), multi);
    config.sparse.insert("sparse".to_owned(), SparseConfig::default());
    config
}

fn any_id() -> impl Strategy<Value = PointId> {
    prop_oneof![(0u64..12).prop_map(PointId::Number), (0u128..4).prop_map(|bits| PointId::Uuid(bits << 64))]
}

fn any_values(dims: usize) -> impl Strategy<Value = Vec<f32>> {
    // Few different values: ties, duplicates and zeros must be met.
    prop::collection::vec((-3i8..4).prop_map(|value| f32::from(value) / 2.0), dims)
}

fn any_sparse() -> impl Strategy<Value = Vector> {
    prop::collection::btree_map(0u32..6, (1i8..4).prop_map(f32::from), 0..4).prop_map(|values| {
        let (indices, values) = values.into_iter().rev().unzip();
        Vector::Sparse { indices, values }
    })
}

fn any_vectors() -> impl Strategy<Value = BTreeMap<String, Vector>> {
    let dense = prop::option::weighted(0.9, any_values(3));
    let multi = prop::option::of(prop::collection::vec(any_values(2), 1..3));
    (dense, prop::option::of(any_sparse()), multi).prop_map(|(dense, sparse, multi)| {
        let dense = dense.map(|values| (String::new(), Vector::Dense(values)));
        let sparse = sparse.map(|vector| ("sparse".to_owned(), vector));
        let multi = multi.map(|rows| ("multi".to_owned(), Vector::Multi(rows)));
        dense.into_iter().chain(sparse).chain(multi).collect()
    })
}

fn any_payload() -> impl Strategy<Value = Payload> {
    let value = prop_oneof![
        (0i64..4).prop_map(Value::from),
        prop::sample::select(vec!["a", "b"]).prop_map(Value::from),
        prop::collection::vec((0i64..4).prop_map(Value::from), 0..3).prop_map(Value::from),
    ];
    prop::collection::btree_map(prop::sample::select(vec!["x", "y"]), value, 0..3)
        .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn any_point() -> impl Strategy<Value = Point> {
    (any_id(), any_vectors(), any_payload()).prop_map(|(id, vectors, payload)| Point { id, vectors, payload })
}

fn any_selector() -> impl Strategy<Value = Selector> {
    prop_oneof![
        3 => prop::collection::vec(any_id(), 1..4).prop_map(Selector::Ids),
        1 => (0u8..4).prop_map(|number| Selector::Filter(filter(number))),
    ]
}

fn any_change() -> impl Strategy<Value = Change> {
    let key = |text: &str| text.parse::<JsonPath>().unwrap();
    prop_oneof![
        6 => prop::collection::vec(any_point(), 1..6).prop_map(Change::Upsert),
        2 => any_selector().prop_map(Change::Delete),
        1 => (any_selector(), any_payload())
            .prop_map(|(points, payload)| Change::SetPayload { points, payload, key: None }),
        1 => (any_selector(), any_payload())
            .prop_map(move |(points, payload)| Change::SetPayload { points, payload, key: Some(key("x.z")) }),
        1 => (any_selector(), any_payload()).prop_map(|(points, payload)| Change::OverwritePayload { points, payload }),
        1 => any_selector().prop_map(move |points| Change::DeletePayload { points, keys: vec![key("x")] }),
        1 => any_selector().prop_map(Change::ClearPayload),
        1 => prop::collection::vec((any_id(), any_vectors()), 1..3).prop_map(Change::UpdateVectors),
        1 => any_selector().prop_map(|points| Change::DeleteVectors { points, names: vec!["sparse".to_owned()] }),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => any_change().prop_map(Step::Change),
        1 => Just(Step::Reopen),
        4 => (any_values(3), prop::option::of(0u8..4), 0usize..20)
            .prop_map(|(vector, filter, limit)| Step::Nearest { vector, filter, limit }),
        1 => (any_sparse(), 0usize..20).prop_map(|(vector, limit)| Step::Sparse { vector, limit }),
        1 => (prop::collection::vec(any_values(2), 1..3), 0usize..20)
            .prop_map(|(vectors, limit)| Step::Multi { vectors, limit }),
        2 => (0u8..4).prop_map(Step::Count),
        1 => (1usize..5, prop::option::of(0u8..4)).prop_map(|(limit, filter)| Step::Scroll { limit, filter }),
    ]
}

/// Some filters, and in `meets` what they mean.
fn filter(number: u8) -> Filter {
    Filter::from_json(&match number {
        0 => json!({"must": [{"key": "x", "match": {"value": 1}}]}),
        1 => json!({"must_not": [{"key": "y", "range": {"gte": 2}}]}),
        2 => json!({"should": [{"key": "x", "match": {"any": ["a"]}}, {"is_empty": {"key": "y"}}]}),
        _ => json!({"must": [{"has_vector": "sparse"}]}),
    })
    .unwrap()
}

fn meets(number: u8, payload: &Payload, vectors: &BTreeMap<String, Vector>) -> bool {
    let values = |key: &str| match payload.get(key) {
        Some(Value::Array(values)) => values.clone(),
        Some(value) => vec![value.clone()],
        None => Vec::new(),
    };
    match number {
        0 => values("x").contains(&json!(1)),
        1 => !values("y").iter().any(|value| value.as_f64().is_some_and(|value| value >= 2.0)),
        2 => values("x").contains(&json!("a")) || values("y").is_empty(),
        _ => vectors.contains_key("sparse"),
    }
}

fn chosen(model: &Model, points: &Selector) -> Vec<PointId> {
    match points {
        Selector::Ids(ids) => ids.iter().filter(|id| model.contains_key(id)).copied().collect(),
        Selector::Filter(wanted) => {
            let number = (0..4).find(|number| filter(*number) == *wanted).unwrap();
            let meeting = model.iter().filter(|(_, (payload, vectors))| meets(number, payload, vectors));
            meeting.map(|(id, _)| *id).collect()
        }
    }
}

fn is_missing(model: &Model, points: &Selector) -> bool {
    matches!(points, Selector::Ids(ids) if ids.iter().any(|id| !model.contains_key(id)))
}

/// Changes the model; returns whether the collection must say that a point is missing.
fn change(model: &mut Model, change: &Change) -> bool {
    let merge = |into: &mut Payload, fields: &Payload| {
        fields.iter().for_each(|(key, value)| drop(into.insert(key.clone(), value.clone())));
    };
    match change {
        Change::Upsert(points) => {
            for point in points {
                model.insert(point.id, (point.payload.clone(), point.vectors.clone()));
            }
            false
        }
        Change::Delete(points) => {
            chosen(model, points).iter().for_each(|id| drop(model.remove(id)));
            false
        }
        Change::UpdateVectors(points) => {
            let mut missing = false;
            for (id, vectors) in points {
                match model.get_mut(id) {
                    Some((_, old)) => old.extend(vectors.clone()),
                    None => missing = true,
                }
            }
            missing
        }
        Change::SetPayload { points, .. }
        | Change::OverwritePayload { points, .. }
        | Change::DeletePayload { points, .. }
        | Change::ClearPayload(points)
        | Change::DeleteVectors { points, .. } => {
            let missing = is_missing(model, points);
            for id in chosen(model, points) {
                let (old, vectors) = model.get_mut(&id).unwrap();
                match change {
                    Change::SetPayload { payload, key: None, .. } => merge(old, payload),
                    Change::SetPayload { payload, .. } => {
                        let x = old.entry("x").or_insert_with(|| json!({}));
                        if !x.is_object() {
                            *x = json!({});
                        }
                        let z = x.as_object_mut().unwrap().entry("z").or_insert_with(|| json!({}));
                        merge(z.as_object_mut().unwrap(), payload);
                    }
                    Change::OverwritePayload { payload, .. } => old.clone_from(payload),
                    Change::DeletePayload { .. } => drop(old.remove("x")),
                    Change::ClearPayload(_) => old.clear(),
                    _ => drop(vectors.remove("sparse")),
                }
            }
            missing
        }
    }
}

fn compare(distance: Distance, one: &[f32], other: &[f32]) -> f64 {
    let pairs = || one.iter().zip(other).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let dot: f64 = pairs().map(|(a, b)| a * b).sum();
    let length = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    match distance {
        Distance::Cosine if length(one) * length(other) == 0.0 => 0.0,
        Distance::Cosine => dot / length(one) / length(other),
        Distance::Dot => dot,
        Distance::Euclid => pairs().map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt(),
        Distance::Manhattan => pairs().map(|(a, b)| (a - b).abs()).sum(),
    }
}

fn compare_multi(distance: Distance, query: &[Vec<f32>], rows: &[Vec<f32>]) -> f64 {
    let sign = if distance.larger_is_better() { 1.0 } else { -1.0 };
    let similarity = |one: &[f32], other: &[f32]| match distance {
        Distance::Euclid => -compare(distance, one, other).powi(2),
        _ => sign * compare(distance, one, other),
    };
    let best = |query: &Vec<f32>| rows.iter().map(|row| similarity(query, row)).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = query.iter().map(best).sum();
    match distance {
        Distance::Euclid => sum.abs().sqrt(),
        _ => sign * sum,
    }
}

/// What is found must be the best by the reference scores; points with equal scores may change places.
fn check_ranking(found: &[Scored], expected: BTreeMap<PointId, f64>, limit: usize, larger_is_better: bool) {
    let mut scores: Vec<f64> = expected.values().copied().collect();
    scores.sort_by(|a, b| if larger_is_better { b.total_cmp(a) } else { a.total_cmp(b) });
    scores.truncate(limit);
    assert_eq!(found.len(), scores.len(), "{found:?} {expected:?}");
    for (hit, score) in found.iter().zip(&scores) {
        assert!((f64::from(hit.score) - score).abs() < 1e-5, "{found:?} {expected:?}");
        assert!((f64::from(hit.score) - expected[&hit.id]).abs() < 1e-5, "{found:?} {expected:?}");
    }
    let ids: std::collections::BTreeSet<_> = found.iter().map(|hit| hit.id).collect();
    assert_eq!(ids.len(), found.len(), "a point came twice: {found:?}");
}

fn expected(
    model: &Model,
    filter: Option<u8>,
    score: impl Fn(&BTreeMap<String, Vector>) -> Option<f64>,
) -> BTreeMap<PointId, f64> {
    let meeting =
        model.iter().filter(|(_, (payload, vectors))| filter.is_none_or(|number| meets(number, payload, vectors)));
    meeting.filter_map(|(id, (_, vectors))| Some((*id, score(vectors)?))).collect()
}

fn check_step(step: &Step, model: &mut Model, collection: &Collection, distance: Distance) {
    let query = |what, using: &str, number: Option<u8>, limit| Query {
        using: using.to_owned(),
        filter: number.map(filter),
        ..Query::new(what, limit)
    };
    let larger = distance.larger_is_better();
    match step {
        Step::Reopen => {}
        Step::Change(made) => {
            let missing = change(model, made);
            match collection.change(vec![made.clone()]) {
                Ok(()) => assert!(!missing, "{made:?}"),
                Err(Error::NotFound { .. }) => assert!(missing, "{made:?}"),
                Err(error) => panic!("{error}"),
            }
        }
        Step::Nearest { vector, filter, limit } => {
            let what = QueryKind::Nearest(Example::Vector(Vector::Dense(vector.clone())));
            let found = collection.query(&query(what, "", *filter, *limit)).unwrap();
            let expected = expected(model, *filter, |vectors| match vectors.get("") {
                Some(Vector::Dense(values)) => Some(compare(distance, vector, values)),
                _ => None,
            });
            check_ranking(&found, expected, *limit, larger);
        }
        Step::Multi { vectors: rows, limit } => {
            let what = QueryKind::Nearest(Example::Vector(Vector::Multi(rows.clone())));
            let found = collection.query(&query(what, "multi", None, *limit)).unwrap();
            let expected = expected(model, None, |vectors| match vectors.get("multi") {
                Some(Vector::Multi(other)) => Some(compare_multi(distance, rows, other)),
                _ => None,
            });
            check_ranking(&found, expected, *limit, larger);
        }
        Step::Sparse { vector, limit } => {
            let what = QueryKind::Nearest(Example::Vector(vector.clone()));
            let found = collection.query(&query(what, "sparse", None, *limit)).unwrap();
            let pairs = |vector: &Vector| match vector {
                Vector::Sparse { indices, values } => indices.iter().copied().zip(values.clone()).collect(),
                _ => BTreeMap::new(),
            };
            let wanted = pairs(vector);
            let expected = expected(model, None, |vectors| {
                let has = pairs(vectors.get("sparse")?);
                let shared: Vec<f64> = wanted
                    .iter()
                    .filter_map(|(index, value)| Some(f64::from(*value) * f64::from(*has.get(index)?)))
                    .collect();
                (!shared.is_empty()).then(|| shared.iter().sum())
            });
            check_ranking(&found, expected, *limit, true);
        }
        Step::Count(number) => {
            let count = model.values().filter(|(payload, vectors)| meets(*number, payload, vectors)).count();
            assert_eq!(collection.count(Some(&filter(*number))).unwrap(), count);
        }
        Step::Scroll { limit, filter: number } => {
            let (mut ids, mut offset) = (Vec::new(), None);
            loop {
                let filter = number.map(filter);
                let request = ScrollRequest { limit: *limit, offset, filter, ..ScrollRequest::default() };
                let page = collection.scroll(&request).unwrap();
                assert!(page.points.len() <= *limit);
                ids.extend(page.points.iter().map(|record| record.id));
                match page.next {
                    Some(next) => offset = Some(next),
                    None => break,
                }
            }
            let expected = expected(model, *number, |_| Some(0.0));
            assert_eq!(ids, expected.into_keys().collect::<Vec<_>>());
        }
    }
}

fn check_contents(model: &Model, collection: &Collection, distance: Distance) {
    let all: Vec<PointId> = model.keys().copied().collect();
    let records = collection.retrieve(&all, &PayloadSelector::All, &VectorSelector::All).unwrap();
    assert_eq!(records.len(), model.len());
    assert_eq!(collection.info().unwrap().points, model.len());
    for (record, (id, (payload, vectors))) in records.iter().zip(model) {
        assert_eq!((record.id, record.payload.as_ref()), (*id, Some(payload)));
        let found = record.vectors.as_ref().unwrap();
        assert!(found.keys().eq(vectors.keys()), "{found:?} {vectors:?}");
        for (name, vector) in vectors {
            match (vector, &found[name]) {
                (Vector::Dense(sent), Vector::Dense(stored)) if distance == Distance::Cosine => {
                    let same = compare(distance, sent, stored);
                    assert!(sent.iter().all(|value| *value == 0.0) || (same - 1.0).abs() < 1e-6, "{sent:?} {stored:?}");
                }
                (Vector::Multi(sent), Vector::Multi(stored)) => assert_eq!(sent.len(), stored.len()),
                (Vector::Sparse { indices, .. }, Vector::Sparse { indices: stored, .. }) => {
                    assert_eq!(indices.len(), stored.len());
                    assert!(stored.is_sorted());
                }
                (sent, stored) => assert_eq!(sent, stored),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn random_operations_agree_with_a_plain_model(
        steps in prop::collection::vec(any_step(), 1..60),
        distance in prop::sample::select(DISTANCES.to_vec()),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut collections = Collections::open(folder.path(), Options::default()).unwrap();
        collections.create("c", config(distance)).unwrap();
        let mut model = Model::new();
        for step in &steps {
            if matches!(step, Step::Reopen) {
                check_contents(&model, &collections.get("c").unwrap(), distance);
                drop(collections);
                collections = Collections::open(folder.path(), Options::default()).unwrap();
            }
            check_step(step, &mut model, &collections.get("c").unwrap(), distance);
        }
        check_contents(&model, &collections.get("c").unwrap(), distance);
        prop_assert_eq!(collections.get("c").unwrap().info().unwrap().damage, Vec::<String>::new());
    }
}
