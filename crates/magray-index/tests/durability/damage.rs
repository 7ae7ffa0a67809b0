//! Flipped bytes are found and named, and everything else is read; snapshots bring back what was there.

use super::script::*;
use magray_index::*;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

pub(crate) fn filled(folder: &Path, count: u64) {
    let collections = open(folder);
    collections.create("c", config()).unwrap();
    collections.create("other", config()).unwrap();
    for name in ["c", "other"] {
        collections.get(name).unwrap().upsert((0..count).map(|id| point(id, 1)).collect()).unwrap();
    }
    // The last snapshot is deleted: what counts is that everything is in the file and not in its log.
    for name in ["c", "other"] {
        let snapshot = collections.create_snapshot(name).unwrap();
        let path = collections.snapshot_path(name, &snapshot.name).unwrap();
        collections.restore_snapshot(name, &path).unwrap();
        collections.delete_snapshot(name, &snapshot.name).unwrap();
    }
}

fn file_of(folder: &Path, name: &str) -> PathBuf {
    folder.join("collections").join(name).join("points.db")
}

#[test]
fn a_flipped_byte_is_found_and_named_and_everything_else_is_read() {
    let folder = tempfile::tempdir().unwrap();
    const COUNT: u64 = 400;
    filled(folder.path(), COUNT);
    let file = file_of(folder.path(), "c");
    let whole = fs::read(&file).unwrap();
    let seed = RandomState::new().hash_one(COUNT);
    println!("seed {seed}");
    let mut chance = Chance(seed);
    let mut noticed = 0;
    for _ in 0..60 {
        let mut bytes = whole.clone();
        let at = chance.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << chance.below(8);
        fs::write(&file, &bytes).unwrap();
        let collections = open(folder.path());
        assert_eq!(collections.get("other").unwrap().count(None).unwrap(), COUNT as usize);
        let collection = match collections.get("c") {
            Ok(collection) => collection,
            Err(error) => {
                assert!(matches!(&error, Error::Corrupt { collection, .. } if collection == "c"), "byte {at}: {error}");
                noticed += 1;
                continue;
            }
        };
        let (mut wrong, mut refused) = (0, 0);
        for id in 0..COUNT {
            let all = (&PayloadSelector::All, &VectorSelector::All);
            match collection.retrieve(&[PointId::Number(id)], all.0, all.1) {
                Ok(records) if records.len() == 1 => {
                    let wanted = point(id, 1);
                    let record = &records[0];
                    assert_eq!(
                        record.payload,
                        Some(wanted.payload),
                        "seed {seed}, byte {at}: a wrong payload was read"
                    );
                    assert_eq!(record.vectors, Some(wanted.vectors), "seed {seed}, byte {at}: a wrong vector was read");
                }
                Ok(_) => wrong += 1,
                Err(error) => {
                    assert!(matches!(&error, Error::Corrupt { collection, .. } if collection == "c"), "{error}");
                    refused += 1;
                }
            }
        }
        let found = collection.query(&Query::new(QueryKind::Nearest(Example::Vector(vector(7))), 1000));
        // A file that cannot be described is told of by the error.
        let is_told = collection.info().map_or(true, |info| !info.damage.is_empty());
        match found {
            // A page has room for 80 and more of these small rows; one that leads to others takes those along, and is told.
            Ok(found) => assert!(
                found.len() + 200 >= COUNT as usize || is_told,
                "byte {at}: {} of {COUNT} found, and nothing says so",
                found.len()
            ),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "byte {at}: {error}"),
        }
        if wrong + refused > 0 {
            noticed += 1;
            assert!(
                wrong == 0 || is_told,
                "seed {seed}, byte {at}: {wrong} points are not readable, and nothing says so"
            );
        }
    }
    assert!(noticed > 0, "no flipped byte was in a row");
    fs::write(&file, &whole).unwrap();
    assert_eq!(everything(&open(folder.path()).get("c").unwrap()).len(), COUNT as usize);
}

#[test]
fn a_damaged_vector_is_named_and_written_again() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 50);
    let file = file_of(folder.path(), "c");
    let mut bytes = fs::read(&file).unwrap();
    let Vector::Dense(values) = &point(17, 1).vectors[""] else { panic!("dense") };
    let wanted: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let at = bytes.windows(wanted.len()).position(|part| part == wanted).expect("vectors are stored as they are");
    bytes[at + 3] ^= 0x40;
    fs::write(&file, &bytes).unwrap();
    let collections = open(folder.path());
    let collection = collections.get("c").unwrap();
    let nearest = || collection.query(&Query::new(QueryKind::Nearest(Example::Vector(vector(7))), 100)).unwrap();
    assert_eq!(nearest().len(), 49);
    assert_eq!(collection.info().unwrap().damage, ["vector '' of point 17 is not readable"]);
    let error = collection.retrieve(&[PointId::Number(17)], &PayloadSelector::None, &VectorSelector::All).unwrap_err();
    assert!(error.to_string().contains("collection 'c' is damaged: vector '' of point 17"), "{error}");
    collection.upsert(vec![point(17, 1)]).unwrap();
    assert_eq!(nearest().len(), 50);
    assert_eq!(collection.info().unwrap().damage, Vec::<String>::new());
}

#[test]
fn a_snapshot_holds_one_moment_and_replaces_a_collection_whole() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 30);
    let collections = open(folder.path());
    let snapshot = collections.create_snapshot("c").unwrap();
    let before = everything(&collections.get("c").unwrap());
    collections.get("c").unwrap().delete(&Selector::Ids((0..20).map(PointId::Number).collect())).unwrap();
    let path = collections.snapshot_path("c", &snapshot.name).unwrap();
    collections.restore_snapshot("again", &path).unwrap();
    assert_eq!(everything(&collections.get("again").unwrap()), before);
    assert_eq!(collections.get("c").unwrap().count(None).unwrap(), 10);
    collections.restore_snapshot("c", &path).unwrap();
    assert_eq!(everything(&collections.get("c").unwrap()), before);
    let wrong = folder.path().join("wrong");
    fs::write(&wrong, vec![7; 9000]).unwrap();
    assert!(collections.restore_snapshot("c", &wrong).is_err());
    assert_eq!(everything(&collections.get("c").unwrap()), before);
    assert!(matches!(collections.snapshot_path("c", "none"), Err(Error::NotFound { .. })));
    drop(collections);
    assert_eq!(open(folder.path()).list(), ["again", "c", "other"]);
}
