//! The inverted index: for each term its documents, for each document its terms, and what scores are computed from.
//! Exact at every moment: a removed document is in no list and in no count. Does not analyse texts.

use magray_device::scan::is_set;
use std::{borrow::Borrow, hash::Hash};

use super::{
    postings::{Posting, Postings},
    top::{self, Hit, Scope, Weighted},
    vocabulary::Vocabulary,
};

/// Length of a slot without a document.
const ABSENT: u32 = u32::MAX;

/// Documents by their terms. `K` is what a term is to the caller.
#[derive(Debug)]
pub(super) struct Inverted<K> {
    vocabulary: Vocabulary<K>,
    /// By a term's number.
    lists: Vec<Postings>,
    /// By slot: the numbers of a document's terms, so that it can be removed.
    terms: Vec<Box<[u32]>>,
    /// By slot, or [`ABSENT`].
    lengths: Vec<u32>,
    len: usize,
    lengths_sum: u64,
}

impl<K: Clone + Eq + Hash> Inverted<K> {
    pub(super) fn new() -> Self {
        let vocabulary = Vocabulary::new();
        Self { vocabulary, lists: Vec::new(), terms: Vec::new(), lengths: Vec::new(), len: 0, lengths_sum: 0 }
    }

    /// How many documents it has.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many terms they have.
    pub(super) fn terms_len(&self) -> usize {
        self.vocabulary.len()
    }

    /// The number of a term that some document has.
    pub(super) fn find<Q: Eq + Hash + ?Sized>(&self, term: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
    {
        self.vocabulary.find(term)
    }

    /// The number of a term of a document that is about to be inserted.
    pub(super) fn number<Q: Eq + Hash + ?Sized>(&mut self, term: &Q, owned: impl FnOnce(&Q) -> K) -> u32
    where
        K: Borrow<Q>,
    {
        let number = self.vocabulary.number(term, owned);
        if number as usize == self.lists.len() {
            self.lists.push(Postings::default());
        }
        number
    }

    /// Puts a document into an empty slot. `values` are ascending by number, each number once.
    pub(super) fn insert(&mut self, slot: u32, values: &[(u32, f32)], length: u32) {
        debug_assert!(values.is_sorted_by(|a, b| a.0 < b.0), "terms in order, each once");
        let (at, length) = (slot as usize, length.min(ABSENT - 1));
        if at >= self.lengths.len() {
            self.lengths.resize(at + 1, ABSENT);
            self.terms.resize_with(at + 1, Box::default);
        }
        assert_eq!(self.lengths[at], ABSENT, "slot {slot} holds a document");
        for &(number, value) in values {
            self.lists[number as usize].insert(Posting { slot, value });
        }
        self.terms[at] = values.iter().map(|(number, _)| *number).collect();
        self.lengths[at] = length;
        self.len += 1;
        self.lengths_sum += u64::from(length);
    }

    /// Whether there was a document.
    pub(super) fn remove(&mut self, slot: u32) -> bool {
        let at = slot as usize;
        let Some(length) = self.lengths.get(at).copied().filter(|length| *length != ABSENT) else { return false };
        for number in std::mem::take(&mut self.terms[at]) {
            let list = &mut self.lists[number as usize];
            list.remove(slot);
            if list.len() == 0 {
                *list = Postings::default();
                self.vocabulary.release(number);
            }
        }
        self.lengths[at] = ABSENT;
        self.len -= 1;
        self.lengths_sum -= u64::from(length);
        true
    }

    /// How rare a term is: `ln(1 + (n - df + 0.5) / (df + 0.5))`, Lucene's form and Qdrant's.
    pub(super) fn rarity(&self, number: u32, corpus: &Corpus<'_>) -> f64 {
        let list = &self.lists[number as usize];
        let having = corpus.slots.map_or(list.len(), |slots| list.count_in(slots)) as f64;
        (1.0 + (corpus.len as f64 - having + 0.5) / (having + 0.5)).ln()
    }

    /// The documents that say how rare a term is: all, or those with a bit in `slots`.
    pub(super) fn corpus<'s>(&self, slots: Option<&'s [u64]>) -> Corpus<'s> {
        let Some(bits) = slots else { return Corpus { slots, len: self.len } };
        let present = |(slot, length): (usize, &u32)| *length != ABSENT && is_set(bits, slot as u32);
        Corpus { slots, len: self.lengths.iter().enumerate().filter(|at| present(*at)).count() }
    }

    /// The best documents by the sum of `weight * value` over the terms that they share with the query.
    pub(super) fn top_by_product(&self, query: &[(u32, f64)], scope: &Scope<'_>) -> Vec<Hit> {
        top::top(self.weighted(query), scope, |weight, posting| weight * f64::from(posting.value))
    }

    /// The best documents by BM25, in Lucene's form: without the constant factor `k1 + 1`.
    pub(super) fn top_by_bm25(&self, query: &[(u32, f64)], Bm25 { k1, b }: Bm25, scope: &Scope<'_>) -> Vec<Hit> {
        let mean = if self.lengths_sum == 0 { 1.0 } else { self.lengths_sum as f64 / self.len as f64 };
        let (k1, b) = (f64::from(k1), f64::from(b));
        let (fixed, by_length) = (k1 * (1.0 - b), k1 * b / mean);
        top::top(self.weighted(query), scope, |weight, posting| {
            let count = f64::from(posting.value);
            let length = f64::from(self.lengths[posting.slot as usize]);
            weight * count / (count + fixed + by_length * length)
        })
    }

    fn weighted(&self, query: &[(u32, f64)]) -> Vec<Weighted<'_>> {
        query.iter().map(|&(number, weight)| Weighted::new(&self.lists[number as usize], weight)).collect()
    }

    /// Memory that it holds, without the terms themselves.
    pub(super) fn bytes(&self) -> usize {
        let lists: usize = self.lists.iter().map(Postings::bytes).sum();
        let terms: usize = self.terms.iter().map(|terms| size_of_val(&**terms)).sum();
        let by_slot = self.lengths.capacity() * size_of::<u32>() + self.terms.capacity() * size_of::<Box<[u32]>>();
        lists + terms + by_slot + self.lists.capacity() * size_of::<Postings>() + self.vocabulary.bytes()
    }
}

/// Of which documents the rarity of terms is taken.
pub(super) struct Corpus<'s> {
    slots: Option<&'s [u64]>,
    len: usize,
}

/// How BM25 weighs: `k1` says how soon more of the same word adds nothing, `b` how much long documents are held back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bm25 {
    /// From 0.
    pub k1: f32,
    /// From 0 to 1.
    pub b: f32,
}

impl Default for Bm25 {
    /// The values of bm25s.
    fn default() -> Self {
        Self { k1: 1.5, b: 0.75 }
    }
}
