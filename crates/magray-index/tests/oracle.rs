//! Queries of every kind give what Qdrant's client gives in its local mode, by answers that it wrote down.
//! `fixtures/make_oracle.py` makes them.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use magray_index::*;
use serde_json::Value;
use std::collections::BTreeMap;

fn vector(value: &Value) -> Vector {
    let floats = |value: &Value| value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
    match value {
        Value::Object(sparse) => Vector::Sparse {
            indices: sparse["indices"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect(),
            values: floats(&sparse["values"]),
        },
        Value::Array(values) if values[0].is_array() => Vector::Multi(values.iter().map(floats).collect()),
        value => Vector::Dense(floats(value)),
    }
}

fn example(value: &Value) -> Example {
    Example::Vector(vector(value))
}

fn id(value: &Value) -> PointId {
    serde_json::from_value(value.clone()).unwrap()
}

fn text<'a>(query: &'a Value, key: &str) -> &'a str {
    query[key].as_str().unwrap_or_default()
}

fn list<'a>(query: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    query[key].as_array().into_iter().flatten()
}

fn kind(query: &Value) -> QueryKind {
    let context = || {
        let pair = |pair: &Value| ContextPair { positive: example(&pair[0]), negative: example(&pair[1]) };
        list(query, "context").map(pair).collect()
    };
    match text(query, "kind") {
        "nearest" | "rescore" | "groups" => QueryKind::Nearest(example(&query["vector"])),
        "recommend" => QueryKind::Recommend {
            positive: list(query, "positive").map(example).collect(),
            negative: list(query, "negative").map(example).collect(),
            strategy: match text(query, "strategy") {
                "best_score" => Strategy::BestScore,
                "sum_scores" => Strategy::SumScores,
                _ => Strategy::AverageVector,
            },
        },
        "discover" => QueryKind::Discover { target: example(&query["target"]), context: context() },
        "context" => QueryKind::Context(context()),
        "order_by" => QueryKind::OrderBy(OrderBy {
            key: text(query, "key").parse().unwrap(),
            direction: if text(query, "direction") == "desc" { Direction::Descending } else { Direction::Ascending },
            start_from: None,
        }),
        "fusion" if text(query, "fusion") == "dbsf" => QueryKind::Fusion(Fusion::Dbsf),
        "fusion" => QueryKind::Fusion(Fusion::Rrf { k: 2.0, weights: Vec::new() }),
        "all" => QueryKind::All,
        other => panic!("a new kind of query: {other}"),
    }
}

fn query(asked: &Value) -> Query {
    let prefetch = list(asked, "prefetch").map(|asked| Query {
        using: text(asked, "using").to_owned(),
        ..Query::new(QueryKind::Nearest(example(&asked["vector"])), asked["limit"].as_u64().unwrap() as usize)
    });
    Query {
        using: text(asked, "using").to_owned(),
        filter: filter(asked),
        offset: asked["offset"].as_u64().unwrap_or(0) as usize,
        score_threshold: asked["threshold"].as_f64().map(|threshold| threshold as f32),
        prefetch: prefetch.collect(),
        ..Query::new(kind(asked), asked["limit"].as_u64().unwrap_or(10) as usize)
    }
}

fn filter(asked: &Value) -> Option<Filter> {
    asked.get("filter").filter(|filter| !filter.is_null()).map(|filter| Filter::from_json(filter).unwrap())
}

/// The same scores in the same places; points with equal scores may change places.
fn check_hits(found: &[Scored], expected: &Value, what: &str) {
    let expected = expected.as_array().unwrap();
    assert_eq!(found.len(), expected.len(), "{what}: {found:?} {expected:?}");
    let close = |one: f64, other: f64| (one - other).abs() < 1e-4 * one.abs().max(1.0);
    for (hit, expected) in found.iter().zip(expected) {
        assert!(close(hit.score.into(), expected[1].as_f64().unwrap()), "{what}: {found:?} {expected:?}");
    }
    let last = expected.last().map_or(0.0, |last| last[1].as_f64().unwrap());
    for hit in found.iter().filter(|hit| !close(hit.score.into(), last)) {
        assert!(expected.iter().any(|expected| id(&expected[0]) == hit.id), "{what}: {:?} in {expected:?}", hit.id);
    }
}

fn check(collection: &Collection, asked: &Value, expected: &Value, what: &str) {
    match text(asked, "kind") {
        "count" => {
            assert_eq!(collection.count(filter(asked).as_ref()).unwrap() as u64, expected.as_u64().unwrap(), "{what}")
        }
        "facet" => {
            let key = text(asked, "key").parse().unwrap();
            let hits = collection.facet(&key, filter(asked).as_ref(), 10).unwrap();
            let hits: Vec<Value> = hits.into_iter().map(|hit| serde_json::json!([hit.value, hit.count])).collect();
            assert_eq!(Value::from(hits), *expected, "{what}");
        }
        "groups" => {
            let group_by = text(asked, "group_by").parse().unwrap();
            let request = GroupQuery { query: Query { limit: 3, ..query(asked) }, group_by, group_size: 2 };
            let groups = collection.query_groups(&request).unwrap();
            let names: Vec<Value> = groups.iter().map(|group| group.id.clone()).collect();
            let expected = expected.as_array().unwrap();
            assert_eq!(names, expected.iter().map(|group| group[0].clone()).collect::<Vec<_>>(), "{what}");
            groups.iter().zip(expected).for_each(|(group, expected)| check_hits(&group.hits, &expected[1], what));
        }
        "order_by" => {
            let found = collection.query(&query(asked)).unwrap();
            assert_eq!(found.len(), expected.as_array().unwrap().len(), "{what}");
            let compare = |value: &serde_json::Number| value.as_f64().unwrap();
            let values: Vec<f64> = found.iter().map(|hit| compare(hit.order_value.as_ref().unwrap())).collect();
            let is_down = text(asked, "direction") == "desc";
            assert!(
                values.windows(2).all(|pair| if is_down { pair[0] >= pair[1] } else { pair[0] <= pair[1] }),
                "{what}"
            );
        }
        "all" => {
            let found: Vec<PointId> = collection.query(&query(asked)).unwrap().iter().map(|hit| hit.id).collect();
            assert_eq!(found, expected.as_array().unwrap().iter().map(|hit| id(&hit[0])).collect::<Vec<_>>(), "{what}");
        }
        _ => check_hits(&collection.query(&query(asked)).unwrap(), expected, what),
    }
}

#[test]
fn queries_of_every_kind_agree_with_qdrants_local_mode() {
    let oracle: Value = serde_json::from_str(include_str!("fixtures/oracle.json")).unwrap();
    for (name, answers) in oracle["answers"].as_object().unwrap() {
        let distance: Distance = serde_json::from_value(name.as_str().into()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let collections = Collections::open(folder.path(), Options::default()).unwrap();
        let dense = |size, multi| DenseConfig { size, distance, storage: Storage::F32, multi };
        let config = CollectionConfig {
            dense: BTreeMap::from([("dense".to_owned(), dense(4, false)), ("multi".to_owned(), dense(3, true))]),
            sparse: BTreeMap::from([("sparse".to_owned(), SparseConfig { idf: true })]),
            ..CollectionConfig::default()
        };
        collections.create("c", config).unwrap();
        let collection = collections.get("c").unwrap();
        let point = |point: &Value| Point {
            id: id(&point["id"]),
            vectors: point["vector"].as_object().unwrap().iter().map(|(name, v)| (name.clone(), vector(v))).collect(),
            payload: point["payload"].as_object().unwrap().clone(),
        };
        collection.upsert(list(&oracle, "points").map(point).collect()).unwrap();
        for (asked, expected) in list(&oracle, "queries").zip(answers.as_array().unwrap()) {
            check(&collection, asked, expected, &format!("{name} {asked}"));
        }
    }
}
