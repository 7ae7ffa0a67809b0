//! Several devices of one kind as one for a decoder, each with some of its layers, one after the other: what [`crate::Split`] is for two of
//! any kinds. The first has the table, the last the head. Computes nothing itself; the residual stream crosses between two of them once a
//! pass, through the host.

use crate::{
    ActsRole, AttentionLayer, BlockLinear, Choice, DecoderDevice, DecoderOps, KvFormat, KvShape, Place, Role,
    RopeSource, StepBatch,
};
use magray_core::Activation;
use std::fmt;
use std::ops::Deref;

/// Devices that have the layers of a decoder one after the other, each by a reference of any kind.
#[derive(Debug)]
pub struct Pipeline<A> {
    stages: Vec<A>,
    /// The first layer behind each stage.
    ends: Vec<usize>,
}

/// Their operations. One pass is under way at a time: tokens are not fed back on the device.
#[derive(Debug)]
pub struct PipelineOps<O: DecoderOps> {
    stages: Vec<O>,
    ends: Vec<usize>,
    failure: Option<StageError<O::Error>>,
    /// The residual stream between two stages.
    rows: Vec<f32>,
}

/// Which stage failed, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageError<E> {
    /// The stage.
    pub stage: usize,
    /// What its device says.
    pub error: E,
}

/// A linear layer or a norm, on the stage that needs it.
#[derive(Debug)]
pub enum StagePart<T> {
    /// On this one.
    Of(usize, T),
    /// On the first and on the last, as a table is that is the head too.
    Ends(T, T),
}

/// What is on all stages: activations, frequencies, pages.
#[derive(Debug)]
pub struct OnStages<T>(Vec<T>);

/// Activations on all stages.
#[derive(Debug)]
pub struct StageActs<T> {
    stages: Vec<T>,
    columns: usize,
}

type Ops<A> = <<A as Deref>::Target as DecoderDevice>::Ops;
type Error<A> = StageError<<<A as Deref>::Target as DecoderDevice>::Error>;

impl<A: Deref<Target: DecoderDevice>> Pipeline<A> {
    /// Each device with its number of layers, in their order.
    pub fn new(stages: Vec<(A, usize)>) -> Self {
        assert!(!stages.is_empty() && stages.iter().all(|(_, layers)| *layers > 0), "a layer for each stage");
        let mut ends = Vec::with_capacity(stages.len());
        for (_, layers) in &stages {
            ends.push(ends.last().unwrap_or(&0) + layers);
        }
        Self { stages: stages.into_iter().map(|(device, _)| device).collect(), ends }
    }

    /// Its devices.
    pub fn stages(&self) -> &[A] {
        &self.stages
    }

    /// The operations of all stages as those of one device.
    pub fn ops(&self, stages: Vec<Ops<A>>) -> PipelineOps<Ops<A>> {
        assert_eq!(stages.len(), self.stages.len(), "operations of each stage");
        PipelineOps { stages, ends: self.ends.clone(), failure: None, rows: Vec::new() }
    }

    /// Makes a part where it belongs.
    fn put<S: Clone, T>(
        &self,
        place: Place,
        source: S,
        make: impl Fn(&A::Target, Place, S) -> Result<T, <A::Target as DecoderDevice>::Error>,
    ) -> Result<StagePart<T>, Error<A>> {
        let last = self.stages.len() - 1;
        let make = |stage: usize, place, source| {
            make(&*self.stages[stage], place, source).map_err(|error| StageError { stage, error })
        };
        Ok(match place {
            Place::Layer(layer) => {
                let (stage, layer) = stage_of(&self.ends, layer);
                StagePart::Of(stage, make(stage, Place::Layer(layer), source)?)
            }
            Place::TiedTable if last > 0 => {
                StagePart::Ends(make(0, Place::Table, source.clone())?, make(last, Place::Head, source)?)
            }
            Place::Table | Place::TiedTable => StagePart::Of(0, make(0, place, source)?),
            Place::Head => StagePart::Of(last, make(last, place, source)?),
        })
    }

    fn each<T>(
        &self,
        mut make: impl FnMut(usize, &A::Target) -> Result<T, <A::Target as DecoderDevice>::Error>,
    ) -> Result<Vec<T>, Error<A>> {
        let make = |(stage, device): (usize, &A)| make(stage, device).map_err(|error| StageError { stage, error });
        self.stages.iter().enumerate().map(make).collect()
    }
}

/// The stage that has a layer, and its number there.
fn stage_of(ends: &[usize], layer: usize) -> (usize, usize) {
    let stage = ends.partition_point(|end| *end <= layer);
    assert!(stage < ends.len(), "layer {layer} of {ends:?}");
    (stage, layer - stage.checked_sub(1).map_or(0, |before| ends[before]))
}

impl<A: Deref<Target: DecoderDevice>> DecoderDevice for Pipeline<A> {
    type Error = Error<A>;
    type Ops = PipelineOps<Ops<A>>;

    fn block_linear(&self, source: BlockLinear) -> Result<<Self::Ops as DecoderOps>::Linear, Self::Error> {
        self.linear_at(Place::TiedTable, Role::Vocabulary, source)
    }

    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<<Self::Ops as DecoderOps>::Norm, Self::Error> {
        self.norm_at(Place::TiedTable, gain, epsilon)
    }

    fn linear_at(
        &self,
        place: Place,
        role: Role,
        source: BlockLinear,
    ) -> Result<<Self::Ops as DecoderOps>::Linear, Self::Error> {
        self.put(place, source, |device, place, source| device.linear_at(place, role, source))
    }

    fn norm_at(
        &self,
        place: Place,
        gain: Vec<f32>,
        epsilon: f32,
    ) -> Result<<Self::Ops as DecoderOps>::Norm, Self::Error> {
        self.put(place, gain, |device, place, gain| device.norm_at(place, gain, epsilon))
    }

    fn rope(&self, source: RopeSource) -> Result<<Self::Ops as DecoderOps>::Rope, Self::Error> {
        Ok(OnStages(self.each(|_, device| device.rope(source.clone()))?))
    }

    fn pages(&self, shape: KvShape, most: usize) -> Result<<Self::Ops as DecoderOps>::Pages, Self::Error> {
        self.pages_in(KvFormat::default(), shape, most)
    }

    fn pages_in(
        &self,
        format: KvFormat,
        shape: KvShape,
        most: usize,
    ) -> Result<<Self::Ops as DecoderOps>::Pages, Self::Error> {
        assert_eq!(self.ends.last(), Some(&shape.layers), "a stage for each layer");
        let first = |stage: usize| stage.checked_sub(1).map_or(0, |before| self.ends[before]);
        let own = |stage: usize| KvShape { layers: self.ends[stage] - first(stage), ..shape };
        Ok(OnStages(self.each(|stage, device| device.pages_in(format, own(stage), most))?))
    }

    fn grow_pages(&self, pages: &mut <Self::Ops as DecoderOps>::Pages, count: usize) -> Result<(), Self::Error> {
        for (stage, (device, pages)) in self.stages.iter().zip(&mut pages.0).enumerate() {
            device.grow_pages(pages, count).map_err(|error| StageError { stage, error })?;
        }
        Ok(())
    }

    fn decoder_acts(&self, columns: usize) -> <Self::Ops as DecoderOps>::Acts {
        self.acts_for(ActsRole::Hidden, columns)
    }

    fn acts_for(&self, role: ActsRole, columns: usize) -> <Self::Ops as DecoderOps>::Acts {
        StageActs { stages: self.stages.iter().map(|device| device.acts_for(role, columns)).collect(), columns }
    }
}

impl<T> StagePart<T> {
    fn at(&self, stage: usize) -> &T {
        match self {
            Self::Of(own, part) if *own == stage => part,
            Self::Ends(first, _) if stage == 0 => first,
            Self::Ends(_, last) => last,
            Self::Of(own, _) => panic!("a part of stage {own} on stage {stage}"),
        }
    }

    /// The stage that multiplies with it. What is on two belongs to no layer.
    fn stage(&self) -> usize {
        match self {
            Self::Of(stage, _) => *stage,
            Self::Ends(..) => panic!("a layer is on one stage"),
        }
    }
}

impl<O: DecoderOps> PipelineOps<O> {
    /// The operations of each stage.
    pub fn stages(&self) -> &[O] {
        &self.stages
    }

    /// The residual stream goes on to a stage from the one before. Where that one failed, this one gets zeros, so that its step begins and
    /// ends as every other; the failure is the answer.
    fn hand_over(&mut self, steps: &StepBatch<'_>, stage: usize, hidden: &mut StageActs<O::Acts>) {
        let before = stage - 1;
        self.rows.clear();
        match self.stages[before].read_hidden(steps, &hidden.stages[before]) {
            Ok(rows) => self.rows.extend_from_slice(rows),
            Err(error) => {
                self.failure.get_or_insert(StageError { stage: before, error });
                self.rows.resize(steps.tokens() * hidden.columns, 0.0);
            }
        }
        self.stages[stage].write_hidden(steps, &self.rows, &mut hidden.stages[stage]);
    }

    fn last(&mut self) -> (usize, &mut O) {
        let stage = self.stages.len() - 1;
        (stage, &mut self.stages[stage])
    }

    /// The failure of the step, once the last stage has ended it too.
    fn check(&mut self) -> Result<(), StageError<O::Error>> {
        let Some(failure) = self.failure.take() else { return Ok(()) };
        let _ = self.last().1.answer();
        Err(failure)
    }
}

/// A layer's attention as its stage knows it.
macro_rules! attention_of {
    ($layer:expr, $number:expr, $stage:expr) => {
        AttentionLayer {
            layer: $number,
            heads: $layer.heads,
            window: $layer.window,
            scale: $layer.scale,
            cap: $layer.cap,
            rope: &$layer.rope.0[$stage],
            query_norm: $layer.query_norm.map(|norm| norm.at($stage)),
            key_norm: $layer.key_norm.map(|norm| norm.at($stage)),
        }
    };
}

impl<O: DecoderOps> DecoderOps for PipelineOps<O> {
    type Error = StageError<O::Error>;
    type Acts = StageActs<O::Acts>;
    type Linear = StagePart<O::Linear>;
    type Norm = StagePart<O::Norm>;
    type Rope = OnStages<O::Rope>;
    type Pages = OnStages<O::Pages>;

    fn resize(&mut self, acts: &mut Self::Acts, rows: usize) {
        self.stages.iter_mut().zip(&mut acts.stages).for_each(|(ops, acts)| ops.resize(acts, rows));
    }

    fn embed(&mut self, steps: &StepBatch<'_>, table: &Self::Linear, scale: f32, out: &mut Self::Acts) {
        self.stages[0].embed(steps, table.at(0), scale, &mut out.stages[0]);
    }

    fn enter(&mut self, steps: &StepBatch<'_>, layer: usize, hidden: &mut Self::Acts) {
        let (stage, layer) = stage_of(&self.ends, layer);
        if layer == 0 && stage > 0 {
            self.hand_over(steps, stage, hidden);
        }
        self.stages[stage].enter(steps, layer, &mut hidden.stages[stage]);
    }

    fn read_hidden<'a>(&'a mut self, steps: &StepBatch<'_>, hidden: &'a Self::Acts) -> Result<&'a [f32], Self::Error> {
        let failure = self.failure.take();
        let (stage, ops) = self.last();
        let rows = ops.read_hidden(steps, &hidden.stages[stage]).map_err(|error| StageError { stage, error });
        failure.map_or(rows, Err)
    }

    fn write_hidden(&mut self, steps: &StepBatch<'_>, rows: &[f32], hidden: &mut Self::Acts) {
        self.stages[0].write_hidden(steps, rows, &mut hidden.stages[0]);
    }

    fn norm_linear(&mut self, x: &Self::Acts, norm: &Self::Norm, weights: &Self::Linear, out: &mut Self::Acts) {
        let at = weights.stage();
        self.stages[at].norm_linear(&x.stages[at], norm.at(at), weights.at(at), &mut out.stages[at]);
    }

    fn gated_linear(
        &mut self,
        x: &Self::Acts,
        norm: &Self::Norm,
        weights: &Self::Linear,
        activation: Activation,
        out: &mut Self::Acts,
    ) {
        let at = weights.stage();
        self.stages[at].gated_linear(&x.stages[at], norm.at(at), weights.at(at), activation, &mut out.stages[at]);
    }

    fn linear_add(
        &mut self,
        x: &Self::Acts,
        weights: &Self::Linear,
        norm: Option<&Self::Norm>,
        hidden: &mut Self::Acts,
    ) {
        let at = weights.stage();
        let norm = norm.map(|norm| norm.at(at));
        self.stages[at].linear_add(&x.stages[at], weights.at(at), norm, &mut hidden.stages[at]);
    }

    fn rope_append(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, Self::Norm, Self::Rope>,
        qkv: &mut Self::Acts,
        pages: &mut Self::Pages,
    ) {
        let (at, number) = stage_of(&self.ends, layer.layer);
        let layer = attention_of!(layer, number, at);
        self.stages[at].rope_append(steps, &layer, &mut qkv.stages[at], &mut pages.0[at]);
    }

    fn attend(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, Self::Norm, Self::Rope>,
        qkv: &Self::Acts,
        pages: &Self::Pages,
        out: &mut Self::Acts,
    ) {
        let (at, number) = stage_of(&self.ends, layer.layer);
        let layer = attention_of!(layer, number, at);
        self.stages[at].attend(steps, &layer, &qkv.stages[at], &pages.0[at], &mut out.stages[at]);
    }

    fn logits(
        &mut self,
        steps: &StepBatch<'_>,
        hidden: &Self::Acts,
        norm: &Self::Norm,
        head: &Self::Linear,
        cap: Option<f32>,
    ) {
        let (at, ops) = self.last();
        ops.logits(steps, &hidden.stages[at], norm.at(at), head.at(at), cap);
    }

    fn answer(&mut self) -> Result<&[f32], Self::Error> {
        self.check()?;
        let (stage, ops) = self.last();
        ops.answer().map_err(|error| StageError { stage, error })
    }

    fn chosen(&mut self) -> Result<Vec<u32>, Self::Error> {
        self.check()?;
        let (stage, ops) = self.last();
        ops.chosen().map_err(|error| StageError { stage, error })
    }

    fn draw_by(&mut self, choices: &[Choice]) -> bool {
        self.last().1.draw_by(choices)
    }

    fn answer_rows(&mut self, rows: &[usize], columns: usize) -> Result<Vec<f32>, Self::Error> {
        self.check()?;
        let (stage, ops) = self.last();
        ops.answer_rows(rows, columns).map_err(|error| StageError { stage, error })
    }

    fn appends_first(&self) -> bool {
        self.stages.iter().all(DecoderOps::appends_first)
    }

    fn rest(&mut self) -> Result<(), Self::Error> {
        let mut stages = self.stages.iter_mut().enumerate();
        stages.try_for_each(|(stage, ops)| ops.rest().map_err(|error| StageError { stage, error }))
    }

    fn trim(&mut self) {
        self.stages.iter_mut().for_each(DecoderOps::trim);
    }

    fn held_bytes(&self, acts: &[&Self::Acts]) -> u64 {
        let of = |stage: usize| acts.iter().map(|acts| &acts.stages[stage]).collect::<Vec<_>>();
        self.stages.iter().enumerate().map(|(stage, ops)| ops.held_bytes(&of(stage))).sum()
    }
}

impl<E: fmt::Display> fmt::Display for StageError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stage {}: {}", self.stage, self.error)
    }
}

impl<E: std::error::Error> std::error::Error for StageError<E> {}
