//! BM25 over texts: an analyser in front of the inverted index.
//! Holds no texts: what a hit says is the caller's to fetch.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    analyzer::Analyzer,
    inverted::{Bm25, Inverted},
    top::{Hit, Scope},
};

/// The words of documents, to be searched by BM25. A document without any word is not in it.
#[derive(Debug)]
pub struct WordIndex {
    analyzer: Analyzer,
    inverted: Inverted<Arc<str>>,
}

impl WordIndex {
    /// An empty one.
    pub fn new(analyzer: Analyzer) -> Self {
        Self { analyzer, inverted: Inverted::new() }
    }

    /// How it reads texts.
    pub fn analyzer(&self) -> &Analyzer {
        &self.analyzer
    }

    /// How many documents it has.
    pub fn len(&self) -> usize {
        self.inverted.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many terms its documents have.
    pub fn terms_len(&self) -> usize {
        self.inverted.terms_len()
    }

    /// Replaces the document of a slot by one of these texts.
    pub fn insert<'t>(&mut self, slot: u32, texts: impl IntoIterator<Item = &'t str>) {
        self.inverted.remove(slot);
        let mut numbers = Vec::new();
        for text in texts {
            numbers.extend(
                self.analyzer.words(text).map(|word| self.inverted.number(&*word.term, |term| Arc::from(term))),
            );
        }
        if numbers.is_empty() {
            return;
        }
        numbers.sort_unstable();
        let counts: Vec<_> = numbers.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as f32)).collect();
        self.inverted.insert(slot, &counts, u32::try_from(numbers.len()).unwrap_or(u32::MAX));
    }

    /// Whether there was a document.
    pub fn remove(&mut self, slot: u32) -> bool {
        self.inverted.remove(slot)
    }

    /// The best documents for a query. A word that is in it twice counts twice.
    pub fn search(&self, query: &str, bm25: Bm25, scope: &Scope<'_>) -> Vec<Hit> {
        let corpus = self.inverted.corpus(scope.corpus);
        let mut counts = BTreeMap::new();
        for word in self.analyzer.words(query) {
            if let Some(number) = self.inverted.find(&*word.term) {
                *counts.entry(number).or_insert(0.0) += 1.0;
            }
        }
        let weighted =
            counts.into_iter().map(|(number, count)| (number, count * self.inverted.rarity(number, &corpus)));
        self.inverted.top_by_bm25(&weighted.collect::<Vec<_>>(), bm25, scope)
    }

    /// The terms of a query and how rare they are here: what a [`snippet`](super::snippet) looks for.
    pub fn weights(&self, query: &str) -> BTreeMap<String, f32> {
        let corpus = self.inverted.corpus(None);
        let weight = |term: &str| self.inverted.find(term).map_or(1.0, |number| self.inverted.rarity(number, &corpus));
        self.analyzer.words(query).map(|word| (word.term.to_string(), weight(&word.term) as f32)).collect()
    }

    /// Memory that it holds, about.
    pub fn bytes(&self) -> usize {
        self.inverted.bytes()
    }
}
