//! A GPU as a rank of a group: parts of sums, their way through the host, and their sum where the GPUs read each other's memory.
//! No kernel waits for another rank, and on this way no thread does: streams wait for marks of others that are placed already, so that ranks
//! cannot wait for each other in a circle.

use super::arguments::{Argument, FINISH_ADD, FINISH_FLOATS, Finish, Parts, RANKS_MOST, int, int_of};
use super::memory::DecoderActs;
use super::together::{Pieces, Together, are_well};
use super::weights::{DecoderLinear, DecoderNorm};
use super::{CudaDecoderOps, Operand, batch};
use crate::cuda::context::Context;
use crate::cuda::decoder_kernels::DecoderKernel;
use crate::cuda::device_error::DeviceError;
use crate::cuda::error::CudaError;
use crate::cuda::function::LaunchShape;
use crate::cuda::stream::Mark;
use crate::cuda::sys;
use crate::{PartSums, SharedOps, StepBatch};
use std::sync::Arc;

/// Threads of a block, each of which adds four numbers at a time.
const THREADS: usize = 256;
/// Blocks at most: enough to ask for all that a link between GPUs brings.
const BLOCKS_MOST: usize = 512;

/// What a rank knows of the others.
#[derive(Debug)]
pub(super) struct Joined {
    /// Other GPUs that read its parts; none where all ranks are on one.
    readers: Vec<sys::CUdevice>,
    /// What was noted of the step and not begun, each piece up to a part.
    pub(super) pieces: Pieces,
    /// Behind its last part. Others wait for it, never the host.
    pub(super) mark: Mark,
    /// Of the first rank: the steps of all that were recorded.
    pub(super) together: Together,
}

impl Joined {
    fn new(readers: Vec<sys::CUdevice>, context: &Arc<Context>) -> Result<Self, CudaError> {
        let (pieces, together) = (Pieces::new(), Together::default());
        Ok(Self { readers, pieces, mark: Mark::new(context)?, together })
    }

    /// The step was given up.
    pub(super) fn forget_pieces(&mut self) {
        self.pieces.clear();
    }

    pub(super) fn forget_recordings(&mut self) {
        self.pieces.clear();
        self.together.forget();
    }
}

impl SharedOps for CudaDecoderOps {
    fn linear_sums(&mut self, x: &DecoderActs, weights: &DecoderLinear, out: &mut DecoderActs) {
        assert_eq!((out.rows, out.columns), (x.rows, weights.outputs), "room for the layer's outputs");
        let rows = batch::rounded_rows(x.rows);
        let operand = Operand { address: x.address(), columns: x.columns, stride: x.stride(), rows, room: x.room() };
        let mut finish = Finish::new(FINISH_FLOATS);
        (finish.out, finish.out_stride) = (out.address(), int_of(out.stride()));
        self.product(operand, weights, finish);
    }

    fn add_sums(&mut self, sums: &DecoderActs, norm: Option<&DecoderNorm>, hidden: &mut DecoderActs) {
        assert_eq!((sums.rows, sums.columns), (hidden.rows, hidden.columns), "sums of the residual stream");
        let rows = batch::rounded_rows(hidden.rows);
        self.make_shadow_room(hidden);
        self.launch_add(hidden, Some((sums.address(), norm)), (0, rows), Finish::new(FINISH_ADD));
        self.changed(hidden, self.launches.len() - 1, 1);
    }

    fn send_rows(&mut self, steps: &StepBatch<'_>, rows: &DecoderActs) {
        assert_eq!(rows.rows, steps.tokens(), "a row for each token");
        self.results.expect(0, 0);
        self.finish_part();
    }

    fn take_rows<'a>(&'a mut self, rows: &'a DecoderActs) -> Result<&'a [f32], DeviceError> {
        match &self.failure {
            Some(error) => Err(error.clone()),
            None => self.take_hidden(rows),
        }
    }

    fn join(ranks: &mut [Self]) -> Result<(), String> {
        if ranks.len() > RANKS_MOST {
            return Err(format!("there are more than {RANKS_MOST} ranks"));
        }
        let joined: Vec<Joined> = ranks.iter().map(|ops| ops.readers_among(ranks)).collect::<Result<_, _>>()?;
        for (ops, joined) in ranks.iter_mut().zip(joined) {
            ops.joined = Some(joined);
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.joined = None;
    }

    fn resize_parts(&mut self, parts: &mut DecoderActs, rows: usize) {
        let readers = self.joined.as_ref().map_or(&[][..], |joined| &joined.readers);
        if let Err(error) = parts.resize(rows, &self.stream, readers) {
            self.fail(error);
        }
    }

    /// A part is written again by the sum after the next. By then its rank has waited for marks of all others that stand behind their kernels
    /// which read it, for these are put in before the part of the next sum.
    fn sum_parts(ranks: &mut [Self], sum: PartSums<'_, Self>) -> bool {
        let PartSums { parts, has_part, norms, hidden } = sum;
        ranks.iter_mut().for_each(Self::put_off);
        // Steps that come again are recorded as a whole; others begin at once.
        let is_well = (ranks[0].shape.recurs && are_well(ranks)) || Self::begin_together(ranks);
        if !is_well {
            for ops in ranks {
                // A stream that cannot be waited for reads no part any more.
                let _ = ops.stream.wait();
            }
            return false;
        }
        let there = parts.iter().zip(has_part).filter(|(_, has_part)| **has_part);
        let addresses = Parts::new(there.map(|(part, _)| part.address()));
        for (rank, (ops, hidden)) in ranks.iter_mut().zip(hidden).enumerate() {
            let Some(hidden) = hidden else { continue };
            let part = &parts[rank];
            assert_eq!((part.rows, part.columns), (hidden.rows, hidden.columns), "parts of the residual stream");
            ops.add_parts(addresses, norms.map(|norms| &norms[rank]), hidden);
        }
        true
    }

    fn catch_up(ranks: &mut [Self]) -> bool {
        Self::begin_together(ranks)
    }
}

impl CudaDecoderOps {
    /// The GPUs of these ranks that would read this one's parts; or why one of them cannot.
    fn readers_among(&self, ranks: &[Self]) -> Result<Joined, String> {
        let own = self.cuda.context();
        let mut readers = Vec::new();
        for other in ranks.iter().map(|ops| ops.cuda.context()).filter(|other| other.device() != own.device()) {
            let (reader, read) = (other.gpu().index, own.gpu().index);
            match other.reads(own) {
                Ok(true) if !readers.contains(&other.device()) => readers.push(other.device()),
                Ok(true) => {}
                Ok(false) => return Err(format!("GPU {reader} cannot read the memory of GPU {read}")),
                Err(error) => return Err(format!("whether GPU {reader} can read the memory of GPU {read}: {error}")),
            }
        }
        if !readers.is_empty() && !own.can_park() {
            return Err(format!("the memory of GPU {} cannot be mapped for others", own.gpu().index));
        }
        Joined::new(readers, own).map_err(|error| error.to_string())
    }

    /// Ends a piece of the step with this rank's part.
    fn put_off(&mut self) {
        let piece = std::mem::take(&mut self.launches);
        if let Some(joined) = &mut self.joined {
            joined.pieces.push(piece);
        }
        self.shadowed = None;
    }

    /// `hidden += parts`. Notes it as the first kernels of a piece: they stand behind the waits for the others, and the first of a piece begins
    /// only when all ahead of it in the stream has ended.
    fn add_parts(&mut self, parts: Parts, norm: Option<&DecoderNorm>, hidden: &DecoderActs) {
        let (rows, stride) = (batch::rounded_rows(hidden.rows), hidden.stride());
        self.make_shadow_room(hidden);
        let sums = self.room(|ops| &mut ops.sums, hidden.room() * stride * 4);
        let fours = rows * stride / 4;
        let blocks = fours.div_ceil(THREADS).min(BLOCKS_MOST) as u32;
        let arguments = vec![Argument::Parts(parts), Argument::Address(sums), int(fours)];
        self.launch(DecoderKernel::Sum, LaunchShape::new([blocks, 1, 1], [THREADS as u32, 1, 1]), arguments);
        self.launch_add(hidden, Some((sums, norm)), (0, rows), Finish::new(FINISH_ADD));
        self.changed(hidden, self.launches.len() - 1, 1);
    }
}
