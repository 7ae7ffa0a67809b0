//! Several equal devices as one: each has a part of every layer of a model. Products are cut by outputs and then by inputs, attention by
//! heads, tables by tokens; the residual stream is on all of them. Computes nothing itself, and moves nothing but the rows that are summed.
//!
//! A rank's products of some inputs are parts of sums. They are added in the order of the ranks, so that an answer has the same bits each
//! time, and on all ranks.

mod cut;
mod decoder;
mod decoder_ops;
mod encoder;
mod parts;
mod shares;

pub use decoder_ops::TensorOps;
pub use encoder::TensorEncoderOps;
pub use parts::{TensorActs, TensorLinear, TensorPages, TensorParts};

use std::fmt;

/// Devices that share each layer of a model, each by a reference of any kind. The first is rank 0.
#[derive(Debug)]
pub struct Tensor<A> {
    ranks: Vec<A>,
}

impl<A> Tensor<A> {
    /// A group of these; one alone is a group too.
    pub fn new(ranks: Vec<A>) -> Self {
        assert!(!ranks.is_empty(), "a rank");
        Self { ranks }
    }

    /// Its devices.
    pub fn ranks(&self) -> &[A] {
        &self.ranks
    }
}

/// Which rank failed, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankError<E> {
    /// The rank.
    pub rank: usize,
    /// What its device says.
    pub error: E,
}

impl<E: fmt::Display> fmt::Display for RankError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}", self.rank, self.error)
    }
}

impl<E: std::error::Error> std::error::Error for RankError<E> {}

/// Makes something of each rank; the first failure is told with its rank.
fn each<A, T, E>(ranks: &[A], mut make: impl FnMut(usize, &A) -> Result<T, E>) -> Result<Vec<T>, RankError<E>> {
    let make = |(rank, device)| make(rank, device).map_err(|error| RankError { rank, error });
    ranks.iter().enumerate().map(make).collect()
}
