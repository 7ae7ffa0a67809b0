//! What is going to happen, by time. The world's only clock.
//! Never holds two things for which the order is left to chance: equal times keep the order in which they were planned.

use magray_core::schedule::Moment;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Debug)]
pub(crate) struct Agenda<T> {
    heap: BinaryHeap<Item<T>>,
    planned: u64,
}

#[derive(Debug)]
struct Item<T> {
    at: Moment,
    number: u64,
    what: T,
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }

    pub(crate) fn plan(&mut self, at: Moment, what: T) {
        self.planned += 1;
        self.heap.push(Item { at, number: self.planned, what });
    }

    pub(crate) fn next_at(&self) -> Option<Moment> {
        self.heap.peek().map(|item| item.at)
    }

    pub(crate) fn take(&mut self) -> Option<(Moment, T)> {
        self.heap.pop().map(|item| (item.at, item.what))
    }
}

impl<T> Ord for Item<T> {
    /// The heap has its greatest on top, and the earliest is wanted there.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<T> PartialOrd for Item<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Item<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Item<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_equal_times_keep_their_order() {
        let mut agenda = Agenda::new();
        for (nanos, what) in [(20, 'c'), (10, 'a'), (10, 'b'), (30, 'd')] {
            agenda.plan(Moment::from_nanos(nanos), what);
        }
        assert_eq!(agenda.next_at(), Some(Moment::from_nanos(10)));
        let order: String = std::iter::from_fn(|| agenda.take()).map(|(_, what)| what).collect();
        assert_eq!(order, "abcd");
    }
}
