//! Parts of sums that ranks of a group add up on their devices, against plain code: the same bits on every rank, wherever the parts came
//! from. On a GPU also how long that takes; nothing is expected of the time.

use crate::cuda::each_set;
use crate::decoder_model::{Kind, Model, PLAIN, Sequences, numbers};
use magray_core::CpuPath;
use magray_device::cpu::Cpu;
use magray_device::cuda::Cuda;
use magray_device::{DecoderDevice, DecoderOps, PAGE_TOKENS, PartSums, SharedOps, StepBatch, SumsPlace, Tensor};
use std::sync::Arc;
use std::time::Instant;

/// Sums that follow each other without a wait.
const SUMS: usize = 5;
const EPSILON: f32 = 1e-5;

/// What is added up.
#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    columns: usize,
    has_part: Vec<bool>,
    has_norm: bool,
}

impl Case {
    fn numbers(&self, seed: usize) -> Vec<f32> {
        let mut numbers = numbers(self.rows * self.columns, seed as u64);
        // Of many sizes, so that their order shows in a sum.
        numbers.iter_mut().enumerate().for_each(|(at, x)| *x *= [1.0, 3e-5, 700.0, 0.02][(at + seed) % 4]);
        numbers
    }

    fn hidden(&self) -> Vec<f32> {
        self.numbers(0)
    }

    fn part(&self, sum: usize, rank: usize) -> Vec<f32> {
        self.numbers(1 + sum * self.has_part.len() + rank)
    }

    fn gain(&self) -> Vec<f32> {
        numbers(self.columns, 77)
    }

    /// The residual stream behind all sums, by plain code.
    fn expected(&self) -> Vec<f32> {
        let mut hidden = self.hidden();
        for sum in 0..SUMS {
            let mut total = vec![0.0f32; hidden.len()];
            for rank in (0..self.has_part.len()).filter(|rank| self.has_part[*rank]) {
                total.iter_mut().zip(self.part(sum, rank)).for_each(|(total, part)| *total += part);
            }
            for (hidden, total) in hidden.chunks_mut(self.columns).zip(total.chunks_mut(self.columns)) {
                if self.has_norm {
                    let square: f64 = total.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / self.columns as f64;
                    let scale = 1.0 / (square + f64::from(EPSILON)).sqrt();
                    let gain = self.gain();
                    total.iter_mut().zip(gain).for_each(|(x, gain)| *x = (f64::from(*x) * scale) as f32 * gain);
                }
                hidden.iter_mut().zip(total).for_each(|(hidden, total)| *hidden += *total);
            }
        }
        hidden
    }

    /// The same by the ranks of a device.
    fn summed<D: DecoderDevice<Ops: SharedOps>>(&self, device: &D, mut ranks: Vec<D::Ops>) -> Vec<Vec<f32>> {
        D::Ops::join(&mut ranks).expect("ranks on one device read each other's memory");
        let pages: Vec<u32> = (0..self.rows.div_ceil(PAGE_TOKENS) as u32).collect();
        let steps = StepBatch {
            ids: &vec![0; self.rows],
            offsets: &[0, self.rows],
            starts: &[0],
            pages: &pages,
            page_offsets: &[0, pages.len()],
            logit_rows: &[],
        };
        let acts = || ranks.iter().map(|_| device.decoder_acts(self.columns)).collect::<Vec<_>>();
        let mut parts = [acts(), acts()];
        let mut hidden: Vec<_> = acts().into_iter().map(Some).collect();
        let norms: Vec<_> =
            ranks.iter().map(|_| device.rms_norm(self.gain(), EPSILON).expect("there is memory")).collect();
        for (rank, ops) in ranks.iter_mut().enumerate() {
            let Some(hidden) = &mut hidden[rank] else { continue };
            ops.resize(hidden, self.rows);
            ops.write_hidden(&steps, &self.hidden(), hidden);
            parts.iter_mut().for_each(|parts| ops.resize_parts(&mut parts[rank], self.rows));
        }
        for sum in 0..SUMS {
            let parts = &mut parts[sum % 2];
            for (rank, ops) in ranks.iter_mut().enumerate() {
                ops.write_hidden(&steps, &self.part(sum, rank), &mut parts[rank]);
            }
            let norms = self.has_norm.then_some(&norms[..]);
            let sums = PartSums { parts, has_part: &self.has_part, norms, hidden: &mut hidden };
            assert!(D::Ops::sum_parts(&mut ranks, sums) && D::Ops::catch_up(&mut ranks), "{self:?}");
            for (ops, hidden) in ranks.iter_mut().zip(hidden.iter().flatten()) {
                ops.send_rows(&steps, hidden);
            }
        }
        let all = ranks.iter_mut().zip(hidden.iter().flatten());
        all.map(|(ops, hidden)| ops.take_rows(hidden).expect("rows that were sent").to_vec()).collect()
    }

    fn check<D: DecoderDevice<Ops: SharedOps>>(&self, device: &D, ranks: Vec<D::Ops>, name: &str) {
        let (found, expected) = (self.summed(device, ranks), self.expected());
        let bits = |rows: &[f32]| rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for own in &found {
            assert_eq!(bits(own), bits(&found[0]), "{name}: ranks differ: {self:?}");
        }
        if !self.has_norm {
            return assert_eq!(bits(&found[0]), bits(&expected), "{name}: {self:?}");
        }
        let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let off = found[0].iter().zip(&expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(off < 1e-5 * largest, "{name}: off by {off} of {largest}: {self:?}");
    }
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (ranks, rows, columns) in [(2, 1, 2048), (4, 1, 2048), (3, 70, 90), (4, 300, 576), (8, 5, 33), (2, 1, 1)] {
        for has_norm in [false, true] {
            all.push(Case { rows, columns, has_part: vec![true; ranks], has_norm });
            let has_part = (0..ranks).map(|rank| rank + 1 < ranks).collect();
            all.push(Case { rows, columns, has_part, has_norm });
        }
    }
    all
}

#[test]
fn parts_of_ranks_are_added_in_their_order_on_cpu() {
    for path in [CpuPath::Portable, *magray_device::cpu::available_paths().last().expect("a path")] {
        let cpu = Arc::new(Cpu::new(Some(path), Some(1)).expect("the CPU opens"));
        for case in cases() {
            case.check(&*cpu, case.has_part.iter().map(|_| cpu.decoder()).collect(), &format!("{path}"));
        }
    }
}

fn ranks(cuda: &Arc<Cuda>, count: usize) -> Vec<<Cuda as DecoderDevice>::Ops> {
    (0..count).map(|_| cuda.decoder().expect("the GPU gives a stream")).collect()
}

#[test]
fn parts_of_ranks_are_added_in_their_order_on_cuda() {
    each_set(|cuda, name| {
        for case in cases() {
            case.check(&**cuda, ranks(cuda, case.has_part.len()), name);
        }
    });
}

#[test]
fn ranks_that_are_too_many_are_refused_on_cuda() {
    each_set(|cuda, name| {
        let refused = SharedOps::join(&mut ranks(cuda, 9));
        assert_eq!(refused, Err("there are more than 8 ranks".to_owned()), "{name}");
    });
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Microseconds of a sum of one row of 8 KB: those of many that follow each other, by their number.
fn sum_us(cuda: &Arc<Cuda>, count: usize) -> f64 {
    const ROUNDS: usize = 100;
    const IN_A_ROW: usize = 64;
    let columns = 2048;
    let mut ranks = ranks(cuda, count);
    SharedOps::join(&mut ranks).expect("ranks on one GPU read each other's memory");
    let steps =
        StepBatch { ids: &[0], offsets: &[0, 1], starts: &[0], pages: &[0], page_offsets: &[0, 1], logit_rows: &[] };
    let acts = || (0..count).map(|_| cuda.decoder_acts(columns)).collect::<Vec<_>>();
    let (mut parts, mut hidden) = ([acts(), acts()], acts().into_iter().map(Some).collect::<Vec<_>>());
    for (rank, ops) in ranks.iter_mut().enumerate() {
        parts.iter_mut().for_each(|parts| ops.resize_parts(&mut parts[rank], 1));
        hidden[rank].iter_mut().for_each(|hidden| ops.resize(hidden, 1));
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        for (ops, hidden) in ranks.iter_mut().zip(hidden.iter_mut().flatten()) {
            ops.write_hidden(&steps, &vec![0.0; columns], hidden);
        }
        let start = Instant::now();
        for sum in 0..IN_A_ROW {
            let parts = &parts[sum % 2];
            let sums = PartSums { parts, has_part: &vec![true; count], norms: None, hidden: &mut hidden };
            assert!(SharedOps::sum_parts(&mut ranks, sums));
        }
        assert!(SharedOps::catch_up(&mut ranks));
        for (ops, hidden) in ranks.iter_mut().zip(hidden.iter().flatten()) {
            ops.send_rows(&steps, hidden);
        }
        for (ops, hidden) in ranks.iter_mut().zip(hidden.iter().flatten()) {
            assert!(ops.take_rows(hidden).expect("rows that were sent").iter().all(|x| *x == 0.0));
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / IN_A_ROW as f64);
    }
    assert!(ranks[0].recorded() > 0, "steps of single tokens are recorded over the streams of all ranks");
    median(times)
}

const LAYERS: usize = 4;
/// Rows of 8 KB.
const WIDE: Kind = Kind {
    hidden: 2048,
    ffn: 4096,
    heads: 16,
    kv_heads: 4,
    head_size: 128,
    rotated: 128,
    layers: LAYERS,
    vocab: 2048,
    ..PLAIN
};

/// Microseconds of a token of one sequence, by layer; all there is beside layers is counted in.
fn layer_us<D: DecoderDevice>(device: &D, mut ops: D::Ops) -> f64 {
    const WARM: usize = 10;
    const TIMED: usize = 60;
    let mut model = Model::new(device, WIDE, 4, 1);
    let mut sequences = Sequences::new(1, 4);
    let mut times = Vec::new();
    for round in 0..WARM + TIMED {
        let batch = sequences.advance(&[1], WIDE.vocab, round as u64);
        let start = Instant::now();
        model.forward(&mut ops, &batch.steps());
        assert_eq!(ops.chosen().expect("a step that was done").len(), 1);
        times.push(start.elapsed().as_secs_f64() * 1e6 / LAYERS as f64);
    }
    median(times.split_off(WARM))
}

#[test]
fn sums_and_layers_of_ranks_are_timed_on_cuda() {
    each_set(|cuda, name| {
        for count in [2, 4] {
            println!("{name}: a sum of 8 KB among {count} ranks takes {:.1} us", sum_us(cuda, count));
        }
        println!("{name}: a layer takes one rank {:.1} us", layer_us(&**cuda, ranks(cuda, 1).remove(0)));
        for count in [2, 4] {
            let group = Tensor::new(vec![Arc::clone(cuda); count]);
            let on_devices = group.ops(ranks(cuda, count));
            assert_eq!(on_devices.sums(), Some(&SumsPlace::Devices), "{name}");
            let mut on_host = group.ops(ranks(cuda, count));
            on_host.sum_on_host("this is compared");
            let (device, host) = (layer_us(&group, on_devices), layer_us(&group, on_host));
            println!("{name}: a layer takes {count} ranks {device:.1} us, {host:.1} us with sums on the host");
        }
    });
}
