//! A decoder's operations on the CPU: in portable code on the portable path, with packed weights on all others.
//! Checks sizes and leaves the arithmetic to both.

mod byte_head;
mod exact;
mod fast;
mod pages;
mod rows;
#[cfg(test)]
mod tests;

pub use pages::KvPages;
pub use rows::RowActs;

use super::Cpu;
use crate::{
    AttentionLayer, BlockLinear, DecoderDevice, DecoderOps, KvFormat, KvShape, Mask, PartSums, RopeSource, SharedOps,
    StepBatch, most_likely, rule_out,
};
use exact::{Exact, FloatPages, StoredLinear};
use fast::{Fast, PackedPages, PanelLinear};
use magray_core::{Activation, CpuPath};
use std::convert::Infallible;
use std::sync::Arc;

/// What a linear layer takes of memory on a path: in panels, or as it is stored.
pub fn decoder_linear_bytes(path: CpuPath, source: &BlockLinear) -> u64 {
    if fast::bytes_of(path).is_some() {
        return PanelLinear::bytes_of(source);
    }
    let parts = source.parts.iter().map(|part| part.byte_len() as u64);
    parts.sum::<u64>() + 4 * source.bias.len() as u64
}

/// A linear layer in the form of its operations.
pub struct RowLinear(LinearForm);

enum LinearForm {
    Stored(StoredLinear),
    Panels(PanelLinear),
}

impl RowLinear {
    fn outputs(&self) -> usize {
        match &self.0 {
            LinearForm::Stored(weights) => weights.outputs(),
            LinearForm::Panels(weights) => weights.outputs(),
        }
    }

    fn inputs(&self) -> usize {
        match &self.0 {
            LinearForm::Stored(weights) => weights.inputs(),
            LinearForm::Panels(weights) => weights.inputs(),
        }
    }

    fn stored(&self) -> &StoredLinear {
        match &self.0 {
            LinearForm::Stored(weights) => weights,
            LinearForm::Panels(_) => panic!("weights of another device"),
        }
    }

    fn panels(&self) -> &PanelLinear {
        match &self.0 {
            LinearForm::Panels(weights) => weights,
            LinearForm::Stored(_) => panic!("weights of another device"),
        }
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
        Ok(RowLinear(match fast::bytes_of(self.path) {
            None => LinearForm::Stored(StoredLinear::new(source)),
            Some(_) => LinearForm::Panels(PanelLinear::pack(source, &self.pool, &self.weights)),
        }))
    }

    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<RmsNorm, Infallible> {
        Ok(RmsNorm { gain, epsilon })
    }

    fn rope(&self, source: RopeSource) -> Result<RopeSource, Infallible> {
        Ok(source)
    }

    fn pages(&self, shape: KvShape, pages: usize) -> Result<KvPages, Infallible> {
        self.pages_in(KvFormat::default(), shape, pages)
    }

    fn pages_in(&self, format: KvFormat, shape: KvShape, pages: usize) -> Result<KvPages, Infallible> {
        Ok(KvPages(match fast::bytes_of(self.path) {
            None => pages::Form::Floats(FloatPages::new(format, shape, pages)),
            Some(_) => pages::Form::Packed(PackedPages::new(format, shape, pages)),
        }))
    }

    fn decoder_acts(&self, columns: usize) -> RowActs {
        RowActs::new(columns)
    }
}

impl Cpu {
    /// A decoder's operations, each on all threads.
    pub fn decoder(self: &Arc<Self>) -> CpuDecoderOps {
        let way = match fast::bytes_of(self.path) {
            None => Way::Exact(Exact::default()),
            Some(bytes) => Way::Fast(Box::new(Fast::new(self, bytes))),
        };
        CpuDecoderOps { cpu: Arc::clone(self), way, answer_columns: 0 }
    }
}

/// A decoder's operations on the CPU.
pub struct CpuDecoderOps {
    cpu: Arc<Cpu>,
    way: Way,
    answer_columns: usize,
}

enum Way {
    Exact(Exact),
    Fast(Box<Fast>),
}

impl DecoderOps for CpuDecoderOps {
    type Error = Infallible;
    type Acts = RowActs;
    type Linear = RowLinear;
    type Norm = RmsNorm;
    type Rope = RopeSource;
    type Pages = KvPages;

    fn resize(&mut self, acts: &mut RowActs, rows: usize) {
        acts.resize(rows);
    }

    fn embed(&mut self, steps: &StepBatch<'_>, table: &RowLinear, scale: f32, out: &mut RowActs) {
        assert_eq!((out.rows, out.columns), (steps.tokens(), table.inputs()), "a row for each token");
        match &self.way {
            Way::Exact(exact) => exact.embed(steps.ids, table.stored(), scale, out),
            Way::Fast(fast) => fast.embed(self.cpu.pool(), steps.ids, table.panels(), scale, out),
        }
    }

    fn read_hidden<'a>(&'a mut self, steps: &StepBatch<'_>, hidden: &'a RowActs) -> Result<&'a [f32], Infallible> {
        assert_eq!(hidden.rows, steps.tokens(), "a row for each token");
        Ok(hidden.values())
    }

    fn write_hidden(&mut self, steps: &StepBatch<'_>, rows: &[f32], hidden: &mut RowActs) {
        assert_eq!(rows.len(), steps.tokens() * hidden.columns, "a row for each token");
        hidden.values_mut().copy_from_slice(rows);
    }

    fn norm_linear(&mut self, x: &RowActs, norm: &RmsNorm, weights: &RowLinear, out: &mut RowActs) {
        assert_eq!((out.rows, out.columns), (x.rows, weights.outputs()), "room for the layer's outputs");
        match &mut self.way {
            Way::Exact(exact) => exact.norm_linear(self.cpu.pool(), x, norm, weights.stored(), out),
            Way::Fast(fast) => fast.norm_linear(self.cpu.pool(), x, norm, weights.panels(), out),
        }
    }

    fn gated_linear(
        &mut self,
        x: &RowActs,
        norm: &RmsNorm,
        weights: &RowLinear,
        activation: Activation,
        out: &mut RowActs,
    ) {
        assert_eq!((out.rows, 2 * out.columns), (x.rows, weights.outputs()), "a gate for each output");
        let pool = self.cpu.pool();
        match &mut self.way {
            Way::Exact(exact) => exact.gated_linear(pool, (x, norm), weights.stored(), activation, out),
            Way::Fast(fast) => fast.gated_linear(pool, (x, norm), weights.panels(), activation, out),
        }
    }

    fn linear_add(&mut self, x: &RowActs, weights: &RowLinear, norm: Option<&RmsNorm>, hidden: &mut RowActs) {
        assert_eq!((hidden.rows, hidden.columns), (x.rows, weights.outputs()), "the layer gives what it adds to");
        match &mut self.way {
            Way::Exact(exact) => exact.linear_add(self.cpu.pool(), x, weights.stored(), norm, hidden),
            Way::Fast(fast) => fast.linear_add(self.cpu.pool(), x, weights.panels(), norm, hidden),
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
        match (&mut self.way, &mut pages.0) {
            (Way::Exact(_), pages::Form::Floats(pages)) => exact::rope_append(steps, layer, qkv.values_mut(), pages),
            (Way::Fast(fast), pages::Form::Packed(pages)) => {
                fast.rope_append(self.cpu.pool(), steps, layer, (qkv, pages));
            }
            _ => panic!("pages of another device"),
        }
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
        let pool = self.cpu.pool();
        match (&mut self.way, &pages.0) {
            (Way::Exact(_), pages::Form::Floats(pages)) => {
                exact::attend(pool, steps, layer, (qkv.values(), pages), out.values_mut());
            }
            (Way::Fast(fast), pages::Form::Packed(pages)) => fast.attend(pool, steps, layer, (qkv, pages), out),
            _ => panic!("pages of another device"),
        }
    }

    fn logits(&mut self, steps: &StepBatch<'_>, hidden: &RowActs, norm: &RmsNorm, head: &RowLinear, cap: Option<f32>) {
        self.answer_columns = head.outputs();
        let pool = self.cpu.pool();
        match &mut self.way {
            Way::Exact(exact) => exact.logits(pool, steps, hidden, norm, (head.stored(), cap)),
            Way::Fast(fast) => fast.logits(pool, steps, hidden, norm, (head.panels(), cap)),
        }
    }

    fn appends_first(&self) -> bool {
        true
    }

    fn answer(&mut self) -> Result<&[f32], Infallible> {
        match &self.way {
            Way::Exact(exact) => Ok(&exact.answer),
            Way::Fast(fast) => Ok(&fast.answer),
        }
    }

    /// Tokens are chosen when they are asked for.
    fn choose_later(&mut self, _: bool) -> bool {
        true
    }

    fn choose_under(&mut self, masks: &[Mask<'_>]) {
        let columns = self.answer_columns.max(1);
        let answer = match &mut self.way {
            Way::Exact(exact) => &mut exact.answer,
            Way::Fast(fast) => &mut fast.answer,
        };
        for (logits, mask) in answer.chunks_exact_mut(columns).zip(masks) {
            mask.iter().for_each(|mask| rule_out(logits, mask));
        }
    }

    fn chosen(&mut self) -> Result<Vec<u32>, Infallible> {
        let columns = self.answer_columns.max(1);
        Ok(self.answer()?.chunks_exact(columns).map(most_likely).collect())
    }
}

impl SharedOps for CpuDecoderOps {
    fn linear_sums(&mut self, x: &RowActs, weights: &RowLinear, out: &mut RowActs) {
        out.values_mut().fill(0.0);
        self.linear_add(x, weights, None, out);
    }

    fn add_sums(&mut self, sums: &RowActs, norm: Option<&RmsNorm>, hidden: &mut RowActs) {
        assert_eq!((sums.rows, sums.columns), (hidden.rows, hidden.columns), "sums of the residual stream");
        add_rows(sums.values(), norm, hidden);
    }

    /// Operations are done when they return.
    fn send_rows(&mut self, steps: &StepBatch<'_>, rows: &RowActs) {
        assert_eq!(rows.rows, steps.tokens(), "a row for each token");
    }

    fn take_rows<'a>(&'a mut self, rows: &'a RowActs) -> Result<&'a [f32], Infallible> {
        Ok(rows.values())
    }

    /// Ranks of one process read each other's memory.
    fn join(_: &mut [Self]) -> Result<(), String> {
        Ok(())
    }

    fn sum_parts(_: &mut [Self], sum: PartSums<'_, Self>) -> bool {
        let PartSums { parts, has_part, norms, hidden } = sum;
        let mut total = vec![0.0; parts.first().map_or(0, |part| part.values().len())];
        for (part, _) in parts.iter().zip(has_part).filter(|(_, has_part)| **has_part) {
            assert_eq!(part.values().len(), total.len(), "parts of equal rows");
            total.iter_mut().zip(part.values()).for_each(|(total, part)| *total += part);
        }
        for (rank, hidden) in hidden.iter_mut().enumerate() {
            if let Some(hidden) = hidden {
                add_rows(&total, norms.map(|norms| &norms[rank]), hidden);
            }
        }
        true
    }
}

/// `hidden += sums`, normalised before they are added where there is a norm.
fn add_rows(sums: &[f32], norm: Option<&RmsNorm>, hidden: &mut RowActs) {
    let columns = hidden.columns;
    let mut normed = vec![0.0; columns];
    for (hidden, sums) in hidden.values_mut().chunks_exact_mut(columns).zip(sums.chunks_exact(columns)) {
        normed.copy_from_slice(sums);
        if let Some(norm) = norm {
            norm.apply(&mut normed);
        }
        hidden.iter_mut().zip(&normed).for_each(|(hidden, sum)| *hidden += sum);
    }
}
