//! Two devices as one for a decoder: the first has its first layers and the table, the last the other layers and the head. For encoders see
//! `split_encoder`.
//! Either may be such a pair again. Computes nothing itself; the residual stream crosses once a pass, through the host.

use crate::{
    ActsRole, AttentionLayer, BlockLinear, Choice, DecoderDevice, DecoderOps, KvFormat, KvShape, Mask, Place, Role,
    RopeSource, StepBatch,
};
use magray_core::Activation;
use std::fmt;
use std::ops::Deref;

/// Two devices that have the layers of a decoder one after the other, each by a reference of any kind.
#[derive(Debug)]
pub struct Split<A, B> {
    pub(crate) first: A,
    pub(crate) last: B,
    pub(crate) first_layers: usize,
}

/// Their operations. One pass is under way at a time: tokens are not fed back on the device.
#[derive(Debug)]
pub struct SplitOps<A, B, E, F> {
    first: A,
    last: B,
    first_layers: usize,
    /// Why the residual stream did not reach the last device.
    failure: Option<SplitError<E, F>>,
    /// What it gets then.
    nothing: Vec<f32>,
}

/// Which of the two failed, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitError<A, B> {
    /// The one with the first layers.
    First(A),
    /// The one with the last layers.
    Last(B),
}

/// A linear layer or a norm, on the device that needs it.
#[derive(Debug)]
pub enum SplitPart<A, B> {
    /// On the first.
    First(A),
    /// On the last.
    Last(B),
    /// On both, as a table is that is the head too.
    Both(A, B),
}

/// Activations on both.
#[derive(Debug)]
pub struct SplitActs<A, B> {
    pub(crate) first: A,
    pub(crate) last: B,
    pub(crate) columns: usize,
}

/// Frequencies, or biases of attention scores, on both.
#[derive(Debug)]
pub struct SplitRope<A, B> {
    pub(crate) first: A,
    pub(crate) last: B,
}

/// Pages under the same numbers on both: each holds the keys and values of its own layers.
#[derive(Debug)]
pub struct SplitPages<A, B> {
    first: A,
    last: B,
}

impl<A, B> Split<A, B> {
    /// The first device has this many layers.
    pub fn new(first: A, last: B, first_layers: usize) -> Self {
        assert!(first_layers > 0, "a first layer");
        Self { first, last, first_layers }
    }

    /// Which of the two has a part, and where it belongs there; both for a table that is the head too.
    pub(crate) fn places(&self, place: Place) -> (Option<Place>, Option<Place>) {
        match place {
            Place::Table => (Some(place), None),
            Place::Layer(layer) if layer < self.first_layers => (Some(place), None),
            Place::Layer(layer) => (None, Some(Place::Layer(layer - self.first_layers))),
            Place::Head => (None, Some(place)),
            Place::TiedTable => (Some(Place::Table), Some(Place::Head)),
        }
    }
}

impl<A: Deref<Target: DecoderDevice>, B: Deref<Target: DecoderDevice>> Split<A, B> {
    /// The operations of both as those of one.
    pub fn ops(&self, first: Ops<A>, last: Ops<B>) -> SplitOps<Ops<A>, Ops<B>, Error<A>, Error<B>> {
        SplitOps { first, last, first_layers: self.first_layers, failure: None, nothing: Vec::new() }
    }

    /// Makes a part where it belongs.
    fn put<S: Clone, X, Y>(
        &self,
        place: Place,
        source: S,
        first: impl FnOnce(&A::Target, Place, S) -> Result<X, Error<A>>,
        last: impl FnOnce(&B::Target, Place, S) -> Result<Y, Error<B>>,
    ) -> Result<SplitPart<X, Y>, SplitError<Error<A>, Error<B>>> {
        let first = |place, source| first(&*self.first, place, source).map_err(SplitError::First);
        let last = |place, source| last(&*self.last, place, source).map_err(SplitError::Last);
        Ok(match self.places(place) {
            (Some(one), Some(other)) => SplitPart::Both(first(one, source.clone())?, last(other, source)?),
            (Some(place), None) => SplitPart::First(first(place, source)?),
            (None, place) => SplitPart::Last(last(place.unwrap_or(Place::Head), source)?),
        })
    }
}

impl<A: Deref<Target: DecoderDevice>, B: Deref<Target: DecoderDevice>> DecoderDevice for Split<A, B> {
    type Error = SplitError<Error<A>, Error<B>>;
    type Ops = SplitOps<Ops<A>, Ops<B>, Error<A>, Error<B>>;

    fn block_linear(&self, source: BlockLinear) -> Result<Linear<A, B>, Self::Error> {
        self.linear_at(Place::TiedTable, Role::Vocabulary, source)
    }

    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<Norm<A, B>, Self::Error> {
        self.norm_at(Place::TiedTable, gain, epsilon)
    }

    fn linear_at(&self, place: Place, role: Role, source: BlockLinear) -> Result<Linear<A, B>, Self::Error> {
        let first = |device: &A::Target, place, source| device.linear_at(place, role, source);
        self.put(place, source, first, |device, place, source| device.linear_at(place, role, source))
    }

    fn norm_at(&self, place: Place, gain: Vec<f32>, epsilon: f32) -> Result<Norm<A, B>, Self::Error> {
        let first = |device: &A::Target, place, gain| device.norm_at(place, gain, epsilon);
        self.put(place, gain, first, |device, place, gain| device.norm_at(place, gain, epsilon))
    }

    fn rope(&self, source: RopeSource) -> Result<<Self::Ops as DecoderOps>::Rope, Self::Error> {
        let first = self.first.rope(source.clone()).map_err(SplitError::First)?;
        Ok(SplitRope { first, last: self.last.rope(source).map_err(SplitError::Last)? })
    }

    fn pages(&self, shape: KvShape, most: usize) -> Result<<Self::Ops as DecoderOps>::Pages, Self::Error> {
        self.pages_in(KvFormat::default(), shape, most)
    }

    fn grow_pages(&self, pages: &mut <Self::Ops as DecoderOps>::Pages, count: usize) -> Result<(), Self::Error> {
        self.first.grow_pages(&mut pages.first, count).map_err(SplitError::First)?;
        self.last.grow_pages(&mut pages.last, count).map_err(SplitError::Last)
    }

    fn has_pages(&self, pages: &<Self::Ops as DecoderOps>::Pages, count: usize) -> bool {
        self.first.has_pages(&pages.first, count) && self.last.has_pages(&pages.last, count)
    }

    fn pages_in(
        &self,
        format: KvFormat,
        shape: KvShape,
        most: usize,
    ) -> Result<<Self::Ops as DecoderOps>::Pages, Self::Error> {
        assert!(shape.layers > self.first_layers, "a layer for the last device");
        let of = |layers| KvShape { layers, ..shape };
        let first = self.first.pages_in(format, of(self.first_layers), most).map_err(SplitError::First)?;
        let last = self.last.pages_in(format, of(shape.layers - self.first_layers), most).map_err(SplitError::Last)?;
        Ok(SplitPages { first, last })
    }

    fn decoder_acts(&self, columns: usize) -> <Self::Ops as DecoderOps>::Acts {
        self.acts_for(ActsRole::Hidden, columns)
    }

    fn acts_for(&self, role: ActsRole, columns: usize) -> <Self::Ops as DecoderOps>::Acts {
        SplitActs { first: self.first.acts_for(role, columns), last: self.last.acts_for(role, columns), columns }
    }
}

/// Operations and failures of a device that is referred to.
type Ops<A> = <<A as Deref>::Target as DecoderDevice>::Ops;
type Error<A> = <<A as Deref>::Target as DecoderDevice>::Error;
type Linear<A, B> = SplitPart<<Ops<A> as DecoderOps>::Linear, <Ops<B> as DecoderOps>::Linear>;
type Norm<A, B> = SplitPart<<Ops<A> as DecoderOps>::Norm, <Ops<B> as DecoderOps>::Norm>;

impl<A, B> SplitPart<A, B> {
    pub(crate) fn first(&self) -> &A {
        match self {
            Self::First(part) | Self::Both(part, _) => part,
            Self::Last(_) => panic!("a part of the last device"),
        }
    }

    pub(crate) fn last(&self) -> &B {
        match self {
            Self::Last(part) | Self::Both(_, part) => part,
            Self::First(_) => panic!("a part of the first device"),
        }
    }

    /// Whether the first device multiplies with it. What is on both belongs to no layer.
    pub(crate) fn is_of_first(&self) -> bool {
        matches!(self, Self::First(_))
    }
}

impl<A: DecoderOps, B: DecoderOps> SplitOps<A, B, A::Error, B::Error> {
    /// The operations of each.
    pub fn into_parts(self) -> (A, B) {
        (self.first, self.last)
    }

    /// The residual stream goes to the last device. Where the first one failed, that one gets zeros, so that its step begins and ends as
    /// every other; the failure is the answer.
    fn hand_over(&mut self, steps: &StepBatch<'_>, hidden: &mut SplitActs<A::Acts, B::Acts>) {
        let numbers = steps.tokens() * hidden.columns;
        match self.first.read_hidden(steps, &hidden.first) {
            Ok(rows) => self.last.write_hidden(steps, rows, &mut hidden.last),
            Err(error) => {
                self.failure.get_or_insert(SplitError::First(error));
                self.nothing.clear();
                self.nothing.resize(numbers, 0.0);
                self.last.write_hidden(steps, &self.nothing, &mut hidden.last);
            }
        }
    }

    /// The failure of the step, once the last device has ended it too.
    fn check(&mut self) -> Result<(), SplitError<A::Error, B::Error>> {
        let Some(failure) = self.failure.take() else { return Ok(()) };
        let _ = self.last.answer();
        Err(failure)
    }
}

/// A layer's attention as the first device knows it, and as the last one does.
macro_rules! attention_of {
    ($layer:expr, $number:expr, $side:ident) => {
        AttentionLayer {
            layer: $number,
            heads: $layer.heads,
            window: $layer.window,
            scale: $layer.scale,
            cap: $layer.cap,
            rope: &$layer.rope.$side,
            query_norm: $layer.query_norm.map(SplitPart::$side),
            key_norm: $layer.key_norm.map(SplitPart::$side),
        }
    };
}

impl<A: DecoderOps, B: DecoderOps> DecoderOps for SplitOps<A, B, A::Error, B::Error> {
    type Error = SplitError<A::Error, B::Error>;
    type Acts = SplitActs<A::Acts, B::Acts>;
    type Linear = SplitPart<A::Linear, B::Linear>;
    type Norm = SplitPart<A::Norm, B::Norm>;
    type Rope = SplitRope<A::Rope, B::Rope>;
    type Pages = SplitPages<A::Pages, B::Pages>;

    fn resize(&mut self, acts: &mut Self::Acts, rows: usize) {
        self.first.resize(&mut acts.first, rows);
        self.last.resize(&mut acts.last, rows);
    }

    fn embed(&mut self, steps: &StepBatch<'_>, table: &Self::Linear, scale: f32, out: &mut Self::Acts) {
        self.first.embed(steps, table.first(), scale, &mut out.first);
    }

    fn enter(&mut self, steps: &StepBatch<'_>, layer: usize, hidden: &mut Self::Acts) {
        let Some(layer) = layer.checked_sub(self.first_layers) else {
            return self.first.enter(steps, layer, &mut hidden.first);
        };
        if layer == 0 {
            self.hand_over(steps, hidden);
        }
        self.last.enter(steps, layer, &mut hidden.last);
    }

    fn read_hidden<'a>(&'a mut self, steps: &StepBatch<'_>, hidden: &'a Self::Acts) -> Result<&'a [f32], Self::Error> {
        let failure = self.failure.take();
        let rows = self.last.read_hidden(steps, &hidden.last).map_err(SplitError::Last);
        failure.map_or(rows, Err)
    }

    fn write_hidden(&mut self, steps: &StepBatch<'_>, rows: &[f32], hidden: &mut Self::Acts) {
        self.first.write_hidden(steps, rows, &mut hidden.first);
    }

    fn norm_linear(&mut self, x: &Self::Acts, norm: &Self::Norm, weights: &Self::Linear, out: &mut Self::Acts) {
        match weights.is_of_first() {
            true => self.first.norm_linear(&x.first, norm.first(), weights.first(), &mut out.first),
            false => self.last.norm_linear(&x.last, norm.last(), weights.last(), &mut out.last),
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
        match weights.is_of_first() {
            true => self.first.gated_linear(&x.first, norm.first(), weights.first(), activation, &mut out.first),
            false => self.last.gated_linear(&x.last, norm.last(), weights.last(), activation, &mut out.last),
        }
    }

    fn linear_add(
        &mut self,
        x: &Self::Acts,
        weights: &Self::Linear,
        norm: Option<&Self::Norm>,
        hidden: &mut Self::Acts,
    ) {
        match weights.is_of_first() {
            true => self.first.linear_add(&x.first, weights.first(), norm.map(SplitPart::first), &mut hidden.first),
            false => self.last.linear_add(&x.last, weights.last(), norm.map(SplitPart::last), &mut hidden.last),
        }
    }

    fn rope_append(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, Self::Norm, Self::Rope>,
        qkv: &mut Self::Acts,
        pages: &mut Self::Pages,
    ) {
        match layer.layer.checked_sub(self.first_layers) {
            None => {
                let layer = attention_of!(layer, layer.layer, first);
                self.first.rope_append(steps, &layer, &mut qkv.first, &mut pages.first);
            }
            Some(number) => {
                let layer = attention_of!(layer, number, last);
                self.last.rope_append(steps, &layer, &mut qkv.last, &mut pages.last);
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
        match layer.layer.checked_sub(self.first_layers) {
            None => {
                let layer = attention_of!(layer, layer.layer, first);
                self.first.attend(steps, &layer, &qkv.first, &pages.first, &mut out.first);
            }
            Some(number) => {
                let layer = attention_of!(layer, number, last);
                self.last.attend(steps, &layer, &qkv.last, &pages.last, &mut out.last);
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
        self.last.logits(steps, &hidden.last, norm.last(), head.last(), cap);
    }

    fn answer(&mut self) -> Result<&[f32], Self::Error> {
        self.check()?;
        self.last.answer().map_err(SplitError::Last)
    }

    fn chosen(&mut self) -> Result<Vec<u32>, Self::Error> {
        self.check()?;
        self.last.chosen().map_err(SplitError::Last)
    }

    fn draw_by(&mut self, choices: &[Choice]) -> bool {
        self.last.draw_by(choices)
    }

    fn choose_later(&mut self, later: bool) -> bool {
        self.last.choose_later(later)
    }

    fn choose_under(&mut self, masks: &[Mask<'_>]) {
        self.last.choose_under(masks);
    }

    fn answer_rows(&mut self, rows: &[usize], columns: usize) -> Result<Vec<f32>, Self::Error> {
        self.check()?;
        self.last.answer_rows(rows, columns).map_err(SplitError::Last)
    }

    fn appends_first(&self) -> bool {
        self.first.appends_first() && self.last.appends_first()
    }

    fn rest(&mut self) -> Result<(), Self::Error> {
        self.first.rest().map_err(SplitError::First)?;
        self.last.rest().map_err(SplitError::Last)
    }

    fn trim(&mut self) {
        self.first.trim();
        self.last.trim();
    }

    fn held_bytes(&self, acts: &[&Self::Acts]) -> u64 {
        let (first, last): (Vec<_>, Vec<_>) = acts.iter().map(|acts| (&acts.first, &acts.last)).unzip();
        self.first.held_bytes(&first) + self.last.held_bytes(&last)
    }
}

impl<A: fmt::Display, B: fmt::Display> fmt::Display for SplitError<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First(error) => error.fmt(f),
            Self::Last(error) => error.fmt(f),
        }
    }
}

impl<A: std::error::Error, B: std::error::Error> std::error::Error for SplitError<A, B> {}
