//! Sequences on a group of devices: a rank that fails in the middle of a pass fails the step, which can be given again.
//! Takes the portable path, where a group has the same bits each time.

use super::faulty::{Faulty, FaultyOps, Told};
use super::*;
use crate::decoder::{DecoderFiles, Sampling};
use crate::testing::tiny_decoder;
use magray_core::CpuPath;
use magray_device::cpu::Cpu;
use magray_device::{Pipeline, RankError, StageError, Tensor, TensorOps};
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: usize = 24;

type Group = Pipeline<Arc<Tensor<Arc<Faulty>>>>;

struct Host {
    device: Arc<Group>,
    sequences: Sequences<Group>,
    /// By GPU: whether what it gives next fails.
    fails: Vec<Arc<AtomicBool>>,
}

impl Host {
    /// Two stages of two ranks.
    fn new() -> Self {
        let fails: Vec<Arc<AtomicBool>> = (0..4).map(|_| Arc::default()).collect();
        let cpu = Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).unwrap());
        let rank = || Arc::new(Faulty(Arc::clone(&cpu)));
        let stage = || (Arc::new(Tensor::new(vec![rank(), rank()])), 1);
        let device = Arc::new(Pipeline::new(vec![stage(), stage()]));
        let mut ops = fails.iter().map(|fails| FaultyOps { ops: cpu.decoder(), fails: Arc::clone(fails), fed: None });
        let mut of_stage = |stage: &Arc<Tensor<Arc<Faulty>>>| stage.ops(ops.by_ref().take(2).collect());
        let ops: Vec<TensorOps<FaultyOps>> = device.stages().iter().map(&mut of_stage).collect();
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write(folder.path(), 9).unwrap();
        let files = DecoderFiles::open(folder.path()).unwrap();
        let decoder = Decoder::load(&*device, &files, tiny_decoder::CONTEXT).unwrap();
        let bounds = SequenceBounds::of(PAGES);
        let sequences = Sequences::new(decoder, &device, device.ops(ops), bounds, vec![tiny_decoder::END]);
        Self { device, sequences, fails }
    }

    fn go_on(&mut self, step: SequenceStep<'_>) -> Result<Vec<NewTokens>, StepError<StageError<RankError<Told>>>> {
        let mut new = Vec::new();
        self.sequences.advance(&self.device, &[step], &mut new).map(|()| new)
    }
}

#[test]
fn a_step_that_fails_on_any_rank_can_be_given_again() {
    let (mut host, mut calm) = (Host::new(), Host::new());
    // The likeliest token is chosen of all ranks' logits, a drawn one too.
    for (seed, drawn) in [(2, 0.0), (3, 0.8)] {
        let sampling = Sampling { temperature: drawn, seed, ignores_end: true, ..Sampling::default() };
        let mut known: Vec<u32> = (0..50).map(|at| (at * 37 + seed as u32) % 250).collect();
        let mut from = 0;
        for round in 0..8 {
            let step = SequenceStep {
                sequence: seed,
                from: from as u32,
                ids: &known[from..],
                new_tokens_max: 3,
                passes_max: 3,
                goes_on: true,
                sampling: (from == 0).then_some(&sampling),
            };
            let wanted = calm.go_on(step).unwrap();
            let gpu = round % 4;
            host.fails[gpu].store(true, Ordering::Relaxed);
            match host.go_on(step) {
                Err(StepError::Device(StageError { stage, error: RankError { rank, .. } })) => {
                    assert_eq!(stage * 2 + rank, gpu, "round {round}");
                }
                other => panic!(
                    "round {round}: it was told to fail, and gave {:?}",
                    other.map_err(|error| error.to_string())
                ),
            }
            assert!(host.fails.iter().all(|fails| !fails.load(Ordering::Relaxed)));
            assert_eq!(host.go_on(step).unwrap(), wanted, "round {round}");
            known.extend(&wanted[0].tokens);
            from = known.len() - 1;
        }
    }
}
