//! MPNet's biases by distance: near tokens have a bucket each, far ones share buckets of growing width.

/// Distances from here on share the last bucket.
const MAX_DISTANCE: f32 = 128.0;

/// The row of the bias table for a key at `distance` from its query (`key - query`).
pub(super) fn bucket(distance: isize, buckets: usize) -> usize {
    let half = buckets / 2;
    let side = if distance > 0 { half } else { 0 };
    let away = distance.unsigned_abs();
    let exact = half / 2;
    if away < exact {
        return side + away;
    }
    let ratio = (away as f32 / exact as f32).ln() / (MAX_DISTANCE / exact as f32).ln();
    let wide = exact + (ratio * (half - exact) as f32) as usize;
    side + wide.min(half - 1)
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn near_tokens_have_their_own_and_far_ones_share() {
        assert_eq!([0, -1, -7, 1, 7].map(|d| bucket(d, 32)), [0, 1, 7, 17, 23]);
        assert_eq!([-8, -11, -12, -127, -128, -500].map(|d| bucket(d, 32)), [8, 8, 9, 15, 15, 15]);
        assert_eq!(bucket(500, 32), 31);
    }
}
