//! The CPU as a device that is like a GPU where it is told to be: the operations go on, and their end says what went wrong; tokens are drawn
//! and fed back. Not for values: it computes as the CPU does.

use magray_core::Activation;
use magray_device::cpu::{Cpu, CpuDecoderOps};
use magray_device::{
    AttentionLayer, BlockLinear, CHOSEN, Choice, DecoderDevice, DecoderOps, KvShape, Mask, RopeSource, SharedOps,
};
use magray_device::{StepBatch, most_likely};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, thiserror::Error)]
#[error("told to fail")]
pub(super) struct Told;

/// The device.
pub(super) struct Faulty(pub(super) Arc<Cpu>);

/// Its operations; what ends next fails where `fails` is set.
pub(super) struct FaultyOps {
    pub(super) ops: CpuDecoderOps,
    pub(super) fails: Arc<AtomicBool>,
    /// What it keeps of steps where it feeds their tokens back.
    pub(super) fed: Option<Fed>,
}

/// Tokens of steps.
#[derive(Default)]
pub(super) struct Fed {
    /// Those of the last step.
    last: Vec<u32>,
    /// Those of steps that were not asked for, the oldest first.
    waiting: VecDeque<Vec<u32>>,
    choices: Vec<Choice>,
    is_later: bool,
    columns: usize,
    /// Steps so far, and those that were begun while another's tokens were not asked for.
    pub(super) steps: usize,
    pub(super) overlapped: usize,
}

type Linear = <CpuDecoderOps as DecoderOps>::Linear;
type Norm = <CpuDecoderOps as DecoderOps>::Norm;
type Pages = <CpuDecoderOps as DecoderOps>::Pages;
type Acts = <CpuDecoderOps as DecoderOps>::Acts;
type Layer<'a> = AttentionLayer<'a, Norm, RopeSource>;

fn fine<T>(result: Result<T, Infallible>) -> Result<T, Told> {
    result.map_err(|never| match never {})
}

impl FaultyOps {
    fn check(&self) -> Result<(), Told> {
        if self.fails.swap(false, Ordering::Relaxed) { Err(Told) } else { Ok(()) }
    }

    /// Chooses the tokens of the last step: the likeliest, or a drawn one.
    fn choose(&mut self) {
        let Some(fed) = &mut self.fed else { return };
        let Ok(logits) = self.ops.answer();
        let rows = logits.chunks_exact(fed.columns).enumerate();
        fed.last = rows.map(|(row, logits)| draw(logits, fed.choices.get(row))).collect();
        fed.choices.clear();
        fed.waiting.push_back(fed.last.clone());
    }
}

/// Cut-offs are left out: how a device draws is not what is tested with this one.
fn draw(logits: &[f32], choice: Option<&Choice>) -> u32 {
    let best = most_likely(logits);
    let Some(choice) = choice.filter(|choice| choice.temperature > 0.0 && best != u32::MAX) else { return best };
    let weight = |logit: &f32| f64::from((logit - logits[best as usize]) / choice.temperature).exp();
    let mut left = choice.draw as f64 / 2_f64.powi(64) * logits.iter().map(weight).sum::<f64>();
    let drawn = logits.iter().position(|logit| {
        left -= weight(logit);
        left < 0.0
    });
    drawn.map_or(best, |id| id as u32)
}

impl DecoderDevice for Faulty {
    type Error = Told;
    type Ops = FaultyOps;

    fn block_linear(&self, source: BlockLinear) -> Result<Linear, Told> {
        fine(self.0.block_linear(source))
    }

    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<Norm, Told> {
        fine(self.0.rms_norm(gain, epsilon))
    }

    fn rope(&self, source: RopeSource) -> Result<RopeSource, Told> {
        fine(self.0.rope(source))
    }

    fn pages(&self, shape: KvShape, most: usize) -> Result<Pages, Told> {
        fine(self.0.pages(shape, most))
    }

    fn decoder_acts(&self, columns: usize) -> Acts {
        self.0.decoder_acts(columns)
    }
}

impl DecoderOps for FaultyOps {
    type Error = Told;
    type Acts = Acts;
    type Linear = Linear;
    type Norm = Norm;
    type Rope = RopeSource;
    type Pages = Pages;

    fn resize(&mut self, acts: &mut Acts, rows: usize) {
        self.ops.resize(acts, rows);
    }

    fn embed(&mut self, steps: &StepBatch<'_>, table: &Linear, scale: f32, out: &mut Acts) {
        let last = self.fed.as_ref().map(|fed| fed.last.as_slice()).unwrap_or_default();
        let fed = |id: &u32| if id & CHOSEN == 0 { *id } else { last[(id & !CHOSEN) as usize] };
        // As on a GPU: what no token was chosen for is no row of the table.
        let ids: Vec<u32> = steps.ids.iter().map(fed).map(|id| if id == u32::MAX { 0 } else { id }).collect();
        self.ops.embed(&StepBatch { ids: &ids, ..*steps }, table, scale, out);
    }

    fn read_hidden<'a>(&'a mut self, steps: &StepBatch<'_>, hidden: &'a Acts) -> Result<&'a [f32], Told> {
        self.check()?;
        fine(self.ops.read_hidden(steps, hidden))
    }

    fn write_hidden(&mut self, steps: &StepBatch<'_>, rows: &[f32], hidden: &mut Acts) {
        self.ops.write_hidden(steps, rows, hidden);
    }

    fn norm_linear(&mut self, x: &Acts, norm: &Norm, weights: &Linear, out: &mut Acts) {
        self.ops.norm_linear(x, norm, weights, out);
    }

    fn gated_linear(&mut self, x: &Acts, norm: &Norm, weights: &Linear, activation: Activation, out: &mut Acts) {
        self.ops.gated_linear(x, norm, weights, activation, out);
    }

    fn linear_add(&mut self, x: &Acts, weights: &Linear, norm: Option<&Norm>, hidden: &mut Acts) {
        self.ops.linear_add(x, weights, norm, hidden);
    }

    fn rope_append(&mut self, steps: &StepBatch<'_>, layer: &Layer<'_>, qkv: &mut Acts, pages: &mut Pages) {
        self.ops.rope_append(steps, layer, qkv, pages);
    }

    fn attend(&mut self, steps: &StepBatch<'_>, layer: &Layer<'_>, qkv: &Acts, pages: &Pages, out: &mut Acts) {
        self.ops.attend(steps, layer, qkv, pages, out);
    }

    fn logits(&mut self, steps: &StepBatch<'_>, hidden: &Acts, norm: &Norm, head: &Linear, cap: Option<f32>) {
        self.ops.logits(steps, hidden, norm, head, cap);
        let Ok(answer) = self.ops.answer();
        if let Some(fed) = &mut self.fed {
            fed.columns = (answer.len() / steps.logit_rows.len().max(1)).max(1);
            fed.steps += 1;
            fed.overlapped += usize::from(!fed.waiting.is_empty());
            assert!(fed.waiting.len() <= 2, "two steps may be ahead of the one that is asked for");
            if !fed.is_later {
                self.choose();
            }
        }
    }

    fn choose_later(&mut self, later: bool) -> bool {
        self.fed.iter_mut().for_each(|fed| fed.is_later = later);
        true
    }

    fn choose_under(&mut self, masks: &[Mask<'_>]) {
        self.ops.choose_under(masks);
        if self.fed.as_mut().is_some_and(|fed| std::mem::take(&mut fed.is_later)) {
            self.choose();
        }
    }

    fn draw_by(&mut self, choices: &[Choice]) -> bool {
        self.fed.as_mut().map(|fed| fed.choices = choices.to_vec()).is_some()
    }

    fn feeds_back(&self) -> bool {
        self.fed.is_some()
    }

    fn answer(&mut self) -> Result<&[f32], Told> {
        self.fed.iter_mut().for_each(|fed| fed.waiting.clear());
        self.check()?;
        fine(self.ops.answer())
    }

    fn chosen(&mut self) -> Result<Vec<u32>, Told> {
        self.check()?;
        match &mut self.fed {
            Some(fed) => Ok(fed.waiting.pop_front().unwrap_or_default()),
            None => fine(self.ops.chosen()),
        }
    }
}

impl SharedOps for FaultyOps {
    fn linear_sums(&mut self, x: &Acts, weights: &Linear, out: &mut Acts) {
        self.ops.linear_sums(x, weights, out);
    }

    fn add_sums(&mut self, sums: &Acts, norm: Option<&Norm>, hidden: &mut Acts) {
        self.ops.add_sums(sums, norm, hidden);
    }

    fn send_rows(&mut self, steps: &StepBatch<'_>, rows: &Acts) {
        self.ops.send_rows(steps, rows);
    }

    fn take_rows<'a>(&'a mut self, rows: &'a Acts) -> Result<&'a [f32], Told> {
        self.check()?;
        fine(self.ops.take_rows(rows))
    }
}
