//! A group of devices for encoders: queries, keys and values by heads, feed-forward layers by their inner numbers. Tables, pooling and what
//! follows it are on the first rank alone.
//! Adds what ranks have of a sum on the host, in their order.

use super::cut::{input_numbers_of, output_numbers_of};
use super::parts::{TensorLinear, TensorParts};
use super::shares::{HeadShare, inner};
use super::{RankError, Tensor, TensorActs, each};
use crate::{
    ActsPair, AttentionShape, Device, DistanceBias, Embedding, EncoderActs, EncoderRole, HeadShape, LinearNumbers,
    LinearSource, Norm, Numbers, Ops, Place, PoolShape, Rows, SharedEncoderOps, TokenBatch,
};
use magray_core::{Activation, Precision};
use std::ops::Deref;

type OpsOf<A> = <<A as Deref>::Target as Device>::Ops;

/// The operations of all ranks on encoders.
#[derive(Debug)]
pub struct TensorEncoderOps<O: Ops> {
    ranks: Vec<O>,
    failure: Option<RankError<O::Error>>,
}

impl<A: Deref<Target: Device>> Tensor<A>
where
    OpsOf<A>: SharedEncoderOps,
{
    /// The operations of all ranks as those of one device.
    pub fn encoder_ops(&self, ranks: Vec<OpsOf<A>>) -> TensorEncoderOps<OpsOf<A>> {
        assert_eq!(ranks.len(), self.ranks.len(), "operations of each rank");
        TensorEncoderOps { ranks, failure: None }
    }

    /// What a rank has of a linear layer.
    fn encoder_part(&self, rank: usize, role: EncoderRole, source: &LinearNumbers) -> Option<LinearNumbers> {
        let count = self.ranks.len();
        match role {
            EncoderRole::Qkv(shape) => {
                let share = HeadShare::of(shape, count, rank);
                let (size, third) = (shape.head_size, shape.heads * shape.head_size);
                let own = |at: usize| at * third + share.heads.start * size..at * third + share.heads.end * size;
                output_numbers_of(source, &[own(0), own(1), own(2)])
            }
            EncoderRole::Attended(shape) => {
                let share = HeadShare::of(shape, count, rank).heads;
                input_numbers_of(source, share.start * shape.head_size..share.end * shape.head_size, rank == 0)
            }
            EncoderRole::Up => output_numbers_of(source, &[inner(source.outputs(), count, rank)]),
            EncoderRole::Down => input_numbers_of(source, inner(source.inputs, count, rank), rank == 0),
            EncoderRole::Pooled => {
                output_numbers_of(source, std::slice::from_ref(&(0..source.outputs()))).filter(|_| rank == 0)
            }
        }
    }
}

impl<A: Deref<Target: Device>> Device for Tensor<A>
where
    OpsOf<A>: SharedEncoderOps,
{
    type Error = RankError<<A::Target as Device>::Error>;
    type Ops = TensorEncoderOps<OpsOf<A>>;

    fn linear(
        &self,
        source: LinearSource<'_>,
        precision: Precision,
    ) -> Result<<Self::Ops as Ops>::Linear, Self::Error> {
        let weights = vec![Numbers::new(source.weights)];
        self.linear_of(LinearNumbers { weights, inputs: source.inputs, bias: source.bias.to_vec() }, precision)
    }

    fn linear_of(
        &self,
        source: LinearNumbers,
        precision: Precision,
    ) -> Result<<Self::Ops as Ops>::Linear, Self::Error> {
        self.layer_linear(Place::Head, EncoderRole::Pooled, source, precision)
    }

    fn layer_linear(
        &self,
        place: Place,
        role: EncoderRole,
        source: LinearNumbers,
        precision: Precision,
    ) -> Result<<Self::Ops as Ops>::Linear, Self::Error> {
        let ranks = each(&self.ranks, |rank, device| {
            let part = self.encoder_part(rank, role, &source);
            part.map(|part| device.layer_linear(place, role, part, precision)).transpose()
        })?;
        source.weights.iter().for_each(Numbers::release_pages);
        Ok(TensorLinear { ranks, ends: Vec::new() })
    }

    fn norm(&self, norm: Norm) -> Result<<Self::Ops as Ops>::Norm, Self::Error> {
        self.layer_norm(Place::Head, norm)
    }

    fn layer_norm(&self, place: Place, norm: Norm) -> Result<<Self::Ops as Ops>::Norm, Self::Error> {
        Ok(TensorParts(each(&self.ranks, |_, device| device.layer_norm(place, norm.clone()))?))
    }

    fn embedding(
        &self,
        embedding: Embedding,
        precision: Precision,
    ) -> Result<<Self::Ops as Ops>::Embedding, Self::Error> {
        self.ranks[0].embedding(embedding, precision).map_err(|error| RankError { rank: 0, error })
    }

    fn bias(&self, bias: DistanceBias) -> Result<<Self::Ops as Ops>::Bias, Self::Error> {
        let count = self.ranks.len();
        let heads = bias.heads();
        let shape = HeadShape { heads, kv_heads: heads, head_size: 1 };
        let own = |rank| bias.of_heads(HeadShare::of(shape, count, rank).heads);
        Ok(TensorParts(each(&self.ranks, |rank, device| device.bias(own(rank)))?))
    }

    fn acts(&self, precision: Precision, columns: usize) -> <Self::Ops as Ops>::Acts {
        self.layer_acts(EncoderActs::Pooled, precision, columns)
    }

    fn layer_acts(&self, role: EncoderActs, precision: Precision, columns: usize) -> <Self::Ops as Ops>::Acts {
        let count = self.ranks.len();
        let heads = |rank| match role {
            EncoderActs::Qkv(shape) | EncoderActs::Attended(shape) => HeadShare::of(shape, count, rank).heads.len(),
            _ => 0,
        };
        let width = |rank: usize| match role {
            EncoderActs::Hidden => columns,
            EncoderActs::Qkv(shape) => 3 * heads(rank) * shape.head_size,
            EncoderActs::Attended(shape) => heads(rank) * shape.head_size,
            EncoderActs::Inner => inner(columns, count, rank).len(),
            EncoderActs::Pooled if rank == 0 => columns,
            EncoderActs::Pooled => 0,
        };
        let acts = |rank: usize| {
            let columns = width(rank);
            (columns > 0).then(|| self.ranks[rank].layer_acts(role, precision, columns))
        };
        let sums = self.ranks.iter().filter(|_| role == EncoderActs::Hidden);
        TensorActs {
            ranks: (0..count).map(acts).collect(),
            // Parts of sums are not rounded. They go through the host, which takes them before the next are there.
            sums: [sums.map(|device| device.layer_acts(role, Precision::F32, columns)).collect(), Vec::new()],
            heads: (0..count).map(heads).collect(),
            columns,
            rows: 0,
        }
    }

    fn layer_acts_in_turn(
        &self,
        roles: [EncoderActs; 2],
        precision: Precision,
        columns: [usize; 2],
    ) -> ActsPair<Self::Ops> {
        let [first, second] = [0, 1].map(|at| self.layer_acts(roles[at], precision, columns[at]));
        (first, second)
    }
}

impl<T> Rows for TensorActs<T> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn columns(&self) -> usize {
        self.columns
    }
}

impl<O: SharedEncoderOps> TensorEncoderOps<O> {
    fn fail(&mut self, rank: usize, error: O::Error) {
        self.failure.get_or_insert(RankError { rank, error });
    }

    /// What is on the first rank alone.
    fn first<T>(ranks: &[Option<T>]) -> &T {
        match ranks.first() {
            Some(Some(first)) => first,
            _ => panic!("activations and layers of the first rank"),
        }
    }
}

impl<O: SharedEncoderOps> Ops for TensorEncoderOps<O> {
    type Error = RankError<O::Error>;
    type Acts = TensorActs<O::Acts>;
    type Linear = TensorLinear<O::Linear>;
    type Embedding = O::Embedding;
    type Norm = TensorParts<O::Norm>;
    type Bias = TensorParts<O::Bias>;

    fn resize(&mut self, acts: &mut Self::Acts, rows: usize) {
        acts.rows = rows;
        for (ops, acts) in self.ranks.iter_mut().zip(&mut acts.ranks) {
            if let Some(acts) = acts {
                ops.resize(acts, rows);
            }
        }
        for (ops, sums) in self.ranks.iter_mut().zip(&mut acts.sums[0]) {
            ops.resize(sums, rows);
        }
    }

    fn room_bytes(acts: &Self::Acts) -> u64 {
        acts.ranks.iter().flatten().chain(&acts.sums[0]).map(O::room_bytes).sum()
    }

    /// The first rank looks the tokens up; all get the rows.
    fn embed(&mut self, batch: &TokenBatch<'_>, tables: &Self::Embedding, out: &mut Self::Acts) {
        let Some(Some(first)) = out.ranks.first_mut() else { return };
        self.ranks[0].embed(batch, tables, first);
        match self.ranks[0].read_rows(first) {
            Ok(rows) => {
                for (ops, out) in self.ranks.iter_mut().zip(&mut out.ranks).skip(1) {
                    if let Some(out) = out {
                        ops.write_rows(&rows, out);
                    }
                }
            }
            Err(error) => self.fail(0, error),
        }
    }

    fn linear(&mut self, x: &Self::Acts, weights: &Self::Linear, activation: Activation, out: &mut Self::Acts) {
        for (rank, ops) in self.ranks.iter_mut().enumerate() {
            if let (Some(x), Some(weights), Some(out)) = (&x.ranks[rank], &weights.ranks[rank], &mut out.ranks[rank]) {
                ops.linear(x, weights, activation, out);
            }
        }
    }

    fn linear_add_norm(&mut self, x: &Self::Acts, weights: &Self::Linear, norm: &Self::Norm, hidden: &mut Self::Acts) {
        let has_part = |rank: usize| x.ranks[rank].is_some() && weights.ranks[rank].is_some();
        // All ranks are asked before one is waited for.
        for (rank, ops) in self.ranks.iter_mut().enumerate() {
            if let (Some(x), Some(weights)) = (&x.ranks[rank], &weights.ranks[rank]) {
                ops.linear(x, weights, Activation::Identity, &mut hidden.sums[0][rank]);
            }
        }
        let mut sum = vec![0.0; hidden.rows * hidden.columns];
        for rank in (0..self.ranks.len()).filter(|rank| has_part(*rank)) {
            match self.ranks[rank].read_rows(&hidden.sums[0][rank]) {
                Ok(own) => sum.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own),
                Err(error) => self.fail(rank, error),
            }
        }
        for (rank, ops) in self.ranks.iter_mut().enumerate() {
            if let Some(hidden) = &mut hidden.ranks[rank] {
                ops.add_rows_norm(&sum, &norm.0[rank], hidden);
            }
        }
    }

    fn attention(
        &mut self,
        qkv: &Self::Acts,
        batch: &TokenBatch<'_>,
        shape: AttentionShape<'_, Self::Bias>,
        out: &mut Self::Acts,
    ) {
        for (rank, ops) in self.ranks.iter_mut().enumerate() {
            if let (Some(qkv_own), Some(out)) = (&qkv.ranks[rank], &mut out.ranks[rank]) {
                let bias = shape.bias.map(|bias| &bias.0[rank]);
                ops.attention(qkv_own, batch, AttentionShape { heads: qkv.heads[rank], bias }, out);
            }
        }
    }

    fn pool(&mut self, hidden: &Self::Acts, batch: &TokenBatch<'_>, shape: PoolShape<'_>, out: &mut Self::Acts) {
        if let Some(Some(out)) = out.ranks.first_mut() {
            self.ranks[0].pool(Self::first(&hidden.ranks), batch, shape, out);
        }
    }

    fn finish(&mut self, acts: &Self::Acts, normalize: bool) {
        self.ranks[0].finish(Self::first(&acts.ranks), normalize);
    }

    fn answer(&mut self) -> Result<&[f32], Self::Error> {
        let failure = self.failure.take();
        let answer = self.ranks[0].answer().map_err(|error| RankError { rank: 0, error });
        failure.map_or(answer, Err)
    }
}

impl<O: SharedEncoderOps> SharedEncoderOps for TensorEncoderOps<O> {
    /// The same on all ranks: the first one's are taken.
    fn read_rows(&mut self, acts: &Self::Acts) -> Result<Vec<f32>, Self::Error> {
        let rows = self.ranks[0].read_rows(Self::first(&acts.ranks)).map_err(|error| RankError { rank: 0, error });
        self.failure.take().map_or(rows, Err)
    }

    fn write_rows(&mut self, rows: &[f32], acts: &mut Self::Acts) {
        for (ops, acts) in self.ranks.iter_mut().zip(&mut acts.ranks) {
            if let Some(acts) = acts {
                ops.write_rows(rows, acts);
            }
        }
    }

    fn add_rows_norm(&mut self, rows: &[f32], norm: &Self::Norm, hidden: &mut Self::Acts) {
        for ((ops, norm), hidden) in self.ranks.iter_mut().zip(&norm.0).zip(&mut hidden.ranks) {
            if let Some(hidden) = hidden {
                ops.add_rows_norm(rows, norm, hidden);
            }
        }
    }
}
