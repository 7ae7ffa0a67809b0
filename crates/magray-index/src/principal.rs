//! The directions in which vectors differ most (principal components), by subspace iteration over a sample.
//! Knows no collection, and no chance: the same vectors give the same directions.

/// Rounds of the iteration: more change nothing that can be seen.
const ROUNDS: usize = 8;
/// Directions beyond those that are wanted, so that the last ones are found soon.
const SPARE: usize = 4;

/// Vectors that directions are found from.
pub(crate) struct Fit {
    dims: usize,
    rows: Vec<f32>,
}

/// Directions, each as long as the vectors are.
pub(crate) struct Axes {
    mean: Vec<f32>,
    directions: Vec<Vec<f32>>,
    shares: Vec<f32>,
}

impl Fit {
    pub(crate) fn new(dims: usize) -> Self {
        Self { dims, rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, vector: &[f32]) {
        self.rows.extend_from_slice(vector);
    }

    /// The directions; fewer than `wanted` where the vectors have fewer numbers.
    pub(crate) fn finish(mut self, wanted: usize) -> Axes {
        let dims = self.dims;
        let wanted = wanted.min(dims);
        let mean = self.centre();
        let all: f64 = self.rows.iter().map(|value| f64::from(*value).powi(2)).sum();
        let mut directions = start(dims, (wanted + SPARE).min(dims));
        let mut lengths = vec![0.0; directions.len()];
        for _ in 0..ROUNDS {
            directions = self.turned(&directions);
            lengths = orthonormal(&mut directions);
        }
        directions.truncate(wanted);
        // A direction that is turned grows by the sum of squares along it.
        let share = |length: &f64| if all > 0.0 { (length / all) as f32 } else { 0.0 };
        Axes { mean, directions, shares: lengths.iter().take(wanted).map(share).collect() }
    }

    /// Takes the mean from all rows, and returns it.
    fn centre(&mut self) -> Vec<f32> {
        let count = (self.rows.len() / self.dims.max(1)).max(1) as f64;
        let mut sums = vec![0.0_f64; self.dims];
        for row in self.rows.chunks_exact(self.dims.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();
        for row in self.rows.chunks_exact_mut(self.dims.max(1)) {
            row.iter_mut().zip(&mean).for_each(|(value, mean)| *value -= mean);
        }
        mean
    }

    /// Directions times the covariance, without making that.
    fn turned(&self, directions: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let mut turned = vec![vec![0.0_f32; self.dims]; directions.len()];
        for row in self.rows.chunks_exact(self.dims.max(1)) {
            for (direction, turned) in directions.iter().zip(&mut turned) {
                let along = dot(row, direction);
                turned.iter_mut().zip(row).for_each(|(turned, value)| *turned += along * value);
            }
        }
        turned
    }
}

impl Axes {
    pub(crate) fn len(&self) -> usize {
        self.directions.len()
    }

    pub(crate) fn shares(&self) -> &[f32] {
        &self.shares
    }

    /// Appends how far a vector lies along each direction.
    pub(crate) fn place(&self, vector: &[f32], places: &mut Vec<f32>) {
        let centred: Vec<f32> = vector.iter().zip(&self.mean).map(|(value, mean)| value - mean).collect();
        places.extend(self.directions.iter().map(|direction| dot(&centred, direction)));
    }
}

/// Directions to begin with: any will do that do not lie in a plane.
fn start(dims: usize, count: usize) -> Vec<Vec<f32>> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    let mut directions: Vec<Vec<f32>> = (0..count).map(|_| (0..dims).map(|_| next()).collect()).collect();
    orthonormal(&mut directions);
    directions
}

/// Makes directions that are perpendicular to those before, of length 1; returns how long they were then.
fn orthonormal(directions: &mut [Vec<f32>]) -> Vec<f64> {
    let mut lengths = Vec::with_capacity(directions.len());
    for at in 0..directions.len() {
        let (before, rest) = directions.split_at_mut(at);
        let own = &mut rest[0];
        for _ in 0..2 {
            for other in before.iter() {
                let along = dot(own, other);
                own.iter_mut().zip(other).for_each(|(value, other)| *value -= along * other);
            }
        }
        let length = f64::from(dot(own, own)).sqrt();
        let scale = if length > 1e-12 { (1.0 / length) as f32 } else { 0.0 };
        own.iter_mut().for_each(|value| *value *= scale);
        lengths.push(length);
    }
    lengths
}

/// In eight sums, which the compiler computes at once.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let (chunks_a, chunks_b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = chunks_a.remainder().iter().zip(chunks_b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in chunks_a.zip(chunks_b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(rows: &[Vec<f32>]) -> Fit {
        let mut fit = Fit::new(rows[0].len());
        rows.iter().for_each(|row| fit.add(row));
        fit
    }

    #[test]
    fn the_directions_are_those_in_which_vectors_differ_most() {
        // Far apart along (3, 4, 0), less along (0, 0, 1), and around a point that is not the origin.
        let row = |along: f32, up: f32| vec![5.0 + 0.6 * along, -2.0 + 0.8 * along, 9.0 + up];
        let rows: Vec<_> = [(-4.0, 1.0), (-2.0, -1.0), (2.0, -1.0), (4.0, 1.0)].map(|(a, b)| row(a, b)).into();
        let axes = fit(&rows).finish(2);
        let mut places = Vec::new();
        rows.iter().for_each(|row| axes.place(row, &mut places));
        for (found, expected) in places.chunks(2).zip([(4.0, 1.0), (2.0, 1.0), (2.0, 1.0), (4.0, 1.0)]) {
            let (along, up) = (found[0].abs(), found[1].abs());
            assert!((along - expected.0).abs() < 1e-3 && (up - expected.1).abs() < 1e-3, "{found:?}");
        }
        assert!(places[0] * places[6] < 0.0, "the ends lie apart: {places:?}");
        let shares = axes.shares();
        assert!((shares[0] - 40.0 / 44.0).abs() < 1e-3 && (shares[1] - 4.0 / 44.0).abs() < 1e-3, "{shares:?}");
    }

    #[test]
    fn few_equal_or_no_vectors_have_finite_places() {
        for rows in [vec![], vec![vec![1.0, 2.0]], vec![vec![1.0, 2.0]; 5]] {
            let mut fit = Fit::new(2);
            rows.iter().for_each(|row: &Vec<f32>| fit.add(row));
            let axes = fit.finish(24);
            let mut places = Vec::new();
            axes.place(&[3.0, 4.0], &mut places);
            assert_eq!(axes.len(), 2);
            assert!(places.iter().chain(axes.shares()).all(|value| value.is_finite()), "{places:?}");
        }
    }

    #[test]
    fn a_product_is_the_sum_of_all_products() {
        let a: Vec<f32> = (0..19).map(|value| value as f32).collect();
        assert_eq!(dot(&a, &a), (0..19).map(|value| (value * value) as f32).sum::<f32>());
    }
}
