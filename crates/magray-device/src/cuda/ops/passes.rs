//! Whole passes: staged, put together once for each size of batch, recorded, and started as one ever after.
//! Knows no operation: what a pass is made of is its caller's.

use super::{CudaOps, MOST_RECORDINGS, Mode, Order, Recording};
use crate::TokenBatch;
use crate::cuda::batch::{self, Bucket};
use crate::cuda::compile::KernelSpec;
use crate::cuda::device_error::DeviceError;
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::pinned_buffers::PinnedWords;
use std::collections::BTreeSet;

impl CudaOps {
    /// Runs one pass over a batch, which `work` puts together of operations on that batch. The first time that a batch of
    /// about this size comes, the work is recorded; later it is not called, the recording is started. So `work` must be
    /// the same for all batches of these operations. The answer is asked for with [`Ops::answer`].
    pub fn pass(&mut self, batch: &TokenBatch<'_>, skip: usize, work: impl FnMut(&mut Self)) {
        if let Err(error) = self.try_pass(batch, skip, work) {
            self.fail(error);
        }
    }

    /// The kernels that passes of this work use, over batches of any size up to this many tokens.
    pub fn plan(&mut self, tokens_most: usize, mut work: impl FnMut(&mut Self, &TokenBatch<'_>)) -> Vec<KernelSpec> {
        let bucket = self.bucket;
        self.mode = Mode::Plan(BTreeSet::new());
        let mut tokens = 1;
        while tokens <= tokens_most {
            // Texts of one token: as many rows behind the pooling as before it, and none longer than a bias was made for.
            let (ids, offsets) = (vec![0; tokens], (0..=tokens).collect::<Vec<_>>());
            let batch = TokenBatch { ids: &ids, types: &[], offsets: &offsets };
            self.bucket = Bucket::of(&batch);
            work(self, &batch);
            tokens = self.bucket.tokens + 1;
        }
        self.bucket = bucket;
        match std::mem::replace(&mut self.mode, Mode::Eager) {
            Mode::Plan(specs) => specs.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn try_pass(
        &mut self,
        batch: &TokenBatch<'_>,
        skip: usize,
        mut work: impl FnMut(&mut Self),
    ) -> Result<(), DeviceError> {
        self.stage(batch, skip)?;
        self.history.note(self.bucket.tokens);
        let arriving = self.weights.as_ref().is_some_and(|weights| !weights.is_there());
        if arriving || !self.recordings.contains_key(&self.bucket) {
            // What has to grow grows before the recording, and the kernels are made on all cores.
            self.mode = Mode::List(Vec::new());
            work(self);
            let order = if arriving { Order::Strict } else { Order::First };
            let listed = std::mem::replace(&mut self.mode, Mode::Pass { order });
            let done = match listed {
                Mode::List(specs) if self.failure.is_none() => match arriving {
                    true => self.run_once(batch, &specs, work),
                    false => self.record(&specs, work),
                },
                _ => Ok(()),
            };
            self.mode = Mode::Eager;
            done?;
        }
        if arriving {
            return Ok(());
        }
        // None if the work failed: the failure is kept.
        if let Some(recording) = self.recordings.get(&self.bucket) {
            self.stream.launch(&recording.graph)?;
            self.answer_len = batch.texts() * recording.columns;
            self.busy = true;
        }
        Ok(())
    }

    /// Puts a pass into the stream without recording it: its layers wait for their weights.
    fn run_once(
        &mut self,
        batch: &TokenBatch<'_>,
        specs: &[KernelSpec],
        mut work: impl FnMut(&mut Self),
    ) -> Result<(), DeviceError> {
        self.prepare(specs)?;
        self.busy = true;
        self.copy_batch()?;
        work(self);
        self.answer_len = batch.texts() * self.answer_columns;
        Ok(())
    }

    fn prepare(&self, specs: &[KernelSpec]) -> Result<(), DeviceError> {
        self.cuda.prepare(specs, std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Puts the copy of the staged batch into the stream.
    pub(super) fn copy_batch(&self) -> Result<(), DeviceError> {
        self.cuda.context().bind()?;
        // SAFETY: both buffers have room for the bucket; they stay where they are as long as there are recordings, and
        // `stage` waits before either is written again.
        Ok(unsafe { self.stream.copy_in(self.batch.address(), self.staged.address(), self.layout.words * 4) }?)
    }

    fn record(&mut self, specs: &[KernelSpec], mut work: impl FnMut(&mut Self)) -> Result<(), DeviceError> {
        self.prepare(specs)?;
        if self.recordings.len() >= MOST_RECORDINGS {
            self.recordings.clear();
        }
        self.stream.begin_recording()?;
        let copied = self.copy_batch();
        work(self);
        let graph = self.stream.end_recording();
        copied?;
        let graph = graph?;
        if self.failure.is_none() {
            self.recordings.insert(self.bucket, Recording { graph, columns: self.answer_columns });
        }
        Ok(())
    }

    /// Writes a batch where it is copied to the GPU from.
    pub(super) fn stage(&mut self, batch: &TokenBatch<'_>, skip: usize) -> Result<(), DeviceError> {
        batch.check();
        self.settle()?;
        self.bucket = Bucket::of(batch);
        self.layout = self.bucket.layout();
        self.skip = skip;
        if self.layout.words > self.staged.len() {
            let words = self.layout.words.next_power_of_two();
            // Both or none: a batch that fits one must fit the other.
            let batch = DeviceBuffer::private(&self.stream, words * 4)?;
            let staged = PinnedWords::zeroed(self.cuda.context(), words)?;
            self.recordings.clear();
            (self.batch, self.staged) = (batch, staged);
        }
        batch::stage(batch, skip, self.staged.as_mut_slice());
        Ok(())
    }
}
