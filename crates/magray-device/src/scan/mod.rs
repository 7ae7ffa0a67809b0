//! Search: the best rows for a query among dense vectors kept by slot, scored on the CPU.
//! Knows no ids, no payloads and no files; the caller maps slots to its points.
//!
//! Answers are exact unless the caller allows otherwise. Rows are read as bytes first, which bounds every score from both
//! sides; only rows whose upper bound reaches the k-th best lower bound are scored in 64-bit floats.

mod best;
mod bit_scan;
mod byte_scan;
mod chunk;
mod held;
mod kernels;
mod mirror;
mod mirrored;
mod query;
mod rows;
mod search;
mod sketch;
#[cfg(test)]
mod tests;
mod top;

pub use held::{Gone, HELD_BEST_MAX, HeldRows, HeldScan, HeldShape, HostRules, RowsHost};
pub use mirrored::MirroredRows;
pub use rows::Rows;
pub(crate) use sketch::Sketcher;

/// How two vectors are compared. A higher score is better in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Dot product of vectors of length one; rows and queries are normalised.
    Cosine,
    /// Dot product.
    Dot,
    /// The negative square of the distance.
    Euclid,
    /// The negative sum of absolute differences.
    Manhattan,
}

/// How rows are kept. Scores are those of the numbers as kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// 32-bit floats, and bytes to scan: 5 bytes a number.
    F32,
    /// 16-bit floats, and bytes to scan: 3 bytes a number.
    F16,
    /// Bytes with a scale for each row.
    Int8,
}

/// A row and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Where the row was set.
    pub slot: u32,
    /// By the metric.
    pub score: f32,
}

/// What a search returns.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// At most this many rows for each query.
    pub k: usize,
    /// A bit for each slot, lowest first; slots beyond the end are not allowed. `None` allows all.
    pub allowed: Option<&'a [u64]>,
    /// Rows with a lower score are left out.
    pub threshold: Option<f32>,
    /// Never trade recall for time, however many rows there are.
    pub exact: bool,
}

impl Wanted<'_> {
    /// The best `k` of all rows, exact.
    pub fn best(k: usize) -> Self {
        Self { k, allowed: None, threshold: None, exact: true }
    }
}

/// Why a vector is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScanError {
    /// Vectors of another length.
    #[error("{got} numbers where vectors have {dims}; send vectors of {dims} dimensions")]
    Dims {
        /// How many were given.
        got: usize,
        /// What the rows have.
        dims: usize,
    },
    /// NaN or an infinity.
    #[error("the number at {at} is {value}; vectors hold finite numbers only")]
    NotFinite {
        /// Its place in what was given.
        at: usize,
        /// What it is.
        value: f32,
    },
    /// Sums of products would not be finite.
    #[error("a vector of length {length:e} is too long; scale vectors below {max:e}")]
    TooLong {
        /// Its Euclidean length.
        length: f64,
        /// The longest that is accepted.
        max: f64,
    },
    /// More than 16-bit floats hold.
    #[error("the number at {at} is {value}, and 16-bit floats end at 65504; store 32-bit floats or scale the vectors")]
    BeyondF16 {
        /// Its place in what was given.
        at: usize,
        /// What it is.
        value: f32,
    },
}

/// The most dimensions of a vector: products of bytes are summed in 32 bits.
pub const MAX_DIMS: usize = 65_536;

/// The longest vector: products of two are finite as 32-bit floats.
pub(crate) const MAX_LENGTH: f64 = 1e18;

/// Checks that numbers are finite and that their length is. Returns the length.
#[inline(always)]
fn check(vector: &[f32]) -> Result<f64, ScanError> {
    let length = dot(vector, vector).sqrt();
    if length <= MAX_LENGTH {
        return Ok(length);
    }
    match vector.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(ScanError::NotFinite { at, value: vector[at] }),
        None => Err(ScanError::TooLong { length, max: MAX_LENGTH }),
    }
}

/// Whether a slot has its bit. Slots beyond the end of the bits have none.
pub fn is_set(bits: &[u64], slot: u32) -> bool {
    bits.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
}

/// Scales to length one; zeros stay.
#[inline(always)]
fn normalise(vector: &mut [f32], length: f64) {
    if length > 0.0 {
        let scale = 1.0 / length;
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
    }
}

/// A dot product in 64 bits, in several lanes so that one sum need not wait for the last.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut lanes = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f64::from(a) * f64::from(b);
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(&a, &b)| f64::from(a) * f64::from(b));
    lanes.into_iter().chain(rest).sum()
}
