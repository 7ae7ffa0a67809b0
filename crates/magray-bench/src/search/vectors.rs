//! Vectors end to end: random ones, or those of a .npy file. Reads 32-bit floats in rows, nothing else.

use std::{fs, io, path::Path};

use crate::failure::Failure;

pub(super) struct Vectors {
    dims: usize,
    numbers: Vec<f32>,
}

impl Vectors {
    /// About normal, from a seed.
    pub(super) fn random(count: u32, dims: u32, seed: u64) -> Self {
        let mut state = seed;
        let numbers = (0..count as usize * dims as usize).map(|_| {
            let bits = random(&mut state);
            (0..4).map(|part| (bits >> (part * 16) & 0xffff) as f32 / 65_536.0 - 0.5).sum()
        });
        Self { dims: dims as usize, numbers: numbers.collect() }
    }

    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let failure = |reason: io::Error| Failure::File { path: path.to_owned(), reason };
        parse(&fs::read(path).map_err(failure)?)
            .map_err(|reason| failure(io::Error::new(io::ErrorKind::InvalidData, reason)))
    }

    /// Sums of two of the rows, the first with a weight of 0.4 to 1, the second with the rest.
    pub(super) fn mixtures(&self, count: usize) -> Self {
        let mut state = 4;
        let mut numbers = Vec::with_capacity(count * self.dims);
        for _ in 0..count {
            let [one, other] = [0; 2].map(|_| random(&mut state) as usize % self.count());
            let weight = 0.4 + 0.6 * (random(&mut state) >> 40) as f32 / (1 << 24) as f32;
            let pairs = self.some(one, 1).iter().zip(self.some(other, 1));
            numbers.extend(pairs.map(|(one, other)| weight * one + (1.0 - weight) * other));
        }
        Self { dims: self.dims, numbers }
    }

    pub(super) fn dims(&self) -> usize {
        self.dims
    }

    pub(super) fn count(&self) -> usize {
        self.numbers.len() / self.dims
    }

    /// These, or as many of them as there are.
    pub(super) fn some(&self, first: usize, count: usize) -> &[f32] {
        &self.numbers[first * self.dims..self.count().min(first + count) * self.dims]
    }
}

/// A bit for each row, one in `one_in` set by chance.
pub(super) fn one_in(rows: usize, one_in: u32) -> Vec<u64> {
    let mut state = 3;
    let mut bits = vec![0; rows.div_ceil(64)];
    for row in 0..rows {
        if random(&mut state).is_multiple_of(u64::from(one_in)) {
            bits[row / 64] |= 1 << (row % 64);
        }
    }
    bits
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn parse(bytes: &[u8]) -> Result<Vectors, String> {
    let wants = "want a .npy file with rows of little-endian 32-bit floats (numpy.save of a float32 array)";
    let head = bytes.get(..10).filter(|head| head.starts_with(b"\x93NUMPY\x01")).ok_or(wants)?;
    let start = 10 + usize::from(u16::from_le_bytes([head[8], head[9]]));
    let header = bytes.get(10..start).and_then(|header| std::str::from_utf8(header).ok()).ok_or(wants)?;
    let shape = header.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(')')).ok_or(wants)?.0;
    let shape: Vec<usize> = shape.split(',').filter_map(|size| size.trim().parse().ok()).collect();
    let &[count, dims] = &shape[..] else { return Err(wants.to_owned()) };
    let numbers: Vec<f32> =
        bytes[start..].as_chunks::<4>().0.iter().map(|&number| f32::from_le_bytes(number)).collect();
    let is_whole = count.checked_mul(dims) == Some(numbers.len()) && count > 0 && dims > 0;
    if !header.contains("'<f4'") || !header.contains("'fortran_order': False") || !is_whole {
        return Err(wants.to_owned());
    }
    Ok(Vectors { dims, numbers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(header: &str, numbers: &[f32]) -> Vec<u8> {
        let head = [b"\x93NUMPY\x01\x00".as_slice(), &(header.len() as u16).to_le_bytes(), header.as_bytes()];
        head.into_iter().flatten().copied().chain(numbers.iter().flat_map(|x| x.to_le_bytes())).collect()
    }

    #[test]
    fn rows_of_a_file_are_read_and_others_are_refused() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        let read = parse(&npy(good, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
        assert_eq!((read.count(), read.some(1, 9)), (2, &[4.0, 5.0, 6.0][..]));
        assert!(parse(&npy(good, &[1.0; 5])).is_err());
        for (from, to) in [("<f4", "<f8"), ("False", "True"), ("(2, 3)", "(6,)"), ("(2, 3)", "(0, 3)")] {
            assert!(parse(&npy(&good.replace(from, to), &[1.0; 6])).is_err(), "{to}");
        }
        assert!(parse(b"").is_err());
    }

    #[test]
    fn filters_allow_about_one_in_ten() {
        let bits = one_in(10_000, 10);
        let count: u32 = bits.iter().map(|word| word.count_ones()).sum();
        assert!((900..1100).contains(&count), "{count}");
    }
}
