//! Weights of decoders on the GPU: rows of bf16 numbers, or blocks of 8 and 4 bits that its products read as they are.
//! Formats that no kernel reads become one of these, without losing more than bf16 would.

use crate::cuda::decoder_kernels::Form;
use crate::cuda::layers::put_vector;
use crate::cuda::matrix::stride_of;
use crate::cuda::weights::{Content, Site, WeightSlice, by_pieces};
use crate::{BlockLinear, BlockMatrix, RopeSource};
use half::{bf16, f16};
use magray_core::BlockFormat;
use std::io;
use std::ops::Range;

/// Inputs that share a scale.
const SHARED: usize = 32;
/// Outputs and columns that biases and gains are padded to a multiple of, with zeros.
const PADDED: usize = 128;

/// The form that a layer's weights get.
fn form_of(source: &BlockLinear) -> Form {
    let all = |fits: fn(BlockFormat) -> bool| source.parts.iter().all(|part| fits(part.format()));
    if all(|format| format == BlockFormat::Q4_0) {
        Form::Centred
    } else if all(|format| matches!(format, BlockFormat::Q4_0 | BlockFormat::Q4_1)) {
        Form::Nibbles
    } else if all(|format| !matches!(format, BlockFormat::F32 | BlockFormat::F16 | BlockFormat::Bf16)) {
        Form::Bytes
    } else {
        Form::Numbers
    }
}

/// What a linear layer takes of a GPU's memory; where it `is_gated`, its outputs are gates and what they gate.
pub fn decoder_linear_bytes(source: &BlockLinear, is_gated: bool) -> u64 {
    (Packer::new(source.clone(), is_gated).bytes() + 4 * source.bias.len()) as u64
}

/// A linear layer, or the table of tokens.
#[derive(Debug)]
pub struct DecoderLinear {
    pub(super) form: Form,
    weights: WeightSlice,
    bias: Option<WeightSlice>,
    pub(super) inputs: usize,
    /// As its layer knows them.
    pub(super) outputs: usize,
    /// Rows in memory: where there are gates more, each 8 of them before what they gate.
    pub(super) rows: usize,
    pub(super) is_gated: bool,
}

impl DecoderLinear {
    pub(super) fn put(site: &Site<'_>, source: BlockLinear, is_gated: bool) -> Self {
        assert!(source.parts.iter().all(|part| part.columns() == source.inputs()), "matrices of equal columns");
        assert!(source.bias.is_empty() || source.bias.len() == source.outputs(), "a bias for each output");
        let (inputs, outputs) = (source.inputs(), source.outputs());
        let packer = Packer::new(source, is_gated);
        let (form, rows, order) = (packer.form, packer.rows, packer.order);
        let of = |row| order.source(row).map_or(0.0, |row: usize| packer.source.bias[row]);
        let bias = (!packer.source.bias.is_empty()).then(|| (0..rows).map(of).collect::<Vec<_>>());
        let weights = site.put_content(packer);
        let bias = bias.map(|bias| put_vector(site, bias, rows.next_multiple_of(PADDED)));
        Self { form, weights, bias, inputs, outputs, rows, is_gated }
    }

    pub(super) fn address(&self) -> u64 {
        self.weights.address()
    }

    pub(super) fn bias(&self) -> u64 {
        self.bias.as_ref().map_or(0, WeightSlice::address)
    }

    /// Blocks along the inputs.
    pub(super) fn units(&self) -> usize {
        self.inputs.div_ceil(self.form.unit())
    }

    /// Numbers from one row to the next, where they lie in rows.
    pub(super) fn stride(&self) -> usize {
        stride_of(self.inputs)
    }
}

/// Which row of its source a row in memory is.
#[derive(Clone, Copy, Debug)]
struct Order {
    outputs: usize,
    is_gated: bool,
}

impl Order {
    /// None for a row that only fills up.
    fn source(self, row: usize) -> Option<usize> {
        if !self.is_gated {
            return (row < self.outputs).then_some(row);
        }
        let (half, gate) = (self.outputs / 2, row / 16 * 8 + row % 8);
        (gate < half).then_some(if row & 8 == 0 { gate } else { half + gate })
    }
}

/// Makes the bytes of a matrix, 8 rows at a time.
#[derive(Debug)]
struct Packer {
    source: BlockLinear,
    form: Form,
    order: Order,
    rows: usize,
}

impl Content for Packer {
    /// Of all rows.
    fn bytes(&self) -> usize {
        self.rows.div_ceil(8) * self.eight_bytes()
    }

    fn make(&self, range: Range<usize>, out: &mut [u8]) -> io::Result<()> {
        by_pieces(self.eight_bytes(), range, out, |eight, bytes| self.pack(eight, bytes))
    }

    fn release_pages(&self) {
        self.source.parts.iter().for_each(BlockMatrix::release_pages);
    }
}

impl Packer {
    fn new(source: BlockLinear, is_gated: bool) -> Self {
        let outputs = source.outputs();
        let rows = if is_gated { 2 * (outputs / 2).next_multiple_of(8) } else { outputs };
        Self { form: form_of(&source), order: Order { outputs, is_gated }, rows, source }
    }

    fn eight_bytes(&self) -> usize {
        let inputs = self.source.inputs();
        match self.form {
            Form::Numbers => 8 * stride_of(inputs) * 2,
            form => inputs.div_ceil(form.unit()) * form.block_bytes(),
        }
    }

    /// The bytes of 8 rows.
    fn pack(&self, eight: usize, bytes: &mut [u8]) -> io::Result<()> {
        bytes.fill(0);
        let (inputs, mut numbers) = (self.source.inputs(), Vec::new());
        for (i, row) in (eight * 8..(eight * 8 + 8).min(self.rows)).enumerate() {
            let Some((part, row)) = self.order.source(row).map(|row| self.part_of(row)) else { continue };
            let matrix = &self.source.parts[part];
            if self.form == Form::Numbers && matrix.format() == BlockFormat::Bf16 {
                matrix.copy_rows(row, &mut bytes[i * stride_of(inputs) * 2..][..inputs * 2])?;
                continue;
            }
            if self.form.is_4_bits() {
                nibbles_of_row(self.form, matrix.format(), &matrix.row(row), i, bytes);
                continue;
            }
            numbers.resize(inputs, 0.0);
            matrix.read_row(row, &mut numbers);
            match self.form {
                Form::Numbers => {
                    for (x, to) in numbers.iter().zip(bytes[i * stride_of(inputs) * 2..].as_chunks_mut::<2>().0) {
                        *to = bf16::from_f32(*x).to_le_bytes();
                    }
                }
                _ => bytes_of_row(&numbers, i, bytes),
            }
        }
        Ok(())
    }

    fn part_of(&self, mut row: usize) -> (usize, usize) {
        for (part, matrix) in self.source.parts.iter().enumerate() {
            if row < matrix.rows() {
                return (part, row);
            }
            row -= matrix.rows();
        }
        unreachable!("rows of the layer")
    }
}

/// The group of lanes that has a row of 8.
fn lanes_of(row: usize) -> usize {
    (row & 3) << 1 | row >> 2
}

/// Puts a row of numbers into blocks of 8 bits. Numbers that were made of such blocks come out as they were: the largest of 32 has
/// the largest byte, or the same scale as another.
fn bytes_of_row(numbers: &[f32], row: usize, bytes: &mut [u8]) {
    let form = Form::Bytes;
    for (group, numbers) in numbers.chunks(SHARED).enumerate() {
        let largest = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let (unit, half) = (group * SHARED / form.unit(), group * SHARED % form.unit() / SHARED);
        let block = &mut bytes[unit * form.block_bytes()..][..form.block_bytes()];
        for (i, x) in numbers.iter().enumerate() {
            let at = (4 * lanes_of(row) + i / 8) * 16 + 8 * half + i % 8;
            block[at] = (x * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
        }
        block[512 + (2 * lanes_of(row) + half) * 4..][..4].copy_from_slice(&scale.to_le_bytes());
    }
}

/// Puts a row of 4-bit blocks of a file into blocks of the kernels.
fn nibbles_of_row(form: Form, format: BlockFormat, source: &[u8], row: usize, bytes: &mut [u8]) {
    let float = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    let block_bytes = if format == BlockFormat::Q4_0 { 18 } else { 20 };
    for (group, source) in source.chunks_exact(block_bytes).enumerate() {
        let scale = bf16::from_f32(float(source));
        let (offset, numbers) = match format {
            BlockFormat::Q4_0 => (bf16::ZERO, &source[2..]),
            // Of the eighth step.
            _ => (bf16::from_f32(float(&source[2..]) + 8.0 * float(source)), &source[4..]),
        };
        let (unit, quarter) = (group * SHARED / form.unit(), group * SHARED % form.unit() / SHARED);
        let block = &mut bytes[unit * form.block_bytes()..][..form.block_bytes()];
        for i in 0..SHARED {
            // In files the lower bits are the first 16 numbers.
            let number = if i < 16 { numbers[i] & 15 } else { numbers[i - 16] >> 4 };
            let bit = 4 * (i / 8) + 16 * (i % 2);
            block[(4 * lanes_of(row) + i % 8 / 2) * 16 + 4 * quarter + bit / 8] |= number << (bit % 8);
        }
        let at = 4 * lanes_of(row) + quarter;
        if form == Form::Centred {
            block[512 + at * 2..][..2].copy_from_slice(&scale.to_le_bytes());
        } else {
            block[512 + at * 4..][..2].copy_from_slice(&scale.to_le_bytes());
            block[514 + at * 4..][..2].copy_from_slice(&offset.to_le_bytes());
        }
    }
}

/// The gains of a root mean square norm.
#[derive(Debug)]
pub struct DecoderNorm {
    gain: WeightSlice,
    pub(super) epsilon: f32,
    pub(super) columns: usize,
}

impl DecoderNorm {
    pub(super) fn put(site: &Site<'_>, gain: Vec<f32>, epsilon: f32) -> Self {
        let columns = gain.len();
        Self { gain: put_vector(site, gain, columns.next_multiple_of(PADDED)), epsilon, columns }
    }

    pub(super) fn address(&self) -> u64 {
        self.gain.address()
    }
}

/// How positions turn heads.
#[derive(Debug)]
pub struct DecoderRope {
    radians: WeightSlice,
    pub(super) pairs: usize,
    pub(super) scale: f32,
    pub(super) neighbours: bool,
}

impl DecoderRope {
    pub(super) fn put(site: &Site<'_>, source: RopeSource) -> Self {
        let RopeSource { radians, scale, neighbours } = source;
        let pairs = radians.len();
        Self { radians: put_vector(site, radians, pairs), pairs, scale, neighbours }
    }

    pub(super) fn address(&self) -> u64 {
        self.radians.address()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole of it, which is the same in whatever stretches it is made.
    fn packed(packer: &Packer) -> Vec<u8> {
        let made = |stretch: usize| {
            let mut bytes = vec![7; packer.bytes()];
            for (i, to) in bytes.chunks_mut(stretch).enumerate() {
                packer.make(i * stretch..i * stretch + to.len(), to).unwrap();
            }
            bytes
        };
        let whole = made(packer.bytes());
        for stretch in [packer.eight_bytes(), 1000, 77] {
            assert!(made(stretch) == whole, "in stretches of {stretch}");
        }
        whole
    }

    /// As `weight_at` of the kernels reads it.
    fn weight_at(form: Form, bytes: &[u8], inputs: usize, row: usize, k: usize) -> f32 {
        let half = |at: usize| bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        if form == Form::Numbers {
            return half((row * stride_of(inputs) + k) * 2);
        }
        let (unit, left) = (k / form.unit(), k % form.unit());
        let block = (row / 8 * inputs.div_ceil(form.unit()) + unit) * form.block_bytes();
        let (lanes, group, i) = (lanes_of(row % 8), left / 32, left % 32);
        if form == Form::Bytes {
            let at = block + 512 + (2 * lanes + group) * 4;
            let scale = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            return f32::from(bytes[block + (4 * lanes + i / 8) * 16 + 8 * group + i % 8] as i8) * scale;
        }
        let word = block + (4 * lanes + i % 8 / 2) * 16 + 4 * group;
        let word = u32::from_le_bytes(bytes[word..word + 4].try_into().unwrap());
        let number = (word >> (4 * (i / 8) + 16 * (i % 2)) & 15) as f32 - 8.0;
        if form == Form::Centred {
            return number * half(block + 512 + (4 * lanes + group) * 2);
        }
        let at = block + 512 + (4 * lanes + group) * 4;
        number * half(at) + half(at + 2)
    }

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i as u32).wrapping_mul(2654435761) >> 8) as f32 / 8388608.0 - 1.0).collect()
    }

    fn blocks(format: BlockFormat, rows: usize, columns: usize) -> BlockMatrix {
        let count = format.bytes_of(rows * columns).unwrap();
        let mut bytes: Vec<u8> = (0..count).map(|i| ((i as u32).wrapping_mul(2654435761) >> 13) as u8).collect();
        let scaled = match format {
            BlockFormat::Q4_0 => (18, 1),
            BlockFormat::Q4_1 => (20, 2),
            _ => (34, 1),
        };
        for (i, block) in bytes.chunks_exact_mut(scaled.0).enumerate() {
            for scale in 0..scaled.1 {
                let value = f16::from_f32(0.01 * (1 + (i + scale) % 7) as f32);
                block[2 * scale..2 * scale + 2].copy_from_slice(&value.to_le_bytes());
            }
        }
        BlockMatrix::new(bytes, format, columns)
    }

    #[test]
    fn every_form_holds_the_weights_of_its_source() {
        let columns = 160;
        let cases = [
            (vec![BlockMatrix::of_floats(&numbers(20 * columns), columns)], Form::Numbers, 0.004),
            (vec![blocks(BlockFormat::Q8_0, 20, columns)], Form::Bytes, 0.005),
            (vec![blocks(BlockFormat::Q4_0, 8, columns), blocks(BlockFormat::Q4_1, 12, columns)], Form::Nibbles, 0.005),
            (vec![blocks(BlockFormat::Q4_0, 20, columns)], Form::Centred, 0.005),
            (vec![blocks(BlockFormat::Q4_0, 8, columns), blocks(BlockFormat::Q8_0, 12, columns)], Form::Bytes, 0.005),
        ];
        for (parts, wanted_form, tolerance) in cases {
            let source = BlockLinear { parts, bias: Vec::new() };
            for is_gated in [false, true] {
                let packer = Packer::new(source.clone(), is_gated);
                let (form, bytes) = (packer.form, packed(&packer));
                assert_eq!(form, wanted_form);
                let mut seen = 0;
                for row in 0..packer.rows {
                    let Some(of) = packer.order.source(row) else {
                        assert!((0..columns).all(|k| weight_at(form, &bytes, columns, row, k) == 0.0));
                        continue;
                    };
                    seen += 1;
                    let (part, at) = packer.part_of(of);
                    let mut wanted = vec![0.0; columns];
                    source.parts[part].read_row(at, &mut wanted);
                    let largest = wanted.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    for (k, wanted) in wanted.iter().enumerate() {
                        let found = weight_at(form, &bytes, columns, row, k);
                        assert!(
                            (found - wanted).abs() <= tolerance * largest,
                            "{form:?} {row} {k}: {found} for {wanted}"
                        );
                    }
                }
                assert_eq!(seen, 20);
            }
        }
    }

    #[test]
    fn gates_stand_eight_rows_before_what_they_gate() {
        let order = Order { outputs: 40, is_gated: true };
        let rows: Vec<_> = (0..48).map(|row| order.source(row)).collect();
        assert_eq!(rows[..16], [0, 1, 2, 3, 4, 5, 6, 7, 20, 21, 22, 23, 24, 25, 26, 27].map(Some));
        assert_eq!((rows[35], rows[36], rows[43], rows[44]), (Some(19), None, Some(39), None));
    }
}
