//! Decoders on two devices one after the other against the same on one: the same bits where both are the portable CPU, near it where
//! one is a GPU.

use crate::cuda::each_set;
use crate::decoder::assert_near;
use crate::decoder_model::{Kind, Model, PLAIN, Sequences};
use magray_core::{Activation, BlockFormat, CpuPath};
use magray_device::cpu::Cpu;
use magray_device::cuda::CudaDecoderOps;
use magray_device::{DecoderDevice, DecoderOps, Split, most_likely};
use std::sync::Arc;

/// New tokens of sequences, batch by batch: prompts, parts of them and single tokens, beside each other and alone.
const BATCHES: [[usize; 3]; 8] =
    [[70, 5, 33], [1, 1, 1], [0, 1, 0], [1, 9, 1], [0, 140, 1], [1, 1, 1], [1, 1, 1], [2, 0, 3]];

fn portable() -> Arc<Cpu> {
    // Other paths round rows to bytes.
    Arc::new(Cpu::new(Some(CpuPath::Portable), Some(2)).expect("the CPU opens"))
}

fn kinds() -> [Kind; 4] {
    let layers = 3;
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
    ]
}

/// A model on a device beside the same on the portable CPU; `agree` compares the logits of a batch.
fn check<D: DecoderDevice>(device: &D, mut ops: D::Ops, kind: Kind, agree: impl Fn(&[f32], &[f32], &str)) {
    let cpu = portable();
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

#[test]
fn two_cpus_have_the_bits_of_one_wherever_they_part_on_cpu() {
    for kind in kinds() {
        for first_layers in 1..kind.layers {
            let split = Split::new(portable(), portable(), first_layers);
            let ops = split.ops(portable().decoder(), portable().decoder());
            check(&split, ops, kind, |found, wanted, what| assert_eq!(found, wanted, "{first_layers} layers, {what}"));
        }
    }
}

#[test]
fn three_cpus_in_a_row_have_the_bits_of_one_on_cpu() {
    let kind = kinds()[0];
    let rest = Arc::new(Split::new(portable(), portable(), 1));
    let split = Split::new(portable(), Arc::clone(&rest), 1);
    let ops = split.ops(portable().decoder(), rest.ops(portable().decoder(), portable().decoder()));
    check(&split, ops, kind, |found, wanted, what| assert_eq!(found, wanted, "{what}"));
}

#[test]
fn a_decoder_in_parts_agrees_on_cuda() {
    each_set(|cuda, name| {
        let gpu = || cuda.decoder().expect("the GPU gives a stream");
        for kind in kinds() {
            let near = |found: &[f32], wanted: &[f32], what: &str| {
                assert_near(found, wanted, kind.vocab, &format!("{name}, {what}"));
            };
            for first_layers in 1..kind.layers {
                let begins = Split::new(portable(), Arc::clone(cuda), first_layers);
                check(&begins, begins.ops(portable().decoder(), gpu()), kind, near);
                let ends = Split::new(Arc::clone(cuda), portable(), first_layers);
                check(&ends, ends.ops(gpu(), portable().decoder()), kind, near);
                let both = Split::new(Arc::clone(cuda), Arc::clone(cuda), first_layers);
                check(&both, both.ops(gpu(), gpu()), kind, near);
            }
        }
    });
}

/// Single tokens are recorded steps: each replay must read the rows of its own pass.
#[test]
fn recorded_steps_of_a_part_take_the_rows_of_their_pass_on_cuda() {
    each_set(|cuda, name| {
        let kind = Kind { layers: 2, ..PLAIN };
        let tokens = |recorded: bool| {
            let mut ops = cuda.decoder().expect("the GPU gives a stream");
            let cpu = portable();
            let (mut hidden_ops, rows) = (cpu.decoder(), 70);
            let split = Split::new(Arc::clone(&cpu), Arc::clone(cuda), 1);
            let mut model = Model::new(&split, kind, 200, 1);
            let mut sequences = Sequences::new(rows, 200);
            let mut all = Vec::new();
            for round in 0..6 {
                if !recorded {
                    ops = cuda.decoder().expect("the GPU gives a stream");
                    hidden_ops = cpu.decoder();
                }
                let mut both = split.ops(hidden_ops, ops);
                let batch = sequences.advance(&vec![1; rows], kind.vocab, 3 + round);
                model.forward(&mut both, &batch.steps());
                all.push(both.chosen().unwrap_or_else(|error| panic!("{name}, round {round}: {error}")));
                (hidden_ops, ops) = both.into_parts();
            }
            let count = CudaDecoderOps::recorded(&ops);
            assert!((1..6).contains(&count), "{name}: {count} recordings of steps of one size");
            all
        };
        assert_eq!(tokens(true), tokens(false), "{name}");
    });
}
