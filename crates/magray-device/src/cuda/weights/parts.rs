//! What a model's weights are made of, byte for byte as they lie on the GPU, and how any stretch of them is made.
//! Touches no GPU; any number of threads may make stretches at once.

use crate::Numbers;
use crate::cuda::memory::Number;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes as they lie on the GPU, which are made when they are copied there.
pub(in crate::cuda) trait Content: Debug + Send + Sync {
    fn bytes(&self) -> usize;

    /// Makes the bytes `range`; `out` has as many.
    fn make(&self, range: Range<usize>, out: &mut [u8]) -> io::Result<()>;

    /// They went elsewhere: the pages of the files that they were made of would only take memory.
    fn release_pages(&self);
}

/// Content at its place in the weights.
#[derive(Debug)]
pub(in crate::cuda) struct Part {
    pub(in crate::cuda) at: usize,
    pub(in crate::cuda) content: Arc<dyn Content>,
}

impl Part {
    fn end(&self) -> usize {
        self.at + self.content.bytes()
    }
}

/// Makes a stretch of bytes that are made `piece` by piece: those that lie inside at their place, those that stick out beside it.
pub(in crate::cuda) fn by_pieces<E>(
    piece: usize,
    range: Range<usize>,
    out: &mut [u8],
    mut make: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    if range.is_empty() {
        return Ok(());
    }
    let mut spare = Vec::new();
    for index in range.start / piece..range.end.div_ceil(piece) {
        let whole = index * piece..(index + 1) * piece;
        let (from, to) = (whole.start.max(range.start), whole.end.min(range.end));
        let here = &mut out[from - range.start..to - range.start];
        if here.len() == piece {
            make(index, here)?;
        } else {
            spare.resize(piece, 0);
            make(index, &mut spare)?;
            here.copy_from_slice(&spare[from - whole.start..to - whole.start]);
        }
    }
    Ok(())
}

/// Numbers one behind the other, as rows with zeros up to a stride.
#[derive(Debug)]
pub(in crate::cuda) struct Matrix {
    pub(in crate::cuda) numbers: Vec<Numbers>,
    pub(in crate::cuda) columns: usize,
    /// Numbers from one row to the next.
    pub(in crate::cuda) stride: usize,
}

/// The form that a matrix takes on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Form {
    /// Its numbers.
    Numbers(Number),
    /// Its numbers as bytes, each row scaled by its largest.
    Quantised,
    /// The scales of its quantised rows, and the sums of those rows.
    Scales,
}

impl Matrix {
    /// One row of floats, padded.
    pub(in crate::cuda) fn vector(values: Vec<f32>, stride: usize) -> Self {
        Self { columns: values.len(), numbers: vec![Numbers::new(values)], stride }
    }

    fn rows(&self) -> usize {
        let numbers: usize = self.numbers.iter().map(Numbers::len).sum();
        // A vector of nothing is a row of padding.
        numbers.checked_div(self.columns).unwrap_or(1)
    }

    pub(in crate::cuda) fn bytes(&self, form: Form) -> usize {
        match form {
            Form::Numbers(number) => self.rows() * self.stride * number.size(),
            Form::Quantised => self.rows() * self.stride,
            Form::Scales => self.rows() * 8,
        }
    }

    /// Reads a row's numbers, which may lie in several runs.
    fn read_row(&self, row: usize, mut out: &mut [f32]) {
        let mut start = row * self.columns;
        for numbers in &self.numbers {
            if start < numbers.len() && !out.is_empty() {
                let count = out.len().min(numbers.len() - start);
                let (here, rest) = std::mem::take(&mut out).split_at_mut(count);
                numbers.read(start, here);
                (start, out) = (0, rest);
            } else {
                start = start.saturating_sub(numbers.len());
            }
        }
    }

    /// Whether its bytes in a file are its bytes on the GPU.
    fn is_as_in_file(&self, number: Number) -> bool {
        let is_same = |numbers: &Numbers| numbers.format().is_some_and(|format| number.is(format));
        self.stride == self.columns && self.numbers.iter().all(is_same)
    }
}

/// A matrix in its form.
#[derive(Debug)]
pub(in crate::cuda) struct Formed {
    pub(in crate::cuda) matrix: Arc<Matrix>,
    pub(in crate::cuda) form: Form,
}

impl Content for Formed {
    fn bytes(&self) -> usize {
        self.matrix.bytes(self.form)
    }

    fn make(&self, range: Range<usize>, out: &mut [u8]) -> io::Result<()> {
        match self.form {
            Form::Numbers(number) if self.matrix.is_as_in_file(number) => self.copy(range, out),
            Form::Numbers(number) => {
                self.make_rows(self.matrix.stride * number.size(), range, out, |floats, bytes| {
                    let (numbers, padding) = bytes.split_at_mut(floats.len() * number.size());
                    number.write(floats, numbers);
                    padding.fill(0);
                });
                Ok(())
            }
            Form::Quantised => {
                self.make_rows(self.matrix.stride, range, out, |floats, bytes| {
                    let (numbers, padding) = bytes.split_at_mut(floats.len());
                    for (q, to) in quantised(floats).zip(numbers) {
                        *to = q as u8;
                    }
                    padding.fill(0);
                });
                Ok(())
            }
            Form::Scales => {
                self.make_rows(8, range, out, |floats, bytes| {
                    let scale = largest_of(floats) / 127.0;
                    let total = quantised(floats).map(i32::from).sum::<i32>() as f32;
                    bytes[..4].copy_from_slice(&scale.to_le_bytes());
                    bytes[4..].copy_from_slice(&(scale * total).to_le_bytes());
                });
                Ok(())
            }
        }
    }

    fn release_pages(&self) {
        self.matrix.numbers.iter().for_each(Numbers::release_pages);
    }
}

impl Formed {
    /// Takes the bytes from the file as they are.
    fn copy(&self, range: Range<usize>, mut out: &mut [u8]) -> io::Result<()> {
        let mut start = range.start;
        for numbers in &self.matrix.numbers {
            let bytes = numbers.len() * numbers.format().map_or(1, crate::NumberFormat::size);
            if start < bytes && !out.is_empty() {
                let count = out.len().min(bytes - start);
                let (here, rest) = std::mem::take(&mut out).split_at_mut(count);
                numbers.read_bytes(start, here)?;
                (start, out) = (0, rest);
            } else {
                start = start.saturating_sub(bytes);
            }
        }
        Ok(())
    }

    /// Makes whole rows and takes of them what lies in the range.
    fn make_rows(&self, row_bytes: usize, range: Range<usize>, out: &mut [u8], make: impl Fn(&[f32], &mut [u8])) {
        let mut floats = vec![0.0; self.matrix.columns];
        let Ok(()) = by_pieces(row_bytes, range, out, |row, bytes| {
            self.matrix.read_row(row, &mut floats);
            make(&floats, bytes);
            Ok::<(), std::convert::Infallible>(())
        });
    }
}

fn largest_of(floats: &[f32]) -> f32 {
    floats.iter().fold(0.0f32, |largest, x| largest.max(x.abs()))
}

/// A row of numbers scaled to -127..=127.
fn quantised(floats: &[f32]) -> impl Iterator<Item = i8> {
    let largest = largest_of(floats);
    let scale = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    floats.iter().map(move |x| (x * scale).round_ties_even() as i8)
}

/// Makes the bytes of weights from `start` on. The parts are in order; between them lie zeros.
pub(in crate::cuda) fn make(parts: &[Part], start: usize, out: &mut [u8]) -> io::Result<()> {
    let end = start + out.len();
    let first = parts.partition_point(|part| part.end() <= start);
    let mut done = start;
    for part in parts[first..].iter().take_while(|part| part.at < end) {
        let (from, to) = (part.at.max(start), part.end().min(end));
        out[done - start..from - start].fill(0);
        part.content.make(from - part.at..to - part.at, &mut out[from - start..to - start])?;
        done = to;
    }
    out[done - start..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MappedFile, NumberFormat};
    use half::bf16;

    fn floats(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37) % 101) as f32 * 0.5 - 25.0).collect()
    }

    fn matrix(numbers: Vec<Numbers>, columns: usize, stride: usize) -> Arc<Matrix> {
        Arc::new(Matrix { numbers, columns, stride })
    }

    fn part(at: usize, matrix: &Arc<Matrix>, form: Form) -> Part {
        Part { at, content: Arc::new(Formed { matrix: Arc::clone(matrix), form }) }
    }

    /// The same bytes come out however the weights are cut.
    fn check_cuts(parts: &[Part], bytes: usize) -> Vec<u8> {
        let mut whole = vec![9; bytes];
        make(parts, 0, &mut whole).unwrap();
        for cut in [1, 3, 64, 1000] {
            let mut pieces = vec![9; bytes];
            for (i, piece) in pieces.chunks_mut(cut).enumerate() {
                make(parts, i * cut, piece).unwrap();
            }
            assert!(pieces == whole, "cut into pieces of {cut}");
        }
        whole
    }

    #[test]
    fn rows_are_padded_and_gaps_are_zero() {
        let rows = matrix(vec![Numbers::new(floats(34)), Numbers::new(floats(17))], 17, 32);
        let vector = Arc::new(Matrix::vector(floats(5), 8));
        let parts = [part(0, &rows, Form::Numbers(Number::F32)), part(512, &vector, Form::Numbers(Number::F32))];
        let bytes = check_cuts(&parts, 600);
        let read = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(read(32 * 4), floats(34)[17]);
        assert_eq!(read(64 * 4), floats(17)[0]);
        assert_eq!(
            (read(17 * 4), read(31 * 4), read(384), read(512 + 16), read(512 + 20)),
            (0.0, 0.0, 0.0, floats(5)[4], 0.0)
        );
    }

    #[test]
    fn quantised_rows_are_scaled_by_their_largest_number() {
        let rows = matrix(vec![Numbers::new(vec![1.0f32, -2.0, 0.5, 0.0, 0.0, 0.0])], 3, 16);
        let parts = [part(0, &rows, Form::Quantised), part(32, &rows, Form::Scales)];
        let bytes = check_cuts(&parts, 48);
        assert_eq!(bytes[..4].iter().map(|&b| b as i8).collect::<Vec<_>>(), [64, -127, 32, 0]);
        assert!(bytes[4..32].iter().all(|&b| b == 0));
        let read = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([32, 36, 40, 44].map(read), [2.0 / 127.0, -31.0 * (2.0 / 127.0), 0.0, 0.0]);
    }

    #[test]
    fn a_file_in_the_right_form_is_copied_and_another_converted_to_the_same() {
        let values = floats(96);
        let halves: Vec<u8> = values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("w"), [&[1, 2, 3][..], &halves].concat()).unwrap();
        let file = Arc::new(MappedFile::open(&dir.path().join("w")).unwrap());
        let mapped = |range| Numbers::mapped(Arc::clone(&file), range, NumberFormat::Bf16);
        let joined = matrix(vec![mapped(3 + 64..3 + 192), mapped(3..3 + 64)], 16, 16);
        assert!(joined.is_as_in_file(Number::Bf16) && !joined.is_as_in_file(Number::F16));
        let copied = check_cuts(&[part(0, &joined, Form::Numbers(Number::Bf16))], 192);
        let in_memory = matrix(vec![Numbers::new(values[32..].to_vec()), Numbers::new(values[..32].to_vec())], 16, 16);
        let converted = check_cuts(&[part(0, &in_memory, Form::Numbers(Number::Bf16))], 192);
        assert!(copied == converted && copied[..128] == halves[64..]);
    }

    #[test]
    fn a_vector_of_nothing_is_zeros() {
        let nothing = part(0, &Arc::new(Matrix::vector(Vec::new(), 8)), Form::Numbers(Number::F32));
        assert_eq!(check_cuts(&[nothing], 32), vec![0; 32]);
    }
}
