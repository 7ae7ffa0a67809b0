//! What was acknowledged survives kills, full disks and flipped bytes; what cannot be read is named.
//! The child that is killed is this test program itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use magray_index::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How many kills; 1,000 for a long run.
const KILLS: &str = "MAGRAY_INDEX_KILLS";
/// Tells the child where to write.
const FOLDER: &str = "MAGRAY_INDEX_CHILD_FOLDER";
/// The first batch of the child.
const FIRST: &str = "MAGRAY_INDEX_CHILD_FIRST";

const DIMS: usize = 8;

/// Numbers from a seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn vector(seed: u64) -> Vector {
    let mut chance = Chance(seed);
    Vector::Dense((0..DIMS).map(|_| chance.below(2001) as f32 / 1000.0 - 1.0).collect())
}

fn point(id: u64, batch: u64) -> Point {
    let payload = json!({"batch": batch, "id": id, "text": format!("words of {id} in {batch}")});
    Point {
        id: PointId::Number(id),
        vectors: BTreeMap::from([(String::new(), vector(id << 32 | batch))]),
        payload: payload.as_object().unwrap().clone(),
    }
}

/// Each batch inserts, replaces and deletes some points, and is the same whenever it is made.
fn batch(number: u64) -> Change {
    let mut chance = Chance(number);
    if number % 5 == 4 {
        return Change::Delete(Selector::Ids((0..20).map(|_| PointId::Number(chance.below(600))).collect()));
    }
    Change::Upsert((0..1 + chance.below(60)).map(|_| point(chance.below(600), number)).collect())
}

/// Which batch wrote each point last.
fn expected(batches: u64) -> BTreeMap<PointId, u64> {
    let mut points = BTreeMap::new();
    for number in 0..batches {
        match batch(number) {
            Change::Delete(Selector::Ids(ids)) => points.retain(|id, _| !ids.contains(id)),
            Change::Upsert(all) => points.extend(all.iter().map(|point| (point.id, number))),
            _ => unreachable!("batches insert and delete"),
        }
    }
    points
}

fn open(folder: &Path) -> Collections {
    Collections::open(folder, Options::default()).unwrap()
}

fn everything(collection: &Collection) -> Vec<Record> {
    let request = ScrollRequest {
        limit: 1_000_000,
        with_payload: PayloadSelector::All,
        with_vectors: VectorSelector::All,
        ..ScrollRequest::default()
    };
    collection.scroll(&request).unwrap().points
}

#[test]
fn child_that_writes_until_it_is_killed() {
    let (Ok(folder), Ok(first)) = (std::env::var(FOLDER), std::env::var(FIRST)) else {
        return;
    };
    let collections = open(Path::new(&folder));
    let collection = collections.get("c").unwrap();
    let is_late = Filter::from_json(&json!({"must": [{"key": "batch", "range": {"gte": 3}}]})).unwrap();
    for number in first.parse().unwrap().. {
        collection.change(vec![batch(number)]).unwrap();
        println!("acknowledged {number}");
        std::io::stdout().flush().unwrap();
        // Indexes are built and snapshots written while it may be killed.
        if number % 7 == 3 {
            let nearest = QueryKind::Nearest(Example::Vector(vector(number)));
            collection.query(&Query { filter: Some(is_late.clone()), ..Query::new(nearest, 5) }).unwrap();
        }
        if number % 31 == 30 {
            collections.create_snapshot("c").unwrap();
            for old in collections.list_snapshots("c").unwrap() {
                collections.delete_snapshot("c", &old.name).unwrap();
            }
        }
    }
}

fn child(folder: &Path, first: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child_that_writes_until_it_is_killed", "--exact", "--nocapture"])
        .env(FOLDER, folder)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills the child some time after one of its first acknowledgements; returns how many batches it acknowledged.
fn kill_while_writing(folder: &Path, first: u64, chance: &mut Chance) -> u64 {
    let mut child = child(folder, first);
    let (after, pause) = (chance.below(25), chance.below(200_000));
    let mut done = first;
    let acknowledged = |line: String| line.split("acknowledged ").nth(1).map(|number| number.parse::<u64>().unwrap());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok).filter_map(acknowledged);
    for number in lines.by_ref().take(after as usize) {
        done = number + 1;
    }
    (0..pause).for_each(|_| std::hint::spin_loop());
    child.kill().unwrap();
    child.wait().unwrap();
    // What it acknowledged before the kill but had not been read.
    lines.last().map_or(done, |number| number + 1)
}

#[test]
fn no_acknowledged_point_is_lost_and_none_is_half_written_by_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).create("c", CollectionConfig::dense(DIMS, Distance::Dot)).unwrap();
    let kills: u32 = std::env::var(KILLS).map_or(24, |kills| kills.parse().unwrap());
    let seed = RandomState::new().hash_one(kills);
    println!("seed {seed}");
    let mut chance = Chance(seed);
    let mut batches = 0;
    for kill in 0..kills {
        let acknowledged = kill_while_writing(folder.path(), batches, &mut chance);
        let collections = open(folder.path());
        let collection = collections.get("c").unwrap();
        let found = everything(&collection);
        let written: BTreeMap<PointId, u64> = found
            .iter()
            .map(|record| (record.id, record.payload.as_ref().unwrap()["batch"].as_u64().unwrap()))
            .collect();
        // The batch that was being written when the child was killed is there as a whole, or not at all.
        let whole = [acknowledged, acknowledged + 1].into_iter().find(|batches| expected(*batches) == written);
        batches = whole.unwrap_or_else(|| panic!("seed {seed}, kill {kill}: not the points of {acknowledged} batches"));
        for record in &found {
            let PointId::Number(id) = record.id else { panic!("ids are numbers") };
            let wanted = point(id, written[&record.id]);
            assert_eq!(
                (record.payload.as_ref(), record.vectors.as_ref()),
                (Some(&wanted.payload), Some(&wanted.vectors))
            );
        }
        assert_eq!(collection.info().unwrap().damage, Vec::<String>::new());
        if kill % 8 == 7 {
            finds_what_a_fresh_one_finds(&collection, &found);
        }
    }
}

fn finds_what_a_fresh_one_finds(collection: &Collection, points: &[Record]) {
    let folder = tempfile::tempdir().unwrap();
    let fresh = open(folder.path());
    fresh.create("c", collection.config().as_ref().clone()).unwrap();
    let fresh = fresh.get("c").unwrap();
    let points = points.iter().cloned().map(|record| Point {
        id: record.id,
        vectors: record.vectors.unwrap(),
        payload: record.payload.unwrap(),
    });
    fresh.upsert(points.collect()).unwrap();
    for seed in 0..20 {
        let what = QueryKind::Nearest(Example::Vector(vector(seed)));
        let filter = Filter::from_json(&json!({"must_not": [{"key": "id", "range": {"lt": 10 * seed}}]})).unwrap();
        let query = Query { filter: Some(filter), ..Query::new(what, 10) };
        let found = |collection: &Collection| {
            collection.query(&query).unwrap().into_iter().map(|hit| (hit.id, hit.score)).collect::<Vec<_>>()
        };
        assert_eq!(found(collection), found(&fresh));
    }
}

fn filled(folder: &Path, count: u64) {
    let collections = open(folder);
    collections.create("c", CollectionConfig::dense(DIMS, Distance::Dot)).unwrap();
    collections.create("other", CollectionConfig::dense(DIMS, Distance::Dot)).unwrap();
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
fn a_full_store_refuses_the_change_and_keeps_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { collection_bytes_max: 1 << 20, ..Options::default() };
    let collections = Collections::open(folder.path(), options).unwrap();
    collections.create("c", CollectionConfig::dense(DIMS, Distance::Dot)).unwrap();
    let collection = collections.get("c").unwrap();
    let mut stored = 0;
    let error = loop {
        match collection.upsert((stored..stored + 100).map(|id| point(id, 1)).collect()) {
            Ok(()) => stored += 100,
            Err(error) => break error,
        }
        assert!(stored < 100_000, "a store of 1 MiB is never full");
    };
    assert!(matches!(error, Error::Full), "{error}");
    assert_eq!(everything(&collection).len() as u64, stored);
    // Deleting makes room again.
    collection.delete(&Selector::Ids((0..200).map(PointId::Number).collect())).unwrap();
    collection.upsert((0..50).map(|id| point(id, 2)).collect()).unwrap();
    assert_eq!(everything(&collection).len() as u64, stored - 150);
}

#[test]
fn a_second_process_is_told_who_has_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path());
    let error = Collections::open(folder.path(), Options::default()).err().expect("the folder is locked");
    assert!(matches!(&error, Error::Locked { by } if *by == format!("process {}", std::process::id())), "{error}");
    drop(first);
    open(folder.path());
}

#[test]
#[cfg(unix)]
fn a_read_only_folder_is_read_and_says_why_it_is_not_written() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 10);
    let set = |mode: u32| {
        for path in [folder.path().to_owned(), folder.path().join("lock"), folder.path().join("collections")] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set(0o555);
    if fs::write(folder.path().join("probe"), "").is_ok() {
        set(0o755);
        return magray_skip::test(magray_skip::Need::OrdinaryUser, "the superuser writes to read-only folders");
    }
    let collections = open(folder.path());
    let collection = collections.get("c").unwrap();
    assert_eq!(everything(&collection).len(), 10);
    assert!(matches!(collection.upsert(vec![point(1, 1)]), Err(Error::ReadOnly)));
    assert!(matches!(collections.create("d", CollectionConfig::dense(2, Distance::Dot)), Err(Error::ReadOnly)));
    set(0o755);
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
