//! Kills the process at random moments: what it acknowledged is there, and nothing is half done.

use super::script::*;
use magray_index::*;
use std::hash::{BuildHasher, RandomState};
use std::io::BufRead;
use std::path::Path;
use std::process::Stdio;

/// How many kills; 1,000 for a long run.
const KILLS: &str = "MAGRAY_INDEX_KILLS";

/// Kills the child some time after one of its first acknowledgements; returns how many steps are acknowledged.
fn kill_at_work(folder: &Path, first: u64, chance: &mut Chance) -> u64 {
    let (mut child, said) = child(folder, first, Stdio::null());
    let (after, pause) = (chance.below(25), chance.below(200_000));
    let mut done = first;
    let mut numbers = said.lines().map_while(Result::ok).filter_map(|line| acknowledged(&line));
    for number in numbers.by_ref().take(after as usize) {
        done = number + 1;
    }
    (0..pause).for_each(|_| std::hint::spin_loop());
    child.kill().unwrap();
    child.wait().unwrap();
    // What it acknowledged before the kill but had not been read.
    numbers.last().map_or(done, |number| number + 1)
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_half_done_by_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let kills: u32 = std::env::var(KILLS).map_or(24, |kills| kills.parse().unwrap());
    let seed = RandomState::new().hash_one(kills);
    println!("seed {seed}");
    let mut chance = Chance(seed);
    let (mut steps, mut contents) = (0, Contents::default());
    for kill in 0..kills {
        let acknowledged = kill_at_work(folder.path(), steps, &mut chance);
        contents = (steps..acknowledged).fold(contents, Contents::after);
        let collections = open(folder.path());
        let found = Contents::of(folder.path(), &collections);
        // The step that was made when the child was killed is there as a whole, or not at all.
        let one_more = contents.clone().after(acknowledged);
        (steps, contents) = match found.has_all_of(&contents) {
            true => (acknowledged, contents),
            false => (acknowledged + 1, one_more),
        };
        let what = format!("seed {seed}, kill {kill}: not what {acknowledged} steps leave, nor one more");
        assert!(found.has_all_of(&contents), "{what}:\n{found:?}\n{contents:?}");
        if kill % 8 == 7 {
            for name in collections.list() {
                finds_what_a_fresh_one_finds(&collections.get(&name).unwrap());
            }
        }
    }
    println!("{kills} kills over {steps} steps");
}

fn finds_what_a_fresh_one_finds(collection: &Collection) {
    let folder = tempfile::tempdir().unwrap();
    let fresh = open(folder.path());
    fresh.create("c", collection.config().as_ref().clone()).unwrap();
    let fresh = fresh.get("c").unwrap();
    let points = everything(collection).into_iter().map(|record| Point {
        id: record.id,
        vectors: record.vectors.unwrap(),
        payload: record.payload.unwrap(),
    });
    let points: Vec<Point> = points.collect();
    if !points.is_empty() {
        fresh.upsert(points).unwrap();
    }
    assert_eq!(answers(collection, 20), answers(&fresh, 20));
}
