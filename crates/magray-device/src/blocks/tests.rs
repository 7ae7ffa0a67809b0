//! Blocks of every format against the floats that the Python package `gguf` makes of them.

use super::*;

/// Cases as `make_blocks.py` wrote them: name, numbers, bytes and floats of each, all lengths as 32-bit numbers.
const CASES: &[u8] = include_bytes!("../../tests/fixtures/blocks.bin");

fn take<'a>(from: &mut &'a [u8]) -> &'a [u8] {
    let (length, rest) = from.split_first_chunk::<4>().unwrap();
    let (part, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
    *from = rest;
    part
}

#[test]
fn blocks_of_every_format_are_the_floats_that_their_makers_say_bit_by_bit() {
    let mut rest = CASES;
    let mut seen = Vec::new();
    while !rest.is_empty() {
        let (name, bytes, wanted) = (take(&mut rest), take(&mut rest), take(&mut rest));
        let name = std::str::from_utf8(name).unwrap();
        let format = BlockFormat::ALL.into_iter().find(|format| format.name() == name).unwrap();
        let wanted: Vec<u32> = wanted.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let mut found = vec![0.0; wanted.len()];
        dequantise(format, bytes, &mut found);
        let found: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
        assert_eq!(found, wanted, "{format}");
        assert!(wanted.len() >= 3 * format.numbers(), "{format}: several blocks");
        seen.push(format);
    }
    assert_eq!(seen, BlockFormat::ALL);
}

#[test]
fn rows_of_a_matrix_are_its_own() {
    let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let matrix = BlockMatrix::of_floats(&values, 4);
    assert_eq!((matrix.rows(), matrix.columns()), (6, 4));
    let middle = matrix.rows_of(2..5).rows_of(1..3);
    let mut row = [0.0; 4];
    middle.read_row(1, &mut row);
    assert_eq!((middle.rows(), row), (2, [16.0, 17.0, 18.0, 19.0]));
}

#[test]
#[should_panic(expected = "no whole blocks of Q4_K")]
fn a_row_that_is_not_whole_blocks_is_a_bug() {
    BlockMatrix::new(vec![0; 144], BlockFormat::Q4K, 128);
}
