//! Activations of a decoder: a row of floats for each token.

/// Rows of floats.
pub struct RowActs {
    values: Vec<f32>,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl RowActs {
    pub(super) fn new(columns: usize) -> Self {
        Self { values: Vec::new(), rows: 0, columns }
    }

    /// Sets how many rows are in use.
    pub(super) fn resize(&mut self, rows: usize) {
        self.rows = rows;
        if self.values.len() < rows * self.columns {
            self.values.resize(rows.next_power_of_two() * self.columns, 0.0);
        }
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.values[..self.rows * self.columns]
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.rows * self.columns]
    }
}
