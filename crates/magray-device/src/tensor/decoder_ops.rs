//! The operations of a group of devices on the tokens of decoders: every rank computes its part, and parts of sums are added.
//! The host asks all ranks before it waits for one, so ranks on devices of their own work beside each other.

mod sums;
#[cfg(test)]
mod tests;
mod trial;

use super::RankError;
use super::parts::{TensorActs, TensorLinear, TensorPages, TensorParts};
use crate::{AttentionLayer, DecoderOps, SharedOps, StepBatch, SumsPlace, most_likely};
use magray_core::Activation;

/// The operations of all ranks. One pass is under way at a time: tokens are not fed back on the device.
#[derive(Debug)]
pub struct TensorOps<O: DecoderOps> {
    ranks: Vec<O>,
    /// The batch of the pass, for what begins again behind every sum.
    batch: Batch,
    /// Why the pass has no answer.
    failure: Option<RankError<O::Error>>,
    /// Rows that all ranks get.
    rows: Vec<f32>,
    answer: Vec<f32>,
    /// Numbers of a row of logits.
    vocab: usize,
    /// Where the logits of each rank end.
    ends: Vec<usize>,
    /// Where parts of sums come together.
    place: SumsPlace,
    /// Which of the two rooms the next parts are left in.
    turn: usize,
}

/// A copy of a batch.
#[derive(Debug, Default)]
struct Batch {
    ids: Vec<u32>,
    offsets: Vec<usize>,
    starts: Vec<usize>,
    pages: Vec<u32>,
    page_offsets: Vec<usize>,
    logit_rows: Vec<usize>,
}

impl Batch {
    fn take(&mut self, steps: &StepBatch<'_>) {
        fn copy<T: Copy>(to: &mut Vec<T>, from: &[T]) {
            to.clear();
            to.extend_from_slice(from);
        }
        copy(&mut self.ids, steps.ids);
        copy(&mut self.offsets, steps.offsets);
        copy(&mut self.starts, steps.starts);
        copy(&mut self.pages, steps.pages);
        copy(&mut self.page_offsets, steps.page_offsets);
        copy(&mut self.logit_rows, steps.logit_rows);
    }

    fn steps(&self) -> StepBatch<'_> {
        StepBatch {
            ids: &self.ids,
            offsets: &self.offsets,
            starts: &self.starts,
            pages: &self.pages,
            page_offsets: &self.page_offsets,
            logit_rows: &self.logit_rows,
        }
    }
}

impl<O: SharedOps> TensorOps<O> {
    pub(super) fn new(ranks: Vec<O>) -> Self {
        Self {
            ranks,
            batch: Batch::default(),
            failure: None,
            rows: Vec::new(),
            answer: Vec::new(),
            vocab: 0,
            ends: Vec::new(),
            place: SumsPlace::Host("a rank alone has no parts".to_owned()),
            turn: 0,
        }
    }

    /// The operations of each rank.
    pub fn into_ranks(self) -> Vec<O> {
        self.ranks
    }

    /// The failure of the pass, once all ranks have ended it.
    fn check(&mut self) -> Result<(), RankError<O::Error>> {
        let Some(failure) = self.failure.take() else { return Ok(()) };
        self.ranks.iter_mut().for_each(|ops| drop(ops.answer().map(drop)));
        Err(failure)
    }

    /// Joins the logits of all ranks.
    fn gather(&mut self) -> Result<(), RankError<O::Error>> {
        self.check()?;
        let (vocab, rows) = (self.vocab, self.batch.logit_rows.len());
        self.answer.resize(vocab * rows, 0.0);
        let mut start = 0;
        for (rank, (ops, end)) in self.ranks.iter_mut().zip(&self.ends).enumerate() {
            match ops.answer() {
                Ok(own) if end > &start => {
                    let joined = self.answer.chunks_exact_mut(vocab).zip(own.chunks_exact(end - start));
                    joined.for_each(|(row, own)| row[start..*end].copy_from_slice(own));
                }
                Ok(_) => {}
                Err(error) => drop(self.failure.get_or_insert(RankError { rank, error })),
            }
            start = *end;
        }
        self.failure.take().map_or(Ok(()), Err)
    }
}

/// A layer's attention as one rank knows it.
macro_rules! attention_of {
    ($layer:expr, $heads:expr, $rank:expr) => {
        AttentionLayer {
            layer: $layer.layer,
            heads: $heads,
            window: $layer.window,
            scale: $layer.scale,
            cap: $layer.cap,
            rope: &$layer.rope.0[$rank],
            query_norm: $layer.query_norm.map(|norm| &norm.0[$rank]),
            key_norm: $layer.key_norm.map(|norm| &norm.0[$rank]),
        }
    };
}

impl<O: SharedOps> DecoderOps for TensorOps<O> {
    type Error = RankError<O::Error>;
    type Acts = TensorActs<O::Acts>;
    type Linear = TensorLinear<O::Linear>;
    type Norm = TensorParts<O::Norm>;
    type Rope = TensorParts<O::Rope>;
    type Pages = TensorPages<O::Pages>;

    fn resize(&mut self, acts: &mut Self::Acts, rows: usize) {
        acts.rows = rows;
        for (ops, acts) in self.ranks.iter_mut().zip(&mut acts.ranks) {
            if let Some(acts) = acts {
                ops.resize(acts, rows);
            }
        }
        self.resize_parts(acts, rows);
    }

    /// Each rank looks up the tokens that it has; their rows go to all.
    fn embed(&mut self, steps: &StepBatch<'_>, table: &Self::Linear, scale: f32, out: &mut Self::Acts) {
        self.batch.take(steps);
        if let (Some(table), Some(out), [ops]) = (&table.ranks[0], &mut out.ranks[0], &mut *self.ranks) {
            return ops.embed(steps, table, scale, out);
        }
        let owner = |id: u32| table.ends.partition_point(|end| *end <= id as usize);
        let owners: Vec<usize> = steps.ids.iter().map(|id| owner(*id)).collect();
        let known = table.ends.last().copied().unwrap_or(0);
        assert!(
            owners.iter().all(|rank| *rank < self.ranks.len()),
            "an id in a table of {known}: ids are checked at the door"
        );
        let first = |rank: usize| rank.checked_sub(1).map_or(0, |before| table.ends[before]);
        let asked = |rank: usize| owners.contains(&rank);
        for (rank, ops) in self.ranks.iter_mut().enumerate().filter(|(rank, _)| asked(*rank)) {
            let (Some(table), Some(out)) = (&table.ranks[rank], &mut out.ranks[rank]) else { continue };
            let own = steps
                .ids
                .iter()
                .zip(&owners)
                .map(|(id, owner)| if *owner == rank { *id as usize } else { first(rank) });
            let ids: Vec<u32> = own.map(|id| (id - first(rank)) as u32).collect();
            let steps = StepBatch { ids: &ids, ..*steps };
            ops.embed(&steps, table, scale, out);
            ops.send_rows(&steps, out);
        }
        let columns = out.columns;
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        rows.resize(steps.tokens() * columns, 0.0);
        for (rank, ops) in self.ranks.iter_mut().enumerate().filter(|(rank, _)| asked(*rank)) {
            let Some(out) = &out.ranks[rank] else { continue };
            match ops.take_rows(out) {
                Ok(own) => {
                    let all = rows.chunks_exact_mut(columns).zip(own.chunks_exact(columns)).zip(&owners);
                    all.filter(|(_, owner)| **owner == rank).for_each(|((row, own), _)| row.copy_from_slice(own));
                }
                Err(error) => drop(self.failure.get_or_insert(RankError { rank, error })),
            }
        }
        self.write_hidden(steps, &rows, out);
        self.rows = rows;
    }

    /// The same on all ranks: the first one's are taken.
    fn read_hidden<'a>(&'a mut self, steps: &StepBatch<'_>, hidden: &'a Self::Acts) -> Result<&'a [f32], Self::Error> {
        if let Some(failure) = self.catch_up() {
            return Err(failure);
        }
        let failure = self.failure.take();
        let Some(first) = &hidden.ranks[0] else { unreachable!("the residual stream is on all ranks") };
        let rows = self.ranks[0].read_hidden(steps, first).map_err(|error| RankError { rank: 0, error });
        failure.map_or(rows, Err)
    }

    fn write_hidden(&mut self, steps: &StepBatch<'_>, rows: &[f32], hidden: &mut Self::Acts) {
        self.batch.take(steps);
        for (ops, hidden) in self.ranks.iter_mut().zip(&mut hidden.ranks) {
            if let Some(hidden) = hidden {
                ops.write_hidden(steps, rows, hidden);
            }
        }
    }

    fn norm_linear(&mut self, x: &Self::Acts, norm: &Self::Norm, weights: &Self::Linear, out: &mut Self::Acts) {
        for (rank, ops) in self.ranks.iter_mut().enumerate() {
            if let (Some(x), Some(weights), Some(out)) = (&x.ranks[rank], &weights.ranks[rank], &mut out.ranks[rank]) {
                ops.norm_linear(x, &norm.0[rank], weights, out);
            }
        }
    }

    fn gated_linear(
        &mut self,
        x: &Self::Acts,
        norm: &Self::Norm,
        weights: &Self::Linear,
        activation: Activation,
        out: &mut Self::Acts,
    ) {
        for (rank, ops) in self.ranks.iter_mut().enumerate() {
            if let (Some(x), Some(weights), Some(out)) = (&x.ranks[rank], &weights.ranks[rank], &mut out.ranks[rank]) {
                ops.gated_linear(x, &norm.0[rank], weights, activation, out);
            }
        }
    }

    fn linear_add(
        &mut self,
        x: &Self::Acts,
        weights: &Self::Linear,
        norm: Option<&Self::Norm>,
        hidden: &mut Self::Acts,
    ) {
        if let (Some(x), Some(weights), Some(hidden), [ops]) =
            (&x.ranks[0], &weights.ranks[0], &mut hidden.ranks[0], &mut *self.ranks)
        {
            return ops.linear_add(x, weights, norm.map(|norm| &norm.0[0]), hidden);
        }
        for (rank, ops) in self.ranks.iter_mut().enumerate() {
            if let (Some(x), Some(weights)) = (&x.ranks[rank], &weights.ranks[rank]) {
                ops.linear_sums(x, weights, &mut hidden.sums[self.turn][rank]);
            }
        }
        let has_part: Vec<bool> = weights.ranks.iter().map(Option::is_some).collect();
        self.add_up(hidden, norm.map(|norm| &*norm.0), &has_part);
    }

    fn rope_append(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, Self::Norm, Self::Rope>,
        qkv: &mut Self::Acts,
        pages: &mut Self::Pages,
    ) {
        for (rank, (ops, pages)) in self.ranks.iter_mut().zip(&mut pages.ranks).enumerate() {
            let layer = attention_of!(layer, qkv.heads[rank], rank);
            if let Some(qkv) = &mut qkv.ranks[rank] {
                ops.rope_append(steps, &layer, qkv, pages);
            }
        }
    }

    fn attend(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, Self::Norm, Self::Rope>,
        qkv: &Self::Acts,
        pages: &Self::Pages,
        out: &mut Self::Acts,
    ) {
        for (rank, (ops, pages)) in self.ranks.iter_mut().zip(&pages.ranks).enumerate() {
            let layer = attention_of!(layer, qkv.heads[rank], rank);
            if let (Some(qkv), Some(out)) = (&qkv.ranks[rank], &mut out.ranks[rank]) {
                ops.attend(steps, &layer, qkv, pages, out);
            }
        }
    }

    fn logits(
        &mut self,
        steps: &StepBatch<'_>,
        hidden: &Self::Acts,
        norm: &Self::Norm,
        head: &Self::Linear,
        cap: Option<f32>,
    ) {
        // Ranks that failed tell it when they are asked for their answer.
        O::catch_up(&mut self.ranks);
        self.vocab = head.ends.last().copied().unwrap_or(0);
        self.ends.clone_from(&head.ends);
        for (rank, ops) in self.ranks.iter_mut().enumerate() {
            if let (Some(hidden), Some(head)) = (&hidden.ranks[rank], &head.ranks[rank]) {
                ops.logits(steps, hidden, &norm.0[rank], head, cap);
            }
        }
    }

    fn answer(&mut self) -> Result<&[f32], Self::Error> {
        self.gather()?;
        Ok(&self.answer)
    }

    fn chosen(&mut self) -> Result<Vec<u32>, Self::Error> {
        self.gather()?;
        Ok(self.answer.chunks_exact(self.vocab.max(1)).map(most_likely).collect())
    }

    fn appends_first(&self) -> bool {
        self.ranks.iter().all(DecoderOps::appends_first)
    }

    fn rest(&mut self) -> Result<(), Self::Error> {
        let mut ranks = self.ranks.iter_mut().enumerate();
        ranks.try_for_each(|(rank, ops)| ops.rest().map_err(|error| RankError { rank, error }))
    }

    fn trim(&mut self) {
        self.ranks.iter_mut().for_each(DecoderOps::trim);
    }

    fn held_bytes(&self, acts: &[&Self::Acts]) -> u64 {
        let of = |rank: usize| {
            let sums = acts.iter().flat_map(|acts| &acts.sums).filter_map(|sums| sums.get(rank));
            acts.iter().filter_map(|acts| acts.ranks[rank].as_ref()).chain(sums).collect::<Vec<_>>()
        };
        self.ranks.iter().enumerate().map(|(rank, ops)| ops.held_bytes(&of(rank))).sum()
    }
}
