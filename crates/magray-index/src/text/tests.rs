//! The indices against plain code that scores every document, over random operations and filters.
//! Knows nothing of how they are built.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};

use super::*;

/// What is done to an index.
#[derive(Clone, Debug)]
enum Change {
    Insert(u32, Vec<u8>),
    Remove(u32),
}

/// Few words and slots, so that they meet; slots also beyond one window.
fn changes() -> impl Strategy<Value = Vec<Change>> {
    let slot = prop_oneof![0u32..40, 4090u32..4100, 20_000u32..20_010];
    let change = prop_oneof![
        4 => (slot.clone(), vec(0u8..12, 0..14)).prop_map(|(slot, words)| Change::Insert(slot, words)),
        1 => slot.prop_map(Change::Remove),
    ];
    vec(change, 0..120)
}

fn filter() -> impl Strategy<Value = Option<Vec<u64>>> {
    prop_oneof![
        2 => Just(None),
        1 => Just(Some(Vec::new())),
        1 => Just(Some(vec![u64::MAX; 400])),
        3 => vec(prop_oneof![Just(0u64), any::<u64>(), Just(1 << 5)], 0..400).prop_map(Some),
    ]
}

fn word(number: u8) -> String {
    format!("w{number}")
}

fn in_filter(bits: &Option<Vec<u64>>, slot: u32) -> bool {
    bits.as_ref().is_none_or(|bits| bits.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1))
}

fn ranked(mut hits: Vec<Hit>, limit: usize, threshold: Option<f32>) -> Vec<Hit> {
    hits.retain(|hit| threshold.is_none_or(|threshold| hit.score >= threshold));
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.slot.cmp(&b.slot)));
    hits.truncate(limit);
    hits
}

/// Scores may differ by rounding, so documents whose scores are that close may change places.
fn agree(found: &[Hit], all: Vec<Hit>, limit: usize, threshold: Option<f32>) -> Result<(), TestCaseError> {
    let scores: BTreeMap<u32, f32> = all.iter().map(|hit| (hit.slot, hit.score)).collect();
    let expected = ranked(all, limit, threshold);
    prop_assert_eq!(found.len(), expected.len(), "{:?} {:?}", found, expected);
    let mut seen = BTreeSet::new();
    for (found, expected) in found.iter().zip(&expected) {
        prop_assert!((found.score - expected.score).abs() < 1e-5, "{:?} {:?}", found, expected);
        prop_assert!((found.score - scores[&found.slot]).abs() < 1e-5);
        prop_assert!(seen.insert(found.slot));
    }
    prop_assert!(found.is_sorted_by(|a, b| a.score > b.score || (a.score == b.score && a.slot < b.slot)));
    Ok(())
}

proptest! {
    #[test]
    fn words_are_ranked_as_by_plain_bm25(
        changes in changes(), query in vec(0u8..14, 0..6), allowed in filter(), corpus in filter(), limit in 0usize..30,
    ) {
        let mut index = WordIndex::new(Analyzer::new(None));
        let mut plain = BTreeMap::new();
        for change in changes {
            match change {
                Change::Insert(slot, words) => {
                    let text: Vec<_> = words.iter().map(|number| word(*number)).collect();
                    index.insert(slot, [text.join(" ").as_str()]);
                    plain.insert(slot, words);
                }
                Change::Remove(slot) => {
                    let was = plain.remove(&slot).is_some_and(|words| !words.is_empty());
                    prop_assert_eq!(index.remove(slot), was);
                }
            }
        }
        plain.retain(|_, words| !words.is_empty());
        prop_assert_eq!(index.len(), plain.len());
        prop_assert_eq!(index.terms_len(), plain.values().flatten().collect::<BTreeSet<_>>().len());

        let Bm25 { k1, b } = Bm25::default();
        let counted: Vec<_> = plain.iter().filter(|(slot, _)| in_filter(&corpus, **slot)).collect();
        let mean = plain.values().map(Vec::len).sum::<usize>() as f32 / plain.len() as f32;
        let mut all = Vec::new();
        for (slot, words) in plain.iter().filter(|(slot, _)| in_filter(&allowed, **slot)) {
            let mut score = 0.0;
            for number in &query {
                let count = words.iter().filter(|word| *word == number).count() as f32;
                let having = counted.iter().filter(|(_, words)| words.contains(number)).count() as f32;
                let rarity = (1.0 + (counted.len() as f32 - having + 0.5) / (having + 0.5)).ln();
                score += rarity * count / (count + k1 * (1.0 - b + b * words.len() as f32 / mean));
            }
            if query.iter().any(|number| words.contains(number)) {
                all.push(Hit { slot: *slot, score });
            }
        }
        let text: Vec<_> = query.iter().map(|number| word(*number)).collect();
        let scope = Scope { limit, allowed: allowed.as_deref(), corpus: corpus.as_deref(), threshold: None };
        agree(&index.search(&text.join(" "), Bm25::default(), &scope), all, limit, None)?;
    }

    #[test]
    fn sparse_vectors_are_ranked_as_by_plain_products(
        changes in changes(), query in vec((0u8..14, -3i8..4), 0..6), allowed in filter(), limit in 0usize..30, idf: bool,
        threshold in proptest::option::of(-2i8..3),
    ) {
        let mut index = SparseIndex::new(idf);
        let mut plain: BTreeMap<u32, BTreeMap<u32, f32>> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Insert(slot, words) => {
                    let vector: BTreeMap<u32, f32> = words.iter().map(|word| (u32::from(*word) << 27, f32::from(*word) - 5.0)).collect();
                    index.insert(slot, &vector.keys().copied().collect::<Vec<_>>(), &vector.values().copied().collect::<Vec<_>>());
                    plain.insert(slot, vector);
                }
                Change::Remove(slot) => prop_assert_eq!(index.remove(slot), plain.remove(&slot).is_some()),
            }
        }
        prop_assert_eq!(index.len(), plain.len());

        let query: BTreeMap<u32, f32> = query.iter().map(|(word, value)| (u32::from(*word) << 27, f32::from(*value))).collect();
        let mut all = Vec::new();
        for (slot, vector) in plain.iter().filter(|(slot, _)| in_filter(&allowed, **slot)) {
            let mut score = 0.0;
            for (at, value) in &query {
                let having = plain.values().filter(|vector| vector.contains_key(at)).count() as f32;
                let rarity = if idf { (1.0 + (plain.len() as f32 - having + 0.5) / (having + 0.5)).ln() } else { 1.0 };
                score += rarity * value * vector.get(at).copied().unwrap_or(0.0);
            }
            if query.keys().any(|at| vector.contains_key(at)) {
                all.push(Hit { slot: *slot, score });
            }
        }
        // Between two values that scores without rarity can have, so that rounding decides nothing.
        let threshold = threshold.filter(|_| !idf).map(|threshold| f32::from(threshold) + 0.5);
        let scope = Scope { limit, allowed: allowed.as_deref(), corpus: None, threshold };
        let (indices, values): (Vec<_>, Vec<_>) = query.into_iter().rev().unzip();
        agree(&index.search(&indices, &values, &scope), all, limit, threshold)?;
    }
}

/// Lists of thousands, so that blocks are split, merged and given up.
#[test]
fn long_lists_survive_growing_and_shrinking_in_any_order() {
    let mut index = SparseIndex::new(false);
    let scope = Scope { limit: usize::MAX, ..Scope::default() };
    // A generator of its own: the same order in every run.
    let mut state = 7u64;
    let mut random = |below: u32| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32 % below
    };
    let mut present = BTreeMap::new();
    for round in 0..60_000u32 {
        let slot = random(9_000);
        // Grows for the first half, shrinks in the second.
        if random(100) < if round < 30_000 { 80 } else { 15 } {
            index.insert(slot, &[3], &[round as f32]);
            present.insert(slot, round as f32);
        } else {
            assert_eq!(index.remove(slot), present.remove(&slot).is_some());
        }
        if round % 10_000 == 9_999 {
            let expected = present.iter().map(|(slot, score)| Hit { slot: *slot, score: *score }).collect();
            assert_eq!(index.search(&[3], &[1.0], &scope), ranked(expected, usize::MAX, None));
        }
    }
    for slot in 0..9_000 {
        index.remove(slot);
    }
    assert!(index.is_empty() && index.search(&[3], &[1.0], &scope).is_empty());
}
