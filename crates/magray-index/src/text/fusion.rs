//! Makes one ranked list of several: by ranks (RRF) or by scores (DBSF), with the scores that Qdrant gives.
//! Looks at nothing but order and scores. Equal scores keep the order in which their points were first seen.

use std::{collections::HashMap, hash::Hash};

/// Reciprocal rank fusion: a point at position `p` of a list, from 0, gets `1 / ((p + 1) / weight + k - 1)` for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rrf {
    /// How little the first positions stand out: Qdrant's is 2, that of the literature 60.
    pub k: f64,
    /// How much each list counts; those without a weight count 1, and those with 0 or less count nothing.
    pub weights: Vec<f64>,
}

impl Rrf {
    /// Qdrant's constant.
    pub const QDRANT_K: f64 = 2.0;
    /// The constant of the paper that brought it up, and ours for the search of texts.
    pub const TEXT_K: f64 = 60.0;

    /// All lists count the same.
    pub fn new(k: f64) -> Self {
        Self { k, weights: Vec::new() }
    }

    fn score(&self, list: usize, position: usize) -> f64 {
        let weight = self.weights.get(list).copied().unwrap_or(1.0);
        if weight > 0.0 { 1.0 / ((position as f64 + 1.0) / weight + self.k - 1.0) } else { 0.0 }
    }
}

/// The best `limit` points by their positions in the lists.
pub fn fuse_rrf<I: Clone + Eq + Hash>(lists: &[Vec<(I, f32)>], rrf: &Rrf, limit: usize) -> Vec<(I, f32)> {
    let mut sums = Sums::new();
    for (number, list) in lists.iter().enumerate() {
        for (position, (id, _)) in list.iter().enumerate() {
            sums.add(id, rrf.score(number, position));
        }
    }
    sums.best(limit)
}

/// The best `limit` points by their scores, each list's mapped so that three standard deviations around its mean are 0 to 1.
pub fn fuse_dbsf<I: Clone + Eq + Hash>(lists: &[Vec<(I, f32)>], limit: usize) -> Vec<(I, f32)> {
    let mut sums = Sums::new();
    for list in lists {
        let count = list.len() as f64;
        let mean = list.iter().map(|(_, score)| f64::from(*score)).sum::<f64>() / count;
        let squares: f64 = list.iter().map(|(_, score)| (f64::from(*score) - mean).powi(2)).sum();
        // One score, or equal ones, say nothing: the middle.
        let deviation = if list.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        let (low, high) = (mean - 3.0 * deviation, mean + 3.0 * deviation);
        for (id, score) in list {
            sums.add(id, if deviation == 0.0 { 0.5 } else { (f64::from(*score) - low) / (high - low) });
        }
    }
    sums.best(limit)
}

/// Scores of points in the order in which they were first seen.
struct Sums<'l, I> {
    positions: HashMap<&'l I, usize>,
    sums: Vec<(&'l I, f64)>,
}

impl<'l, I: Clone + Eq + Hash> Sums<'l, I> {
    fn new() -> Self {
        Self { positions: HashMap::new(), sums: Vec::new() }
    }

    fn add(&mut self, id: &'l I, score: f64) {
        let at = *self.positions.entry(id).or_insert(self.sums.len());
        match self.sums.get_mut(at) {
            Some((_, sum)) => *sum += score,
            None => self.sums.push((id, score)),
        }
    }

    fn best(mut self, limit: usize) -> Vec<(I, f32)> {
        self.sums.sort_by(|a, b| b.1.total_cmp(&a.1));
        self.sums.into_iter().take(limit).map(|(id, sum)| (id.clone(), sum as f32)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type List = &'static [(u32, f32)];

    struct Case {
        lists: &'static [List],
        rrf: List,
        weighted: List,
        dbsf: List,
    }

    /// What `qdrant_client.hybrid.fusion` of version 1.20 says: RRF as it is, with the constant 60 and the weights 2, 0.5
    /// and 0, and DBSF; the best 7.
    const CASES: &[Case] = &[
        Case {
            lists: &[
                &[(5, 6.4897456), (7, 5.4376087), (8, 3.0), (6, 1.0), (4, 0.2900523)],
                &[(1, 7.735937), (0, 2.8930516), (2, 1.3876742), (6, 1.3224086)],
            ],
            rrf: &[(5, 0.5), (1, 0.5), (6, 0.4), (7, 0.33333334), (0, 0.33333334), (8, 0.25), (2, 0.25)],
            weighted: &[
                (6, 0.031318817),
                (5, 0.016806724),
                (7, 0.016666668),
                (8, 0.016528925),
                (1, 0.016393442),
                (4, 0.016260162),
                (0, 0.015873017),
            ],
            dbsf: &[
                (6, 0.75056547),
                (1, 0.7426908),
                (5, 0.70036036),
                (7, 0.63542217),
                (8, 0.48497227),
                (0, 0.47564274),
                (2, 0.3926327),
            ],
        },
        Case {
            lists: &[
                &[(7, 5.9597893), (5, 4.7253833), (8, 2.0), (2, 1.0), (0, 1.0), (3, 0.6513971)],
                &[(4, 0.0)],
                &[(6, 2.0), (4, 0.46727118), (0, 0.0)],
            ],
            rrf: &[(4, 0.8333333), (7, 0.5), (6, 0.5), (0, 0.41666666), (5, 0.33333334), (8, 0.25), (2, 0.2)],
            weighted: &[
                (7, 0.016806724),
                (5, 0.016666668),
                (8, 0.016528925),
                (2, 0.016393442),
                (4, 0.016393442),
                (0, 0.016260162),
                (3, 0.016129032),
            ],
            dbsf: &[
                (4, 0.9434235),
                (7, 0.75333726),
                (0, 0.753166),
                (6, 0.6875902),
                (5, 0.66146034),
                (8, 0.4586098),
                (2, 0.3841797),
            ],
        },
        Case {
            lists: &[&[], &[(1, 3.0), (3, 2.0)]],
            rrf: &[(1, 0.5), (3, 0.33333334)],
            weighted: &[(1, 0.016393442), (3, 0.015873017)],
            dbsf: &[(1, 0.61785114), (3, 0.38214886)],
        },
        Case {
            lists: &[
                &[(1, 2.9586382), (5, 2.0848339), (6, 0.0)],
                &[(4, 9.967268), (5, 1.0), (1, 0.8095823)],
                &[(6, 3.341853), (3, 2.5020885), (5, 0.0)],
            ],
            rrf: &[(5, 0.9166667), (1, 0.75), (6, 0.75), (4, 0.5), (3, 0.33333334)],
            weighted: &[(5, 0.032539684), (1, 0.03219134), (6, 0.016528925), (4, 0.016393442), (3, 0.0)],
            dbsf: &[(5, 1.2643315), (1, 1.0408272), (6, 0.9493009), (4, 0.6924182), (3, 0.5531222)],
        },
    ];

    #[test]
    fn fusion_gives_the_scores_and_the_order_of_qdrants_client() {
        for case in CASES {
            let lists: Vec<_> = case.lists.iter().map(|list| list.to_vec()).collect();
            let weights = vec![2.0, 0.5, 0.0];
            assert_eq!(fuse_rrf(&lists, &Rrf::new(Rrf::QDRANT_K), 7), case.rrf);
            assert_eq!(fuse_rrf(&lists, &Rrf { k: 60.0, weights }, 7), case.weighted);
            assert_eq!(fuse_dbsf(&lists, 7), case.dbsf);
        }
    }

    #[test]
    fn nothing_fused_is_nothing() {
        assert!(fuse_dbsf::<u32>(&[], 5).is_empty());
        assert!(fuse_rrf::<u32>(&[Vec::new()], &Rrf::new(Rrf::TEXT_K), 5).is_empty());
    }
}
