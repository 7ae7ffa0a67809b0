//! Keys and values in 8 bits: the scale of a head's numbers, and the integers that they are rounded to.
//! The same on every path, so that pages of all of them hold the same numbers.

use half::bf16;

/// The largest integer, and the least with its sign.
const MOST: f32 = 127.0;
const LANES: usize = 16;

/// What the numbers of one head are rounded with.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteHead {
    /// What an integer is multiplied with: rounded up, so that no number is beyond the largest. Not a number where one of the head's
    /// is none.
    pub(super) scale: bf16,
    inverse: f32,
}

impl ByteHead {
    #[inline(always)]
    pub(super) fn of(numbers: &[f32]) -> Self {
        // Many lanes: one after the other they would wait for each other.
        let (mut largest, mut poison) = ([0.0f32; LANES], [0.0f32; LANES]);
        for numbers in numbers.chunks(LANES) {
            for ((largest, poison), number) in largest.iter_mut().zip(&mut poison).zip(numbers) {
                let size = number.abs();
                *largest = if size > *largest { size } else { *largest };
                // Zero times what is infinite or no number is no number.
                *poison += number * 0.0;
            }
        }
        let largest = largest.into_iter().fold(0.0, f32::max);
        let up = (largest / MOST).to_bits().saturating_add(0xffff) & 0xffff_0000;
        let scale = bf16::from_f32(f32::from_bits(up) + poison.iter().sum::<f32>());
        let step = scale.to_f32();
        Self { scale, inverse: if step > 0.0 { 1.0 / step } else { 0.0 } }
    }

    #[inline(always)]
    pub(super) fn round(&self, number: f32) -> i8 {
        // A scale that is denormal has no inverse.
        (number * self.inverse).round_ties_even().clamp(-MOST, MOST) as i8
    }

    /// The number that is kept of a number.
    pub(super) fn kept(&self, number: f32) -> f32 {
        f32::from(self.round(number)) * self.scale.to_f32()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_within_half_a_step(numbers in prop::collection::vec(-1.0f32..1.0, 1..70), scale in 1e-20f32..1e20) {
            let numbers: Vec<f32> = numbers.iter().map(|x| x * scale).collect();
            let head = ByteHead::of(&numbers);
            for number in numbers {
                let off = (head.kept(number) - number).abs();
                prop_assert!(off <= head.scale.to_f32() * 0.501, "{number} is off by {off} of {}", head.scale);
            }
        }
    }

    #[test]
    fn zeros_stay_and_what_is_no_number_shows() {
        assert_eq!(ByteHead::of(&[0.0, -0.0]).kept(0.0), 0.0);
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(ByteHead::of(&[1.0, wrong, 2.0]).kept(1.0).is_nan());
        }
        assert!(ByteHead::of(&[f32::MAX, 1.0]).kept(f32::MAX).is_finite());
    }
}
