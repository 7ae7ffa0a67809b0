//! Decoders of every architecture on groups: ranks that share each layer, stages one after the other, and stages of ranks. Their logits are
//! those of one device within rounding.

use std::sync::Arc;

use magray_core::CpuPath;
use magray_device::{
    Split, Tensor,
    cpu::{Cpu, CpuDecoderOps},
};

use super::TOLERANCE;
use super::model::{Case, Running, cases, cosine};
use super::split::{CONTEXT, in_parts};
use crate::decoder::DecoderFiles;

fn cpu(path: CpuPath) -> Arc<Cpu> {
    Arc::new(Cpu::new(Some(path), Some(2)).unwrap())
}

type Group = Arc<Tensor<Arc<Cpu>>>;

fn group(path: CpuPath, ranks: usize) -> (Group, Vec<CpuDecoderOps>) {
    let cpus: Vec<_> = (0..ranks).map(|_| cpu(path)).collect();
    let ops = cpus.iter().map(|cpu| cpu.decoder()).collect();
    (Arc::new(Tensor::new(cpus)), ops)
}

/// Logits of parts and single tokens on groups of 2 and 4, on stages, and on stages of groups.
fn on_groups(path: CpuPath, case: &Case, files: &DecoderFiles, mut agree: impl FnMut(&str, &[Vec<f32>])) {
    for ranks in [2, 4] {
        let (group, ops) = group(path, ranks);
        let mut running = Running::on_device(&*group, group.ops(ops), files, CONTEXT);
        agree(&format!("{ranks} ranks"), &in_parts(case, |steps| running.step(steps)));
    }
    let rest = Arc::new(Split::new(cpu(path), cpu(path), 1));
    let stages = Split::new(cpu(path), Arc::clone(&rest), 1);
    let ops = stages.ops(cpu(path).decoder(), rest.ops(cpu(path).decoder(), cpu(path).decoder()));
    let mut running = Running::on_device(&stages, ops, files, CONTEXT);
    agree("3 stages", &in_parts(case, |steps| running.step(steps)));
    let ((first, first_ops), (last, last_ops)) = (group(path, 2), group(path, 2));
    let stages = Split::new(Arc::clone(&first), Arc::clone(&last), 1);
    let ops = stages.ops(first.ops(first_ops), last.ops(last_ops));
    let mut running = Running::on_device(&stages, ops, files, CONTEXT);
    agree("2 stages of 2 ranks", &in_parts(case, |steps| running.step(steps)));
}

#[test]
fn every_architecture_has_the_logits_of_one_device_on_every_group() {
    for case in cases() {
        let folder = case.folder();
        let files = DecoderFiles::open(folder.path()).unwrap();
        let mut whole = Running::new(&files, CONTEXT);
        let wanted = in_parts(&case, |steps| whole.step(steps));
        on_groups(CpuPath::Portable, &case, &files, |group, found| {
            for (row, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                assert_eq!(wanted.len(), found.len());
                let off = wanted.iter().zip(found).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
                assert!(off < TOLERANCE, "{} on {group}, row {row}: off by {off}", case.name);
            }
        });
    }
}

#[test]
fn every_architecture_is_near_one_device_on_every_group_on_the_fastest_path() {
    let path = *magray_device::cpu::available_paths().last().unwrap();
    for case in cases() {
        let folder = case.folder();
        let files = DecoderFiles::open(folder.path()).unwrap();
        let mut whole = Running::new(&files, CONTEXT);
        let wanted = in_parts(&case, |steps| whole.step(steps));
        on_groups(path, &case, &files, |group, found| {
            for (row, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                let cosine = cosine(wanted, found);
                assert!(cosine >= 0.999, "{} on {group}, row {row}: {cosine}", case.name);
            }
        });
    }
}

#[test]
fn every_architecture_has_the_logits_of_transformers_on_four_ranks() {
    for case in cases() {
        let folder = case.folder();
        let files = DecoderFiles::open(folder.path()).unwrap();
        let (group, ops) = group(CpuPath::Portable, 4);
        let mut running = Running::on_device(&*group, group.ops(ops), &files, case.ids.len());
        for (wanted, found) in case.logits.iter().zip(running.logits_at(&case.ids, &case.rows)) {
            let off = wanted.iter().zip(&found).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(off < TOLERANCE, "{}: off by {off}", case.name);
        }
    }
}
