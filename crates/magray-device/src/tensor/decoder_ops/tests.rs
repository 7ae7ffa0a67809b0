//! Sums of ranks on devices that are right, wrong, or fail in the middle: the answer has the same bits always.

use super::TensorOps;
use crate::cpu::{Cpu, CpuDecoderOps, KvPages, RmsNorm, RowActs, RowLinear};
use crate::{
    ActsRole, AttentionLayer, BlockLinear, BlockMatrix, DecoderDevice, DecoderOps, KvShape, PartSums, Place, Role,
    RopeSource, SharedOps, StepBatch, SumsPlace, Tensor,
};
use magray_core::{Activation, BlockFormat, CpuPath};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const HIDDEN: usize = 64;
const FFN: usize = 96;
const LAYERS: usize = 5;
/// How many sums were asked for while the devices are tried.
const TRYING: usize = 1 << 40;

/// How ranks add up their parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Right,
    /// The first rank's part is left out.
    Wrong,
    /// They say that they cannot.
    Never,
    /// A sum in three is given up, once they were tried.
    Sometimes,
}

struct Odd {
    cpu: Arc<Cpu>,
    way: Way,
    /// Sums that were asked for.
    sums: Arc<AtomicUsize>,
}

struct OddOps {
    ops: CpuDecoderOps,
    way: Way,
    sums: Arc<AtomicUsize>,
}

impl Odd {
    fn ops(&self) -> OddOps {
        OddOps { ops: self.cpu.decoder(), way: self.way, sums: Arc::clone(&self.sums) }
    }
}

impl DecoderDevice for Odd {
    type Error = Infallible;
    type Ops = OddOps;

    fn block_linear(&self, source: BlockLinear) -> Result<RowLinear, Infallible> {
        self.cpu.block_linear(source)
    }

    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<RmsNorm, Infallible> {
        self.cpu.rms_norm(gain, epsilon)
    }

    fn rope(&self, source: RopeSource) -> Result<RopeSource, Infallible> {
        self.cpu.rope(source)
    }

    fn pages(&self, shape: KvShape, most: usize) -> Result<KvPages, Infallible> {
        self.cpu.pages(shape, most)
    }

    fn decoder_acts(&self, columns: usize) -> RowActs {
        self.cpu.decoder_acts(columns)
    }
}

impl DecoderOps for OddOps {
    type Error = Infallible;
    type Acts = RowActs;
    type Linear = RowLinear;
    type Norm = RmsNorm;
    type Rope = RopeSource;
    type Pages = KvPages;

    fn resize(&mut self, acts: &mut RowActs, rows: usize) {
        self.ops.resize(acts, rows);
    }

    fn embed(&mut self, steps: &StepBatch<'_>, table: &RowLinear, scale: f32, out: &mut RowActs) {
        self.ops.embed(steps, table, scale, out);
    }

    fn read_hidden<'a>(&'a mut self, steps: &StepBatch<'_>, hidden: &'a RowActs) -> Result<&'a [f32], Infallible> {
        self.ops.read_hidden(steps, hidden)
    }

    fn write_hidden(&mut self, steps: &StepBatch<'_>, rows: &[f32], hidden: &mut RowActs) {
        self.ops.write_hidden(steps, rows, hidden);
    }

    fn norm_linear(&mut self, x: &RowActs, norm: &RmsNorm, weights: &RowLinear, out: &mut RowActs) {
        self.ops.norm_linear(x, norm, weights, out);
    }

    fn gated_linear(
        &mut self,
        x: &RowActs,
        norm: &RmsNorm,
        weights: &RowLinear,
        activation: Activation,
        out: &mut RowActs,
    ) {
        self.ops.gated_linear(x, norm, weights, activation, out);
    }

    fn linear_add(&mut self, x: &RowActs, weights: &RowLinear, norm: Option<&RmsNorm>, hidden: &mut RowActs) {
        self.ops.linear_add(x, weights, norm, hidden);
    }

    fn rope_append(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, RmsNorm, RopeSource>,
        qkv: &mut RowActs,
        pages: &mut KvPages,
    ) {
        self.ops.rope_append(steps, layer, qkv, pages);
    }

    fn attend(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, RmsNorm, RopeSource>,
        qkv: &RowActs,
        pages: &KvPages,
        out: &mut RowActs,
    ) {
        self.ops.attend(steps, layer, qkv, pages, out);
    }

    fn logits(&mut self, steps: &StepBatch<'_>, hidden: &RowActs, norm: &RmsNorm, head: &RowLinear, cap: Option<f32>) {
        self.ops.logits(steps, hidden, norm, head, cap);
    }

    fn answer(&mut self) -> Result<&[f32], Infallible> {
        self.ops.answer()
    }

    fn chosen(&mut self) -> Result<Vec<u32>, Infallible> {
        self.ops.chosen()
    }
}

impl SharedOps for OddOps {
    fn linear_sums(&mut self, x: &RowActs, weights: &RowLinear, out: &mut RowActs) {
        self.ops.linear_sums(x, weights, out);
    }

    fn add_sums(&mut self, sums: &RowActs, norm: Option<&RmsNorm>, hidden: &mut RowActs) {
        self.ops.add_sums(sums, norm, hidden);
    }

    fn send_rows(&mut self, steps: &StepBatch<'_>, rows: &RowActs) {
        self.ops.send_rows(steps, rows);
    }

    fn take_rows<'a>(&'a mut self, rows: &'a RowActs) -> Result<&'a [f32], Infallible> {
        self.ops.take_rows(rows)
    }

    fn join(ranks: &mut [Self]) -> Result<(), String> {
        if ranks[0].way == Way::Never { Err("they never do".to_owned()) } else { Ok(()) }
    }

    fn sum_parts(ranks: &mut [Self], sum: PartSums<'_, Self>) -> bool {
        let (way, at) = (ranks[0].way, ranks[0].sums.fetch_add(1, Ordering::Relaxed));
        let PartSums { parts, has_part, norms, hidden } = sum;
        let mut has_part = has_part.to_vec();
        has_part[0] &= way != Way::Wrong;
        let is_done = way != Way::Sometimes || at >= TRYING || at % 3 != 1;
        is_done && CpuDecoderOps::sum_parts(&mut [], PartSums { parts, has_part: &has_part, norms, hidden })
    }
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let number = |at: usize| {
        let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed.wrapping_mul(0xd1b5_4a32));
        ((mixed ^ mixed >> 29) >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(number).collect()
}

fn matrix(rows: usize, columns: usize, seed: u64) -> BlockLinear {
    let bytes = numbers(rows * columns, seed).into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>();
    BlockLinear { parts: vec![BlockMatrix::new(bytes, BlockFormat::F32, columns)], bias: numbers(rows, seed + 1) }
}

/// The residual stream behind some layers, where sums were added in the end, and how many sums the devices were asked for.
fn stream(way: Way, ranks: usize, on_host: bool) -> (Vec<u32>, Option<SumsPlace>, usize) {
    let cpu = Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).unwrap());
    let sums = Arc::new(AtomicUsize::new(TRYING));
    let odd = || Arc::new(Odd { cpu: Arc::clone(&cpu), way, sums: Arc::clone(&sums) });
    let group = Tensor::new((0..ranks).map(|_| odd()).collect());
    let mut ops: TensorOps<OddOps> = group.ops(group.ranks().iter().map(|odd| odd.ops()).collect());
    if on_host {
        ops.sum_on_host("the test says so");
    }
    sums.store(0, Ordering::Relaxed);
    let norm = |seed| group.norm_at(Place::Layer(0), numbers(HIDDEN, seed), 1e-5).unwrap();
    let linear = |role, rows, columns, seed| group.linear_at(Place::Layer(0), role, matrix(rows, columns, seed));
    let (before, after) = (norm(3), norm(4));
    let [mut hidden, mut gated] =
        [(ActsRole::Hidden, HIDDEN), (ActsRole::Gated, FFN)].map(|(role, columns)| group.acts_for(role, columns));
    let rows = 3;
    let steps = StepBatch {
        ids: &[1, 2, 3],
        offsets: &[0, rows],
        starts: &[0],
        pages: &[0],
        page_offsets: &[0, 1],
        logit_rows: &[],
    };
    ops.resize(&mut hidden, rows);
    ops.resize(&mut gated, rows);
    ops.write_hidden(&steps, &numbers(rows * HIDDEN, 5), &mut hidden);
    for layer in 0..LAYERS {
        let gates = linear(Role::Gates, 2 * FFN, HIDDEN, 10 + layer as u64).unwrap();
        let down = linear(Role::Gated, HIDDEN, FFN, 20 + layer as u64).unwrap();
        ops.gated_linear(&hidden, &before, &gates, Activation::Silu, &mut gated);
        ops.linear_add(&gated, &down, (layer % 2 == 1).then_some(&after), &mut hidden);
    }
    let rows = ops.read_hidden(&steps, &hidden).unwrap().iter().map(|x| x.to_bits()).collect();
    (rows, ops.sums().cloned(), sums.load(Ordering::Relaxed))
}

#[test]
fn sums_on_devices_have_the_bits_of_those_on_the_host() {
    for ranks in [2, 3, 4] {
        let (wanted, place, asked) = stream(Way::Right, ranks, true);
        assert_eq!((place, asked), (Some(SumsPlace::Host("the test says so".to_owned())), 0));
        for way in [Way::Right, Way::Sometimes] {
            let (rows, place, asked) = stream(way, ranks, false);
            assert_eq!((rows, place), (wanted.clone(), Some(SumsPlace::Devices)), "{way:?}, {ranks} ranks");
            assert_eq!(asked, LAYERS, "a sum a layer");
        }
    }
}

#[test]
fn devices_that_add_otherwise_than_the_host_are_not_used() {
    let (wanted, ..) = stream(Way::Right, 2, true);
    for (way, reason) in [(Way::Wrong, "rank 0 added up"), (Way::Never, "they never do")] {
        let (rows, place, asked) = stream(way, 2, false);
        let Some(SumsPlace::Host(why)) = place else { panic!("{way:?}: sums are on the host") };
        assert!(why.starts_with(reason), "{why}");
        assert_eq!((rows, asked), (wanted.clone(), 0), "{way:?}");
    }
}

#[test]
fn a_rank_alone_adds_nothing_up() {
    assert_eq!(stream(Way::Wrong, 1, false).1, None);
}
