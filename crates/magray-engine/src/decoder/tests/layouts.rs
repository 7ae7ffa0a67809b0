//! However a prompt is divided, whatever runs beside it and wherever its pages lie: its logits are the same.

use magray_device::{PAGE_TOKENS, StepBatch};
use proptest::prelude::*;

use magray_core::CpuPath;

use super::model::{PAGES, Running, cases, cosine};
use crate::decoder::DecoderFiles;

struct Sequence {
    ids: Vec<u32>,
    pages: Vec<u32>,
    done: usize,
    logits: Vec<Vec<f32>>,
}

/// On the portable path logits are equal within 1e-5. On the others rows are multiplied in other ways when they are few, and rounded
/// in other places: their logits point the same way.
fn check(path: CpuPath, case: &str, lengths: &[usize], parts: &[usize], shuffled: &[u32]) {
    let case = cases().into_iter().find(|found| found.name == case).unwrap();
    let folder = case.folder();
    let files = DecoderFiles::open(folder.path()).unwrap();
    let mut running = Running::on(path, &files, 100);
    let mut free = shuffled.iter().copied();
    let mut sequences: Vec<Sequence> = lengths
        .iter()
        .enumerate()
        .map(|(i, length)| Sequence {
            ids: (0..*length).map(|at| ((at * (i + 3) * 13 + i) % 200) as u32).collect(),
            pages: free.by_ref().take(length.div_ceil(PAGE_TOKENS)).collect(),
            done: 0,
            logits: Vec::new(),
        })
        .collect();
    // Sequence `i` takes part `round + i`: in time it meets every part, also the 1 that ends each list.
    let mut round = 0;
    while sequences.iter().any(|sequence| sequence.done < sequence.ids.len()) {
        let (mut ids, mut offsets, mut starts) = (Vec::new(), vec![0], Vec::new());
        let (mut pages, mut page_offsets, mut taken) = (Vec::new(), vec![0], Vec::new());
        for (i, sequence) in sequences.iter_mut().enumerate() {
            // A part of 0 leaves the sequence out of this batch.
            let part = parts[(round + i) % parts.len()].min(sequence.ids.len() - sequence.done);
            if part == 0 {
                continue;
            }
            ids.extend_from_slice(&sequence.ids[sequence.done..sequence.done + part]);
            offsets.push(ids.len());
            starts.push(sequence.done);
            pages.extend_from_slice(&sequence.pages);
            page_offsets.push(pages.len());
            sequence.done += part;
            taken.extend(std::iter::repeat_n(i, part));
        }
        round += 1;
        if ids.is_empty() {
            continue;
        }
        let rows: Vec<usize> = (0..ids.len()).collect();
        let steps = StepBatch {
            ids: &ids,
            offsets: &offsets,
            starts: &starts,
            pages: &pages,
            page_offsets: &page_offsets,
            logit_rows: &rows,
        };
        for (i, logits) in taken.into_iter().zip(running.step(&steps)) {
            sequences[i].logits.push(logits);
        }
    }
    for sequence in &sequences {
        let mut alone = Running::on(path, &files, 100);
        let rows: Vec<usize> = (0..sequence.ids.len()).collect();
        let wanted = alone.logits_at(&sequence.ids, &rows);
        for (row, (wanted, found)) in wanted.iter().zip(&sequence.logits).enumerate() {
            if path == CpuPath::Portable {
                for (wanted, found) in wanted.iter().zip(found) {
                    assert!((wanted - found).abs() < 1e-5, "row {row}: {found} for {wanted}");
                }
            }
            let alike = cosine(wanted, found);
            assert!(alike > 0.999, "{path}, row {row}: {alike}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_parts_any_company_and_any_pages_give_the_same_logits(
        path in prop::sample::select(magray_device::cpu::available_paths()),
        case in prop::sample::select(vec!["llama", "mistral", "gemma3", "qwen3"]),
        lengths in prop::collection::vec(1usize..90, 1..4),
        mut parts in prop::collection::vec(0usize..50, 1..7),
        shuffled in Just((0..PAGES as u32).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        parts.push(1);
        check(path, case, &lengths, &parts, &shuffled);
    }
}
