//! Decoders on the GPU against those of the CPU in 32-bit floats: every way of products and of attention, on tiny random models.

use crate::cuda::each_set;
use crate::decoder_model::{Batch, Kind, Model, PLAIN, Sequences};
use magray_core::{Activation, BlockFormat, CpuPath};
use magray_device::{
    CHOSEN, DecoderOps,
    cpu::{Cpu, CpuDecoderOps},
    cuda::{Cuda, CudaDecoderOps},
    most_likely,
};
use std::sync::Arc;

/// A model on both devices.
struct Both {
    name: String,
    cpu: Model<Cpu>,
    cpu_ops: CpuDecoderOps,
    gpu: Model<Cuda>,
    gpu_ops: CudaDecoderOps,
}

impl Both {
    fn new(cuda: &Arc<Cuda>, name: &str, kind: Kind, pages: usize) -> Self {
        // Other paths round rows to bytes.
        let cpu = Arc::new(Cpu::new(Some(CpuPath::Portable), None).expect("the CPU opens"));
        Self {
            name: format!("{name}: {kind:?}"),
            cpu: Model::new(&*cpu, kind, pages, 1),
            cpu_ops: cpu.decoder(),
            gpu: Model::new(&**cuda, kind, pages, 1),
            gpu_ops: cuda.decoder().expect("the GPU gives a stream"),
        }
    }

    /// Computes a batch on both; logits must agree.
    fn check(&mut self, batch: &Batch, what: &str) {
        self.gpu.forward(&mut self.gpu_ops, &batch.steps());
        self.cpu.forward(&mut self.cpu_ops, &batch.steps());
        let chosen = self.gpu_ops.chosen().unwrap_or_else(|error| panic!("{}, {what}: {error}", self.name));
        let found = self.gpu_ops.answer().expect("a step that was done").to_vec();
        let wanted = self.cpu_ops.answer().expect("the CPU does not fail");
        assert_eq!(found.len(), wanted.len(), "{}, {what}", self.name);
        let vocab = self.gpu.kind.vocab;
        assert_near(&found, wanted, vocab, &format!("{}, {what}", self.name));
        for (row, found) in found.chunks_exact(vocab).enumerate() {
            assert_eq!(chosen[row], most_likely(found), "{}, {what}, row {row}", self.name);
        }
    }
}

/// Logits of other arithmetic are near.
pub(crate) fn assert_near(found: &[f32], wanted: &[f32], vocab: usize, what: &str) {
    for (row, (found, wanted)) in found.chunks_exact(vocab).zip(wanted.chunks_exact(vocab)).enumerate() {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let cosine = dot(found, wanted) / (dot(found, found) * dot(wanted, wanted)).sqrt();
        let off: f64 = found.iter().zip(wanted).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let off = (off / dot(wanted, wanted)).sqrt();
        assert!(cosine >= 0.999 && off < 0.03, "{what}, row {row}: cosine {cosine}, off by {off}");
    }
}

/// Prompts of several lengths, then some tokens one by one, then both beside each other.
fn check_kind(cuda: &Arc<Cuda>, name: &str, kind: Kind) {
    let mut both = Both::new(cuda, name, kind, 40);
    let mut sequences = Sequences::new(3, 40);
    let mut next = |both: &mut Both, new: &[usize], seed| {
        let batch = sequences.advance(new, kind.vocab, seed);
        both.check(&batch, &format!("{new:?}"));
    };
    next(&mut both, &[70, 5, 33], 1);
    next(&mut both, &[1, 1, 1], 2);
    next(&mut both, &[0, 1, 0], 3);
    next(&mut both, &[1, 9, 1], 4);
    next(&mut both, &[0, 140, 1], 5);
    next(&mut both, &[1, 1, 1], 6);
}

#[test]
fn decoders_of_every_kind_agree_on_cuda() {
    each_set(|cuda, name| {
        let sized = |heads, kv_heads, head_size| Kind { heads, kv_heads, head_size, rotated: head_size, ..PLAIN };
        let kinds = [
            PLAIN,
            Kind { window: Some(20), cap: Some(30.0), norms_after: true, activation: Activation::GeluTanh, ..PLAIN },
            Kind { head_norms: true, biases: true, ..PLAIN },
            Kind { neighbours: true, rotated: 32, window: Some(40), ..PLAIN },
            sized(8, 2, 32),
            sized(6, 6, 96),
            sized(8, 1, 128),
            sized(4, 1, 256),
            // No kernel on the tensor cores has such heads.
            sized(4, 2, 80),
            Kind { hidden: 144, ffn: 360, vocab: 331, ..sized(3, 1, 48) },
        ];
        for kind in kinds {
            check_kind(cuda, name, kind);
        }
    });
}

#[test]
fn weights_of_few_bits_agree_on_cuda() {
    each_set(|cuda, name| {
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_0, BlockFormat::Q4_1] {
            check_kind(cuda, name, Kind { format, ..PLAIN });
            check_kind(cuda, name, Kind { format, hidden: 288, ffn: 800, biases: true, ..PLAIN });
        }
    });
}

#[test]
fn any_number_of_rows_agrees_on_cuda() {
    each_set(|cuda, name| {
        for rows in [1, 2, 7, 8, 9, 16, 17, 31, 64, 65, 130, 257] {
            check_rows(cuda, name, Kind { hidden: 512, ffn: 1408, vocab: 1000, ..PLAIN }, rows);
        }
        // Several blocks divide the inputs of a tile.
        let large = Kind { hidden: 2048, ffn: 2072, heads: 24, kv_heads: 4, vocab: 2999, layers: 1, ..PLAIN };
        for rows in [17, 33, 64, 128] {
            check_rows(cuda, name, large, rows);
        }
        check_rows(cuda, name, Kind { biases: true, norms_after: true, ..large }, 50);
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_0, BlockFormat::Q4_1] {
            for rows in [1, 5, 8, 9, 16, 17, 33, 64, 65] {
                check_rows(cuda, name, Kind { format, hidden: 512, ffn: 1440, vocab: 1000, ..PLAIN }, rows);
            }
            // So many inputs that a multiprocessor holds only those of few rows.
            for rows in [4, 8] {
                check_rows(cuda, name, Kind { format, ffn: 14336, layers: 1, ..PLAIN }, rows);
            }
        }
    });
}

/// Sequences that advance by a token each.
fn check_rows(cuda: &Arc<Cuda>, name: &str, kind: Kind, rows: usize) {
    let mut both = Both::new(cuda, name, kind, 2 * rows + 5);
    let mut sequences = Sequences::new(rows, 2 * rows + 5);
    for round in 0..3 {
        let batch = sequences.advance(&vec![1; rows], kind.vocab, round);
        both.check(&batch, &format!("{rows} rows, round {round}"));
    }
}

#[test]
fn long_sequences_are_shared_between_blocks_on_cuda() {
    each_set(|cuda, name| {
        for (window, length) in [(None, 1500), (Some(700), 1100), (None, 127), (None, 128)] {
            let kind = Kind { window, layers: 1, ..PLAIN };
            let mut both = Both::new(cuda, name, kind, 60);
            let mut sequences = Sequences::new(2, 60);
            let batch = sequences.advance(&[length, 40], kind.vocab, 1);
            both.check(&batch, "a long prompt");
            for round in 0..3 {
                let batch = sequences.advance(&[1, 1], kind.vocab, 2 + round);
                both.check(&batch, &format!("{length} tokens, window {window:?}, round {round}"));
            }
        }
    });
}

#[test]
fn tokens_are_fed_back_without_a_round_trip_on_cuda() {
    each_set(|cuda, name| {
        let (kind, rows) = (Kind { layers: 1, ..PLAIN }, 3);
        let run = |feeds: bool| {
            let mut model = Model::new(&**cuda, kind, 20, 1);
            let mut ops = cuda.decoder().expect("the GPU gives a stream");
            assert!(ops.feeds_back());
            let mut sequences = Sequences::new(rows, 20);
            let prompt = sequences.advance(&[9, 12, 3], kind.vocab, 1);
            model.forward(&mut ops, &prompt.steps());
            let mut all = Vec::new();
            let mut last = Vec::new();
            for round in 0..20 {
                // A step is always ahead of the tokens that are asked for.
                if !feeds {
                    last = ops.chosen().expect("tokens");
                    all.push(last.clone());
                }
                let mut batch = sequences.advance(&vec![1; rows], kind.vocab, 2);
                batch.ids = match feeds {
                    true => (0..rows as u32).map(|row| CHOSEN | row).collect(),
                    false => last.clone(),
                };
                model.forward(&mut ops, &batch.steps());
                if feeds {
                    all.push(ops.chosen().unwrap_or_else(|error| panic!("{name}, round {round}: {error}")));
                }
            }
            all.push(ops.chosen().expect("tokens"));
            assert!(ops.chosen().expect("no step is left").is_empty());
            assert!(feeds || ops.recorded() >= 1);
            all
        };
        assert_eq!(run(true), run(false), "{name}");
    });
}
