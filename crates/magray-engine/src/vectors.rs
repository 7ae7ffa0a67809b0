//! Arithmetic on vectors that are computed: their length, their first dimensions, how near two are.
//! Small sums of one answer; searches in many vectors are not done here.

use std::borrow::Cow;

/// The first dimensions of a vector, scaled to length 1 again. Models that are trained for it lose little.
pub fn cut(row: &[f32], dimensions: Option<usize>) -> Cow<'_, [f32]> {
    match dimensions {
        Some(dimensions) if dimensions < row.len() => Cow::Owned(unit(&row[..dimensions])),
        _ => Cow::Borrowed(row),
    }
}

/// The vector scaled to length 1; one without a direction stays as it is.
pub fn unit(row: &[f32]) -> Vec<f32> {
    let length = dot(row, row).sqrt();
    if length > 0.0 { row.iter().map(|value| (f64::from(*value) / length) as f32).collect() } else { row.to_vec() }
}

/// The cosine of two vectors, from -1 to 1; 0 where one has no direction.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    // Rounding may lead a hair beyond 1, which no cosine is.
    if lengths > 0.0 { (dot(a, b) / lengths).clamp(-1.0, 1.0) } else { 0.0 }
}

/// A number of a classifier as a share between 0 and 1.
pub fn sigmoid(logit: f32) -> f32 {
    (1.0 / (1.0 + f64::from(-logit).exp())) as f32
}

/// The numbers of a classifier as shares that add up to 1.
pub fn softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shares: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most).exp()).collect();
    let sum: f64 = shares.iter().sum();
    shares.iter().map(|share| (share / sum) as f32).collect()
}

/// The signs of numbers, eight a byte, the first in the highest bit: 1 for those above 0.
pub fn signs(row: &[f32]) -> impl Iterator<Item = u8> {
    row.chunks(8).map(|eight| {
        eight.iter().enumerate().fold(0, |byte, (at, number)| if *number > 0.0 { byte | 0x80 >> at } else { byte })
    })
}

/// The numbers of a vector of length 1 as bytes from -127 to 127: times 127, rounded.
pub fn bytes(row: &[f32]) -> impl Iterator<Item = i8> {
    // The conversion ends at the bounds of the type, and what is no number becomes 0.
    row.iter().map(|number| ((number * 127.0).round() as i8).max(-127))
}

/// The places of the largest scores, the largest first; equal ones in their order, and what is no number last.
pub fn ranked(scores: &[f32]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    let value = |place: &usize| if scores[*place].is_nan() { f32::NEG_INFINITY } else { scores[*place] };
    places.sort_by(|a, b| value(b).total_cmp(&value(a)));
    places
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_that_is_cut_has_length_one_again() {
        assert_eq!(&*cut(&[3.0, 4.0, 12.0], Some(2)), &[0.6, 0.8]);
        assert_eq!(&*cut(&[3.0, 4.0], Some(2)), &[3.0, 4.0]);
        assert_eq!(&*cut(&[0.0, 0.0, 1.0], Some(2)), &[0.0, 0.0]);
    }

    #[test]
    fn scores_become_shares_and_an_order() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert!(sigmoid(-1000.0) == 0.0 && sigmoid(1000.0) == 1.0);
        let shares = softmax(&[1000.0, 1000.0, -1000.0]);
        assert_eq!(shares, [0.5, 0.5, 0.0]);
        assert_eq!(ranked(&[0.1, f32::NAN, 0.9, 0.1]), [2, 0, 3, 1]);
    }

    #[test]
    fn signs_fill_bytes_from_their_highest_bit() {
        let row = [0.5, -0.5, 0.0, 1.0, -1.0, -1.0, -1.0, 0.1, 2.0];
        assert_eq!(signs(&row).collect::<Vec<_>>(), [0b1001_0001, 0b1000_0000]);
    }

    #[test]
    fn bytes_are_rounded_and_stay_within_their_range() {
        let row = [0.0, 1.0, -1.0, 0.5, -0.0039, 0.0040, 3.0, -3.0, f32::NAN];
        assert_eq!(bytes(&row).collect::<Vec<_>>(), [0, 127, -127, 64, 0, 1, 127, -127, 0]);
    }

    #[test]
    fn a_cosine_needs_two_directions() {
        assert_eq!(cosine(&[2.0, 0.0], &[5.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 1.0]), 0.0);
        assert_eq!(cosine(&[1.0, 1.0], &[-1.0, -1.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 1.0]), 0.0);
    }
}
