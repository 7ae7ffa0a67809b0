//! A decoder's operations in portable code: 32-bit floats, weights read from their blocks as they are multiplied.
//! The counterpart that faster paths are compared with; a row's numbers never depend on the rows beside it.

mod attention;
mod pages;
mod product;

#[cfg(test)]
pub(super) use attention::turn;
pub(super) use attention::{attend, rope_append};
pub(super) use pages::FloatPages;

use super::{RmsNorm, rows::RowActs};
use crate::cpu::ThreadPool;
use crate::{BlockLinear, StepBatch, blocks::BlockMatrix};
use magray_core::Activation;

/// A linear layer in its stored form.
pub(super) struct StoredLinear {
    source: BlockLinear,
    /// Where each matrix's outputs end.
    ends: Vec<usize>,
}

impl StoredLinear {
    pub(super) fn new(source: BlockLinear) -> Self {
        let ends = source.parts.iter().scan(0, |end, part| {
            *end += part.rows();
            Some(*end)
        });
        Self { ends: ends.collect(), source }
    }

    pub(super) fn outputs(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(super) fn inputs(&self) -> usize {
        self.source.inputs()
    }

    /// Writes the weights of an output to `row`.
    pub(super) fn read(&self, output: usize, row: &mut [f32]) {
        let part = self.ends.partition_point(|end| *end <= output);
        let matrix: &BlockMatrix = &self.source.parts[part];
        matrix.read_row(output + matrix.rows() - self.ends[part], row);
    }

    fn bias(&self, output: usize) -> f32 {
        self.source.bias.get(output).copied().unwrap_or(0.0)
    }
}

/// The operations' buffers.
#[derive(Default)]
pub(super) struct Exact {
    /// Rows behind a norm.
    normed: Vec<f32>,
    /// The sums of a product, an output after the other.
    sums: Vec<f32>,
    pub(super) answer: Vec<f32>,
}

impl Exact {
    /// Puts the normalised rows into `normed`.
    fn norm(&mut self, x: &[f32], norm: &RmsNorm) {
        self.normed.clear();
        self.normed.extend_from_slice(x);
        for row in self.normed.chunks_exact_mut(norm.gain.len()) {
            norm.apply(row);
        }
    }

    pub(super) fn embed(&self, ids: &[u32], table: &StoredLinear, scale: f32, out: &mut RowActs) {
        let columns = out.columns;
        for (id, row) in ids.iter().zip(out.values_mut().chunks_exact_mut(columns)) {
            let (id, known) = (*id as usize, table.outputs());
            assert!(id < known, "id {id} in a table of {known}: ids are checked at the door");
            table.read(id, row);
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }

    pub(super) fn norm_linear(
        &mut self,
        pool: &ThreadPool,
        x: &RowActs,
        norm: &RmsNorm,
        weights: &StoredLinear,
        out: &mut RowActs,
    ) {
        self.norm(x.values(), norm);
        product::multiply(pool, &self.normed, weights, &mut self.sums);
        product::by_rows(&self.sums, x.rows, out.values_mut());
    }

    pub(super) fn gated_linear(
        &mut self,
        pool: &ThreadPool,
        (x, norm): (&RowActs, &RmsNorm),
        weights: &StoredLinear,
        activation: Activation,
        out: &mut RowActs,
    ) {
        self.norm(x.values(), norm);
        product::multiply(pool, &self.normed, weights, &mut self.sums);
        let (gates, ups) = self.sums.split_at_mut(out.columns * x.rows);
        for (gate, up) in gates.iter_mut().zip(ups) {
            *gate = product::activate(activation, *gate) * *up;
        }
        product::by_rows(gates, x.rows, out.values_mut());
    }

    pub(super) fn linear_add(
        &mut self,
        pool: &ThreadPool,
        x: &RowActs,
        weights: &StoredLinear,
        norm: Option<&RmsNorm>,
        hidden: &mut RowActs,
    ) {
        product::multiply(pool, x.values(), weights, &mut self.sums);
        self.normed.resize(self.sums.len(), 0.0);
        product::by_rows(&self.sums, x.rows, &mut self.normed);
        if let Some(norm) = norm {
            self.normed.chunks_exact_mut(hidden.columns).for_each(|row| norm.apply(row));
        }
        for (sum, x) in hidden.values_mut().iter_mut().zip(&self.normed) {
            *sum += x;
        }
    }

    pub(super) fn logits(
        &mut self,
        pool: &ThreadPool,
        steps: &StepBatch<'_>,
        hidden: &RowActs,
        norm: &RmsNorm,
        (head, cap): (&StoredLinear, Option<f32>),
    ) {
        let columns = hidden.columns;
        let wanted = steps.logit_rows.iter().flat_map(|row| &hidden.values()[row * columns..(row + 1) * columns]);
        let wanted: Vec<f32> = wanted.copied().collect();
        self.norm(&wanted, norm);
        product::multiply(pool, &self.normed, head, &mut self.sums);
        self.answer.resize(self.sums.len(), 0.0);
        product::by_rows(&self.sums, steps.logit_rows.len(), &mut self.answer);
        if let Some(cap) = cap {
            self.answer.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
    }
}
