//! A decoder's operations in portable code: 32-bit floats, weights read from their blocks as they are multiplied.
//! The counterpart that faster paths are compared with; a row's numbers never depend on the rows beside it.

mod attention;
mod pages;
mod product;
#[cfg(test)]
mod tests;

pub use pages::KvPages;

use super::Cpu;
use crate::{
    AttentionLayer, BlockLinear, DecoderDevice, DecoderOps, KvShape, RopeSource, StepBatch, blocks::BlockMatrix,
    most_likely,
};
use magray_core::Activation;
use std::convert::Infallible;
use std::sync::Arc;

/// Rows of floats.
pub struct RowActs {
    values: Vec<f32>,
    rows: usize,
    columns: usize,
}

impl RowActs {
    fn values(&self) -> &[f32] {
        &self.values[..self.rows * self.columns]
    }

    fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.rows * self.columns]
    }
}

/// A linear layer in its stored form.
pub struct RowLinear {
    source: BlockLinear,
    /// Where each matrix's outputs end.
    ends: Vec<usize>,
}

impl RowLinear {
    fn outputs(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn inputs(&self) -> usize {
        self.source.inputs()
    }

    /// Writes the weights of an output to `row`.
    fn read(&self, output: usize, row: &mut [f32]) {
        let part = self.ends.partition_point(|end| *end <= output);
        let matrix: &BlockMatrix = &self.source.parts[part];
        matrix.read_row(output + matrix.rows() - self.ends[part], row);
    }

    fn bias(&self, output: usize) -> f32 {
        self.source.bias.get(output).copied().unwrap_or(0.0)
    }
}

/// The gains of a root mean square norm.
pub struct RmsNorm {
    gain: Vec<f32>,
    epsilon: f32,
}

impl RmsNorm {
    fn apply(&self, row: &mut [f32]) {
        assert_eq!(row.len(), self.gain.len(), "the norm is as wide");
        let square: f32 = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
        let scale = 1.0 / (square + self.epsilon).sqrt();
        for (x, gain) in row.iter_mut().zip(&self.gain) {
            *x = *x * scale * gain;
        }
    }
}

impl DecoderDevice for Cpu {
    type Error = Infallible;
    type Ops = CpuDecoderOps;

    fn block_linear(&self, source: BlockLinear) -> Result<RowLinear, Infallible> {
        assert!(source.parts.iter().all(|part| part.columns() == source.inputs()), "matrices of equal columns");
        assert!(source.bias.is_empty() || source.bias.len() == source.outputs(), "a bias for each output");
        let ends = source.parts.iter().scan(0, |end, part| {
            *end += part.rows();
            Some(*end)
        });
        Ok(RowLinear { ends: ends.collect(), source })
    }

    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<RmsNorm, Infallible> {
        Ok(RmsNorm { gain, epsilon })
    }

    fn rope(&self, source: RopeSource) -> Result<RopeSource, Infallible> {
        Ok(source)
    }

    fn pages(&self, shape: KvShape, pages: usize) -> Result<KvPages, Infallible> {
        Ok(KvPages::new(shape, pages))
    }

    fn decoder_acts(&self, columns: usize) -> RowActs {
        RowActs { values: Vec::new(), rows: 0, columns }
    }
}

impl Cpu {
    /// A decoder's operations, each on all threads.
    pub fn decoder(self: &Arc<Self>) -> CpuDecoderOps {
        CpuDecoderOps {
            cpu: Arc::clone(self),
            normed: Vec::new(),
            sums: Vec::new(),
            answer: Vec::new(),
            answer_columns: 0,
        }
    }
}

/// A decoder's operations on the CPU.
pub struct CpuDecoderOps {
    cpu: Arc<Cpu>,
    /// Rows behind a norm.
    normed: Vec<f32>,
    /// The sums of a product, an output after the other.
    sums: Vec<f32>,
    answer: Vec<f32>,
    answer_columns: usize,
}

impl CpuDecoderOps {
    /// Puts the normalised rows into `normed`.
    fn norm(&mut self, x: &[f32], norm: &RmsNorm) {
        self.normed.clear();
        self.normed.extend_from_slice(x);
        for row in self.normed.chunks_exact_mut(norm.gain.len()) {
            norm.apply(row);
        }
    }
}

impl DecoderOps for CpuDecoderOps {
    type Error = Infallible;
    type Acts = RowActs;
    type Linear = RowLinear;
    type Norm = RmsNorm;
    type Rope = RopeSource;
    type Pages = KvPages;

    fn resize(&mut self, acts: &mut RowActs, rows: usize) {
        acts.rows = rows;
        if acts.values.len() < rows * acts.columns {
            acts.values.resize(rows.next_power_of_two() * acts.columns, 0.0);
        }
    }

    fn embed(&mut self, steps: &StepBatch<'_>, table: &RowLinear, scale: f32, out: &mut RowActs) {
        assert_eq!((out.rows, out.columns), (steps.tokens(), table.inputs()), "a row for each token");
        let columns = out.columns;
        for (id, row) in steps.ids.iter().zip(out.values_mut().chunks_exact_mut(columns)) {
            let (id, known) = (*id as usize, table.outputs());
            assert!(id < known, "id {id} in a table of {known}: ids are checked at the door");
            table.read(id, row);
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }

    fn norm_linear(&mut self, x: &RowActs, norm: &RmsNorm, weights: &RowLinear, out: &mut RowActs) {
        assert_eq!((out.rows, out.columns), (x.rows, weights.outputs()), "room for the layer's outputs");
        self.norm(x.values(), norm);
        product::multiply(self.cpu.pool(), &self.normed, weights, &mut self.sums);
        product::by_rows(&self.sums, x.rows, out.values_mut());
    }

    fn gated_linear(
        &mut self,
        x: &RowActs,
        norm: &RmsNorm,
        weights: &RowLinear,
        activation: Activation,
        out: &mut RowActs,
    ) {
        let width = out.columns;
        assert_eq!((out.rows, 2 * width), (x.rows, weights.outputs()), "a gate for each output");
        self.norm(x.values(), norm);
        product::multiply(self.cpu.pool(), &self.normed, weights, &mut self.sums);
        let (gates, ups) = self.sums.split_at_mut(width * x.rows);
        for (gate, up) in gates.iter_mut().zip(ups) {
            *gate = product::activate(activation, *gate) * *up;
        }
        product::by_rows(gates, x.rows, out.values_mut());
    }

    fn linear_add(&mut self, x: &RowActs, weights: &RowLinear, norm: Option<&RmsNorm>, hidden: &mut RowActs) {
        assert_eq!((hidden.rows, hidden.columns), (x.rows, weights.outputs()), "the layer gives what it adds to");
        product::multiply(self.cpu.pool(), x.values(), weights, &mut self.sums);
        self.normed.resize(self.sums.len(), 0.0);
        product::by_rows(&self.sums, x.rows, &mut self.normed);
        if let Some(norm) = norm {
            self.normed.chunks_exact_mut(hidden.columns).for_each(|row| norm.apply(row));
        }
        for (sum, x) in hidden.values_mut().iter_mut().zip(&self.normed) {
            *sum += x;
        }
    }

    fn rope_append(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, RmsNorm, RopeSource>,
        qkv: &mut RowActs,
        pages: &mut KvPages,
    ) {
        steps.check(pages.count());
        assert_eq!(qkv.rows, steps.tokens(), "a row for each token");
        attention::rope_append(steps, layer, qkv.values_mut(), pages);
    }

    fn attend(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, RmsNorm, RopeSource>,
        qkv: &RowActs,
        pages: &KvPages,
        out: &mut RowActs,
    ) {
        steps.check(pages.count());
        assert_eq!((qkv.rows, out.rows), (steps.tokens(), steps.tokens()), "a row for each token");
        attention::attend(self.cpu.pool(), steps, layer, (qkv.values(), pages), out.values_mut());
    }

    fn logits(&mut self, steps: &StepBatch<'_>, hidden: &RowActs, norm: &RmsNorm, head: &RowLinear, cap: Option<f32>) {
        let columns = hidden.columns;
        let wanted = steps.logit_rows.iter().flat_map(|row| &hidden.values()[row * columns..(row + 1) * columns]);
        let wanted: Vec<f32> = wanted.copied().collect();
        self.norm(&wanted, norm);
        product::multiply(self.cpu.pool(), &self.normed, head, &mut self.sums);
        self.answer.resize(self.sums.len(), 0.0);
        self.answer_columns = head.outputs();
        product::by_rows(&self.sums, steps.logit_rows.len(), &mut self.answer);
        if let Some(cap) = cap {
            self.answer.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
    }

    fn answer(&mut self) -> Result<&[f32], Infallible> {
        Ok(&self.answer)
    }

    fn chosen(&mut self) -> Result<Vec<u32>, Infallible> {
        Ok(self.answer.chunks_exact(self.answer_columns.max(1)).map(most_likely).collect())
    }
}
