//! Makes a text's row of the rows of its tokens, as the native devices do.
//! Reads no padding: it is told how many tokens a text has.

use magray_core::Pooling;

/// Pools the rows of a text's tokens, which lie end to end, each way into its part of `out`. `skip` leading tokens are left out.
pub(super) fn pool(tokens: &[f32], columns: usize, skip: usize, ways: &[Pooling], out: &mut [f32]) {
    let all = tokens.len() / columns;
    let skipped = skip.min(all);
    let (rows, count) = (&tokens[skipped * columns..], all - skipped);
    for (way, out) in ways.iter().zip(out.chunks_exact_mut(columns)) {
        out.fill(0.0);
        let mut add = |row: &[f32], weight: f32| out.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * weight);
        let mut rows = rows.chunks_exact(columns);
        let divisor = match way {
            Pooling::Cls => {
                rows.next().into_iter().for_each(|row| add(row, 1.0));
                1.0
            }
            Pooling::Last => {
                rows.next_back().into_iter().for_each(|row| add(row, 1.0));
                1.0
            }
            Pooling::Max => {
                if let Some(first) = rows.next() {
                    out.copy_from_slice(first);
                }
                rows.for_each(|row| out.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(*x)));
                1.0
            }
            Pooling::Mean | Pooling::MeanSqrtLen => {
                rows.for_each(|row| add(row, 1.0));
                let count = count.max(1) as f32;
                if *way == Pooling::Mean { count } else { count.sqrt() }
            }
            Pooling::WeightedMean => {
                rows.zip(skipped + 1..).for_each(|(row, rank)| add(row, rank as f32));
                (skipped + 1..=all).map(|rank| rank as f32).sum::<f32>().max(1.0)
            }
        };
        out.iter_mut().for_each(|x| *x /= divisor);
    }
}

/// Scales a row to length 1.
pub(super) fn normalize(row: &mut [f32]) {
    let length = row.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    row.iter_mut().for_each(|x| *x /= length);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(way: Pooling, skip: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; 2];
        pool(&[1.0, -4.0, 3.0, 2.0, 5.0, -1.0], 2, skip, &[way], &mut out);
        out
    }

    #[test]
    fn each_way_pools_as_it_says() {
        assert_eq!(pooled(Pooling::Cls, 0), [1.0, -4.0]);
        assert_eq!(pooled(Pooling::Cls, 1), [3.0, 2.0]);
        assert_eq!(pooled(Pooling::Last, 0), [5.0, -1.0]);
        assert_eq!(pooled(Pooling::Max, 0), [5.0, 2.0]);
        assert_eq!(pooled(Pooling::Mean, 0), [3.0, -1.0]);
        assert_eq!(pooled(Pooling::Mean, 1), [4.0, 0.5]);
        assert_eq!(pooled(Pooling::WeightedMean, 1), [(6.0 + 15.0) / 5.0, (4.0 - 3.0) / 5.0]);
        assert_eq!(pooled(Pooling::MeanSqrtLen, 1), [8.0 / 2.0_f32.sqrt(), 1.0 / 2.0_f32.sqrt()]);
        // Nothing to pool sums to zero.
        assert!(Pooling::ALL.into_iter().all(|way| pooled(way, 9) == [0.0, 0.0]));
    }

    #[test]
    fn several_ways_stand_side_by_side_and_a_row_of_zeros_stays() {
        let mut out = [0.0; 4];
        pool(&[1.0, 2.0, 3.0, 4.0], 2, 0, &[Pooling::Cls, Pooling::Mean], &mut out);
        assert_eq!(out, [1.0, 2.0, 2.0, 3.0]);
        normalize(&mut out);
        assert!((out.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-6);
        let mut zeros = [0.0; 2];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 2]);
    }
}
