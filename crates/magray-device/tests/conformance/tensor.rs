//! Decoders on several devices that share each layer, against the same on one: near it wherever a model is cut, and alone or in a row with
//! other devices.

use crate::cuda::each_set;
use crate::decoder::assert_near;
use crate::decoder_model::{Kind, Model, PLAIN, Sequences};
use magray_core::{Activation, BlockFormat, CpuPath};
use magray_device::cpu::{Cpu, CpuDecoderOps};
use magray_device::{DecoderDevice, DecoderOps, Pipeline, SharedOps, Split, SumsPlace, Tensor, TensorOps, most_likely};
use std::ops::Deref;
use std::sync::Arc;

/// New tokens of sequences, batch by batch: prompts, parts of them and single tokens, beside each other and alone.
const BATCHES: [[usize; 3]; 6] = [[70, 5, 33], [1, 1, 1], [0, 1, 0], [1, 9, 1], [0, 140, 1], [2, 0, 3]];

fn cpu(path: CpuPath) -> Arc<Cpu> {
    Arc::new(Cpu::new(Some(path), Some(2)).expect("the CPU opens"))
}

fn group(path: CpuPath, ranks: usize) -> (Arc<Tensor<Arc<Cpu>>>, Vec<CpuDecoderOps>) {
    let cpus: Vec<_> = (0..ranks).map(|_| cpu(path)).collect();
    let ops = cpus.iter().map(|cpu| cpu.decoder()).collect();
    (Arc::new(Tensor::new(cpus)), ops)
}

fn kinds() -> [Kind; 7] {
    let layers = 2;
    [
        Kind { layers, ..PLAIN },
        Kind {
            layers,
            window: Some(20),
            cap: Some(30.0),
            norms_after: true,
            activation: Activation::GeluTanh,
            ..PLAIN
        },
        Kind { layers, head_norms: true, biases: true, ..PLAIN },
        Kind { layers, format: BlockFormat::Q4_1, neighbours: true, rotated: 32, ..PLAIN },
        Kind { layers, format: BlockFormat::Q4_0, biases: true, norms_after: true, ..PLAIN },
        Kind { layers, format: BlockFormat::Q8_0, ..PLAIN },
        Kind { layers, format: BlockFormat::Bf16, ..PLAIN },
    ]
}

/// A model on a device beside the same on one CPU of a path; `agree` compares the logits of a batch.
fn check<D: DecoderDevice>(
    device: &D,
    mut ops: D::Ops,
    (kind, path): (Kind, CpuPath),
    agree: impl Fn(&[f32], &[f32], &str),
) {
    let cpu = cpu(path);
    let (mut whole, mut whole_ops) = (Model::new(&*cpu, kind, 40, 1), cpu.decoder());
    let mut model = Model::new(device, kind, 40, 1);
    let mut sequences = Sequences::new(3, 40);
    for (new, seed) in BATCHES.iter().zip(1..) {
        let batch = sequences.advance(new, kind.vocab, seed);
        model.forward(&mut ops, &batch.steps());
        whole.forward(&mut whole_ops, &batch.steps());
        let chosen = ops.chosen().unwrap_or_else(|error| panic!("{kind:?}, {new:?}: {error}"));
        let found = ops.answer().expect("a step that was done").to_vec();
        let what = format!("{kind:?}, {new:?}");
        agree(&found, whole_ops.answer().expect("the CPU does not fail"), &what);
        assert_eq!(chosen, found.chunks_exact(kind.vocab).map(most_likely).collect::<Vec<_>>(), "{what}");
    }
}

/// The largest difference, beside the largest number.
fn off(found: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(found.len(), wanted.len());
    let largest = wanted.iter().fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    found.iter().zip(wanted).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

#[test]
fn ranks_that_share_layers_have_the_logits_of_one_on_cpu() {
    for kind in kinds() {
        for ranks in [1, 2, 3, 4] {
            let (group, ops) = group(CpuPath::Portable, ranks);
            check(&*group, group.ops(ops), (kind, CpuPath::Portable), |found, wanted, what| {
                let off = off(found, wanted);
                assert!(off < if ranks == 1 { f32::MIN_POSITIVE } else { 1e-5 }, "{ranks} ranks, {what}: off by {off}");
            });
        }
    }
}

#[test]
fn ranks_on_the_fastest_path_are_near_one_on_it_on_cpu() {
    let path = *magray_device::cpu::available_paths().last().expect("a path");
    for kind in kinds() {
        for ranks in [2, 4] {
            let (group, ops) = group(path, ranks);
            check(&*group, group.ops(ops), (kind, path), |found, wanted, what| {
                assert_near(found, wanted, kind.vocab, &format!("{ranks} ranks, {what}"));
            });
        }
    }
}

#[test]
fn groups_in_a_row_have_the_logits_of_one_on_cpu() {
    let near = |found: &[f32], wanted: &[f32], what: &str| {
        let off = off(found, wanted);
        assert!(off < 1e-5, "{what}: off by {off}");
    };
    let path = CpuPath::Portable;
    for kind in kinds() {
        let ((first, first_ops), (last, last_ops)) = (group(path, 2), group(path, 4));
        let both = Split::new(Arc::clone(&first), Arc::clone(&last), 1);
        check(&both, both.ops(first.ops(first_ops), last.ops(last_ops)), (kind, path), near);
        let (first, first_ops) = group(path, 2);
        let mixed = Split::new(Arc::clone(&first), cpu(path), 1);
        check(&mixed, mixed.ops(first.ops(first_ops), cpu(path).decoder()), (kind, path), near);
    }
}

#[test]
fn stages_have_the_bits_of_one_and_stages_of_ranks_its_logits_on_cpu() {
    let path = CpuPath::Portable;
    for kind in kinds().map(|kind| Kind { layers: 3, ..kind }) {
        for layers in [vec![3], vec![1, 2], vec![1, 1, 1]] {
            let stages = Pipeline::new(layers.iter().map(|layers| (cpu(path), *layers)).collect());
            let ops = layers.iter().map(|_| cpu(path).decoder()).collect();
            check(&stages, stages.ops(ops), (kind, path), |found, wanted, what| {
                assert_eq!(found, wanted, "{layers:?}, {what}");
            });
        }
        let (groups, ops): (Vec<_>, Vec<_>) = [2, 4].map(|ranks| group(path, ranks)).into_iter().unzip();
        let ops = groups.iter().zip(ops).map(|(group, ops)| group.ops(ops)).collect();
        let stages = Pipeline::new(groups.into_iter().zip([2, 1]).collect());
        check(&stages, stages.ops(ops), (kind, path), |found, wanted, what| {
            let off = off(found, wanted);
            assert!(off < 1e-5, "{what}: off by {off}");
        });
    }
}

/// The bits of the logits of all batches.
fn bits<A: Deref<Target: DecoderDevice<Ops: SharedOps>>>(
    group: &Tensor<A>,
    mut ops: TensorOps<<A::Target as DecoderDevice>::Ops>,
    kind: Kind,
) -> Vec<u32> {
    let mut model = Model::new(group, kind, 40, 1);
    let mut sequences = Sequences::new(3, 40);
    let mut all = Vec::new();
    for (new, seed) in BATCHES.iter().zip(1..) {
        model.forward(&mut ops, &sequences.advance(new, kind.vocab, seed).steps());
        all.extend(ops.answer().expect("a step that was done").iter().map(|x| x.to_bits()));
    }
    all
}

/// A group's logits have the same bits each time, and wherever its sums are added.
fn check_bits<A: Deref<Target: DecoderDevice<Ops: SharedOps>>>(
    group: &Tensor<A>,
    ops: impl Fn() -> Vec<<A::Target as DecoderDevice>::Ops>,
    (kind, name): (Kind, &str),
) {
    let what = format!("{name}, {} ranks, {kind:?}", group.ranks().len());
    let on_devices = || {
        let ops = group.ops(ops());
        assert_eq!(ops.sums(), Some(&SumsPlace::Devices), "{what}");
        bits(group, ops, kind)
    };
    let first = on_devices();
    assert!(on_devices() == first, "{what}: not the same twice");
    let mut ops = group.ops(ops());
    ops.sum_on_host("this is compared");
    assert!(bits(group, ops, kind) == first, "{what}: sums on the host have other bits");
}

#[test]
fn a_group_has_the_same_bits_each_time_and_with_sums_on_the_host_on_cpu() {
    let path = *magray_device::cpu::available_paths().last().expect("a path");
    for kind in kinds() {
        for ranks in [2, 4] {
            let (group, _) = group(path, ranks);
            let ops = || group.ranks().iter().map(|cpu| cpu.decoder()).collect();
            check_bits(&group, ops, (kind, &path.to_string()));
        }
    }
}

/// Two and four ranks on one GPU, each with a stream of its own.
#[test]
fn ranks_on_one_gpu_agree_on_cuda() {
    each_set(|cuda, name| {
        for kind in kinds() {
            for ranks in [2, 4] {
                let group = Tensor::new(vec![Arc::clone(cuda); ranks]);
                let ops = || (0..ranks).map(|_| cuda.decoder().expect("the GPU gives a stream")).collect();
                check(&group, group.ops(ops()), (kind, CpuPath::Portable), |found, wanted, what| {
                    assert_near(found, wanted, kind.vocab, &format!("{name}, {ranks} ranks, {what}"));
                });
                check_bits(&group, ops, (kind, name));
            }
            let group = || Arc::new(Tensor::new(vec![Arc::clone(cuda); 2]));
            let groups = vec![group(), group()];
            let ops = || (0..2).map(|_| cuda.decoder().expect("the GPU gives a stream")).collect();
            let ops = groups.iter().map(|group| group.ops(ops())).collect();
            let stages = Pipeline::new(groups.into_iter().map(|group| (group, 1)).collect());
            check(&stages, stages.ops(ops), (kind, CpuPath::Portable), |found, wanted, what| {
                assert_near(found, wanted, kind.vocab, &format!("{name}, 2 stages of 2 ranks, {what}"));
            });
        }
    });
}
