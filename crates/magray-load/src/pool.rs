//! The texts that are sent, and their right vectors, by which every answer is checked.
//! Keeps no two texts that an answer could be taken for both of.

use magray_core::Precision;

/// Texts and, where they are known, the right vectors.
#[derive(Clone, Debug)]
pub struct Pool {
    texts: Vec<Vec<u32>>,
    right: Option<Right>,
}

/// Consecutive texts of a pool, wrapping around at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// The vectors of all texts, scaled to length 1, end to end; and their lengths before.
#[derive(Clone, Debug)]
struct Right {
    tolerance: Tolerance,
    dimensions: usize,
    units: Vec<f32>,
    lengths: Vec<f32>,
}

/// Why an answer is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Wrong {
    /// It has another length.
    #[error("{found} numbers came instead of {expected}")]
    Size {
        /// What was to come.
        expected: usize,
        /// What came.
        found: usize,
    },
    /// It is not the vector of its text.
    #[error(
        "its text {text} got a vector of cosine {cosine:.5} and {ratio:.3} times the length of the right one{}",
        of.map(|other| format!(": it is that of text {other} of the pool")).unwrap_or_default()
    )]
    Vector {
        /// Index within the request.
        text: usize,
        /// Its cosine with the right one.
        cosine: f32,
        /// How many times as long it is.
        ratio: f32,
        /// Index of the text whose vector it is instead, where it is one of the pool's.
        of: Option<usize>,
    },
}

/// A pool in which too few texts can be told apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "only {kept} of {of} texts have vectors that can be told apart: \
     the model does not suit --check; take another one or other lengths"
)]
pub struct TooAlike {
    /// Texts that can be told apart.
    pub kept: usize,
    /// All.
    pub of: usize,
}

/// Fewer would let a mix-up pass by luck too often.
const TEXTS_MIN: usize = 8;
/// Also a vector that is right but for its length would be wrong.
const RATIO_ERROR_MAX: f32 = 0.05;

/// How near to the right vector an answer must be, as a cosine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Of answers in 16 or 8 bits.
    rounded: f32,
}

impl Tolerance {
    /// Of answers in 32 bits, whatever the order they are summed up in.
    const EXACT: f32 = 0.9999;
    /// Of rounded answers, at best and at worst.
    const ROUNDED: (f32, f32) = (0.9998, 0.97);

    /// For arithmetic whose worst answer to the pool, on the CPU, has this cosine. Other devices round in other
    /// places: their answers may be several times as far off.
    pub fn measured(worst: f32) -> Self {
        let off = 8.0 * (1.0 - worst);
        let (best, worst) = Self::ROUNDED;
        Self { rounded: (1.0 - off).clamp(worst, best) }
    }

    fn least(self, precision: Precision) -> f32 {
        match precision {
            Precision::F32 | Precision::Tf32 => Self::EXACT,
            Precision::F16 | Precision::Bf16 | Precision::Int8 => self.rounded,
        }
    }
}

impl Pool {
    /// Texts whose answers are not checked.
    pub fn unchecked(texts: Vec<Vec<u32>>) -> Self {
        assert!(!texts.is_empty(), "a pool has texts");
        Self { texts, right: None }
    }

    /// Texts with their right vectors. A text is left out where its vector is so near to that of another one that an
    /// answer could be taken for either.
    pub fn checked(
        texts: Vec<Vec<u32>>,
        vectors: &[f32],
        dimensions: usize,
        tolerance: Tolerance,
    ) -> Result<Self, TooAlike> {
        assert_eq!(vectors.len(), texts.len() * dimensions, "one vector a text");
        // An answer may be off by an angle; two right vectors must be more than twice that angle apart. The cosine of
        // the doubled angle is 2 c^2 - 1.
        let apart = 2.0 * tolerance.rounded.min(Tolerance::EXACT).powi(2) - 1.0;
        let of = texts.len();
        let (mut kept, mut right) = (Vec::new(), Right::new(dimensions, tolerance));
        for (text, vector) in texts.into_iter().zip(vectors.chunks_exact(dimensions)) {
            let length = dot(vector, vector).sqrt();
            let unit: Vec<f32> = vector.iter().map(|value| value / length).collect();
            let is_alone = right.rows().all(|other| dot(other, &unit) < apart);
            if is_alone && length.is_finite() && length > 0.0 {
                kept.push(text);
                right.units.extend(unit);
                right.lengths.push(length);
            }
        }
        match kept.len() >= TEXTS_MIN.min(of) {
            true => Ok(Self { texts: kept, right: Some(right) }),
            false => Err(TooAlike { kept: kept.len(), of }),
        }
    }

    /// Whether there are none; a pool has some.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Numbers of a vector, where they are known.
    pub fn dimensions(&self) -> Option<usize> {
        self.right.as_ref().map(|right| right.dimensions)
    }

    /// The tokens of some texts.
    pub fn take(&self, span: Span) -> Vec<Vec<u32>> {
        self.indices(span).map(|index| self.texts[index].clone()).collect()
    }

    /// How many tokens some texts have.
    pub fn tokens(&self, span: Span) -> usize {
        self.indices(span).map(|index| self.texts[index].len()).sum()
    }

    /// Compares the answer to these texts with what is right, where that is known.
    pub fn check(&self, span: Span, values: &[f32], precision: Precision) -> Result<(), Wrong> {
        let Some(right) = &self.right else { return Ok(()) };
        let expected = span.count * right.dimensions;
        if values.len() != expected {
            return Err(Wrong::Size { expected, found: values.len() });
        }
        let rows = values.chunks_exact(right.dimensions);
        let least = right.tolerance.least(precision);
        for (text, (index, row)) in self.indices(span).zip(rows).enumerate() {
            let (cosine, ratio) = right.compare(index, row);
            // Written so that what is not a number is wrong.
            let is_right = cosine >= least && (ratio - 1.0).abs() <= RATIO_ERROR_MAX;
            if !is_right {
                let is_of = |other: &usize| right.compare(*other, row).0 >= least;
                let of = (0..self.len()).filter(|other| *other != index).find(is_of);
                return Err(Wrong::Vector { text, cosine, ratio, of });
            }
        }
        Ok(())
    }

    fn indices(&self, Span { first, count }: Span) -> impl Iterator<Item = usize> {
        (first..first + count).map(|index| index % self.texts.len())
    }
}

impl Right {
    fn new(dimensions: usize, tolerance: Tolerance) -> Self {
        Self { tolerance, dimensions, units: Vec::new(), lengths: Vec::new() }
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.units.chunks_exact(self.dimensions)
    }

    /// The cosine between a right vector and this one, and how many times as long this one is.
    fn compare(&self, index: usize, row: &[f32]) -> (f32, f32) {
        let unit = &self.units[index * self.dimensions..][..self.dimensions];
        let length = dot(row, row).sqrt();
        (dot(unit, row) / length, length / self.lengths[index])
    }
}

/// The cosine of the worst of these answers, of this many numbers a text, to what is right.
pub fn worst_cosine(right: &[f32], answers: &[f32], dimensions: usize) -> f32 {
    let cosine = |(a, b): (&[f32], &[f32])| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    right.chunks_exact(dimensions).zip(answers.chunks_exact(dimensions)).map(cosine).fold(1.0, f32::min)
}

/// Several sums at once: a single one would wait for each addition.
fn dot(one: &[f32], other: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let (ones, others) = (one.chunks_exact(LANES), other.chunks_exact(LANES));
    let rest: f32 = ones.remainder().iter().zip(others.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in ones.zip(others) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That of answers that are 0.995 right.
    const BROAD: Tolerance = Tolerance { rounded: 0.995 };

    /// Texts whose vectors are the axes of space, of length 2.
    fn axes(count: usize) -> Pool {
        let texts = (0..count).map(|text| vec![text as u32; 3]).collect();
        Pool::checked(texts, &axis_vectors(Span { first: 0, count }, count), count, BROAD).unwrap()
    }

    /// The vectors of some texts of [`axes`].
    fn axis_vectors(Span { first, count }: Span, texts: usize) -> Vec<f32> {
        let row = |index: usize| (0..texts).map(move |axis| if axis == index % texts { 2.0 } else { 0.0 });
        (first..first + count).flat_map(row).collect()
    }

    fn span(first: usize, count: usize) -> Span {
        Span { first, count }
    }

    #[test]
    fn requests_go_round_the_pool() {
        let pool = axes(10);
        assert_eq!(pool.take(span(8, 4)), [vec![8; 3], vec![9; 3], vec![0; 3], vec![1; 3]]);
        assert_eq!((pool.tokens(span(8, 4)), pool.len(), pool.dimensions()), (12, 10, Some(10)));
    }

    #[test]
    fn a_right_answer_passes_and_every_kind_of_wrong_one_does_not() {
        let pool = axes(10);
        let check = |first, values: &[f32]| pool.check(span(first, 2), values, Precision::Bf16);
        let right = axis_vectors(span(9, 2), 10);
        assert_eq!(check(9, &right), Ok(()));
        let mut rounded = right.clone();
        rounded[3] = 0.1;
        assert_eq!(check(9, &rounded), Ok(()), "arithmetic of 16 bits may be off a little");
        assert!(pool.check(span(9, 2), &rounded, Precision::F32).is_err());

        assert_eq!(check(9, &right[1..]), Err(Wrong::Size { expected: 20, found: 19 }));
        let swapped = axis_vectors(span(8, 2), 10);
        let Err(wrong) = check(9, &swapped) else { panic!("the vectors of other texts passed") };
        assert_eq!(wrong, Wrong::Vector { text: 0, cosine: 0.0, ratio: 1.0, of: Some(8) });
        assert!(wrong.to_string().ends_with("it is that of text 8 of the pool"), "{wrong}");
        assert!(check(9, &[0.0; 20]).is_err());
        assert!(check(9, &[f32::NAN; 20]).is_err());
        let longer: Vec<f32> = right.iter().map(|value| value * 1.2).collect();
        assert!(matches!(check(9, &longer), Err(Wrong::Vector { ratio, .. }) if ratio > 1.1));
    }

    #[test]
    fn texts_that_cannot_be_told_apart_are_left_out() {
        let mut vectors = axis_vectors(span(0, 10), 10);
        // The second is 0.1 off the first: the cosine is 0.995, and an answer between them would pass for both.
        vectors[10..20].copy_from_slice(&[2.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let texts: Vec<Vec<u32>> = (0..10).map(|text| vec![text]).collect();
        let pool = Pool::checked(texts.clone(), &vectors, 10, BROAD).unwrap();
        assert_eq!((pool.len(), pool.take(span(1, 1))), (9, vec![vec![2]]));
        let near = Tolerance::measured(0.9999);
        assert_eq!(Pool::checked(texts.clone(), &vectors, 10, near).unwrap().len(), 10);
        let same = [1.0; 100];
        assert_eq!(Pool::checked(texts, &same, 10, near).unwrap_err(), TooAlike { kept: 1, of: 10 });
    }

    #[test]
    fn what_is_measured_widens_the_tolerance_within_bounds() {
        let rounded = |worst| Tolerance::measured(worst).least(Precision::Bf16);
        assert_eq!((rounded(1.0), rounded(0.5)), (0.9998, 0.97));
        assert!((rounded(0.9999) - 0.9992).abs() < 1e-5);
        assert_eq!(Tolerance::measured(0.5).least(Precision::F32), 0.9999);
        let right = axis_vectors(span(0, 10), 10);
        let mut answers = right.clone();
        assert_eq!(worst_cosine(&right, &answers, 10), 1.0);
        answers[15] = 2.0;
        assert!((worst_cosine(&right, &answers, 10) - 0.5f32.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn without_right_vectors_nothing_is_wrong() {
        let pool = Pool::unchecked(vec![vec![1, 2]]);
        assert_eq!((pool.check(span(0, 1), &[], Precision::F32), pool.dimensions()), (Ok(()), None));
    }

    #[test]
    fn products_of_any_length_are_right() {
        for length in [0, 1, 15, 16, 17, 48, 100] {
            let values: Vec<f32> = (0..length).map(|value| value as f32).collect();
            let expected: f32 = values.iter().map(|value| value * value).sum();
            assert_eq!(dot(&values, &values), expected, "{length}");
        }
    }
}
