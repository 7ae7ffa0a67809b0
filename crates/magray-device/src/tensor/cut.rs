//! Cuts the weights of layers: some of their outputs, or some of their inputs.
//! Copies nothing where weights can stay in their files.

use crate::{BlockLinear, LinearNumbers};
use std::ops::Range;

/// The outputs in these ranges, end to end, with their biases; `None` where there are none.
pub(super) fn outputs_of(source: &BlockLinear, ranges: &[Range<usize>]) -> Option<BlockLinear> {
    let mut cut = BlockLinear { parts: Vec::new(), bias: Vec::new() };
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        let mut start = 0;
        for part in &source.parts {
            let end = start + part.rows();
            let (from, to) = (range.start.clamp(start, end), range.end.clamp(start, end));
            if from < to {
                cut.parts.push(part.rows_of(from - start..to - start));
            }
            start = end;
        }
        cut.bias.extend(source.bias.get(range.clone()).unwrap_or_default());
    }
    (!cut.parts.is_empty()).then_some(cut)
}

/// These inputs of all outputs; `None` where there are none. Their sums are added to those of other ranks, so one alone has the bias.
pub(super) fn inputs_of(source: &BlockLinear, range: Range<usize>, has_bias: bool) -> Option<BlockLinear> {
    if range.is_empty() {
        return None;
    }
    let parts = source.parts.iter().map(|part| part.columns_of(range.clone())).collect();
    Some(BlockLinear { parts, bias: if has_bias { source.bias.clone() } else { Vec::new() } })
}

/// As [`outputs_of`], of an encoder's layer.
pub(super) fn output_numbers_of(source: &LinearNumbers, ranges: &[Range<usize>]) -> Option<LinearNumbers> {
    let inputs = source.inputs;
    let mut cut = LinearNumbers { weights: Vec::new(), inputs, bias: Vec::new() };
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        let mut start = 0;
        for weights in &source.weights {
            let end = start + weights.len() / inputs;
            let (from, to) = (range.start.clamp(start, end), range.end.clamp(start, end));
            if from < to {
                cut.weights.push(weights.part((from - start) * inputs..(to - start) * inputs));
            }
            start = end;
        }
        cut.bias.extend(source.bias.get(range.clone()).unwrap_or_default());
    }
    (!cut.weights.is_empty()).then_some(cut)
}

/// As [`inputs_of`], of an encoder's layer.
pub(super) fn input_numbers_of(source: &LinearNumbers, range: Range<usize>, has_bias: bool) -> Option<LinearNumbers> {
    if range.is_empty() {
        return None;
    }
    let weights = source.weights.iter().map(|weights| weights.columns_of(source.inputs, range.clone())).collect();
    Some(LinearNumbers { weights, inputs: range.len(), bias: if has_bias { source.bias.clone() } else { Vec::new() } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockMatrix;
    use crate::tensor::shares::inner;
    use magray_core::BlockFormat;

    fn rows(source: &BlockLinear) -> Vec<Vec<f32>> {
        let row = |part: &BlockMatrix, at| {
            let mut row = vec![0.0; part.columns()];
            part.read_row(at, &mut row);
            row
        };
        source.parts.iter().flat_map(|part| (0..part.rows()).map(move |at| row(part, at))).collect()
    }

    fn quantised(rows: usize, columns: usize, format: BlockFormat) -> BlockMatrix {
        let bytes = (0..rows * format.bytes_of(columns).unwrap()).map(|i| (i * 37 % 61) as u8);
        BlockMatrix::new(bytes.collect::<Vec<_>>(), format, columns)
    }

    #[test]
    fn outputs_are_taken_across_matrices_with_their_biases() {
        let parts = vec![quantised(4, 64, BlockFormat::Q4_0), quantised(3, 64, BlockFormat::Q8_0)];
        let source = BlockLinear { parts, bias: (0..7).map(|i| i as f32).collect() };
        let cut = outputs_of(&source, &[1..2, 3..6]).unwrap();
        assert_eq!(cut.bias, [1.0, 3.0, 4.0, 5.0]);
        let all = rows(&source);
        assert_eq!(rows(&cut), [1, 3, 4, 5].map(|at: usize| all[at].clone()));
        assert!(outputs_of(&source, std::slice::from_ref(&(2..2))).is_none());
    }

    #[test]
    fn inputs_are_the_same_numbers_within_blocks_and_across_them() {
        for format in [BlockFormat::Q4_0, BlockFormat::Q4K, BlockFormat::F16, BlockFormat::F32] {
            let source = BlockLinear { parts: vec![quantised(5, 512, format)], bias: vec![1.0; 5] };
            let all = rows(&source);
            for range in [0..512, 256..512, 32..64, 17..300] {
                let cut = inputs_of(&source, range.clone(), range.start == 0).unwrap();
                let wanted: Vec<_> = all.iter().map(|row| row[range.clone()].to_vec()).collect();
                assert_eq!(rows(&cut), wanted, "{format} {range:?}");
                assert_eq!(cut.bias.is_empty(), range.start > 0);
                let stays = format.bytes_of(range.start).is_some() && format.bytes_of(range.len()).is_some();
                assert_eq!(cut.parts[0].format(), if stays { format } else { BlockFormat::F32 }, "{format} {range:?}");
                let some = cut.parts[0].rows_of(1..4);
                let mut bytes = vec![0; 2 * some.byte_len() / 3];
                some.copy_rows(1, &mut bytes).unwrap();
                assert_eq!(bytes, [some.row(1), some.row(2)].concat(), "{format} {range:?}");
                let again = BlockLinear { parts: vec![some.columns_of(3..7)], bias: Vec::new() };
                let wanted: Vec<_> = wanted[1..4].iter().map(|row| row[3..7].to_vec()).collect();
                assert_eq!(rows(&again), wanted, "{format} {range:?}, cut twice");
            }
        }
    }

    #[test]
    fn blocks_of_256_stay_as_they_are_where_each_rank_has_one() {
        for (columns, ranks) in [(768, 2), (768, 3), (1_280, 4)] {
            let source = BlockLinear { parts: vec![quantised(2, columns, BlockFormat::Q6K)], bias: Vec::new() };
            for rank in 0..ranks {
                let cut = inputs_of(&source, inner(columns, ranks, rank), rank == 0).unwrap();
                assert_eq!(cut.parts[0].format(), BlockFormat::Q6K, "{columns}, rank {rank} of {ranks}");
            }
        }
    }
}
