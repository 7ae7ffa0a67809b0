//! Rows of numbers, where random ones come from, and how far two may be apart. Knows no device.

/// Rows of equal length.
#[derive(Clone)]
pub(crate) struct Rows {
    pub(crate) columns: usize,
    pub(crate) values: Vec<f32>,
}

impl Rows {
    pub(crate) fn new(columns: usize, values: Vec<f32>) -> Self {
        assert!(values.len().is_multiple_of(columns), "whole rows");
        Self { columns, values }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len() / self.columns
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.columns..(row + 1) * self.columns]
    }

    /// Every n-th row, the first and the last among them.
    pub(crate) fn sample(&self, step: usize) -> Self {
        let last = self.len().saturating_sub(1);
        let sampled = (0..self.len()).filter(|row| row % step == 0 || *row == last);
        Self::new(self.columns, sampled.flat_map(|row| self.row(row)).copied().collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.columns)
    }
}

/// What an element should be, and the size that its error is measured by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) value: f64,
    pub(crate) scale: f64,
}

/// How far results may be from their twins, as a part of the elements' scales: a row's errors together (root of the
/// mean square), and any one of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    pub(crate) row: f64,
    pub(crate) element: f64,
}

/// Panics where a row, or one element of it, is further from its twin than allowed.
pub(crate) fn check(got: &Rows, want: &[Vec<Expected>], tolerance: Tolerance, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: rows");
    for (row, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.len(), want.len(), "{what}: columns");
        let (mut errors, mut scales) = (0.0, 0.0);
        for (column, (&got, want)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(got) - want.value).abs();
            assert!(
                error <= tolerance.element * want.scale,
                "{what}: row {row} column {column}: {got} is not {want:?}, {:.1e} of its scale away",
                error / want.scale
            );
            errors += error * error;
            scales += want.scale * want.scale;
        }
        let relative = (errors / scales).sqrt();
        assert!(relative <= tolerance.row, "{what}: row {row} is {relative:.1e} away");
    }
}

/// Random numbers that repeat with their seed (the splitmix64 sequence).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0..1.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Nearly normal, mean 0 and variance 1: twelve uniform numbers together.
    pub(crate) fn normal(&mut self) -> f32 {
        ((0..12).map(|_| self.uniform()).sum::<f64>() - 6.0) as f32
    }

    pub(crate) fn normals(&mut self, count: usize, deviation: f32) -> Vec<f32> {
        (0..count).map(|_| self.normal() * deviation).collect()
    }

    pub(crate) fn rows(&mut self, rows: usize, columns: usize) -> Rows {
        Rows::new(columns, self.normals(rows * columns, 1.0))
    }
}
