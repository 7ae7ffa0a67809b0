//! One bit a dimension: the signs of rows that were turned at random about their mean, and what they are worth.
//! Estimates only; what they let through is scored by its numbers.
//!
//! After a random rotation no direction is special: the product of a query with a row's signs tells the product with the
//! row, with an error that is known for each row (RaBitQ). The query has four bits a dimension.

use super::chunk::CHUNK_ROWS;
use super::kernels::{GROUP_ROWS, SLICES, SignGauge, SignRows};
use super::{Metric, dot};
use crate::cpu::{Aligned, Region};

/// Usual errors between an estimate and what is let through. The error is about normal: of the rows that are as good as the
/// k-th best, 1 in 35 is lost, and fewer of the better ones.
const MARGIN: f32 = 1.9;
/// What an error of the query's levels is worth beside the query's length, for rows whose cosine with their signs is the usual
/// one, 0.8.
const LEVEL_ERROR: f32 = 1.7;
const ROUNDS: usize = 4;
/// The largest level of a query's number, whose levels are the odd ones.
const TOP_LEVEL: f32 = ((1 << SLICES) - 1) as f32;

/// Turns vectors into signs.
#[derive(Debug)]
pub(crate) struct Sketcher {
    centre: Vec<f32>,
    /// As many as dimensions: products with them are sums.
    ones: Vec<f32>,
    /// For each round, a sign for each dimension.
    flips: [Vec<f32>; ROUNDS],
}

/// Signs of the rows of a chunk.
pub(super) struct Signs {
    words: Aligned<u64>,
    factors: Aligned<f32>,
    errors: Aligned<f32>,
    known: Aligned<f32>,
}

impl Sketcher {
    /// About this centre.
    pub(crate) fn new(centre: Vec<f32>) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut flip = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if state >> 63 == 0 { 1.0 } else { -1.0 }
        };
        let flips = std::array::from_fn(|_| centre.iter().map(|_| flip()).collect());
        Self { ones: vec![1.0; centre.len()], centre, flips }
    }

    fn words(&self) -> usize {
        self.centre.len().div_ceil(64)
    }

    /// The difference from the centre, turned. Each round flips signs at random and mixes as many dimensions as a power of
    /// two has: the first ones, then the last ones.
    #[inline(always)]
    fn turn(&self, vector: &[f32]) -> Vec<f32> {
        let mut turned: Vec<f32> = vector.iter().zip(&self.centre).map(|(x, c)| x - c).collect();
        let mixed = 1 << turned.len().ilog2();
        let scale = (mixed as f32).sqrt().recip();
        for (round, flips) in self.flips.iter().enumerate() {
            turned.iter_mut().zip(flips).for_each(|(x, flip)| *x *= flip);
            let from = if round % 2 == 0 { 0 } else { turned.len() - mixed };
            let part = &mut turned[from..from + mixed];
            mix(part);
            part.iter_mut().for_each(|x| *x *= scale);
        }
        turned
    }

    pub(super) fn centre(&self) -> &[f32] {
        &self.centre
    }

    /// The centre, and the signs of each round: by these another device turns vectors as this one does.
    pub(crate) fn constants(&self) -> Vec<f32> {
        self.centre.iter().chain(self.flips.iter().flatten()).copied().collect()
    }

    /// The centre's product with itself.
    pub(crate) fn centre_square(&self) -> f32 {
        dot(&self.centre, &self.centre) as f32
    }

    /// A query made ready for products, in words of 32 bits: the scale of its levels, the weight of a row's error, the shift,
    /// nothing; then the four slices for each word of a row.
    pub(crate) fn gauge_words(&self, query: &[f32]) -> Vec<u32> {
        let gauge = self.gauge(query, Metric::Dot);
        let mut words: Vec<u32> = [gauge.scale, gauge.by_error, gauge.shift, 0.0].map(f32::to_bits).to_vec();
        for slices in gauge.slices.chunks_exact(SLICES) {
            words.extend(slices.iter().map(|slice| *slice as u32));
            words.extend(slices.iter().map(|slice| (slice >> 32) as u32));
        }
        words.truncate(4 + self.centre.len().div_ceil(32) * SLICES);
        words
    }

    /// A query made ready: `query` as rows are.
    pub(super) fn gauge(&self, query: &[f32], metric: Metric) -> SignGauge {
        let dims = self.centre.len();
        let turned = self.turn(&query[..dims]);
        let largest = turned.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let scale = (largest / TOP_LEVEL).max(f32::MIN_POSITIVE);
        let mut slices = vec![0u64; self.words() * SLICES];
        let mut error = 0.0f32;
        for (at, x) in turned.iter().enumerate() {
            let level = ((x / scale + TOP_LEVEL) / 2.0).round_ties_even().clamp(0.0, TOP_LEVEL);
            let missing = x - scale * (2.0 * level - TOP_LEVEL);
            error += missing * missing;
            for slice in 0..SLICES {
                slices[at / 64 * SLICES + slice] |= (level as u64 >> slice & 1) << (at % 64);
            }
        }
        let length = dot(&turned, &turned).sqrt() as f32;
        let is_square = metric == Metric::Euclid;
        let weight = if is_square { 2.0 } else { 1.0 };
        let square = if is_square { dot(query, query) } else { 0.0 };
        SignGauge {
            slices,
            dims: dims as i32,
            scale,
            by_error: MARGIN * (length * length + LEVEL_ERROR * LEVEL_ERROR * error).sqrt(),
            weight,
            square: if is_square { 1.0 } else { 0.0 },
            shift: (f64::from(weight) * dot(&query[..dims], &self.centre) - square) as f32,
        }
    }
}

impl Signs {
    /// In memory that the signs of other chunks share: those of one alone would not fill huge pages.
    pub(super) fn new(sketcher: &Sketcher, region: &Region) -> Self {
        Self {
            words: region.zeroed(CHUNK_ROWS * sketcher.words()),
            factors: region.zeroed(CHUNK_ROWS),
            errors: region.zeroed(CHUNK_ROWS),
            known: region.zeroed(CHUNK_ROWS),
        }
    }

    #[inline(always)]
    pub(super) fn write(&mut self, sketcher: &Sketcher, row: usize, vector: &[f32]) {
        let turned = sketcher.turn(vector);
        let words = sketcher.words();
        let first = row / GROUP_ROWS * GROUP_ROWS * words + row % GROUP_ROWS;
        for (word, numbers) in turned.chunks(64).enumerate() {
            let bits = numbers.iter().enumerate().fold(0, |bits, (at, &x)| bits | u64::from(x >= 0.0) << at);
            self.words[first + word * GROUP_ROWS] = bits;
        }
        let dims = turned.len() as f64;
        let square = dot(&turned, &turned);
        let sizes: Vec<f32> = turned.iter().map(|x| x.abs()).collect();
        let sum = dot(&sizes, &sketcher.ones);
        // The cosine of the row with its signs: about 0.8.
        let cosine = if square > 0.0 { sum / (dims * square).sqrt() } else { 1.0 };
        self.factors[row] = if sum > 0.0 { (square / sum) as f32 } else { 0.0 };
        self.errors[row] = (square * (1.0 / (cosine * cosine) - 1.0).max(0.0) / (dims - 1.0)).sqrt() as f32;
        self.known[row] = (dot(&sketcher.centre, vector) - dot(&sketcher.centre, &sketcher.centre)) as f32;
    }

    /// The 64 rows of a word.
    pub(super) fn rows<'a>(&'a self, word: usize, lengths: &'a [f32]) -> SignRows<'a> {
        let words = self.words.len() / CHUNK_ROWS * 64;
        let of = |values: &'a [f32]| &values[word * 64..][..64];
        SignRows {
            words: &self.words[word * words..][..words],
            factors: of(&self.factors),
            errors: of(&self.errors),
            known: of(&self.known),
            lengths: of(lengths),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.words.len() * 8 + 3 * self.factors.len() * 4
    }
}

/// The Walsh-Hadamard transform, without its scale.
#[inline(always)]
fn mix(values: &mut [f32]) {
    let mut width = 1;
    while width < values.len() {
        for pair in values.chunks_exact_mut(2 * width) {
            let (left, right) = pair.split_at_mut(width);
            for (a, b) in left.iter_mut().zip(right) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        width *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::available_paths;
    use crate::scan::kernels::sift_signs;
    use crate::scan::tests::Made;

    #[test]
    fn turning_keeps_products() {
        for dims in [128, 129, 200, 384, 1000] {
            let mut made = Made::new(dims as u64);
            let (a, b) = (made.vector(dims), made.vector(dims));
            let sketcher = Sketcher::new(vec![0.0; dims]);
            let turned = dot(&sketcher.turn(&a), &sketcher.turn(&b));
            assert!((turned - dot(&a, &b)).abs() < 1e-4 * dims as f64, "{dims}");
        }
    }

    /// Where the floor is an estimate's own, paths may round to its two sides.
    #[test]
    fn every_path_lets_the_same_rows_through() {
        for (dims, metric) in [(128, Metric::Dot), (200, Metric::Euclid), (384, Metric::Cosine)] {
            let mut made = Made::new(dims as u64);
            let sketcher = Sketcher::new(made.vector(dims));
            let mut signs = Signs::new(&sketcher, &Region::default());
            (0..128).for_each(|row| signs.write(&sketcher, row, &made.vector(dims)));
            let gauge = sketcher.gauge(&made.vector(dims), metric);
            let lengths = vec![5.0; 128];
            for word in 0..2 {
                for floor in (-400..400).map(|i| i as f32 * 0.37) {
                    let want = sift_signs(magray_core::CpuPath::Portable, &gauge, &signs.rows(word, &lengths), floor);
                    let near = [floor - 1e-3, floor + 1e-3].map(|floor| {
                        sift_signs(magray_core::CpuPath::Portable, &gauge, &signs.rows(word, &lengths), floor)
                    });
                    for path in available_paths() {
                        let got = sift_signs(path, &gauge, &signs.rows(word, &lengths), floor);
                        assert!(
                            got == want || near[0] & got == got && near[1] & got == near[1],
                            "{path} {dims} {floor}"
                        );
                    }
                }
            }
        }
    }
}
