//! What lies on the ranks of a group: layers, activations, pages.
//! Only holds it; who has which part is settled where it is made.

/// A linear layer in parts; a rank that has no part of it has none.
#[derive(Debug)]
pub struct TensorLinear<L> {
    pub(super) ranks: Vec<Option<L>>,
    /// Where the outputs of each rank end.
    pub(super) ends: Vec<usize>,
}

/// What is on all ranks: a norm, or frequencies.
#[derive(Debug)]
pub struct TensorParts<T>(pub(super) Vec<T>);

/// Activations: a part on each rank, or the same on all.
#[derive(Debug)]
pub struct TensorActs<T> {
    pub(super) ranks: Vec<Option<T>>,
    /// Room for the parts of sums, where they are the residual stream: twice, so that a rank may leave its next parts while others still
    /// read the last.
    pub(super) sums: [Vec<T>; 2],
    /// Heads of queries that each rank has.
    pub(super) heads: Vec<usize>,
    /// Of the whole model.
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// Keys and values under the same page numbers on all ranks: each holds those of its heads.
#[derive(Debug)]
pub struct TensorPages<P> {
    pub(super) ranks: Vec<P>,
}
