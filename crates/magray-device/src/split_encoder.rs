//! Two devices one after the other for encoders, as [`Split`] is for decoders: the first has the tables and its layers, the last the others
//! and what follows them. Computes nothing itself; what layers add to crosses once a pass, through the host.

use crate::split::{Split, SplitActs, SplitError, SplitPart, SplitRope};
use crate::{
    ActsPair, AttentionShape, Device, DistanceBias, Embedding, EncoderActs, EncoderRole, LinearNumbers, LinearSource,
    Norm, Numbers, Ops, Place, PoolShape, Rows, SharedEncoderOps, TokenBatch,
};
use magray_core::{Activation, Precision};
use std::ops::Deref;

type OpsOf<A> = <<A as Deref>::Target as Device>::Ops;
type ErrorOf<A> = <<A as Deref>::Target as Device>::Error;
type LinearOf<A> = <OpsOf<A> as Ops>::Linear;
type NormOf<A> = <OpsOf<A> as Ops>::Norm;

/// The operations of two devices on encoders.
#[derive(Debug)]
pub struct SplitEncoderOps<A: Ops, B: Ops> {
    first: A,
    last: B,
    first_layers: usize,
    /// The last one computes.
    has_crossed: bool,
    failure: Option<SplitError<A::Error, B::Error>>,
}

impl<A: Deref<Target: Device>, B: Deref<Target: Device>> Split<A, B>
where
    OpsOf<A>: SharedEncoderOps,
    OpsOf<B>: SharedEncoderOps,
{
    /// The operations of both as those of one.
    pub fn encoder_ops(&self, first: OpsOf<A>, last: OpsOf<B>) -> SplitEncoderOps<OpsOf<A>, OpsOf<B>> {
        SplitEncoderOps { first, last, first_layers: self.first_layers, has_crossed: false, failure: None }
    }

    /// Makes a part of a layer, or of what follows them, where it belongs.
    fn put_encoder<S, X, Y>(
        &self,
        place: Place,
        source: S,
        first: impl FnOnce(&A::Target, Place, S) -> Result<X, ErrorOf<A>>,
        last: impl FnOnce(&B::Target, Place, S) -> Result<Y, ErrorOf<B>>,
    ) -> Result<SplitPart<X, Y>, SplitError<ErrorOf<A>, ErrorOf<B>>> {
        Ok(match self.places(place) {
            (Some(place), _) => SplitPart::First(first(&*self.first, place, source).map_err(SplitError::First)?),
            (None, place) => {
                let place = place.unwrap_or(Place::Head);
                SplitPart::Last(last(&*self.last, place, source).map_err(SplitError::Last)?)
            }
        })
    }
}

impl<A: Deref<Target: Device>, B: Deref<Target: Device>> Device for Split<A, B>
where
    OpsOf<A>: SharedEncoderOps,
    OpsOf<B>: SharedEncoderOps,
{
    type Error = SplitError<ErrorOf<A>, ErrorOf<B>>;
    type Ops = SplitEncoderOps<OpsOf<A>, OpsOf<B>>;

    fn linear(
        &self,
        source: LinearSource<'_>,
        precision: Precision,
    ) -> Result<SplitPart<LinearOf<A>, LinearOf<B>>, Self::Error> {
        let weights = vec![Numbers::new(source.weights)];
        self.linear_of(LinearNumbers { weights, inputs: source.inputs, bias: source.bias.to_vec() }, precision)
    }

    fn linear_of(
        &self,
        source: LinearNumbers,
        precision: Precision,
    ) -> Result<SplitPart<LinearOf<A>, LinearOf<B>>, Self::Error> {
        self.layer_linear(Place::Head, EncoderRole::Pooled, source, precision)
    }

    fn layer_linear(
        &self,
        place: Place,
        role: EncoderRole,
        source: LinearNumbers,
        precision: Precision,
    ) -> Result<SplitPart<LinearOf<A>, LinearOf<B>>, Self::Error> {
        let first = |device: &A::Target, place, source| device.layer_linear(place, role, source, precision);
        self.put_encoder(place, source, first, |device, place, source| {
            device.layer_linear(place, role, source, precision)
        })
    }

    fn norm(&self, norm: Norm) -> Result<SplitPart<NormOf<A>, NormOf<B>>, Self::Error> {
        self.layer_norm(Place::Head, norm)
    }

    fn layer_norm(&self, place: Place, norm: Norm) -> Result<SplitPart<NormOf<A>, NormOf<B>>, Self::Error> {
        self.put_encoder(place, norm, A::Target::layer_norm, B::Target::layer_norm)
    }

    fn embedding(
        &self,
        embedding: Embedding,
        precision: Precision,
    ) -> Result<<Self::Ops as Ops>::Embedding, Self::Error> {
        self.first.embedding(embedding, precision).map_err(SplitError::First)
    }

    fn bias(&self, bias: DistanceBias) -> Result<<Self::Ops as Ops>::Bias, Self::Error> {
        let first = self.first.bias(bias.clone()).map_err(SplitError::First)?;
        Ok(SplitRope { first, last: self.last.bias(bias).map_err(SplitError::Last)? })
    }

    fn acts(&self, precision: Precision, columns: usize) -> <Self::Ops as Ops>::Acts {
        self.layer_acts(EncoderActs::Pooled, precision, columns)
    }

    fn layer_acts(&self, role: EncoderActs, precision: Precision, columns: usize) -> <Self::Ops as Ops>::Acts {
        let first = self.first.layer_acts(role, precision, columns);
        SplitActs { first, last: self.last.layer_acts(role, precision, columns), columns }
    }

    fn layer_acts_in_turn(
        &self,
        roles: [EncoderActs; 2],
        precision: Precision,
        columns: [usize; 2],
    ) -> ActsPair<Self::Ops> {
        let first = self.first.layer_acts_in_turn(roles, precision, columns);
        let last = self.last.layer_acts_in_turn(roles, precision, columns);
        let pair = |first, last, columns| SplitActs { first, last, columns };
        (pair(first.0, last.0, columns[0]), pair(first.1, last.1, columns[1]))
    }
}

impl<A, B: Rows> Rows for SplitActs<A, B> {
    fn rows(&self) -> usize {
        self.last.rows()
    }

    fn columns(&self) -> usize {
        self.columns
    }
}

impl<A: SharedEncoderOps, B: SharedEncoderOps> Ops for SplitEncoderOps<A, B> {
    type Error = SplitError<A::Error, B::Error>;
    type Acts = SplitActs<A::Acts, B::Acts>;
    type Linear = SplitPart<A::Linear, B::Linear>;
    type Embedding = A::Embedding;
    type Norm = SplitPart<A::Norm, B::Norm>;
    type Bias = SplitRope<A::Bias, B::Bias>;

    fn resize(&mut self, acts: &mut Self::Acts, rows: usize) {
        self.first.resize(&mut acts.first, rows);
        self.last.resize(&mut acts.last, rows);
    }

    fn room_bytes(acts: &Self::Acts) -> u64 {
        A::room_bytes(&acts.first) + B::room_bytes(&acts.last)
    }

    /// Where the first device failed, the last one gets zeros, so that its pass ends as every other; the failure is the answer.
    fn enter(&mut self, layer: usize, hidden: &mut Self::Acts) {
        let Some(layer) = layer.checked_sub(self.first_layers) else {
            return self.first.enter(layer, &mut hidden.first);
        };
        if layer == 0 {
            let rows = self.first.read_rows(&hidden.first).unwrap_or_else(|error| {
                self.failure.get_or_insert(SplitError::First(error));
                vec![0.0; hidden.last.rows() * hidden.columns]
            });
            self.last.write_rows(&rows, &mut hidden.last);
            self.has_crossed = true;
        }
        self.last.enter(layer, &mut hidden.last);
    }

    fn embed(&mut self, batch: &TokenBatch<'_>, tables: &Self::Embedding, out: &mut Self::Acts) {
        self.has_crossed = false;
        self.first.embed(batch, tables, &mut out.first);
    }

    fn linear(&mut self, x: &Self::Acts, weights: &Self::Linear, activation: Activation, out: &mut Self::Acts) {
        match weights.is_of_first() {
            true => self.first.linear(&x.first, weights.first(), activation, &mut out.first),
            false => self.last.linear(&x.last, weights.last(), activation, &mut out.last),
        }
    }

    fn linear_add_norm(&mut self, x: &Self::Acts, weights: &Self::Linear, norm: &Self::Norm, hidden: &mut Self::Acts) {
        match weights.is_of_first() {
            true => self.first.linear_add_norm(&x.first, weights.first(), norm.first(), &mut hidden.first),
            false => self.last.linear_add_norm(&x.last, weights.last(), norm.last(), &mut hidden.last),
        }
    }

    fn attention(
        &mut self,
        qkv: &Self::Acts,
        batch: &TokenBatch<'_>,
        shape: AttentionShape<'_, Self::Bias>,
        out: &mut Self::Acts,
    ) {
        let heads = shape.heads;
        match self.has_crossed {
            false => {
                let shape = AttentionShape { heads, bias: shape.bias.map(|bias| &bias.first) };
                self.first.attention(&qkv.first, batch, shape, &mut out.first);
            }
            true => {
                let shape = AttentionShape { heads, bias: shape.bias.map(|bias| &bias.last) };
                self.last.attention(&qkv.last, batch, shape, &mut out.last);
            }
        }
    }

    fn pool(&mut self, hidden: &Self::Acts, batch: &TokenBatch<'_>, shape: PoolShape<'_>, out: &mut Self::Acts) {
        self.last.pool(&hidden.last, batch, shape, &mut out.last);
    }

    fn finish(&mut self, acts: &Self::Acts, normalize: bool) {
        self.last.finish(&acts.last, normalize);
    }

    fn answer(&mut self) -> Result<&[f32], Self::Error> {
        let failure = self.failure.take();
        let answer = self.last.answer().map_err(SplitError::Last);
        failure.map_or(answer, Err)
    }
}

impl<A: SharedEncoderOps, B: SharedEncoderOps> SharedEncoderOps for SplitEncoderOps<A, B> {
    /// Of the last device, where a pass ends.
    fn read_rows(&mut self, acts: &Self::Acts) -> Result<Vec<f32>, Self::Error> {
        let rows = self.last.read_rows(&acts.last).map_err(SplitError::Last);
        self.failure.take().map_or(rows, Err)
    }

    /// Of the first device, where a pass begins.
    fn write_rows(&mut self, rows: &[f32], acts: &mut Self::Acts) {
        self.has_crossed = false;
        self.first.write_rows(rows, &mut acts.first);
    }

    fn add_rows_norm(&mut self, rows: &[f32], norm: &Self::Norm, hidden: &mut Self::Acts) {
        match norm.is_of_first() {
            true => self.first.add_rows_norm(rows, norm.first(), &mut hidden.first),
            false => self.last.add_rows_norm(rows, norm.last(), &mut hidden.last),
        }
    }
}
