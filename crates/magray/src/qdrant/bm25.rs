//! Texts as sparse vectors of terms, weighed by BM25, for vectors whose collection adds the inverse document frequency.
//! Keeps no vocabulary: a term's index is a hash of it.

use std::collections::BTreeMap;

use magray_index::{Vector, text::Analyzer};

const K1: f32 = 1.2;
const B: f32 = 0.75;
/// Words of a document of average length. The collection is not known where texts become vectors.
const LENGTH: f32 = 256.0;

#[derive(Default)]
pub(crate) struct Terms(Analyzer);

impl Terms {
    pub(crate) fn of_document(&self, text: &str) -> Vector {
        let counts = self.counts(text);
        let length: f32 = counts.values().sum();
        let norm = K1 * (1.0 - B + B * length / LENGTH);
        sparse(counts, |count| count * (K1 + 1.0) / (count + norm))
    }

    pub(crate) fn of_query(&self, text: &str) -> Vector {
        sparse(self.counts(text), |_| 1.0)
    }

    fn counts(&self, text: &str) -> BTreeMap<u32, f32> {
        let mut counts = BTreeMap::new();
        for word in self.0.words(text) {
            *counts.entry(hash(&word.term)).or_insert(0.0) += 1.0;
        }
        counts
    }
}

fn sparse(counts: BTreeMap<u32, f32>, weight: impl Fn(f32) -> f32) -> Vector {
    let (indices, values) = counts.into_iter().map(|(index, count)| (index, weight(count))).unzip();
    Vector::Sparse { indices, values }
}

/// FNV-1a of 64 bits, folded: it is stored, so it never changes.
fn hash(term: &str) -> u32 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = term.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    (hash >> 32) as u32 ^ hash as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_the_indices_of_the_words_of_its_documents() {
        let terms = Terms::default();
        let Vector::Sparse { indices, values } = terms.of_document("Rivers and the river, a cat") else { panic!() };
        assert_eq!(indices.len(), 2, "stems are the same, and stop words are left out");
        assert!(values.iter().any(|value| *value > values[0]) || values[0] > values[1], "{values:?}");
        let Vector::Sparse { indices: asked, values } = terms.of_query("cats by a RIVER") else { panic!() };
        assert_eq!((asked, values), (indices, vec![1.0, 1.0]));
        assert_eq!(terms.of_query(""), Vector::Sparse { indices: vec![], values: vec![] });
    }

    #[test]
    fn the_hash_of_a_term_never_changes() {
        assert_eq!(hash("river"), hash("river"));
        assert_eq!(hash(""), 0x84222325 ^ 0xcbf29ce4);
    }
}
