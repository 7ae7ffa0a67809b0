//! Encoders of every architecture on groups: ranks that share each layer, stages one after the other, and stages of ranks. Their rows are
//! those of one device within rounding.

use super::{Model, Synthetic, TensorSource};
use crate::spec::ModelSpec;
use crate::weights::Weights;
use magray_core::{CpuPath, EncoderShape, Precision};
use magray_device::cpu::{Cpu, CpuOps};
use magray_device::{Device, Ops, Split, Tensor, TokenBatch};
use std::path::Path;
use std::sync::Arc;

const MODELS: [&str; 5] = ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet"];

fn cpu(path: CpuPath) -> Arc<Cpu> {
    Arc::new(Cpu::new(Some(path), Some(2)).unwrap())
}

fn group(path: CpuPath, ranks: usize) -> (Arc<Tensor<Arc<Cpu>>>, Vec<CpuOps>) {
    let cpus: Vec<_> = (0..ranks).map(|_| cpu(path)).collect();
    let ops = cpus.iter().map(|cpu| cpu.team()).collect();
    (Arc::new(Tensor::new(cpus)), ops)
}

struct Case<'a> {
    name: &'a str,
    spec: ModelSpec,
    source: Box<dyn TensorSource>,
    precision: Precision,
}

impl Case<'_> {
    /// The rows of texts of many lengths, of all batches end to end.
    fn rows<D: Device>(&self, device: &D, mut ops: D::Ops) -> Vec<f32> {
        let packed = Model::<D>::pack(device, &self.spec, &*self.source, self.precision);
        let model = packed.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let mut work = model.workspace(device);
        let mut rows = Vec::new();
        let longest = self.spec.max_tokens.min(40);
        for lengths in [vec![longest, 1, 7, 3], vec![5], vec![12, longest, 2]] {
            let offsets: Vec<usize> = std::iter::once(0)
                .chain(lengths.iter().scan(0, |end, length| {
                    *end += length;
                    Some(*end)
                }))
                .collect();
            let tokens = *offsets.last().unwrap();
            let ids: Vec<u32> = (0..tokens).map(|at| (at * 29 + 5) as u32 % self.spec.shape.vocab as u32).collect();
            model.forward(&mut ops, &mut work, &TokenBatch { ids: &ids, types: &[], offsets: &offsets }, 0);
            rows.extend_from_slice(ops.answer().unwrap());
        }
        assert!(rows.iter().all(|x| x.is_finite()) && rows.iter().any(|x| *x != 0.0));
        rows
    }

    /// Groups against one device on a path.
    fn check(&self, path: CpuPath, tolerance: f32) {
        let one = cpu(path);
        let wanted = self.rows(&*one, one.team());
        let agree = |group: &str, found: Vec<f32>| {
            assert_eq!(found.len(), wanted.len());
            let length = wanted.iter().map(|x| x * x).sum::<f32>().sqrt();
            let off = found.iter().zip(&wanted).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt() / length;
            assert!(off < tolerance, "{} in {} on {group}, {path}: off by {off}", self.name, self.precision);
        };
        for ranks in [1, 2, 4] {
            let (group, ops) = group(path, ranks);
            agree(&format!("{ranks} ranks"), self.rows(&*group, group.encoder_ops(ops)));
        }
        let stages = Split::new(cpu(path), cpu(path), 1);
        agree("2 stages", self.rows(&stages, stages.encoder_ops(cpu(path).team(), cpu(path).team())));
        if self.spec.shape.layers > 2 {
            let rest = Arc::new(Split::new(cpu(path), cpu(path), 1));
            let stages = Split::new(cpu(path), Arc::clone(&rest), 1);
            let ops = stages.encoder_ops(cpu(path).team(), rest.encoder_ops(cpu(path).team(), cpu(path).team()));
            agree("3 stages", self.rows(&stages, ops));
        }
        let ((first, first_ops), (last, last_ops)) = (group(path, 2), group(path, 4));
        let stages = Split::new(Arc::clone(&first), Arc::clone(&last), 1);
        let ops = stages.encoder_ops(first.encoder_ops(first_ops), last.encoder_ops(last_ops));
        agree("a stage of 2 ranks and one of 4", self.rows(&stages, ops));
    }
}

fn every_model(precision: Precision, path: CpuPath, tolerance: f32) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let names = MODELS.iter().flat_map(|name| [(*name).to_owned(), format!("{name}-classify")]);
    for name in names {
        let spec = ModelSpec::read(&folder.join(&name)).unwrap();
        let source = Box::new(Weights::open(&spec.encoder_folder).unwrap());
        Case { name: &name, spec, source, precision }.check(path, tolerance);
    }
    // The fixtures have two layers: three stages need a third.
    let spec =
        ModelSpec::synthetic(EncoderShape { vocab: 300, hidden: 96, layers: 4, heads: 6, ffn: 200, positions: 64 });
    Case { name: "synthetic", spec, source: Box::new(Synthetic), precision }.check(path, tolerance);
}

#[test]
fn every_architecture_has_the_rows_of_one_device_on_every_group() {
    for path in magray_device::cpu::available_paths() {
        every_model(Precision::F32, path, 2e-5);
    }
}

// Roundings differ with the way that sums are cut, and the fixtures' random weights make them larger than trained ones would: as far as from
// the reference in this precision.
#[test]
fn every_architecture_is_near_one_device_on_every_group_in_bf16_and_int8() {
    let path = *magray_device::cpu::available_paths().last().unwrap();
    every_model(Precision::Bf16, path, 0.08);
    every_model(Precision::Int8, path, 0.25);
}
