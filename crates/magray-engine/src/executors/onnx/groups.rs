//! Divides texts into runs of nearly the same length: a graph takes texts side by side, padded to the longest.
//! Pads no text by more than an eighth of its run's length, unless the graph has a fixed length.

use std::ops::Range;

/// Some texts that are run together, by their places in the order of lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) places: Range<usize>,
    /// Tokens of each, padding included.
    pub(super) tokens: usize,
    /// Rows of the run: those beyond the texts are padding.
    pub(super) rows: usize,
}

/// What a graph can be given at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Tokens of a run, padding included; a longer text is a run of its own.
    pub(super) tokens_max: usize,
    /// Texts of a run at most.
    pub(super) texts_max: usize,
    /// Texts of every run, where the graph fixes it.
    pub(super) fixed_texts: Option<usize>,
    /// Tokens of every text, where the graph fixes it.
    pub(super) fixed_tokens: Option<usize>,
}

/// A text is padded by no more than the run's length divided by this, or by a few tokens.
const PADDING_PART: usize = 8;
const PADDING_LEAST: usize = 2;

/// The places of texts, the longest first.
pub(super) fn order(lengths: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
    let mut order: Vec<(usize, usize)> = lengths.enumerate().collect();
    order.sort_by_key(|&(at, length)| (std::cmp::Reverse(length), at));
    order
}

/// Divides texts in this order into runs.
pub(super) fn divide(order: &[(usize, usize)], limits: Limits) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut from = 0;
    while let Some(&(_, longest)) = order.get(from) {
        let tokens = limits.fixed_tokens.unwrap_or(longest);
        let texts_max = limits.fixed_texts.unwrap_or(limits.texts_max).min((limits.tokens_max / tokens.max(1)).max(1));
        let shortest = if limits.fixed_tokens.is_some() {
            0
        } else {
            longest - (longest / PADDING_PART).max(PADDING_LEAST.min(longest))
        };
        let fits = order[from..].iter().take(texts_max.max(1)).take_while(|(_, length)| *length >= shortest).count();
        groups.push(Group { places: from..from + fits, tokens, rows: limits.fixed_texts.unwrap_or(fits) });
        from += fits;
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Limits = Limits { tokens_max: 100, texts_max: 8, fixed_texts: None, fixed_tokens: None };

    fn divided(lengths: &[usize], limits: Limits) -> Vec<(Vec<usize>, usize, usize)> {
        let order = order(lengths.iter().copied());
        let groups = divide(&order, limits);
        let texts = |group: &Group| order[group.places.clone()].iter().map(|(at, _)| *at).collect();
        groups.iter().map(|group| (texts(group), group.tokens, group.rows)).collect()
    }

    #[test]
    fn texts_of_nearly_one_length_run_together() {
        let expected = [(vec![1, 4, 0], 16, 3), (vec![3], 8, 1), (vec![2], 2, 1)];
        assert_eq!(divided(&[14, 16, 2, 8, 15], FREE), expected);
        assert!(divided(&[], FREE).is_empty());
        assert_eq!(divided(&[1, 1], FREE), [(vec![0, 1], 1, 2)]);
    }

    #[test]
    fn a_run_keeps_to_its_bounds_and_a_long_text_is_its_own() {
        assert_eq!(divided(&[40, 40, 40], FREE), [(vec![0, 1], 40, 2), (vec![2], 40, 1)]);
        assert_eq!(divided(&[500, 1], FREE), [(vec![0], 500, 1), (vec![1], 1, 1)]);
        let texts = divided(&[3; 20], FREE).iter().map(|(texts, ..)| texts.len()).collect::<Vec<_>>();
        assert_eq!(texts, [8, 8, 4]);
        let single = Limits { texts_max: 1, ..FREE };
        assert_eq!(divided(&[4, 4], single), [(vec![0], 4, 1), (vec![1], 4, 1)]);
    }

    #[test]
    fn fixed_dimensions_are_filled_up() {
        let fixed = Limits { fixed_texts: Some(2), fixed_tokens: Some(16), ..FREE };
        assert_eq!(divided(&[1, 16, 4], fixed), [(vec![1, 2], 16, 2), (vec![0], 16, 2)]);
    }
}
