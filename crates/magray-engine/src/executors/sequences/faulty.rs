//! The CPU as a device that fails when it is told to, as a GPU does: the operations go on, and their end says what went wrong.

use magray_core::Activation;
use magray_device::cpu::{Cpu, CpuDecoderOps};
use magray_device::{AttentionLayer, BlockLinear, DecoderDevice, DecoderOps, KvShape, RopeSource, StepBatch};
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
        self.ops.embed(steps, table, scale, out);
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
    }

    fn answer(&mut self) -> Result<&[f32], Told> {
        self.check()?;
        fine(self.ops.answer())
    }

    fn chosen(&mut self) -> Result<Vec<u32>, Told> {
        self.check()?;
        fine(self.ops.chosen())
    }
}
