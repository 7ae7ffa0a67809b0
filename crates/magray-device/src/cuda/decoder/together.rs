//! The pieces of a step between the sums of a group: put into the streams of its ranks in turn, or launched as one recording over all these
//! streams where the same step came before. Knows no operation.

use super::CudaDecoderOps;
use super::launches::Launch;
use crate::cuda::device_error::DeviceError;
use crate::cuda::error::CudaError;
use crate::cuda::stream::Graph;

/// Recordings kept; beyond it the one goes that was used longest ago.
const MOST_RECORDINGS: usize = 64;

/// What a rank does of a step, each piece up to a part of a sum.
pub(super) type Pieces = Vec<Vec<Launch>>;

/// A step by the pieces of all ranks, and its recording.
type Recorded = (Vec<Pieces>, Graph);

/// The rank that failed, and why.
type Failed = (usize, DeviceError);

/// Steps of a group that were recorded.
#[derive(Debug, Default)]
pub(super) struct Together {
    /// The last used one at the end.
    known: Vec<Recorded>,
    /// The driver refused to record over several streams.
    is_refused: bool,
}

impl Together {
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    pub(super) fn forget(&mut self) {
        self.known.clear();
    }
}

/// Whether no rank has failed.
pub(super) fn are_well(ranks: &[CudaDecoderOps]) -> bool {
    ranks.iter().all(|ops| ops.failure.is_none())
}

impl CudaDecoderOps {
    /// Begins what ranks have put off, and nothing where one of them has failed. `false`: one has failed.
    pub(super) fn begin_together(ranks: &mut [Self]) -> bool {
        let take = |ops: &mut Self| ops.joined.as_mut().map(|joined| std::mem::take(&mut joined.pieces));
        let all: Vec<Pieces> = ranks.iter_mut().map(|ops| take(ops).unwrap_or_default()).collect();
        let count = all.first().map_or(0, Vec::len);
        if count == 0 || !are_well(ranks) {
            return are_well(ranks);
        }
        assert!(all.iter().all(|pieces| pieces.len() == count), "all ranks have come to the same sum");
        if let Err((rank, error)) = Self::begin_pieces(ranks, all) {
            ranks[rank].fail(error);
        }
        are_well(ranks)
    }

    fn begin_pieces(ranks: &mut [Self], all: Vec<Pieces>) -> Result<(), Failed> {
        each(ranks, |ops| ops.weights.as_ref().map_or(Ok(()), |weights| weights.hold_all(&ops.stream)))?;
        let recorded = if ranks[0].shape.recurs { Self::recorded_as(ranks, all) } else { Err(all) };
        match recorded {
            Ok(recorded) => {
                // It begins when all streams have come here, and they go on when it has ended.
                gather(ranks)?;
                match ranks[0].stream.launch(&recorded.1) {
                    Ok(()) => {
                        scatter(ranks)?;
                        keep(ranks, recorded);
                    }
                    // A recording takes memory of the GPU when it is launched: that may be there the next time.
                    Err(CudaError::OutOfMemory) => {
                        put_pieces(ranks, &recorded.0)?;
                        keep(ranks, recorded);
                    }
                    Err(_) => {
                        refuse(ranks);
                        put_pieces(ranks, &recorded.0)?;
                    }
                }
            }
            Err(all) => put_pieces(ranks, &all)?,
        }
        each(ranks, |ops| Ok(ops.results.mark_batch(&ops.stream)?))
    }

    /// The recording of a step, made where there is none; the step, where it is not recorded.
    fn recorded_as(ranks: &mut [Self], all: Vec<Pieces>) -> Result<Recorded, Vec<Pieces>> {
        let together = ranks[0].joined.as_mut().map(|joined| &mut joined.together);
        let Some(together) = together.filter(|together| !together.is_refused) else { return Err(all) };
        if let Some(at) = together.known.iter().rposition(|(known, _)| *known == all) {
            return Ok(together.known.remove(at));
        }
        if together.known.len() >= MOST_RECORDINGS {
            together.known.remove(0);
        }
        match record(ranks, &all) {
            Ok(graph) => Ok((all, graph)),
            // Memory may be there the next time.
            Err((_, DeviceError::Cuda(CudaError::OutOfMemory))) => Err(all),
            Err(_) => {
                refuse(ranks);
                Err(all)
            }
        }
    }

    fn put_piece(&mut self, piece: &[Launch]) -> Result<(), DeviceError> {
        self.recordings.put(&self.cuda, &self.stream, piece)?;
        Ok(self.place_mark()?)
    }

    fn place_mark(&mut self) -> Result<(), CudaError> {
        self.joined.as_mut().map_or(Ok(()), |joined| self.stream.mark_again(&mut joined.mark))
    }

    /// What is put into this rank's stream from now on waits for the mark of another, which is placed.
    fn wait_for(&self, other: &Self) -> Result<(), CudaError> {
        other.joined.as_ref().map_or(Ok(()), |joined| self.stream.wait_for(&joined.mark))
    }
}

/// The recording was used last.
fn keep(ranks: &mut [CudaDecoderOps], recorded: Recorded) {
    if let Some(joined) = &mut ranks[0].joined {
        joined.together.known.push(recorded);
    }
}

/// The driver did not record a step, or not launch it: nothing of it has run. This one and all others are put into the streams piece by piece.
fn refuse(ranks: &mut [CudaDecoderOps]) {
    ranks[0].joined.iter_mut().for_each(|joined| joined.together = Together { is_refused: true, known: Vec::new() });
}

/// Records a step over the streams of all ranks: it begins in the first one's, and ends there.
fn record(ranks: &mut [CudaDecoderOps], all: &[Pieces]) -> Result<Graph, Failed> {
    for (rank, (ops, pieces)) in ranks.iter_mut().zip(all).enumerate() {
        for piece in pieces {
            ops.recordings.prepare(&ops.cuda, piece).map_err(|error| (rank, error))?;
        }
    }
    ranks[0].stream.begin_recording().map_err(|error| (0, error.into()))?;
    ranks[1..].iter().for_each(|ops| ops.stream.joins_recording(true));
    let put = scatter(ranks).and_then(|()| put_pieces(ranks, all)).and_then(|()| gather(ranks));
    let graph = ranks[0].stream.end_recording();
    ranks[1..].iter().for_each(|ops| ops.stream.joins_recording(false));
    put?;
    graph.map_err(|error| (0, error.into()))
}

/// Puts all pieces into the streams of their ranks; behind each all wait for each other's parts.
fn put_pieces(ranks: &mut [CudaDecoderOps], all: &[Pieces]) -> Result<(), Failed> {
    for at in 0..all[0].len() {
        for (rank, (ops, pieces)) in ranks.iter_mut().zip(all).enumerate() {
            ops.put_piece(&pieces[at]).map_err(|error| (rank, error))?;
        }
        // A mark can be waited for once it is placed: every rank has placed its own before one waits.
        for (rank, ops) in ranks.iter().enumerate() {
            let mut others = ranks.iter().enumerate().filter(|(other, _)| *other != rank);
            others.try_for_each(|(_, other)| ops.wait_for(other)).map_err(|error| (rank, error.into()))?;
        }
    }
    Ok(())
}

/// The first rank's stream waits for all others.
fn gather(ranks: &mut [CudaDecoderOps]) -> Result<(), Failed> {
    each(ranks, |ops| Ok(ops.place_mark()?))?;
    let (first, others) = ranks.split_first().unwrap_or_else(|| unreachable!("a group has ranks"));
    others.iter().try_for_each(|other| first.wait_for(other)).map_err(|error| (0, error.into()))
}

/// All other ranks' streams wait for the first.
fn scatter(ranks: &mut [CudaDecoderOps]) -> Result<(), Failed> {
    ranks[0].place_mark().map_err(|error| (0, error.into()))?;
    let (first, others) = ranks.split_first().unwrap_or_else(|| unreachable!("a group has ranks"));
    let mut waits = others.iter().map(|other| other.wait_for(first)).enumerate();
    waits.try_for_each(|(at, wait)| wait.map_err(|error| (at + 1, error.into())))
}

fn each(
    ranks: &mut [CudaDecoderOps],
    mut act: impl FnMut(&mut CudaDecoderOps) -> Result<(), DeviceError>,
) -> Result<(), Failed> {
    ranks.iter_mut().enumerate().try_for_each(|(rank, ops)| act(ops).map_err(|error| (rank, error)))
}
