//! What a process does to a folder, step by step, and what must be there after each step. A step is the same whenever it is made.
//! The process is this test program itself, killed or cut off by others.

use magray_index::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, OnceLock};

/// Tells the child where to write.
const FOLDER: &str = "MAGRAY_INDEX_CHILD_FOLDER";
/// The first step of the child.
const FIRST: &str = "MAGRAY_INDEX_CHILD_FIRST";

pub(crate) const DIMS: usize = 8;

/// Numbers from a seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

pub(crate) fn vector(seed: u64) -> Vector {
    let mut chance = Chance(seed);
    Vector::Dense((0..DIMS).map(|_| chance.below(2001) as f32 / 1000.0 - 1.0).collect())
}

pub(crate) fn point(id: u64, batch: u64) -> Point {
    let payload = json!({"batch": batch, "id": id, "text": format!("words of {id} in {batch}")});
    Point {
        id: PointId::Number(id),
        vectors: BTreeMap::from([(String::new(), vector(id << 32 | batch))]),
        payload: payload.as_object().unwrap().clone(),
    }
}

pub(crate) fn config() -> CollectionConfig {
    CollectionConfig { text_field: Some("text".to_owned()), ..CollectionConfig::dense(DIMS, Distance::Dot) }
}

/// Logs are short: they are written back every few steps.
pub(crate) fn open(folder: &Path) -> Collections {
    static CPU: OnceLock<Arc<magray_device::cpu::Cpu>> = OnceLock::new();
    let cpu = CPU.get_or_init(|| Arc::new(magray_device::cpu::Cpu::new(None, Some(1)).unwrap()));
    let options = Options { cpu: Some(Arc::clone(cpu)), log_bytes_max: 1 << 18, ..Options::default() };
    Collections::open(folder, options).unwrap()
}

pub(crate) fn everything(collection: &Collection) -> Vec<Record> {
    let request = ScrollRequest {
        limit: 1_000_000,
        with_payload: PayloadSelector::All,
        with_vectors: VectorSelector::All,
        ..ScrollRequest::default()
    };
    collection.scroll(&request).unwrap().points
}

/// Which step wrote each point last.
type Points = BTreeMap<PointId, u64>;

/// What a folder holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Contents {
    collections: BTreeMap<String, Points>,
    aliases: BTreeMap<String, String>,
    /// Of `c`. More may be there.
    snapshots: Vec<Points>,
}

enum Step {
    /// Makes a collection, or deletes it.
    Toggle(&'static str),
    Change(&'static str, Change),
    Aliases(Vec<AliasChange>),
    /// Takes a snapshot of `c` and deletes the older ones.
    Snapshot,
    Restore(&'static str),
    /// Builds indexes.
    Search,
    Reopen,
}

fn step(number: u64) -> Step {
    let set = |collection: &str| AliasChange::Set { alias: "now".to_owned(), collection: collection.to_owned() };
    let rename = AliasChange::Rename { from: "now".to_owned(), to: "then".to_owned() };
    match number % 16 {
        0 if number == 0 => Step::Toggle("c"),
        5 => Step::Toggle("d"),
        6 if number % 32 == 6 => Step::Change("d", batch(number)),
        7 if number % 32 == 7 => Step::Aliases(vec![set("d")]),
        9 => Step::Aliases(vec![set("c")]),
        10 => Step::Aliases(vec![rename, set("c")]),
        11 => Step::Snapshot,
        12 => Step::Search,
        13 if number.is_multiple_of(3) => Step::Restore("c"),
        14 => Step::Restore(if number % 32 == 14 { "d" } else { "e" }),
        15 => Step::Reopen,
        _ => Step::Change("c", batch(number)),
    }
}

/// Each batch inserts and replaces points, or deletes some.
fn batch(number: u64) -> Change {
    let mut chance = Chance(number);
    if number % 5 == 4 {
        return Change::Delete(Selector::Ids((0..20).map(|_| PointId::Number(chance.below(600))).collect()));
    }
    Change::Upsert((0..1 + chance.below(60)).map(|_| point(chance.below(600), number)).collect())
}

impl Contents {
    /// What is there after one more step.
    pub(crate) fn after(mut self, number: u64) -> Self {
        match step(number) {
            Step::Toggle(name) => {
                if self.collections.remove(name).is_none() {
                    self.collections.insert(name.to_owned(), Points::new());
                }
                self.aliases.retain(|_, collection| collection != name);
            }
            Step::Change(name, change) => {
                let points = self.collections.get_mut(name).unwrap();
                match change {
                    Change::Delete(Selector::Ids(ids)) => points.retain(|id, _| !ids.contains(id)),
                    Change::Upsert(all) => points.extend(all.iter().map(|point| (point.id, number))),
                    _ => unreachable!("batches insert and delete"),
                }
            }
            Step::Aliases(changes) => changes.into_iter().for_each(|change| match change {
                AliasChange::Set { alias, collection } => drop(self.aliases.insert(alias, collection)),
                AliasChange::Rename { from, to } => {
                    let collection = self.aliases.remove(&from).unwrap();
                    self.aliases.insert(to, collection);
                }
                AliasChange::Remove { .. } => unreachable!("no step removes an alias"),
            }),
            Step::Snapshot => self.snapshots = vec![self.collections["c"].clone()],
            Step::Restore(name) => {
                self.collections.insert(name.to_owned(), self.snapshots[0].clone());
            }
            Step::Search | Step::Reopen => {}
        }
        self
    }

    /// Reads a folder whole. Every point must be as it was written, and nothing that was not finished may be left.
    pub(crate) fn of(folder: &Path, collections: &Collections) -> Self {
        let mut found = Self { aliases: collections.aliases().into_iter().collect(), ..Self::default() };
        for name in collections.list() {
            let collection = collections.get(&name).unwrap();
            found.collections.insert(name, points_of(&collection));
        }
        if found.collections.contains_key("c") {
            let scratch = tempfile::tempdir().unwrap();
            let copies = open(scratch.path());
            for snapshot in collections.list_snapshots("c").unwrap() {
                let path = collections.snapshot_path("c", &snapshot.name).unwrap();
                copies.restore_snapshot("copy", &path).unwrap();
                found.snapshots.push(points_of(&copies.get("copy").unwrap()));
            }
        }
        for folder in ["collections", "snapshots/c"].map(|name| folder.join(name)) {
            let names = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with('.')).collect();
            assert!(left.is_empty(), "{left:?}");
        }
        found
    }

    pub(crate) fn has_all_of(&self, other: &Self) -> bool {
        let has = |snapshot| self.snapshots.contains(snapshot);
        self.collections == other.collections && self.aliases == other.aliases && other.snapshots.iter().all(has)
    }
}

fn points_of(collection: &Collection) -> Points {
    let points = everything(collection).into_iter().map(|record| {
        let PointId::Number(id) = record.id else { panic!("ids are numbers") };
        let batch = record.payload.as_ref().unwrap()["batch"].as_u64().unwrap();
        let wanted = point(id, batch);
        assert_eq!((record.payload, record.vectors), (Some(wanted.payload), Some(wanted.vectors)));
        (record.id, batch)
    });
    let points = points.collect();
    assert_eq!(collection.info().unwrap().damage, Vec::<String>::new());
    points
}

fn make(collections: &Collections, step: Step) {
    match step {
        Step::Toggle(name) if collections.exists(name) => assert!(collections.delete(name).unwrap()),
        Step::Toggle(name) => collections.create(name, config()).unwrap(),
        Step::Change(name, change) => collections.get(name).unwrap().change(vec![change]).unwrap(),
        Step::Aliases(changes) => collections.change_aliases(&changes).unwrap(),
        Step::Snapshot => {
            let new = collections.create_snapshot("c").unwrap();
            for old in collections.list_snapshots("c").unwrap().iter().filter(|old| old.name != new.name) {
                collections.delete_snapshot("c", &old.name).unwrap();
            }
        }
        Step::Restore(name) => {
            let newest = collections.list_snapshots("c").unwrap().pop().unwrap();
            let path = collections.snapshot_path("c", &newest.name).unwrap();
            collections.restore_snapshot(name, &path).unwrap();
        }
        Step::Search => drop(answers(&collections.get("c").unwrap(), 1)),
        Step::Reopen => unreachable!("the caller has the folder"),
    }
}

/// What a collection finds by vectors, filters and words, by id: which of equals comes first is by slot.
pub(crate) fn answers(collection: &Collection, queries: u64) -> Vec<Vec<(PointId, f32)>> {
    let answer = |what, limit, filter: serde_json::Value| {
        let query = Query { filter: Some(Filter::from_json(&filter).unwrap()), ..Query::new(what, limit) };
        let hits = collection.query(&query).unwrap().into_iter();
        let mut hits: Vec<_> = hits.map(|hit| (hit.id, hit.score)).collect();
        hits.sort_by_key(|(id, _)| *id);
        hits
    };
    let both = |seed: u64| {
        let nearest = QueryKind::Nearest(Example::Vector(vector(seed)));
        let words = QueryKind::Text(format!("words of {}", seed * 31));
        let is_late = json!({"must": [{"key": "batch", "range": {"gte": seed}}]});
        [
            answer(nearest, 10, json!({"must_not": [{"key": "id", "range": {"lt": 10 * seed}}]})),
            answer(words, 1000, is_late),
        ]
    };
    (0..queries).flat_map(both).collect()
}

/// Makes steps until the process is ended, and says after each that it is acknowledged.
pub(crate) fn run_as_child() {
    let (Ok(folder), Ok(first)) = (std::env::var(FOLDER), std::env::var(FIRST)) else {
        return;
    };
    let folder = Path::new(&folder);
    say(&format!("thread {}", fs::read_link("/proc/thread-self").unwrap_or_default().display()));
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let mut collections = Some(open(folder));
    for number in first.parse().unwrap().. {
        match step(number) {
            Step::Reopen => {
                drop(collections.take());
                collections = Some(open(folder));
            }
            step => make(collections.as_ref().unwrap(), step),
        }
        say(&format!("acknowledged {number}"));
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    out.write_all(format!("\n{line}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// The child and what it says.
pub(crate) fn child(folder: &Path, first: u64, stdin: Stdio) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_that_is_killed_or_cut_off", "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(FIRST, first.to_string())
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    (child, said)
}

/// The number of a step that a line acknowledges.
pub(crate) fn acknowledged(line: &str) -> Option<u64> {
    line.strip_prefix("acknowledged ").map(|number| number.trim().parse().unwrap())
}
