//! Decoders of every architecture on two devices, parted behind every layer: their logits are those of one device.

use std::sync::Arc;

use magray_core::CpuPath;
use magray_device::{DecoderOps, PAGE_TOKENS, Split, SplitOps, StepBatch, cpu::Cpu};

use super::model::{Case, Running, cases, cosine};
use crate::decoder::DecoderFiles;

pub(super) const CONTEXT: usize = 100;

type Parted = Running<Split<Arc<Cpu>, Arc<Cpu>>>;

fn cpu(path: CpuPath) -> Arc<Cpu> {
    Arc::new(Cpu::new(Some(path), Some(2)).unwrap())
}

fn parted([first, last]: [CpuPath; 2], files: &DecoderFiles, first_layers: usize) -> Parted {
    let (first, last) = (cpu(first), cpu(last));
    let device = Split::new(Arc::clone(&first), Arc::clone(&last), first_layers);
    let ops: SplitOps<_, _, _, _> = device.ops(first.decoder(), last.decoder());
    assert!(!ops.feeds_back(), "one pass at a time");
    Running::on_device(&device, ops, files, CONTEXT)
}

/// Two sequences: a prompt in parts beside one in single tokens. The logits of all tokens, batch by batch.
pub(super) fn in_parts(case: &Case, mut step: impl FnMut(&StepBatch<'_>) -> Vec<Vec<f32>>) -> Vec<Vec<f32>> {
    let vocab = case.ids.iter().max().map_or(1, |most| most + 1);
    let ids: Vec<u32> = (0..40).map(|at| (at * 7 + 3) % vocab).collect();
    // The pages of both are mixed.
    let pages = [[3, 0], [1, 2]];
    let (mut from, mut all) = ([0, 0], Vec::new());
    for new in [[7, 1], [30, 1], [1, 1], [0, 5], [2, 1]] {
        let (mut tokens, mut offsets, mut starts) = (Vec::new(), vec![0], Vec::new());
        let (mut of_all, mut page_offsets) = (Vec::new(), vec![0]);
        for (sequence, count) in new.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let start = from[sequence];
            from[sequence] += count;
            tokens.extend_from_slice(&ids[start..start + count]);
            offsets.push(tokens.len());
            starts.push(start);
            of_all.extend_from_slice(&pages[sequence][..from[sequence].div_ceil(PAGE_TOKENS)]);
            page_offsets.push(of_all.len());
        }
        all.extend(step(&StepBatch {
            ids: &tokens,
            offsets: &offsets,
            starts: &starts,
            pages: &of_all,
            page_offsets: &page_offsets,
            logit_rows: &(0..tokens.len()).collect::<Vec<_>>(),
        }));
    }
    all
}

/// Every case behind every layer but the last.
fn each_cut(check: impl Fn(&Case, &DecoderFiles, usize)) {
    let mut cuts = 0;
    for case in cases() {
        let folder = case.folder();
        let files = DecoderFiles::open(folder.path()).unwrap();
        for first_layers in 1..files.spec().layers.len() {
            check(&case, &files, first_layers);
            cuts += 1;
        }
    }
    assert!(cuts >= cases().len(), "{cuts} cuts: every architecture has two layers");
}

#[test]
fn every_architecture_has_the_same_bits_on_two_devices_as_on_one() {
    for path in [CpuPath::Portable, *magray_device::cpu::available_paths().last().unwrap()] {
        each_cut(|case, files, first_layers| {
            let mut whole = Running::on(path, files, CONTEXT);
            let wanted = in_parts(case, |steps| whole.step(steps));
            let mut parted = parted([path, path], files, first_layers);
            let found = in_parts(case, |steps| parted.step(steps));
            assert_eq!(found, wanted, "{} on {path}, {first_layers} layers", case.name);
        });
    }
}

#[test]
fn devices_of_other_arithmetic_are_near_as_each_is_alone() {
    let fast = *magray_device::cpu::available_paths().last().unwrap();
    each_cut(|case, files, first_layers| {
        let mut whole = Running::new(files, CONTEXT);
        let wanted = in_parts(case, |steps| whole.step(steps));
        for paths in [[fast, CpuPath::Portable], [CpuPath::Portable, fast]] {
            let mut parted = parted(paths, files, first_layers);
            for (row, (found, wanted)) in in_parts(case, |steps| parted.step(steps)).iter().zip(&wanted).enumerate() {
                let cosine = cosine(wanted, found);
                assert!(cosine >= 0.999, "{} on {paths:?}, {first_layers} layers, row {row}: {cosine}", case.name);
            }
        }
    });
}
