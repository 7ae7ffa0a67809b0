//! The best k of what is offered. Keeps no more than k.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A row and its exact score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scored {
    pub(super) score: f64,
    pub(super) slot: u32,
}

impl Eq for Scored {}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The better is the lesser: sorting puts the best first, and a heap has the worst on top.
impl Ord for Scored {
    fn cmp(&self, other: &Self) -> Ordering {
        // Adding zero turns -0 into 0: the two are a tie.
        (other.score + 0.0).total_cmp(&(self.score + 0.0)).then(self.slot.cmp(&other.slot))
    }
}

/// The best rows so far.
#[derive(Clone)]
pub(super) struct Best {
    k: usize,
    heap: BinaryHeap<Scored>,
}

impl Best {
    pub(super) fn new(k: usize) -> Self {
        Self { k, heap: BinaryHeap::new() }
    }

    #[inline]
    pub(super) fn offer(&mut self, row: Scored) {
        if self.heap.len() < self.k {
            self.heap.push(row);
        } else if let Some(mut worst) = self.heap.peek_mut()
            && row < *worst
        {
            *worst = row;
        }
    }

    /// The k-th best score, once there are k.
    pub(super) fn floor(&self) -> Option<f64> {
        (self.heap.len() == self.k).then(|| self.heap.peek().map(|worst| worst.score)).flatten()
    }

    pub(super) fn merge(&mut self, other: Self) {
        other.heap.into_iter().for_each(|row| self.offer(row));
    }

    /// Best first.
    pub(super) fn into_sorted(self) -> Vec<Scored> {
        self.heap.into_sorted_vec()
    }
}
