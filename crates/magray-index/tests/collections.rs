//! Collections of a folder: names, aliases, settings, the order of changes, words.
//! What must survive is looked at again after the folder was opened anew.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use magray_index::*;
use serde_json::json;
use std::collections::BTreeMap;

fn open(folder: &tempfile::TempDir) -> Collections {
    Collections::open(folder.path(), Options::default()).unwrap()
}

fn point(id: u64, text: &str) -> Point {
    let vectors = BTreeMap::from([(String::new(), Vector::Dense(vec![id as f32, 1.0]))]);
    Point { id: PointId::Number(id), vectors, payload: json!({"text": text}).as_object().unwrap().clone() }
}

fn ids(found: &[Scored]) -> Vec<PointId> {
    found.iter().map(|hit| hit.id).collect()
}

#[test]
fn aliases_change_all_or_none_and_survive() {
    let folder = tempfile::tempdir().unwrap();
    let collections = open(&folder);
    for name in ["one", "two words"] {
        collections.create(name, CollectionConfig::dense(2, Distance::Dot)).unwrap();
    }
    let set = |alias: &str, collection: &str| AliasChange::Set { alias: alias.into(), collection: collection.into() };
    collections.change_aliases(&[set("a", "one"), set("b", "two words")]).unwrap();
    let remove = AliasChange::Remove { alias: "a".to_owned() };
    let refused = collections.change_aliases(&[remove, set("c", "none")]).unwrap_err();
    assert!(matches!(refused, Error::NotFound { .. }), "{refused}");
    assert!(matches!(collections.change_aliases(&[set("one", "two words")]), Err(Error::Exists { .. })));
    collections.change_aliases(&[AliasChange::Rename { from: "b".to_owned(), to: "d".to_owned() }]).unwrap();
    let expected = [("a", "one"), ("d", "two words")].map(|(alias, name)| (alias.to_owned(), name.to_owned()));
    assert_eq!(collections.aliases(), expected);
    drop(collections);
    let collections = open(&folder);
    assert_eq!(collections.aliases(), expected);
    assert_eq!(collections.get("d").unwrap().name(), "two words");
    assert!(collections.delete("two words").unwrap());
    assert!(!collections.delete("two words").unwrap());
    assert_eq!(collections.aliases(), expected[..1]);
    assert!(matches!(collections.get("d"), Err(Error::NotFound { .. })));
    assert_eq!((collections.list(), collections.exists("a")), (vec!["one".to_owned()], true));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let collections = open(&folder);
    for name in ["", ".", "..", "../up", "a/b", ".hidden", "line\nbreak", &"x".repeat(200)] {
        let refused = collections.create(name, CollectionConfig::dense(2, Distance::Dot));
        assert!(matches!(refused, Err(Error::BadInput(_))), "{name}");
        assert!(collections.snapshot_path("one", name).is_err(), "{name}");
    }
    collections.create("one", CollectionConfig::dense(2, Distance::Dot)).unwrap();
    let again = collections.create("one", CollectionConfig::dense(3, Distance::Dot));
    assert!(matches!(again, Err(Error::Exists { .. })));
}

#[test]
fn changes_of_a_batch_see_those_before_and_a_wrong_one_stops_all() {
    let folder = tempfile::tempdir().unwrap();
    let collections = open(&folder);
    collections.create("c", CollectionConfig::dense(2, Distance::Dot)).unwrap();
    let collection = collections.get("c").unwrap();
    let red = Filter::from_json(&json!({"must": [{"key": "text", "match": {"value": "red"}}]})).unwrap();
    let delete_red = Change::Delete(Selector::Filter(red.clone()));
    collection.change(vec![Change::Upsert(vec![point(1, "red"), point(2, "blue")]), delete_red.clone()]).unwrap();
    assert_eq!(collection.count(None).unwrap(), 1);
    for wrong in [Vector::Dense(vec![1.0; 3]), Vector::Dense(vec![f32::NAN, 1.0]), Vector::Multi(vec![vec![1.0, 2.0]])]
    {
        let wrong = Point { vectors: BTreeMap::from([(String::new(), wrong)]), ..point(4, "red") };
        let refused = collection.change(vec![Change::Upsert(vec![point(3, "red")]), Change::Upsert(vec![wrong])]);
        assert!(matches!(refused, Err(Error::BadInput(_))));
    }
    assert_eq!(collection.count(Some(&red)).unwrap(), 0, "nothing of a refused batch is kept");
    // The slot of a deleted point is used again: nothing of the old point may be left.
    collection.upsert(vec![point(9, "green")]).unwrap();
    assert_eq!(collection.count(Some(&red)).unwrap(), 0);
    let found = collection.query(&Query::new(QueryKind::Nearest(Example::Id(PointId::Number(9))), 5)).unwrap();
    assert_eq!(ids(&found), [PointId::Number(2)], "the example itself is left out");
}

#[test]
fn words_are_found_and_follow_changes() {
    let folder = tempfile::tempdir().unwrap();
    let collections = open(&folder);
    let config = CollectionConfig { text_field: Some("text".to_owned()), ..CollectionConfig::dense(2, Distance::Dot) };
    collections.create("c", config).unwrap();
    let collection = collections.get("c").unwrap();
    let texts = ["sailing boats on a lake", "a boat and its sails", "mountains", "lakes between mountains"];
    collection.upsert((1..).zip(texts).map(|(id, text)| point(id, text)).collect()).unwrap();
    let search = |collection: &Collection, text: &str| {
        let mut found = ids(&collection.query(&Query::new(QueryKind::Text(text.to_owned()), 10)).unwrap());
        found.sort();
        found
    };
    let numbers = |all: &[u64]| all.iter().map(|id| PointId::Number(*id)).collect::<Vec<_>>();
    assert_eq!(search(&collection, "boat"), numbers(&[1, 2]));
    collection.upsert(vec![point(2, "nothing of the kind"), point(7, "another boat")]).unwrap();
    collection.delete(&Selector::Ids(numbers(&[1]))).unwrap();
    assert_eq!(search(&collection, "boats"), numbers(&[7]));
    drop((collection, collections));
    let collections = open(&folder);
    let collection = collections.get("c").unwrap();
    assert_eq!(search(&collection, "boats"), numbers(&[7]));
    collection.set_metadata(json!({"model": "m"}).as_object().unwrap().clone()).unwrap();
    drop((collection, collections));
    assert_eq!(open(&folder).get("c").unwrap().config().metadata["model"], "m");
}

#[test]
fn vectors_are_added_and_removed_and_no_change_is_lost_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let collections = open(&folder);
    collections.create("c", CollectionConfig::dense(2, Distance::Dot)).unwrap();
    let before = collections.get("c").unwrap();
    before.upsert((0..600).map(|id| point(id, "red")).collect()).unwrap();
    let sparse = |config: &mut CollectionConfig| {
        config.sparse.insert("words".to_owned(), SparseConfig::default());
        Ok(())
    };
    collections.change_vectors("c", sparse).unwrap();
    let late = before.upsert(vec![point(1, "late")]);
    assert!(matches!(late, Err(Error::Replaced)), "{late:?}");
    let after = collections.get("c").unwrap();
    assert_eq!((after.count(None).unwrap(), after.config().sparse.len()), (600, 1));
    let words = Vector::Sparse { indices: vec![7], values: vec![1.0] };
    let vectors = BTreeMap::from([("words".to_owned(), words.clone())]);
    after.change(vec![Change::UpdateVectors(vec![(PointId::Number(5), vectors)])]).unwrap();
    let nearest = |vector: Vector| Query::new(QueryKind::Nearest(Example::Vector(vector)), 1);
    let by_words = Query { using: "words".to_owned(), ..nearest(words) };
    assert_eq!(ids(&after.query(&by_words).unwrap()), [PointId::Number(5)]);
    let refused = collections.change_vectors("c", |_| Err(Error::bad("no")));
    assert!(refused.is_err() && after.upsert(vec![point(600, "blue")]).is_ok(), "it is still the one in place");
    let none = |config: &mut CollectionConfig| {
        config.sparse.clear();
        Ok(())
    };
    collections.change_vectors("c", none).unwrap();
    drop((before, after, collections));
    let after = open(&folder).get("c").unwrap();
    assert_eq!((after.count(None).unwrap(), after.config().sparse.len()), (601, 0));
    assert_eq!(ids(&after.query(&nearest(Vector::Dense(vec![1.0, 0.0]))).unwrap()), [PointId::Number(600)]);
    assert!(after.info().unwrap().damage.is_empty());
}

#[test]
fn an_offset_does_not_shorten_what_is_drawn_by_chance() {
    let folder = tempfile::tempdir().unwrap();
    let collections = open(&folder);
    collections.create("one", CollectionConfig::dense(2, Distance::Dot)).unwrap();
    let collection = collections.get("one").unwrap();
    collection.upsert((0..10).map(|id| point(id, "a")).collect()).unwrap();
    for (limit, offset, expected) in [(10, 4, 10), (3, 9, 3), (20, 0, 10)] {
        let found = collection.query(&Query { offset, ..Query::new(QueryKind::Sample, limit) }).unwrap();
        assert_eq!(found.len(), expected);
    }
}

/// The points of a collection, each with the version that wrote it; payload and vector must be of the same one.
fn versions(collection: &Collection) -> Vec<(PointId, u64)> {
    let request = ScrollRequest {
        limit: 1000,
        with_payload: PayloadSelector::All,
        with_vectors: VectorSelector::All,
        ..ScrollRequest::default()
    };
    let points = collection.scroll(&request).unwrap().points.into_iter().map(|point| {
        let version = point.payload.unwrap()["version"].as_u64().unwrap();
        let PointId::Number(id) = point.id else { panic!("ids are numbers") };
        let expected = Vector::Dense(vec![id as f32, version as f32]);
        assert_eq!(point.vectors.unwrap()[""], expected, "a point of two files");
        (point.id, version)
    });
    points.collect()
}

fn version(version: u64, ids: impl Iterator<Item = u64>) -> Vec<Point> {
    let point = |id| Point {
        id: PointId::Number(id),
        vectors: BTreeMap::from([(String::new(), Vector::Dense(vec![id as f32, version as f32]))]),
        payload: json!({"version": version}).as_object().unwrap().clone(),
    };
    ids.map(point).collect()
}

fn left_behind(folder: &tempfile::TempDir) -> usize {
    let names = std::fs::read_dir(folder.path().join("collections")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with('.')).count()
}

#[test]
fn a_thread_that_has_a_collection_reads_it_after_it_was_replaced_or_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let collections = open(&folder);
    let make = |points: Vec<Point>| {
        collections.create("c", CollectionConfig::dense(2, Distance::Dot)).unwrap();
        collections.get("c").unwrap().upsert(points).unwrap();
    };
    make(version(1, 0..20));
    let snapshot = collections.create_snapshot("c").unwrap();
    // The same slots hold other points.
    collections.get("c").unwrap().upsert(version(2, (0..30).rev())).unwrap();
    // Opened and never read: its file is opened after it was replaced.
    drop(collections);
    let collections = open(&folder);
    let second = collections.get("c").unwrap();
    collections.restore_snapshot("c", &collections.snapshot_path("c", &snapshot.name).unwrap()).unwrap();
    let first = collections.get("c").unwrap();
    let all = |version: u64, count: u64| (0..count).map(|id| (PointId::Number(id), version)).collect::<Vec<_>>();
    assert_eq!((versions(&second), versions(&first)), (all(2, 30), all(1, 20)));
    assert!(matches!(second.upsert(version(3, 0..1)), Err(Error::Replaced)));
    assert_eq!(left_behind(&folder), 1);
    drop(second);
    assert_eq!(left_behind(&folder), 0, "the last user takes the file along");
    assert!(collections.delete("c").unwrap());
    collections.create("c", CollectionConfig::dense(2, Distance::Dot)).unwrap();
    let third = collections.get("c").unwrap();
    third.upsert(version(3, 5..7)).unwrap();
    assert!(matches!(first.upsert(version(4, 0..1)), Err(Error::Replaced)));
    // More threads than connections that wait for readers.
    std::thread::scope(|scope| {
        (0..12).for_each(|_| drop(scope.spawn(|| assert_eq!(versions(&first), all(1, 20)))));
    });
    assert_eq!(versions(&third).len(), 2);
    drop((first, third, collections));
    let again = open(&folder);
    assert_eq!(versions(&again.get("c").unwrap()), [(PointId::Number(5), 3), (PointId::Number(6), 3)]);
    assert_eq!(left_behind(&folder), 0);
}

#[test]
fn readers_and_writers_go_on_while_snapshots_are_restored() {
    let folder = tempfile::tempdir().unwrap();
    let collections = open(&folder);
    collections.create("c", CollectionConfig::dense(2, Distance::Dot)).unwrap();
    let mut snapshots = Vec::new();
    for (number, count) in [(1, 40), (2, 70)] {
        collections.get("c").unwrap().upsert(version(number, 0..count)).unwrap();
        snapshots.push(collections.create_snapshot("c").unwrap().name);
    }
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let load = |flag: &std::sync::atomic::AtomicBool| flag.load(std::sync::atomic::Ordering::SeqCst);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !load(&is_done) {
                    let found = versions(&collections.get("c").unwrap());
                    let old = found.iter().filter(|(_, version)| *version == 1).count();
                    assert!(old == 0 && found.len() >= 70 || old == 40, "{found:?}");
                    let query = Query::new(QueryKind::Nearest(Example::Vector(Vector::Dense(vec![1.0, 0.0]))), 5);
                    assert_eq!(collections.get("c").unwrap().query(&query).unwrap().len(), 5);
                }
            });
        }
        scope.spawn(|| {
            while !load(&is_done) {
                match collections.get("c").unwrap().upsert(version(3, 1000..1001)) {
                    Ok(()) | Err(Error::Replaced) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        });
        let restored = (0..20).try_for_each(|round| {
            collections.restore_snapshot("c", &collections.snapshot_path("c", &snapshots[round % 2])?)
        });
        is_done.store(true, std::sync::atomic::Ordering::SeqCst);
        restored.unwrap();
    });
    let last = collections.get("c").unwrap();
    last.upsert(version(9, 2000..2001)).unwrap();
    drop((last, collections));
    let found = versions(&open(&folder).get("c").unwrap());
    assert!(found.contains(&(PointId::Number(2000), 9)), "what was acknowledged is there");
    assert_eq!(left_behind(&folder), 0);
}

#[test]
fn snapshots_of_a_deleted_collection_are_listed_restored_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let collections = open(&folder);
    assert!(matches!(collections.list_snapshots("c"), Err(Error::NotFound { .. })));
    for name in ["../c", ".", "a/b"] {
        assert!(matches!(collections.list_snapshots(name), Err(Error::BadInput(_))), "{name}");
        assert!(matches!(collections.snapshot_path(name, "x"), Err(Error::BadInput(_))), "{name}");
    }
    collections.create("c", CollectionConfig::dense(2, Distance::Dot)).unwrap();
    collections.get("c").unwrap().upsert(version(1, 0..5)).unwrap();
    let alias = AliasChange::Set { alias: "now".to_owned(), collection: "c".to_owned() };
    collections.change_aliases(&[alias]).unwrap();
    assert_eq!(collections.list_snapshots("c").unwrap(), []);
    let names = [(); 2].map(|()| collections.create_snapshot("now").unwrap().name);
    assert_eq!(collections.list_snapshots("now").unwrap().len(), 2);
    assert!(collections.delete("c").unwrap());
    drop(collections);
    let collections = open(&folder);
    assert_eq!(collections.list_snapshots("c").unwrap().len(), 2);
    collections.delete_snapshot("c", &names[0]).unwrap();
    let path = collections.snapshot_path("c", &names[1]).unwrap();
    collections.restore_snapshot("c", &path).unwrap();
    assert_eq!(versions(&collections.get("c").unwrap()).len(), 5);
    assert!(collections.delete("c").unwrap());
    collections.delete_snapshot("c", &names[1]).unwrap();
    assert!(matches!(collections.list_snapshots("c"), Err(Error::NotFound { .. })), "nothing is left of it");
}
