//! The merges of a tokenizer that has scores: every pair of tokens that makes a token, the highest score first.
//! Leaves tokens out that no text becomes by merging.

use std::collections::HashMap;

use super::{GgufTokenizer, MERGES_MAX};

/// The pairs, or nothing where there are too many.
pub(super) fn by_scores<'a>(tokenizer: &GgufTokenizer<'a>) -> Option<Vec<(&'a str, &'a str)>> {
    struct Pair<'a> {
        left: &'a str,
        right: &'a str,
        score: f32,
    }
    let mut ids = HashMap::with_capacity(tokenizer.tokens.len());
    for (id, token) in tokenizer.tokens.iter().enumerate() {
        ids.entry(*token).or_insert(id);
    }
    let id = |part: &str| ids.get(part).copied();
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    for (token, score) in tokenizer.tokens.iter().zip(&tokenizer.scores) {
        let start = pairs.len();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if id(left).is_some() && id(right).is_some() {
                pairs.push(Pair { left, right, score: *score });
            }
        }
        pairs[start..].sort_by_key(|pair| (id(pair.left), id(pair.right)));
        if pairs.len() > MERGES_MAX {
            return None;
        }
    }
    // Ties as the reference library's conversion breaks them: the longer left part first, then the longer right one.
    let lengths = |pair: &Pair<'_>| (pair.left.chars().count(), pair.right.chars().count());
    pairs.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| lengths(b).cmp(&lengths(a))));
    Some(pairs.into_iter().map(|pair| (pair.left, pair.right)).collect())
}
