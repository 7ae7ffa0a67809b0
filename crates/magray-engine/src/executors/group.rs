//! A language model on a group of GPUs in one worker: how its layers lie on them, and the one device that they are together.
//! Decides nothing: what fits where is found beside the devices.

use super::held_weights::HeldWeights;
use super::image_parts::Parts;
use super::vectors::HeldVectors;
use super::{Arriving, FilledImage, OnFilled};
use super::{Failure, FailureKind, RankSums};
use crate::gpu::{GpuError, MemoryStats};
use magray_core::pool::PoolStats;
use magray_device::cuda::{Near, Scan};
use magray_device::{
    DecoderDevice, Pipeline, PipelineOps, RankError, SharedMemory, SharedOps, StageError, SumsPlace, Tensor, TensorOps,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::Arc;

/// How the layers of a language model lie on a group of GPUs: stages one after the other, and ranks that share each layer of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupLayout {
    /// GPUs of each stage.
    pub ranks: NonZeroUsize,
    /// Layers of each stage.
    pub stages: Vec<NonZeroUsize>,
    /// What the keys and values of a token are counted as in the memory of all GPUs together.
    pub kv_token_bytes: u64,
}

impl RankSums {
    /// That of a group; none where no layer is shared. One stage whose sums are on the host speaks for all.
    pub(crate) fn of<O: SharedOps>(ops: &PipelineOps<TensorOps<O>>) -> Option<Self> {
        let places: Vec<&SumsPlace> = ops.stages().iter().filter_map(TensorOps::sums).collect();
        let on_host = places.iter().find_map(|place| match place {
            SumsPlace::Devices => None,
            SumsPlace::Host(reason) => Some(Self::Host(reason.clone())),
        });
        on_host.or((!places.is_empty()).then_some(Self::Devices))
    }
}

/// Devices as stages of ranks.
pub(crate) type Stages<A> = Pipeline<Arc<Tensor<A>>>;

impl GroupLayout {
    /// How many GPUs it needs.
    pub fn gpus(&self) -> usize {
        self.ranks.get() * self.stages.len()
    }

    /// These devices as one, in the order of stages and ranks.
    pub(crate) fn over<A: Deref<Target: DecoderDevice>>(&self, devices: Vec<A>) -> Result<Stages<A>, Failure>
    where
        OpsOf<A>: SharedOps,
    {
        if devices.len() != self.gpus() || self.stages.is_empty() {
            let message = format!("a group of {} GPUs was told of a layout for {}", devices.len(), self.gpus());
            return Err(Failure::new(FailureKind::Transient, "other_group", message));
        }
        let mut devices = devices.into_iter();
        let mut stage = |layers: &NonZeroUsize| {
            let ranks = devices.by_ref().take(self.ranks.get()).collect();
            (Arc::new(Tensor::new(ranks)), layers.get())
        };
        Ok(Pipeline::new(self.stages.iter().map(&mut stage).collect()))
    }

    /// The operations of devices as those of the group.
    pub(crate) fn ops<A: Deref<Target: DecoderDevice>>(
        &self,
        stages: &Stages<A>,
        devices: Vec<OpsOf<A>>,
    ) -> <Stages<A> as DecoderDevice>::Ops
    where
        OpsOf<A>: SharedOps,
    {
        let mut devices = devices.into_iter();
        let mut of = |stage: &Arc<Tensor<A>>| stage.ops(devices.by_ref().take(self.ranks.get()).collect());
        let ops: Vec<TensorOps<OpsOf<A>>> = stages.stages().iter().map(&mut of).collect();
        stages.ops(ops)
    }

    /// What each GPU has of a model whose last layers, of this number, take so much with the head.
    #[cfg(feature = "testing")]
    pub(crate) fn shares(&self, last: impl Fn(usize) -> u64) -> Vec<u64> {
        let (ranks, mut left) = (self.ranks.get(), self.stages.iter().map(|layers| layers.get()).sum::<usize>());
        let of = |layers: &NonZeroUsize| {
            let all = last(left);
            left -= layers.get();
            let behind = if left == 0 { 0 } else { last(left) };
            vec![(all - behind).div_ceil(ranks as u64); ranks]
        };
        self.stages.iter().flat_map(of).collect()
    }
}

type OpsOf<A> = <<A as Deref>::Target as DecoderDevice>::Ops;

impl fmt::Display for GroupLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ranks.get(), self.stages.len()) {
            (ranks, 1) => write!(f, "{ranks} GPUs share each layer"),
            (1, stages) => write!(f, "{stages} GPUs have layers one after the other"),
            (ranks, stages) => write!(f, "{stages} stages of {ranks} GPUs that share each layer"),
        }
    }
}

/// What a device of a group failed with, and which it was.
pub(crate) fn of_rank<E: Into<Failure>>(error: StageError<RankError<E>>) -> Failure {
    let StageError { stage, error: RankError { rank, error } } = error;
    let mut failure: Failure = error.into();
    failure.message = format!("stage {stage}, rank {rank}: {}", failure.message);
    failure
}

/// Weights on several devices that come and go together, each to and from its part of one image.
pub(crate) struct GroupWeights<W>(pub(crate) Vec<W>);

impl<W: HeldWeights> GroupWeights<W> {
    fn parts(&self) -> Parts {
        Parts::of(self.0.iter().map(HeldWeights::bytes))
    }
}

impl<W: HeldWeights> HeldWeights for GroupWeights<W> {
    fn bytes(&self) -> u64 {
        as_the_fullest(self.0.iter().map(HeldWeights::bytes))
    }

    fn is_resident(&self) -> bool {
        self.0.iter().all(HeldWeights::is_resident)
    }

    fn arriving(&self) -> Option<Arriving> {
        let arriving: Vec<Arriving> = self.0.iter().filter_map(HeldWeights::arriving).collect();
        (!arriving.is_empty())
            .then(|| Box::new(|| arriving.into_iter().try_for_each(|arriving| arriving())) as Arriving)
    }

    fn keep_image(&mut self, image: SharedMemory, on_filled: OnFilled) {
        self.parts().fill(&image, on_filled, |at, part, on_part| self.0[at].keep_image(part, on_part));
    }

    fn has_image(&self) -> bool {
        self.0.iter().all(HeldWeights::has_image)
    }

    fn take_image(&mut self, image: FilledImage) {
        // An image of other weights is left, as that of one device is.
        let parts = self.parts().divide(&image).into_iter().flatten();
        self.0.iter_mut().zip(parts).for_each(|(weights, part)| weights.take_image(part));
    }

    fn offload(&mut self) -> Result<(), GpuError> {
        self.0.iter_mut().try_for_each(HeldWeights::offload)
    }

    /// All or none: where one finds no room, those that had come leave again.
    fn wake(&mut self) -> Result<(), GpuError> {
        for at in 0..self.0.len() {
            if let Err(error) = self.0[at].wake() {
                for weights in &mut self.0[..at] {
                    weights.offload()?;
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

/// What devices with these bytes take of the memory of all, where it is divided into equal parts.
fn as_the_fullest(bytes: impl ExactSizeIterator<Item = u64>) -> u64 {
    let count = bytes.len() as u64;
    bytes.max().unwrap_or(0).saturating_mul(count)
}

/// Vectors that the first of several devices has alone.
pub(crate) struct VectorsOnFirst {
    pub(crate) vectors: Box<dyn HeldVectors>,
    /// How many there are.
    pub(crate) devices: usize,
}

impl HeldVectors for VectorsOnFirst {
    fn bytes(&self) -> u64 {
        self.vectors.bytes().saturating_mul(self.devices as u64)
    }

    fn put(&mut self, slots: &[u32], vectors: &[f32], offsets: &[f32]) -> Result<(), Failure> {
        self.vectors.put(slots, vectors, offsets)
    }

    fn keep_signs(&mut self, centre: Vec<f32>) -> Result<(), Failure> {
        self.vectors.keep_signs(centre)
    }

    fn best(&mut self, scan: &Scan<'_>) -> Result<Vec<Vec<Near>>, Failure> {
        self.vectors.best(scan)
    }
}

/// The memory of several devices as one: what is free counts as often as there are devices, since parts are equal.
pub(crate) fn together(members: &[MemoryStats]) -> MemoryStats {
    let sum = |of: fn(&MemoryStats) -> u64| members.iter().map(of).fold(0, u64::saturating_add);
    let free = members.iter().map(|memory| memory.free).min().unwrap_or(0);
    // Of those that have as little free, the one that has taken the most itself.
    let fullest = members.iter().min_by_key(|memory| (memory.free, std::cmp::Reverse(memory.taken())));
    let as_the_fullest = fullest.map_or(0, MemoryStats::taken).saturating_mul(members.len() as u64);
    let largest = members.iter().map(|memory| memory.pool.largest_free).min().unwrap_or(0);
    MemoryStats {
        allocated: sum(|memory| memory.allocated),
        reserved: sum(|memory| memory.reserved),
        spare: sum(|memory| memory.spare),
        uneven: as_the_fullest.saturating_sub(sum(MemoryStats::taken)),
        peak_allocated: sum(|memory| memory.peak_allocated),
        free: free.saturating_mul(members.len() as u64),
        total: sum(|memory| memory.total),
        pool: PoolStats {
            reserved: sum(|memory| memory.pool.reserved),
            used: sum(|memory| memory.pool.used),
            peak_reserved: sum(|memory| memory.pool.peak_reserved),
            peak_used: sum(|memory| memory.pool.peak_used),
            parked: sum(|memory| memory.pool.parked),
            largest_free: largest,
            blocks: sum(|memory| memory.pool.blocks),
            hits: sum(|memory| memory.pool.hits),
            misses: sum(|memory| memory.pool.misses),
            driver_calls: sum(|memory| memory.pool.driver_calls),
            trims: sum(|memory| memory.pool.trims),
            stitches: sum(|memory| memory.pool.stitches),
            predicted: sum(|memory| memory.pool.predicted),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::MemoryAccounts;
    use magray_core::CpuPath;
    use magray_device::cpu::Cpu;

    fn layout(ranks: usize, stages: &[usize]) -> GroupLayout {
        let number = |n: usize| NonZeroUsize::new(n).unwrap();
        GroupLayout {
            ranks: number(ranks),
            stages: stages.iter().map(|layers| number(*layers)).collect(),
            kv_token_bytes: 1,
        }
    }

    #[test]
    fn a_group_is_made_of_as_many_devices_as_its_layout_has() {
        let cpus = |count: usize| -> Vec<Arc<Cpu>> {
            (0..count).map(|_| Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).unwrap())).collect()
        };
        let layout = layout(2, &[3, 1]);
        assert_eq!((layout.gpus(), layout.to_string().as_str()), (4, "2 stages of 2 GPUs that share each layer"));
        let stages = layout.over(cpus(4)).unwrap();
        assert_eq!(stages.stages().iter().map(|stage| stage.ranks().len()).collect::<Vec<_>>(), [2, 2]);
        assert!(layout.over(cpus(3)).is_err_and(|failure| failure.message.contains("a layout for 4")));
    }

    #[test]
    fn shares_of_weights_follow_the_layers() {
        let last = |layers: usize| 200 * layers as u64 + 40;
        assert_eq!(layout(2, &[3, 1]).shares(last), [300, 300, 120, 120]);
        assert_eq!(layout(3, &[2]).shares(|_| 10), [4, 4, 4]);
    }

    #[test]
    fn memory_of_a_group_is_as_free_as_that_of_its_fullest_gpu() {
        let of = |allocated, free| MemoryStats { allocated, free, total: 100, ..MemoryStats::default() };
        let both = together(&[of(10, 90), of(30, 60)]);
        assert_eq!((both.allocated, both.free, both.total, both.uneven), (40, 120, 200, 20));
        assert_eq!(together(&[of(30, 60), of(30, 60)]).uneven, 0);
        // Others have taken more of the second than this program of the first.
        assert_eq!(together(&[of(30, 60), of(10, 50)]).uneven, 0);
    }

    /// Weights that are somewhere.
    struct Weights(u64);

    impl HeldWeights for Weights {
        fn bytes(&self) -> u64 {
            self.0
        }

        fn is_resident(&self) -> bool {
            true
        }

        fn arriving(&self) -> Option<Arriving> {
            None
        }

        fn keep_image(&mut self, image: SharedMemory, on_filled: OnFilled) {
            on_filled(Ok(image.bytes() as u64));
        }

        fn has_image(&self) -> bool {
            true
        }

        fn take_image(&mut self, _: FilledImage) {}

        fn offload(&mut self) -> Result<(), GpuError> {
            Ok(())
        }

        fn wake(&mut self) -> Result<(), GpuError> {
            Ok(())
        }
    }

    #[test]
    fn weights_of_a_group_count_as_often_as_the_fullest_has_and_their_image_is_as_long_as_its_parts() {
        let mut weights = GroupWeights(vec![Weights(100), Weights(300), Weights(200)]);
        assert_eq!(weights.bytes(), 900);
        let (tell, told) = std::sync::mpsc::channel();
        let image = SharedMemory::of_bytes(1 << 20).unwrap();
        weights.keep_image(image, Box::new(move |filled| tell.send(filled.ok()).unwrap()));
        assert_eq!(told.recv().unwrap(), Some(2 * (64 << 10) + 200));
    }

    #[test]
    fn accounts_of_a_group_add_up_to_its_memory_whatever_lies_on_the_first_alone() {
        let member = |allocated, reserved| {
            let pool = PoolStats { reserved, used: allocated, ..PoolStats::default() };
            MemoryStats { allocated, reserved, free: 1000 - 10 - reserved, total: 1000, pool, ..MemoryStats::default() }
        };
        // An encoder of 200 with 50 for its passes on the first, 100 of a language model on each, and what pools keep.
        let memory = together(&[member(350, 400), member(100, 130), member(100, 100)]);
        let accounts = MemoryAccounts::of(&memory, 3 * 10, vec![3 * 200, 3 * 100], Vec::new());
        let report = accounts.report(memory.free);
        assert_eq!(report.capacity(), 3000);
        assert_eq!((report.free, accounts.workspace + accounts.cached), (3 * 590, 3 * 100));
        // Nothing is left of it: what its pool keeps of the first can be had on all.
        let memory = together(&[member(100, 400), member(100, 130), member(100, 100)]);
        let accounts = MemoryAccounts::of(&memory, 3 * 10, vec![0, 3 * 100], Vec::new());
        assert_eq!((accounts.report(memory.free).capacity(), accounts.report(memory.free).free), (3000, 3 * 590));
    }
}
