//! Numbers the terms of an index, so that lists are found by position. A number is used again when its term is gone.
//! Knows neither documents nor what a term is.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

/// Terms and their numbers. `K` is cheap to clone: each term is held twice.
#[derive(Debug)]
pub(super) struct Vocabulary<K> {
    numbers: HashMap<K, u32>,
    terms: Vec<Option<K>>,
    free: Vec<u32>,
}

impl<K: Clone + Eq + Hash> Vocabulary<K> {
    pub(super) fn new() -> Self {
        Self { numbers: HashMap::new(), terms: Vec::new(), free: Vec::new() }
    }

    pub(super) fn find<Q: Eq + Hash + ?Sized>(&self, term: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
    {
        self.numbers.get(term).copied()
    }

    /// The number of a term, a new one if it has none.
    pub(super) fn number<Q: Eq + Hash + ?Sized>(&mut self, term: &Q, owned: impl FnOnce(&Q) -> K) -> u32
    where
        K: Borrow<Q>,
    {
        if let Some(number) = self.find(term) {
            return number;
        }
        let term = owned(term);
        let number = self.free.pop().unwrap_or_else(|| {
            self.terms.push(None);
            u32::try_from(self.terms.len() - 1).expect("fewer terms than bytes of memory")
        });
        self.terms[number as usize] = Some(term.clone());
        self.numbers.insert(term, number);
        number
    }

    /// Forgets a term; its number may stand for another from now on.
    pub(super) fn release(&mut self, number: u32) {
        if let Some(term) = self.terms[number as usize].take() {
            self.numbers.remove(&term);
            self.free.push(number);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Memory that it holds, without what the terms point to.
    pub(super) fn bytes(&self) -> usize {
        self.numbers.capacity() * (size_of::<(K, u32)>() + 1) + self.terms.capacity() * size_of::<Option<K>>()
    }
}
