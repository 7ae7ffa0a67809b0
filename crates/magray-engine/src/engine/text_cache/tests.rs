//! The same text is computed once for all who ask for it, and a failure loses nothing for those who waited.

use super::*;
use crate::engine::{Answer, EngineError, EngineOptions, ModelSource};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

fn engine() -> Engine {
    let model = ModelSource::Synthetic("tiny".parse().unwrap());
    Engine::start(EngineOptions::on_cpu(vec![model.into()])).unwrap()
}

fn work(texts: &[&[u32]]) -> Work {
    Work::from_ids(0, texts.iter().map(|ids| ids.to_vec()).collect())
}

/// Polls until it is ready; the engine's threads do the work meanwhile.
fn wait(asked: Asked) -> Result<Answer, EngineError> {
    let mut future = std::pin::pin!(asked);
    loop {
        if let Poll::Ready(ready) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return ready;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_text_is_computed_once_and_its_row_is_the_same() {
    let (engine, cache) = (engine(), TextCache::new(100));
    let plain = engine.process(work(&[&[5, 6, 7], &[8, 9], &[5, 6, 7]])).unwrap();
    let first = wait(cache.ask(&engine, work(&[&[5, 6, 7], &[8, 9], &[5, 6, 7]]))).unwrap();
    assert_eq!((first.values.len(), first.dimensions), (plain.values.len(), plain.dimensions));
    assert!(first.values.iter().zip(&plain.values).all(|(a, b)| (a - b).abs() < 1e-5));
    assert_eq!(cache.usage(), CacheUse { hits: 0, misses: 3, entries: 2, bytes: 2 * 4 * plain.dimensions as u64 });
    let again = wait(cache.ask(&engine, work(&[&[8, 9], &[5, 6, 7]]))).unwrap();
    let rows: Vec<_> = first.rows().collect();
    assert_eq!(again.rows().collect::<Vec<_>>(), [rows[1], rows[0]]);
    assert_eq!((again.tokens, again.batch_texts, again.computed), (5, 0, Duration::ZERO));
    assert_eq!((cache.usage().hits, cache.usage().entries), (2, 2));
    // Some known, some not, in an order of their own.
    let mixed = wait(cache.ask(&engine, work(&[&[1], &[8, 9], &[2]]))).unwrap();
    assert_eq!(mixed.rows().nth(1).unwrap(), rows[1]);
    assert_eq!((mixed.tokens, mixed.rows().len(), cache.usage().entries), (4, 3, 4));
}

#[test]
fn texts_that_are_not_scaled_are_others() {
    let (engine, cache) = (engine(), TextCache::new(100));
    wait(cache.ask(&engine, work(&[&[5, 6]]))).unwrap();
    wait(cache.ask(&engine, Work { output: Output::Unscaled, ..work(&[&[5, 6]]) })).unwrap();
    assert_eq!((cache.usage().hits, cache.usage().entries), (0, 2));
    wait(cache.ask(&engine, Work { output: Output::Tokens, ..work(&[&[5, 6]]) })).unwrap();
    wait(cache.ask(&engine, Work { allowed: Allowed::Cpu, ..work(&[&[5, 6]]) })).unwrap();
    assert_eq!((cache.usage().hits, cache.usage().misses, cache.usage().entries), (0, 2, 2), "these are not kept");
}

#[test]
fn who_waits_for_a_text_computes_it_if_its_leader_leaves() {
    let (engine, cache) = (engine(), TextCache::new(100));
    let leader = cache.ask(&engine, work(&[&[5, 6], &[7]]));
    let follower = cache.ask(&engine, work(&[&[7], &[5, 6]]));
    drop(leader);
    assert_eq!(wait(follower).unwrap().rows().len(), 2);
    assert!(cache.shards.iter().all(|shard| lock(shard).computing.is_empty()));
}

#[test]
fn works_that_wait_for_each_other_are_both_answered() {
    let (engine, cache) = (engine(), TextCache::new(100));
    for round in 0..50 {
        let (a, b) = ([round, 1], [round, 2]);
        let first = cache.ask(&engine, work(&[&a, &b]));
        let second = cache.ask(&engine, work(&[&b, &[round, 3], &a]));
        let third = cache.ask(&engine, work(&[&[round, 3], &a]));
        let third = std::thread::spawn(move || wait(third).unwrap().rows().len());
        let second = std::thread::spawn(move || wait(second).unwrap().rows().len());
        assert_eq!((wait(first).unwrap().rows().len(), second.join().unwrap(), third.join().unwrap()), (2, 3, 2));
    }
    let CacheUse { hits, misses, entries, .. } = cache.usage();
    assert_eq!(hits + misses, 350);
    assert!((50..=100).contains(&entries), "what was used least recently has gone: {entries}");
}

#[test]
fn without_entries_everything_is_computed() {
    let (engine, cache) = (engine(), TextCache::new(0));
    for _ in 0..2 {
        assert_eq!(wait(cache.ask(&engine, work(&[&[5, 6]]))).unwrap().batch_texts, 1);
    }
    assert_eq!(cache.usage(), CacheUse::default());
    assert!(matches!(wait(cache.ask(&engine, work(&[]))), Err(EngineError::NoText)));
}

#[test]
fn a_refusal_is_told_and_nothing_is_kept() {
    let (engine, cache) = (engine(), TextCache::new(10));
    assert!(wait(cache.ask(&engine, Work { model: 7, ..work(&[&[5]]) })).is_err());
    assert!(wait(cache.ask(&engine, work(&[]))).is_err());
    assert_eq!(cache.usage().entries, 0);
    assert!(cache.shards.iter().all(|shard| lock(shard).computing.is_empty()));
}
